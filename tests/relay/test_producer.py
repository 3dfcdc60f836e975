"""The transactional producer of a node: which requests it repeats; exactly once in a cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from mqd.client import (
    ClientError,
    ClusterClient,
    open_consumer,
    open_transactional_producer,
)
from mqd.client.admin import Admin
from mqd.errors import ErrorCode, MqError
from mqd.io.entropy import RandomEntropy
from mqd.limits import RELAY_BEGINS_AT_ONCE
from mqd.protocol.record_reader import Record
from mqd.relay.names import delay_group
from mqd.relay.ports import CommittedProgress
from mqd.relay.producer import RecordsRefused, RelayProducer
from mqd.relay.sharing import Shared
from mqd.testing import Cluster, run, simulated
from mqd.types import NodeId, TopicPartition
from tests.seeds import seeds

SOURCE = TopicPartition("orders.delay", 0)
TARGETS = [TopicPartition("orders", index) for index in range(3)]
ID = "__mqd_relay.test"

# -- requests ------------------------------------------------------------------------------------


class ScriptedCalls:
    """Responses without errors. `faults` has what happens to the next requests of an API: an error
    code, or None for no response."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.faults: dict[str, list[ErrorCode | None]] = {}
        self.problems: dict[str, MqError] = {}

    def transaction_coordinator(self, transactional_id: str) -> NodeId | None:
        return NodeId(1)

    def group_coordinator(self, group_id: str) -> NodeId | None:
        return NodeId(2)

    def leader_of(self, topic_partition: TopicPartition) -> NodeId | None:
        return NodeId(3)

    def problem_of(self, topic: str) -> MqError | None:
        return self.problems.get(topic)

    async def request(
        self, node_id: NodeId, owner: str, api: str, version: int, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        self.requests.append(api)
        self.bodies.append(body)
        code = ErrorCode.NONE
        faults = self.faults.get(api)
        if faults:
            fault = faults.pop(0)
            if fault is None:
                raise OSError("cut")
            code = fault
        return _RESPONSES[api](body, int(code))


_RESPONSES: dict[str, Callable[[Mapping[str, Any], int], Mapping[str, Any]]] = {
    "init_producer_id": lambda body, code: {
        "error_code": code,
        "producer_id": 7,
        "producer_epoch": 3,
    },
    "add_partitions_to_txn": lambda body, code: {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code}
                    for index in topic["partitions"]
                ],
            }
            for topic in body["v3_and_below_topics"]
        ]
    },
    "add_offsets_to_txn": lambda body, code: {"error_code": code},
    "produce": lambda body, code: {
        "responses": [
            {
                "name": body["topic_data"][0]["name"],
                "partition_responses": [
                    {"index": 0, "error_code": code, "error_message": None, "record_errors": []}
                ],
            }
        ]
    },
    "txn_offset_commit": lambda body, code: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": code}]}]
    },
    "end_txn": lambda body, code: {"error_code": code},
    "offset_fetch": lambda body, code: {
        "groups": [
            {
                "group_id": ID,
                "error_code": 0,
                "topics": [
                    {
                        "name": SOURCE.topic,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": code,
                                "committed_offset": 5,
                                "metadata": "m",
                            }
                        ],
                    }
                ],
            }
        ]
    },
}


def relay(
    calls: Any, *, seed: int = 1, on_retry: Callable[[MqError], None] | None = None
) -> RelayProducer:
    return RelayProducer(
        transactional_id=ID,
        group_id=ID,
        calls=calls,
        entropy=RandomEntropy(random.Random(seed)),
        on_retry=on_retry,
    )


def records(*values: bytes) -> list[Record]:
    return [Record(0, 1_000, b"key", value, [("h", b"1")]) for value in values]


