from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.client.errors import ClientError, ConnectionBroken, DeadlineExceeded, PeerUnreachable
from mqd.client.nurseries import lasting_nursery
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import open_peer, start_peer
from mqd.errors import ErrorCode
from mqd.protocol.apis import by_key
from mqd.protocol.schema import Api
from tests.client.fake import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    FakeCluster,
    Hang,
    HangUp,
    MemoryStream,
    Raw,
    stream_pair,
)


def api(key: int) -> Api:
    found = by_key(key)
    assert found is not None
    return found


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
async def test_negotiates_and_responds_in_any_pieces(nursery: trio.Nursery, chunk: int) -> None:
    cluster = FakeCluster(nursery, chunk=chunk)
    async with open_peer(cluster, "fake", 9001) as peer:
        assert peer.versions[METADATA] == (0, 13)
        assert peer.features == {"transaction.version": 2}
        response = await peer.request(api(METADATA), {"topics": []})
        assert response.cluster_id == "fake"
    assert [key for key, _ in cluster.one.requests] == [API_VERSIONS, METADATA]
    assert cluster.one.requests[1] == (METADATA, 13)


@pytest.mark.parametrize("highest", [0, 2, 3])
async def test_negotiates_down_on_error_35(nursery: trio.Nursery, highest: int) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.versions[API_VERSIONS] = (0, highest)
    async with open_peer(cluster, "fake", 9001) as peer:
        assert peer.versions[API_VERSIONS] == (0, highest)
    assert cluster.one.requests == [(API_VERSIONS, 4), (API_VERSIONS, highest)]


