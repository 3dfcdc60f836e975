from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import trio

from mqd.client import cluster as cluster_module
from mqd.client.admin import Admin
from mqd.client.bootstrap import parse_bootstrap
from mqd.client.cluster import connect
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    DeadlineExceeded,
    PeerUnreachable,
    error_from_wire,
)
from mqd.client.peer import PeerConnection
from mqd.client.producer import open_producer
from mqd.client.security import Security
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import API_VERSIONS, METADATA, FakeCluster, Hang, HangUp


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("h", [("h", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "h:0", "h:99999", "h:x", ":1"])
def test_bad_bootstrap(text: str) -> None:
    with pytest.raises(ClientError, match=r"address") as caught:
        parse_bootstrap(text)
    assert "host:port" in caught.value.remedy


async def test_the_first_broker_that_responds_is_used(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.down.add(1)
    async with connect([("fake", 9001), ("fake", 9002)], network=cluster) as client:
        assert set(client.view.brokers) == {1, 2}


async def test_no_broker_responds(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.down.add(1)
    with pytest.raises(PeerUnreachable, match=r"nothing listens at fake:9001$"):
        async with connect("fake:9001", network=cluster):
            pass
    with pytest.raises(
        PeerUnreachable, match=r"all 2 brokers \(fake:9001, x:1\): nothing listens$"
    ):
        async with connect("fake:9001,x:1", network=cluster):
            pass
    cluster.down.clear()
    cluster.one.script(API_VERSIONS, HangUp())
    with pytest.raises(
        PeerUnreachable,
        match="none of the brokers can be reached: fake:9001 closed the connection during "
        "authentication; nothing listens at x:1",
    ):
        async with connect("fake:9001,x:1", network=cluster):
            pass


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("PLAINTEXT", "if this listener requires a login or TLS"),
        ("SSL", "the listener may require SASL: set security.protocol=SASL_SSL and sasl.mechanism"),
    ],
)
@pytest.mark.parametrize("request_", [API_VERSIONS, METADATA])
@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_broker_that_ends_the_connection_before_its_first_response(
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    words: str,
    request_: int,
    wait_s: float,
) -> None:
    """A listener with SASL responds to ApiVersions, and ends the connection at another request."""
    monkeypatch.setattr(cluster_module, "secured", lambda network, security: network)
    cluster = FakeCluster(nursery)
    cluster.one.script(request_, *[HangUp()] * 200)
    security = Security(protocol=protocol)
    with pytest.raises(ClientError, match=r"fake:9001 closed .* during authentication$") as caught:
        async with connect("fake:9001", network=cluster, security=security, wait_s=wait_s):
            pass
    assert words in caught.value.remedy
    assert isinstance(caught.value, DeadlineExceeded if wait_s else ConnectionBroken)


async def test_a_later_request_may_have_been_carried_out(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    async with connect("fake:9001", network=cluster) as client:
        cluster.one.script(METADATA, HangUp(after=True))
        with pytest.raises(
            ConnectionBroken, match="fake:9001 closed the connection; the request may have been"
        ):
            await client.refresh([])


async def test_waiting_for_a_node_that_starts(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.down.add(1)

    async def start() -> None:
        await trio.sleep(4)
        cluster.down.clear()

    nursery.start_soon(start)
    async with connect("fake:9001", network=cluster, wait_s=10) as client:
        assert client.view.cluster_id == "fake"
    cluster.down.add(1)
    with pytest.raises(DeadlineExceeded, match="nothing listens"):
        async with connect("fake:9001", network=cluster, wait_s=3):
            pass


async def test_one_connection_for_an_address_whatever_the_number_of_calls(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    async with connect("fake:9001", network=cluster) as client:
        async with trio.open_nursery() as askers:
            for _ in range(5):
                askers.start_soon(client.connection_to, ("fake", 9002))
        assert cluster.connects == 2
        cluster.brokers[2].hang_up_all()
        await trio.testing.wait_all_tasks_blocked()
        await client.connection_to(("fake", 9002))
        assert cluster.connects == 3


async def test_a_silent_node_delays_only_requests_that_need_it(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    for node in (1, 2):
        cluster.brokers[node].script(API_VERSIONS, *[Hang()] * 9)
    began = trio.current_time()
    async with connect("fake:9001,fake:9002,fake:9003", network=cluster) as client:
        assert trio.current_time() - began < 1.5
        assert (await client.any_connection()).peer == "fake:9003"


async def test_a_silent_node_costs_one_timeout(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """However many requests wait, and however long a request may take. The error names the node."""
    cluster = FakeCluster(nursery, nodes=2)
    cluster.brokers[2].script(API_VERSIONS, *[Hang()] * 9)
    errors: list[ClientError] = []
    async with connect("fake:9001", network=cluster) as client:

        async def ask() -> None:
            with pytest.raises(
                PeerUnreachable, match="accepts connections but did not respond within 10 s"
            ) as caught:
                await client.connection_to(("fake", 9002))
            errors.append(caught.value)

        began = trio.current_time()
        async with trio.open_nursery() as askers:
            for _ in range(5):
                askers.start_soon(ask)
        assert trio.current_time() - began < 11
        assert len(set(map(id, errors))) == 5 and {
            each.remedy.split(":")[0] for each in errors
        } == {"broker 2 is frozen, overloaded or cut off"}
        cluster.down.add(2)
        with pytest.raises(PeerUnreachable, match="nothing listens") as caught:
            await client.connection_to(("fake", 9002))
        assert caught.value.remedy == "start broker 2, or see `mqctl cluster health`"
        cluster.down.clear()
        cluster.brokers[2].actions.clear()
        assert (await client.connection_to(("fake", 9002))).failure is None, (
            "a later attempt has its own deadline"
        )


async def test_one_refresh_for_all_calls_with_the_same_view(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with connect("fake:9001", network=cluster) as client:
        seen = client.view.generation
        async with trio.open_nursery() as askers:
            for _ in range(5):
                askers.start_soon(lambda: client.refresh(["a"], seen=seen))
        assert [key for key, _ in cluster.one.requests].count(METADATA) == 2


async def test_a_leader_is_waited_for(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    partition.leader = -1

    async def elect() -> None:
        await trio.sleep(3)
        partition.leader = 1

    async with connect("fake:9001", network=cluster) as client:
        nursery.start_soon(elect)
        assert (
            await client.leader(TopicPartition("a", 0), deadline=trio.current_time() + 10)
        ).node_id == 1
        with pytest.raises(ClientError, match="Partition a-7 does not exist"):
            await client.leader(TopicPartition("a", 7), deadline=trio.current_time() + 10)
        with pytest.raises(ClientError, match="broker 9 is not among the live brokers 1"):
            await client.connection_to_broker(9)


async def test_a_broker_that_leaves_during_a_request_is_not_an_error(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view that named it is outdated: the client requests the present leader again."""
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    partition.leader = 2
    async with connect("fake:9001", network=cluster) as client:
        find = client.connection_to_broker
        fences: list[int] = []

        async def fenced_meanwhile(node_id: int, *, purpose: str = "") -> PeerConnection:
            if fences:
                client.view = replace(client.view, brokers={1: client.view.brokers[1]})
                fences.pop()
            return await find(node_id, purpose=purpose)

        monkeypatch.setattr(client, "connection_to_broker", fenced_meanwhile)
        async with open_producer(client) as producer:
            fences.append(2)
            assert (await producer.send("a", b"x")).offset == 0
        admin = Admin(client, timeout_s=10)
        fences.append(2)
        assert (await admin.list_offsets({TopicPartition("a", 0): -1}))[
            TopicPartition("a", 0)
        ].offset == 1  # type: ignore[union-attr]  # an error fails the test
        fences.append(2)
        assert await admin.list_groups() == []


def test_errors_have_remedies_and_can_be_pickled() -> None:
    error = error_from_wire(3, "topic 'x'")
    assert (
        error.message == "topic 'x': unknown topic or partition"
        and error.remedy
        and error.retriable
    )
    for each in (error, ConnectionBroken("gone", sent=True), DeadlineExceeded("late", error)):
        for twin in (copy.copy(each), pickle.loads(pickle.dumps(each)), each.copy()):
            assert (
                type(twin) is type(each) and str(twin) == str(each) and twin.remedy == each.remedy
            )
            assert twin.code is each.code and isinstance(twin.code, ErrorCode)


@pytest.mark.parametrize(
    ("kind", "sentence", "arguments"),
    [
        (ValueError, "no bootstrap address is given: write host:port", {"bootstrap": ""}),
        (ValueError, "bootstrap is empty: give", {"bootstrap": []}),
        (TypeError, "bootstrap is 9092: give", {"bootstrap": 9092}),
        (TypeError, "a bootstrap address is 'fake:9001': give", {"bootstrap": ["fake:9001"]}),
        (TypeError, "a bootstrap address is", {"bootstrap": [("fake", "9001")]}),
        (TypeError, "client_id is 7: give a str", {"client_id": 7}),
        (ValueError, "request_timeout_s is -1: give a number", {"request_timeout_s": -1}),
        (ValueError, "connect_timeout_s is 0: give a number above 0", {"connect_timeout_s": 0}),
        (TypeError, "wait_s is None: give a number", {"wait_s": None}),
    ],
)
async def test_a_wrong_argument_of_connect(
    kind: type[Exception], sentence: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=sentence):
        async with connect(**{"bootstrap": [("fake", 9001)], **arguments}):
            raise AssertionError


def test_denied_requests_have_one_sentence_and_one_remedy() -> None:
    for code, detail, sentence, option in (
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "Topic", "--topic NAME"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.", "Topic", "--topic NAME"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "", "Group", "--group NAME"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Request x is not ..", "Cluster", "--cluster"),
        (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            None,
            "Transactional Id",
            "--transactional-id ID",
        ),
    ):
        error = error_from_wire(code, "it", detail)
        assert error.message == f"it: {sentence} authorization failed."
        assert error.remedy.endswith(
            "needs an ACL: see `authorization result=denied` in the broker's log, or `mqctl acl "
            f"check User:NAME OPERATION {option}`"
        )
    named = "Topic authorization failed. Nodes would write records to 'x', ..."
    error = error_from_wire(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "it", named)
    assert error.message == f"it: {named}", "the broker names another resource"
    error = error_from_wire(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group '__mqd_relay.delay.a'")
    assert "nodes own" in error.remedy and "ACL" not in error.remedy
    owned = "Transactional Id authorization failed. The topic ... (mqd.producer.access). Set ..."
    error = error_from_wire(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a-0", owned)
    assert "mqd.producer.owner" in error.remedy and "ACL" not in error.remedy
    error = error_from_wire(ErrorCode.SECURITY_DISABLED, "it", "No Authorizer is configured.")
    assert error.message == "No Authorizer is configured."
    assert "set authorizer.class.name on every node" in error.remedy