async def test_a_write_is_one_transaction(autojump_clock: trio.testing.MockClock) -> None:
    calls = ScriptedCalls()
    producer = relay(calls)
    await producer.begin_epoch()
    assert await producer.progress([SOURCE]) == {SOURCE: CommittedProgress(5, "m")}
    await producer.write({TARGETS[0]: records(b"a", b"b")}, {SOURCE: CommittedProgress(6, "n")})
    assert calls.requests[:4] == [
        "init_producer_id",
        "offset_fetch",
        "add_partitions_to_txn",
        "add_offsets_to_txn",
    ]
    assert sorted(calls.requests[4:6]) == ["produce", "txn_offset_commit"]
    assert calls.requests[6:] == ["end_txn"]


@pytest.mark.parametrize("api", ["end_txn", "txn_offset_commit"])
async def test_a_request_that_might_arrive_in_a_later_transaction_is_not_repeated(
    api: str, autojump_clock: trio.testing.MockClock
) -> None:
    calls = ScriptedCalls()
    calls.faults[api] = [None]
    producer = relay(calls)
    await producer.begin_epoch()
    with pytest.raises(MqError) as raised:
        await producer.write({TARGETS[0]: records(b"a")}, {SOURCE: CommittedProgress(6)})
    assert raised.value.code is ErrorCode.NETWORK_EXCEPTION
    assert calls.requests.count(api) == 1
    with pytest.raises(AssertionError, match="a write needs a producer epoch"):
        await producer.write({}, {SOURCE: CommittedProgress(6)})
    await producer.begin_epoch()
    await producer.write({}, {SOURCE: CommittedProgress(6)})


@pytest.mark.parametrize(
    ("api", "faults"),
    [
        ("init_producer_id", [None, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]),
        ("add_partitions_to_txn", [None, ErrorCode.CONCURRENT_TRANSACTIONS]),
        ("produce", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]),
        ("txn_offset_commit", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]),
        ("end_txn", [ErrorCode.COORDINATOR_NOT_AVAILABLE]),
    ],
)
async def test_other_requests_are_repeated(
    api: str, faults: list[ErrorCode | None], autojump_clock: trio.testing.MockClock
) -> None:
    calls = ScriptedCalls()
    calls.faults[api] = list(faults)
    producer = relay(calls)
    await producer.begin_epoch()
    await producer.write({TARGETS[0]: records(b"a")}, {SOURCE: CommittedProgress(6)})
    assert calls.requests.count(api) == len(faults) + 1
    batches = [
        body["topic_data"][0]["partition_data"][0]["records"]
        for body in calls.bodies
        if "topic_data" in body
    ]
    assert len(set(map(bytes, batches))) == 1, "a repeated batch has its first sequence"


async def test_progress_waits_until_it_is_stable(autojump_clock: trio.testing.MockClock) -> None:
    calls = ScriptedCalls()
    calls.faults["offset_fetch"] = [ErrorCode.UNSTABLE_OFFSET_COMMIT, None]
    assert await relay(calls).progress([SOURCE]) == {SOURCE: CommittedProgress(5, "m")}


async def test_records_that_a_leader_never_accepts(autojump_clock: trio.testing.MockClock) -> None:
    calls = ScriptedCalls()
    calls.faults["produce"] = [ErrorCode.MESSAGE_TOO_LARGE]
    producer = relay(calls)
    await producer.begin_epoch()
    with pytest.raises(RecordsRefused) as raised:
        await producer.write({TARGETS[0]: records(b"a")}, {SOURCE: CommittedProgress(6)})
    assert raised.value.topic_partition == TARGETS[0]
    assert "end_txn" not in calls.requests


ENDLESS = 10_000


