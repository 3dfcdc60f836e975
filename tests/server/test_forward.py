"""Requests to the controller on another node: one connection per peer, replaced when it breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from struct import pack, unpack_from

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mqd.config import PeerNode, Peers
from mqd.io.net import Stream
from mqd.server.forward import ABANDONED_SECONDS, HUNG_SECONDS, Forwarder
from mqd.types import NodeId
from tests.client.fake import (
    CREATE_TOPICS,
    METADATA,
    FakeBroker,
    FakeCluster,
    Hang,
    HangUp,
    MemoryStream,
    Raw,
)

TWO = NodeId(2)
HANDSHAKE = 32_000
BROKER_HEARTBEAT = 63
CREATE = {
    "topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}],
    "timeout_ms": 1000,
}


async def authenticate(stream: Stream, receiver: int) -> None:
    await stream.send_all(pack(">ihhih", 14, HANDSHAKE, receiver, 0, -1) + b"I'm1")
    assert await stream.receive_into(memoryview(bytearray(4))) == 4


async def receives(
    broker: FakeBroker,
    response: Callable[..., Awaitable[bool]],
    stream: MemoryStream,
    frame: memoryview,
) -> bool:
    """Like a node: the handshake is first, names this node, and gets a response."""
    if unpack_from(">h", frame)[0] != HANDSHAKE:
        assert (HANDSHAKE, broker.node_id) in broker.requests
        return await response(stream, frame)
    assert unpack_from(">hh", frame) == (HANDSHAKE, broker.node_id)
    broker.requests.append((HANDSHAKE, broker.node_id))
    await stream.send_all(b"yes!")
    return True


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[FakeCluster, Forwarder]]:
    """Node 1's forwarder, and the other nodes."""
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(nursery, nodes=2)
        for broker in cluster.brokers.values():
            broker._respond = partial(receives, broker, broker._respond)  # type: ignore[method-assign]
        # clients' ports are unused: forwarded requests are sent to the peer listener
        nodes = {
            number: PeerNode(number, "fake", 1, 9000 + number, None, True, "advertised", 2)
            for number in (1, 2)
        }
        forwarder = Forwarder(Peers("cluster", nodes, Path("peers.toml")), 1, cluster, authenticate)
        nursery.start_soon(forwarder.run)
        await wait_all_tasks_blocked()
        yield cluster, forwarder
        nursery.cancel_scope.cancel()


async def test_a_request_is_sent_to_the_peer_listener() -> None:
    async with forwarding() as (cluster, forward):
        response = await forward(TWO, "create_topics", 7, CREATE)
        assert [topic.name for topic in response["topics"]] == ["t"]
        # no negotiation: both run the same release
        assert cluster.brokers[2].requests == [(HANDSHAKE, 2), (CREATE_TOPICS, 7)]
        assert cluster.brokers[1].requests == []


async def test_one_connection_serves_all_requests_also_concurrent_ones() -> None:
    async with forwarding() as (cluster, forward):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(forward, TWO, "metadata", 9, {"topics": []})
        await forward(TWO, "metadata", 9, {"topics": []})
        assert cluster.connects == 1
        assert cluster.brokers[2].requests == [(HANDSHAKE, 2)] + [(METADATA, 9)] * 6


async def test_requests_of_clients_do_not_delay_those_of_the_node() -> None:
    """The peer handles one administrative request of a connection after the other."""
    async with forwarding() as (cluster, forward):
        await forward(TWO, "create_topics", 7, CREATE)
        broker = cluster.brokers[2]
        respond = broker._respond

        async def without_heartbeats(stream: MemoryStream, frame: memoryview) -> bool:
            if unpack_from(">h", frame)[0] == BROKER_HEARTBEAT:
                return True
            return await respond(stream, frame)

        broker._respond = without_heartbeats  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, TWO, "broker_heartbeat", 1, {"broker_id": 1})
            await wait_all_tasks_blocked()
            assert cluster.connects == 2
            await forward(TWO, "create_topics", 7, CREATE)
            assert cluster.connects == 2, "the connection for requests of clients is the same"
            nursery.cancel_scope.cancel()


async def test_an_unreachable_node_is_an_os_error_and_retried_next_time() -> None:
    async with forwarding() as (cluster, forward):
        cluster.down.add(2)
        with pytest.raises(OSError, match=r"node 2 (failed|cannot be decoded)"):
            await forward(TWO, "metadata", 9, {"topics": []})
        cluster.down.clear()
        assert await forward(TWO, "metadata", 9, {"topics": []})


@pytest.mark.parametrize("fault", [HangUp(), Raw(b"\xff")])
async def test_a_broken_connection_is_an_os_error_and_replaced(fault: HangUp | Raw) -> None:
    async with forwarding() as (cluster, forward):
        cluster.brokers[2].script(METADATA, fault)
        with pytest.raises(OSError, match=r"node 2 (failed|cannot be decoded)"):
            await forward(TWO, "metadata", 9, {"topics": []})
        assert await forward(TWO, "metadata", 9, {"topics": []})
        assert cluster.connects == 2


async def test_a_cancelled_caller_does_not_break_the_connection() -> None:
    async with forwarding() as (cluster, forward):
        cluster.brokers[2].script(METADATA, Hang())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, TWO, "metadata", 9, {"topics": []})
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert cluster.connects == 1
        assert not cluster.brokers[2].streams[0].closed


async def test_a_connection_that_hangs_is_replaced_and_its_requests_keep_waiting(
    autojump_clock: MockClock,
) -> None:
    async with forwarding() as (cluster, forward):
        cluster.brokers[2].script(METADATA, Hang())
        responses: list[object] = []

        async def request() -> None:
            try:
                responses.append(await forward(TWO, "metadata", 9, {"topics": []}))
            except OSError as error:
                responses.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            await trio.sleep(HUNG_SECONDS * 0.9)
            assert cluster.connects == 1
            await trio.sleep(HUNG_SECONDS * 0.2)
            assert await forward(TWO, "metadata", 9, {"topics": []})
            assert cluster.connects == 2 and responses == []
            await trio.sleep(ABANDONED_SECONDS)
            assert await forward(TWO, "metadata", 9, {"topics": []})
        assert cluster.connects == 2
        (failure,) = responses
        assert isinstance(failure, OSError) and "it hung, and was replaced" in str(failure)


async def test_an_idle_connection_does_not_hang(autojump_clock: MockClock) -> None:
    async with forwarding() as (cluster, forward):
        for _ in range(5):
            assert await forward(TWO, "metadata", 9, {"topics": []})
            await trio.sleep(HUNG_SECONDS * 2)  # nothing is due meanwhile
        assert cluster.connects == 1


async def test_dial_returns_an_authenticated_connection_of_its_own() -> None:
    async with forwarding() as (cluster, forward):
        await forward(TWO, "metadata", 9, {"topics": []})
        mine = await forward.dial(TWO)
        assert cluster.connects == 2 and cluster.brokers[2].requests.count((HANDSHAKE, 2)) == 2
        mine.close()
        assert await forward(TWO, "metadata", 9, {"topics": []})
        assert cluster.connects == 2
        cluster.down.add(2)
        with pytest.raises(OSError, match="node 2 cannot be reached"):
            await forward.dial(TWO)