async def test_an_error_without_versions_means_version_0(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(API_VERSIONS, Raw(b"\0\x23" + b"\0\0\0\0"))
    async with open_peer(cluster, "fake", 9001):
        pass
    assert cluster.one.requests == [(API_VERSIONS, 4), (API_VERSIONS, 0)]


async def test_version_of_is_the_newest_common_version(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.versions |= {METADATA: (2, 5), FETCH: (30, 31)}
    del cluster.one.versions[PRODUCE]
    async with open_peer(cluster, "fake", 9001) as peer:
        assert peer.version_of(api(METADATA)) == 5
        assert peer.version_of(api(METADATA), at_most=3) == 3
        for key in (FETCH, PRODUCE):
            with pytest.raises(ClientError) as caught:
                peer.version_of(api(key))
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


async def test_many_requests_share_one_write_and_get_their_own_responses(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    for name in "abcdef":
        cluster.add_topic(name)
    responses: dict[str, str] = {}
    async with open_peer(cluster, "fake", 9001) as peer:
        before = cluster.one.streams[0].other.sent_calls

        async def ask(name: str) -> None:
            response = await peer.request(api(METADATA), {"topics": [{"name": name}]})
            responses[name] = response.topics[0].name

        async with trio.open_nursery() as askers:
            for name in "abcdef":
                askers.start_soon(ask, name)
        assert cluster.one.streams[0].other.sent_calls == before + 1
    assert responses == {name: name for name in "abcdef"}


async def test_an_abandoned_request_leaves_the_stream_in_order(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    gate = trio.Event()
    async with open_peer(cluster, "fake", 9001) as peer:
        stream = cluster.one.streams[0]
        send_all = stream.send_all

        async def slowly(data: bytes) -> None:
            await gate.wait()
            await send_all(data)

        stream.send_all = slowly  # type: ignore[method-assign,assignment]  # replaced by the test
        with trio.move_on_after(1):
            await peer.request(api(METADATA), {"topics": [{"name": "gone"}]})
        gate.set()
        response = await peer.request(api(METADATA), {"topics": [{"name": "a"}]})
        assert [topic.name for topic in response.topics] == ["a"]


async def test_every_waiter_gets_an_error_when_the_connection_breaks(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(METADATA, Hang(), Hang(), Hang())
    errors: list[ConnectionBroken] = []
    async with open_peer(cluster, "fake", 9001) as peer:

        async def ask() -> None:
            with pytest.raises(ConnectionBroken) as caught:
                await peer.request(api(METADATA), {"topics": []})
            errors.append(caught.value)

        async with trio.open_nursery() as askers:
            for _ in range(3):
                askers.start_soon(ask)
            await wait_all_tasks_blocked()
            cluster.one.hang_up_all()
        assert peer.failure == "fake:9001 closed the connection"
        with pytest.raises(ConnectionBroken) as caught:
            await peer.request(api(METADATA), {"topics": []})
        assert not caught.value.sent
    assert len(errors) == 3 and all(error.sent for error in errors)
    assert all(error.code is ErrorCode.NETWORK_EXCEPTION for error in errors)


async def test_in_flight_requests_are_bounded_and_waiting_ones_fail_too(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(METADATA, *[Hang() for _ in range(9)])
    stream = await cluster.connect("fake", 9001)
    peer = PeerConnection(stream, peer="fake:9001", in_flight_max=2)
    await nursery.start(peer.run)
    await peer.negotiate()
    failures: list[bool] = []

    async def ask() -> None:
        with pytest.raises(ConnectionBroken) as caught:
            await peer.request(api(METADATA), {"topics": []})
        failures.append(caught.value.sent)

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(ask)
        await wait_all_tasks_blocked()
        assert [key for key, _ in cluster.one.requests].count(METADATA) == 2
        peer.close()
    assert sorted(failures) == [False, False, False, True, True]


async def test_a_timeout_closes_the_connection_for_all(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(METADATA, Hang())
    async with open_peer(cluster, "fake", 9001) as peer:
        with pytest.raises(DeadlineExceeded) as caught:
            await peer.request(api(METADATA), {"topics": []}, timeout_s=5)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert peer.failure == "fake:9001 did not respond to Metadata within 5 s"


@pytest.mark.parametrize(
    ("bytes_", "why"),
    [
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"HTTP/1.1 400", "frame of 1213486160 bytes"),
        (b"\0\0\0\x08\0\0\0\x63\0\0\0\0", "a response to request 99"),
    ],
)
async def test_an_invalid_response_breaks_the_connection(
    nursery: trio.Nursery, bytes_: bytes, why: str
) -> None:
    ours, theirs = stream_pair()
    peer = PeerConnection(ours, peer="x:1")
    await nursery.start(peer.run)
    async with trio.open_nursery() as askers:

        async def ask() -> None:
            with pytest.raises(ConnectionBroken, match=why):
                await peer.request(api(METADATA), {"topics": []}, 0)

        askers.start_soon(ask)
        await theirs.send_all(bytes_)
    await wait_all_tasks_blocked()
    assert ours.closed


@pytest.mark.parametrize("record", [b"\x15\x03\x03\x00\x02\x02\x32", b"\x16\x03\x01\x00\x30"])
async def test_a_listener_with_tls(nursery: trio.Nursery, record: bytes) -> None:
    ours, theirs = stream_pair()
    peer = PeerConnection(ours, peer="x:1")
    await nursery.start(peer.run)
    async with trio.open_nursery() as askers:

        async def ask() -> None:
            with pytest.raises(ConnectionBroken, match=r"x:1 requires TLS$") as caught:
                await peer.negotiate()
            assert caught.value.remedy == "set security.protocol=SSL, or SASL_SSL with SASL"

        askers.start_soon(ask)
        await theirs.send_all(record)


async def test_an_undecodable_response_breaks_the_connection(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(METADATA, Raw(b"\x01\x02"))
    async with open_peer(cluster, "fake", 9001) as peer:
        with pytest.raises(ConnectionBroken, match="cannot be decoded"):
            await peer.request(api(METADATA), {"topics": []})
        assert peer.failure is not None


async def test_send_returns_when_written_and_the_next_response_still_fits(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with open_peer(cluster, "fake", 9001) as peer:
        await peer.send(api(PRODUCE), {"acks": 0, "topic_data": []}, 7)
        assert (await peer.request(api(METADATA), {"topics": [{"name": "a"}]})).topics[
            0
        ].name == "a"
    assert (PRODUCE, 7) in cluster.one.requests


async def test_send_fails_when_the_write_fails(nursery: trio.Nursery) -> None:
    ours, theirs = stream_pair()
    theirs.closed = True
    peer = PeerConnection(ours, peer="x:1")
    await nursery.start(peer.run)
    with pytest.raises(ConnectionBroken, match="writing to x:1 failed"):
        await peer.send(api(PRODUCE), {"acks": 0, "topic_data": []}, 7)


async def test_correlation_ids_wrap(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    async with open_peer(cluster, "fake", 9001) as peer:
        peer._next_correlation_id = 2**31 - 1
        for _ in range(2):
            assert (await peer.request(api(METADATA), {"topics": []})).cluster_id == "fake"
        assert peer._next_correlation_id == 1


async def test_connecting_to_a_closed_port_is_an_error(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    with pytest.raises(PeerUnreachable) as caught:
        await start_peer(nursery, cluster, "127.0.0.1", 1234)
    assert caught.value.message == "nothing listens at 127.0.0.1:1234"
    assert "mqd dev" in caught.value.remedy


async def test_a_peer_that_accepts_and_does_not_respond(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(API_VERSIONS, Hang())
    with pytest.raises(PeerUnreachable, match="did not respond within 3 s") as caught:
        await start_peer(nursery, cluster, "fake", 9001, timeout_s=3)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    await wait_all_tasks_blocked()
    assert cluster.one.streams[0].other.closed


async def test_a_peer_that_hangs_up_on_the_first_request(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(API_VERSIONS, HangUp())
    with pytest.raises(ConnectionBroken, match="closed the connection"):
        await start_peer(nursery, cluster, "fake", 9001)


async def test_leaving_the_block_closes_the_stream_and_errors_rise_bare(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    ends: list[MemoryStream] = []
    with pytest.raises(KeyError):
        async with open_peer(cluster, "fake", 9001):
            ends += cluster.one.streams
            raise KeyError("mine")
    assert ends[0].other.closed


async def test_a_nursery_that_lasts_can_be_cancelled_while_it_opens() -> None:
    """And its tasks survive the cancellation of a running block, but not the block."""
    with trio.CancelScope() as scope:
        scope.cancel()
        async with lasting_nursery():
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    lived: list[str] = []

    async def live() -> None:
        try:
            await trio.sleep_forever()
        finally:
            lived.append("over")

    with trio.CancelScope() as scope:
        async with lasting_nursery() as nursery:
            nursery.start_soon(live)
            try:
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await trio.lowlevel.checkpoint()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                assert lived == []
    assert lived == ["over"]