@pytest.mark.parametrize(
    "code",
    [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE],
)
async def test_the_cause_of_a_failure_is_known_as_long_as_it_lasts(
    code: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    """Also when only the markers of the transaction are left to write."""
    calls, retries = ScriptedCalls(), list[MqError]()
    producer = relay(calls, on_retry=retries.append)
    await producer.begin_epoch()
    calls.faults["produce"] = [code] * ENDLESS
    with pytest.raises(MqError) as raised:
        await producer.write({TARGETS[0]: records(b"a")}, {SOURCE: CommittedProgress(6)})
    cause = f"{code.name}: cannot write to orders-0"
    assert str(retries[0]) == cause and len(retries) > 20
    assert raised.value.code is code
    assert "did not end within 30 s: cannot write to orders-0" in raised.value.message

    calls.faults["init_producer_id"] = [ErrorCode.CONCURRENT_TRANSACTIONS] * ENDLESS
    with pytest.raises(MqError) as raised:
        await producer.begin_epoch()
    assert raised.value.code is code and "no producer epoch began" in raised.value.message
    assert retries[-1].code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert str(producer.explained(retries[-1], ["orders"])) == cause

    calls.faults.clear()
    await producer.begin_epoch()
    assert producer.explained(retries[-1], ["orders"]) is retries[-1], "the cause has ended"


async def test_the_metadata_shows_why_an_earlier_transaction_does_not_end() -> None:
    calls = ScriptedCalls()
    calls.problems["orders.dlq"] = problem = MqError(ErrorCode.LEADER_NOT_AVAILABLE)
    open_one = MqError(ErrorCode.CONCURRENT_TRANSACTIONS)
    other = MqError(ErrorCode.NETWORK_EXCEPTION)
    producer = relay(calls)
    assert producer.explained(open_one, ["orders", "orders.dlq"]) is problem
    assert producer.explained(open_one, ["orders"]) is open_one
    assert producer.explained(other, ["orders.dlq"]) is other


async def test_few_producers_begin_an_epoch_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, shared = ScriptedCalls(), Shared()
    present = most = 0
    request = calls.request

    async def counted(*arguments: Any) -> Mapping[str, Any]:
        nonlocal present, most
        present += 1
        most = max(most, present)
        try:
            return await request(*arguments)
        finally:
            present -= 1

    monkeypatch.setattr(calls, "request", counted)
    async with trio.open_nursery() as nursery:
        for number in range(50):
            producer = RelayProducer(
                transactional_id=f"{ID}.{number}",
                group_id=ID,
                calls=calls,
                entropy=RandomEntropy(),
                begins=shared.begins,
            )
            nursery.start_soon(producer.begin_epoch)
    assert most == RELAY_BEGINS_AT_ONCE and len(calls.requests) == 50


async def test_pauses_for_an_open_transaction_become_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = ScriptedCalls()
    calls.faults["init_producer_id"] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 20
    producer = RelayProducer(transactional_id=ID, group_id=ID, calls=calls, entropy=RandomEntropy())
    began = trio.current_time()
    await producer.begin_epoch()
    assert 2 < trio.current_time() - began < 4


# -- in a cluster --------------------------------------------------------------------------------


async def make_topics(client: ClusterClient, **configs: str) -> None:
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    await Admin(client).create_topic("orders", 3, 3, {"flush.before.ack": "true", **dotted})
    await Admin(client).create_topic("orders.delay", 1, 3, {"flush.before.ack": "true"})
    await trio.sleep(1)


async def committed(client: ClusterClient) -> list[bytes | None]:
    """The values in all targets."""
    async with open_consumer(
        client,
        dict.fromkeys(TARGETS, "beginning"),
        end=dict.fromkeys(TARGETS, "end"),
        read_committed=True,
    ) as consumer:
        return [record.value async for batch in consumer for record in batch.records]


@simulated(seed=1)
async def test_a_later_owner_fences_an_earlier_one() -> None:
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await make_topics(client, compression_type="zstd")
        producers = [relay(cluster.daemon(node).coordinators.calls) for node in (1, 2)]
        for number, producer in enumerate(producers):
            await producer.begin_epoch()
            assert (await producer.progress([SOURCE])).get(
                SOURCE, CommittedProgress(0)
            ) == CommittedProgress(number)
            some = {place: records(b"%d" % number, bytes(30_000)) for place in TARGETS}
            await producer.write(some, {SOURCE: CommittedProgress(number + 1)})
        with pytest.raises(MqError) as raised:
            await producers[0].write({TARGETS[0]: records(b"late")}, {SOURCE: CommittedProgress(9)})
        assert raised.value.code is ErrorCode.PRODUCER_FENCED
        found = await committed(client)
        assert (
            sorted(value for value in found if value and len(value) == 1) == [b"0"] * 3 + [b"1"] * 3
        )


async def exactly_once() -> None:
    """Owners on changing nodes copy numbers, while nodes fail. Each number arrives once."""
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await make_topics(client)
        chance = cluster.world.random("relay")
        wanted = 15

        async def own(node_id: int, done: trio.Event) -> None:
            producer = relay(cluster.daemon(node_id).coordinators.calls, seed=chance.randrange(99))
            while True:
                try:
                    await producer.begin_epoch()
                    found = await producer.progress([SOURCE])
                    number = found.get(SOURCE, CommittedProgress(0)).offset
                    while number < wanted:
                        some = {place: records(b"%d" % number) for place in TARGETS}
                        await producer.write(some, {SOURCE: CommittedProgress(number + 1)})
                        number += 1
                        await trio.sleep(chance.uniform(0, 0.4))
                    done.set()
                    return
                except MqError:
                    await trio.sleep(0.1)

        done = trio.Event()
        with trio.fail_after(600):
            while not done.is_set():
                owner = chance.randrange(3) + 1
                node = cluster.nodes[chance.randrange(3) + 1]
                if not cluster.nodes[owner].running:
                    await cluster.nodes[owner].start()
                with trio.move_on_after(chance.uniform(0.5, 20)):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(own, owner, done)
                        await trio.sleep(chance.uniform(0, 1))
                        if node.id != owner and node.running:
                            match chance.choice(["kill", "pause", "cut off"]):
                                case "kill":
                                    node.kill()
                                case "pause":
                                    node.pause(chance.uniform(0.1, 12))
                                case "cut off":
                                    cluster.network.isolate(node.id)
                        await done.wait()
                        nursery.cancel_scope.cancel()
                cluster.network.heal()
                node.resume()
                if not node.running:
                    await node.start()
        found = await committed(client)
        assert sorted(int(value or b"-1") for value in found) == sorted([*range(wanted)] * 3)


@pytest.mark.parametrize("seed", seeds(1, range(1, 13)))
def test_records_and_progress_are_written_exactly_once(seed: int) -> None:
    run(exactly_once, seed=seed)


@simulated(seed=3)
async def test_clients_read_reserved_names_and_do_not_use_them() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        admin = Admin(client)
        await admin.create_topic("t", 1, 1)
        place, group = TopicPartition("t", 0), delay_group("t")
        calls = cluster.daemon(1).coordinators.calls
        producer = RelayProducer(
            transactional_id=ID,
            group_id=group,
            calls=calls,
            entropy=RandomEntropy(random.Random(1)),
        )
        await producer.begin_epoch()
        await producer.write({}, {place: CommittedProgress(3, "hidden")})
        found = (await admin.list_group_offsets([group]))[group]
        assert isinstance(found, dict) and found[place].offset == 3
        assert [one.group_id for one in await admin.list_groups()] == [group]
        with pytest.raises(ClientError) as raised:
            async with open_transactional_producer(client, ID, timeout_s=5):
                pass
        assert raised.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        with pytest.raises(ClientError, match="GROUP_AUTHORIZATION_FAILED"):
            await admin.delete_group_offsets(group, [place])
        errors = [
            *(await admin.alter_group_offsets(group, {place: 9})).values(),
            *(await admin.delete_groups([group])).values(),
        ]
        assert [error.code if error else None for error in errors] == [
            ErrorCode.GROUP_AUTHORIZATION_FAILED
        ] * 2
        await producer.write({}, {place: CommittedProgress(4)})
