"""One budget for the buffers of connections: those that hold too much, or read nothing, are closed;
the others continue.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mqd.io.net import READABLE
from mqd.limits import KIB, MIB, SEND_QUEUE_BYTES_MAX, SEND_QUEUE_BYTES_MIN
from mqd.server.connection import Connection
from mqd.server.context import CLIENT, PEER
from mqd.server.memory import (
    BUSY_EVICT_SECONDS,
    EVICT_SECONDS,
    IDLE_FRAME_SECONDS,
    SMALL_FRAME_BYTES_MAX,
    STALLED_SECONDS,
    RequestPool,
    ResponsePool,
)
from mqd.server.send_queue import SendQueue
from tests.log.support import batch
from tests.server.rig import Client, Rig, rig, run_until_idle
from tests.server.scripted import ScriptedOwner, ScriptedSocket
from tests.server.test_dispatch import large_join


async def half_sent(node: Rig, *, sent: int, size: int) -> Client:
    """A connection that has sent part of a frame."""
    client = await node.connect()
    client.send(size.to_bytes(4, "big") + bytes(sent))
    await run_until_idle()
    return client


async def passes(mock_clock: MockClock, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        mock_clock.jump(0.05)
        await run_until_idle()


async def test_incomplete_frames_delay_no_other_for_a_second(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        node.server.memory.request_pool(CLIENT).bytes_max = 16 * MIB
        hogs = [await half_sent(node, sent=MIB, size=90 * MIB) for _ in range(30)]
        good = await node.connect()
        good.post("produce", 9, node.produce_body("t", batch(b"x" * 600_000)))
        with caplog.at_level(logging.WARNING):
            await passes(mock_clock, 1.0)
        assert good.responses()[0].responses[0].partition_responses[0].error_code == 0
        assert any(hog.sock.closed for hog in hogs) and not all(hog.sock.closed for hog in hogs)
        assert "bytes of its incomplete request" in caplog.text
        assert node.server.statistics().evicted_connections == sum(hog.sock.closed for hog in hogs)


async def test_a_tiny_budget_serves_one_large_request_at_a_time(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, memory_budget_bytes=str(256 * KIB)) as node:
        node.create("t")
        assert (
            node.server.memory.request_pool(CLIENT).bytes_max
            == node.server.memory.response_pool(CLIENT).bytes_max
            == 128 * KIB
        )
        for _ in range(3):
            hog = await half_sent(node, sent=100_000, size=600_000)
            hog.send(bytes(100_000))
            await run_until_idle()
        good = await node.connect()
        good.post("produce", 9, node.produce_body("t", batch(b"x" * 600_000)))
        await passes(mock_clock, 4 * STALLED_SECONDS)
        assert good.responses()[0].responses[0].partition_responses[0].error_code == 0
        assert (
            node.server.statistics().memory_waits > 0
            and node.server.statistics().stalled_connections == 0
        )


async def test_frames_of_clients_take_no_memory_from_peers(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.server.memory.request_pool(CLIENT).bytes_max = 2 * MIB
        for _ in range(5):
            await half_sent(node, sent=MIB, size=90 * MIB)
        assert node.server.memory.request_pool(CLIENT).is_wanted
        assert (
            node.server.memory.request_pool(PEER).bytes == 0
            and not node.server.memory.request_pool(PEER).is_wanted
        )


async def test_a_client_that_reads_nothing_is_closed(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as node:
        stalled, slow = await node.connect(), await node.connect()
        for client in (stalled, slow):
            client.sock.room = 10
            client.post("api_versions", 3, {})
        await run_until_idle()
        with caplog.at_level(logging.WARNING):
            for _ in range(35):
                mock_clock.jump(1)
                slow.take(1)
                await run_until_idle()
        assert stalled.sock.closed and not slow.sock.closed
        assert "it has read no response bytes for 30 s" in caplog.text
        assert node.server.statistics().stalled_connections == 1


async def test_the_reader_with_the_largest_backlog_is_closed_first(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        greedy, modest = await node.connect(), await node.connect()
        for client, count in ((greedy, 20), (modest, 2)):
            client.sock.room = 0
            for _ in range(count):
                client.post("api_versions", 3, {})
        await run_until_idle()
        node.server.memory.response_pool(CLIENT).bytes_max = (
            node.server.memory.response_pool(CLIENT).bytes // 2
        )
        mock_clock.jump(1.1)
        await run_until_idle()
        assert greedy.sock.closed and not modest.sock.closed


async def test_a_response_beyond_the_memory_closes_its_connection(
    tmp_path: Path,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqd.server.dispatch._COUNTED_BYTES", 4 * KIB)
    async with rig(tmp_path) as node:
        node.create("t", partitions=2_000)
        pool = node.server.memory.response_pool(CLIENT)
        pool.bytes_max = 16 * KIB
        greedy, good = await node.connect(), await node.connect()
        greedy.post("metadata", 9, {"topics": None})
        most = 0
        with caplog.at_level(logging.WARNING):
            for _ in range(40):
                mock_clock.jump(0.01)
                await run_until_idle()
                most = max(most, pool.bytes)
        good.post("api_versions", 3, {})
        await run_until_idle()
        assert greedy.sock.closed and not greedy.sock.sent and good.responses()
        assert 16 * KIB < most < 32 * KIB and pool.bytes == 0
        assert "bytes of unsent responses exceed the memory for all" in caplog.text


async def test_a_response_waits_while_other_responses_are_sent(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2_000)
        pool = node.server.memory.response_pool(CLIENT)
        pool.bytes_max = 8 * MIB
        pool.bytes += 8 * MIB
        client = await node.connect()
        client.post("metadata", 9, {"topics": None})
        for _ in range(5):
            mock_clock.jump(0.01)
            await run_until_idle()
        assert not client.sock.closed and not client.sock.sent
        pool.bytes -= 8 * MIB
        await passes(mock_clock, 1.0)
        (response,) = client.responses()
        assert len(response.topics[0].partitions) == 2_000
        assert pool.bytes == 0


def test_large_parts_of_a_response_are_not_joined() -> None:
    sock, pool = ScriptedSocket(), ResponsePool(64 * MIB)
    queue = SendQueue(sock, pool, 0.0)
    large = bytes(MIB)
    queue.add([b"a", b"b", large, b"c"], 0.0)
    pieces = []
    while queue.parts:
        pieces.append(queue._next_piece())
    assert pieces == [b"ab", large, b"c"] and pieces[1] is large


async def test_addresses_have_a_limit_and_loopback_has_none(tmp_path: Path) -> None:
    async with rig(tmp_path, max_connections_per_ip="2") as node:
        remote = [await node.connect(address="10.1.1.1") for _ in range(3)]
        local = [await node.connect(address="127.0.0.1") for _ in range(3)]
        assert [client.sock.closed for client in remote] == [False, False, True]
        assert not any(client.sock.closed for client in local)


def test_slow_readers_share_a_limit() -> None:
    responses = ResponsePool(64 * MIB)
    assert responses.connection_bytes_max == SEND_QUEUE_BYTES_MAX
    responses.bytes = 60 * MIB
    assert responses.connection_bytes_max == MIB
    responses.bytes = 70 * MIB
    assert responses.connection_bytes_max == SEND_QUEUE_BYTES_MIN and responses.is_over


class Holding:
    """A connection, as a pool sees it."""

    open = True

    def __init__(
        self,
        held: int,
        arrived: int,
        since: float | None,
        in_task: int = 0,
        *,
        progress_at: float = math.inf,
        completed: int = 0,
        address: str = "10.0.0.1",
    ) -> None:
        self.address = address
        self.held_bytes, self.arrived_bytes, self.since = held, arrived, since
        self.task_bytes = in_task
        self.progress_at, self.completed_bytes = progress_at, completed
        self.reads = 0

    def idle_seconds(self, now: float) -> float:
        return max(0.0, now - self.progress_at)

    def seconds_read(self, now: float) -> float | None:
        return None if self.since is None else now - self.since

    def read_again(self, now: float) -> None:
        self.reads += 1


def test_the_slowest_stalled_frame_goes_before_the_largest() -> None:
    pool = RequestPool(10 * MIB)
    large, trickle, fresh, waiting = (
        Holding(8 * MIB, 8 * MIB, 0.0),
        Holding(MIB, 10, 0.0),
        Holding(2 * MIB, MIB, 9.9),
        Holding(0, 0, 9.0),
    )
    holders = [large, trickle, fresh, waiting]
    pool.wait(waiting, MIB, MIB, 9.0)
    assert pool.to_evict(holders, 9.0 + BUSY_EVICT_SECONDS / 2) == []
    assert pool.to_evict(holders, 9.0 + BUSY_EVICT_SECONDS) == [trickle]
    assert pool.to_evict([fresh, waiting], 9.9 + STALLED_SECONDS / 2) == [fresh], (
        "none stalls: the one that holds more than necessary"
    )


def test_idle_frames_are_closed_as_waiting_ones_need_room() -> None:
    pool = RequestPool(10 * MIB)
    idle = [Holding(MIB, MIB - 1, 0.0, progress_at=at) for at in (3.0, 1.0, 2.0, 4.0)]
    moving = Holding(4 * MIB, 10, 0.0, progress_at=9.05)
    waiting = [Holding(KIB, KIB, 9.0) for _ in range(2)]
    for one in waiting:
        pool.wait(one, MIB * 5 // 4, MIB * 5 // 4, 9.0)
    holders = [*idle, moving, *waiting]
    assert pool.to_evict(holders, 9.0 + EVICT_SECONDS / 2) == []
    late = 9.01 + EVICT_SECONDS
    assert pool.to_evict(holders, late) == [idle[1], idle[2], idle[0]]
    moving.progress_at = late - IDLE_FRAME_SECONDS / 2
    assert pool.to_evict([moving, *waiting], late) == []


def order_of_grants(holders: list[Holding]) -> list[Holding]:
    """They wait in this order, and get memory one by one."""
    pool = RequestPool(MIB)
    assert pool.has_room(Holding(0, 0, 0.0), 2 * MIB, MIB), "the one beyond the limit"
    pool.bytes = 2 * MIB
    for second, one in enumerate(holders):
        assert not pool.has_room(one, MIB // 2, MIB), "it goes before no other"
        pool.wait(one, MIB // 2, MIB, second)
    order: list[Holding] = []
    while pool.is_wanted:
        assert pool._over_limit is not None
        pool.done(pool._over_limit)
        pool.grant(9.0)
        order += [one for one in holders if one.reads and one not in order]
    return order


def test_every_second_grant_goes_to_connections_that_complete_requests() -> None:
    waiting = [Holding(0, 0, 0.0, completed=0) for _ in range(4)]
    better, good = (Holding(0, 0, 0.0, completed=size) for size in (900_000, 600_000))
    order = order_of_grants([*waiting[:3], good, better, waiting[3]])
    assert order == [better, waiting[0], good, waiting[1], waiting[2], waiting[3]]


def test_connections_without_a_complete_request_wait_in_order() -> None:
    """Connections that are closed and come again, again and again, pass none that waits."""
    waiting = [Holding(0, 0, 0.0) for _ in range(5)]
    assert order_of_grants(waiting) == waiting


def test_grants_go_round_the_addresses() -> None:
    flood = [Holding(0, 0, 0.0) for _ in range(4)]
    others = [Holding(0, 0, 0.0, address=f"10.0.0.{number}") for number in (2, 3)]
    assert order_of_grants([*flood, *others]) == [flood[0], *others, *flood[1:]]


def test_requests_in_tasks_go_first_where_they_hold_more() -> None:
    pool = RequestPool(8 * MIB)
    slow, waiting = Holding(MIB, 10, 0.0), Holding(0, 0, 9.0)
    small, large = Holding(0, 0, None, in_task=MIB), Holding(0, 0, None, in_task=2 * MIB)
    pool.bytes = 6 * MIB  # the rest is for small frames
    pool.wait(waiting, MIB, MIB, 9.0)
    late = 9.0 + BUSY_EVICT_SECONDS
    assert pool.to_evict([slow, small, large, waiting], late) == [large]
    assert pool.to_evict([slow, small, waiting], late) == [slow], "they hold little"
    arriving = [Holding(2 * MIB, MIB, 9.2), Holding(3 * MIB, MIB, 9.2)]
    assert pool.to_evict([*arriving, small, large, waiting], late) == [arriving[1]]
    pool.leaving = MIB
    assert pool.to_evict([slow, small, large, waiting], late) == [], "there will be room"
    pool.leaving = MIB - 1
    assert pool.to_evict([slow, small, large, waiting], late) == [large]


async def test_requests_that_wait_for_a_slot_close_no_healthy_client(
    tmp_path: Path,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqd.server.memory.SMALL_FRAME_BYTES_MAX", 0)
    async with rig(tmp_path) as node:
        node.create("t")
        node.server.memory.request_pool(CLIENT).bytes_max = 8 * MIB * 4 // 3
        node.server.dispatcher._places[CLIENT]._large = trio.Semaphore(0)
        hogs = []
        for _ in range(5):
            hogs.append(await node.connect())
            hogs[-1].send_frame(large_join(1_600_000))
            await run_until_idle()
        half = [await half_sent(node, sent=700_000, size=6_000_000)]
        assert not node.server.memory.request_pool(CLIENT).is_wanted, (
            "it is the one that may exceed the limit"
        )
        good = [await node.connect() for _ in range(3)]
        for client in good:
            client.post("produce", 9, node.produce_body("t", batch(b"x" * 600_000)))
        with caplog.at_level(logging.WARNING):
            await passes(mock_clock, 1.0)
        assert not any(client.sock.closed for client in good + half)
        assert all(
            client.responses()[0].responses[0].partition_responses[0].error_code == 0
            for client in good
        )
        assert 0 < sum(hog.sock.closed for hog in hogs) < len(hogs)
        assert "bytes of its in-flight request" in caplog.text
        assert node.server.memory.request_pool(CLIENT).leaving == 0


def test_a_frame_that_waited_for_memory_is_not_slow() -> None:
    """Its rate counts only the time in which the node read it."""
    pool = RequestPool(10 * MIB)
    owner = ScriptedOwner()
    owner.requests_pool = pool
    starved, waiting = Connection(owner, ScriptedSocket(), "client", 0.0), Holding(0, 0, 0.0)
    pool.bytes = 10 * MIB
    assert pool.has_room(Holding(9 * MIB, 0, 0.0), MIB, 9 * MIB), "the one beyond the limit"
    starved.sock.incoming.append((3 * MIB).to_bytes(4, "big") + bytes(900_000))  # type: ignore[attr-defined]  # the socket of the rig
    owner.request_bytes_max = starved.frames.frame_bytes_max = 4 * MIB
    starved.on_ready(READABLE)
    starved.on_ready(READABLE)
    assert owner.waiting == [starved] and starved.seconds_read(9.0) == 0.0
    faster = Holding(8 * MIB, 8 * MIB, 0.0)
    pool.wait(waiting, MIB, 9 * MIB, 0.0)
    assert pool.to_evict([starved, faster, waiting], 9.0) == [faster], "it had 9 seconds"
    starved.read_again(9.0)
    assert starved.seconds_read(9.5) == 0.5 and starved.seconds_read(11.0) == 2.0
    assert pool.to_evict([starved, faster, waiting], 11.0) == [starved]
    assert not starved.frames.is_late(38.0, 30.0) and starved.frames.is_late(39.0, 30.0)


def test_small_frames_have_a_part_of_the_pool_and_priority() -> None:
    pool = RequestPool(16 * MIB)
    small, large = SMALL_FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX + 1
    first, second, third, hog = (Holding(0, 0, 0.0) for _ in range(4))
    assert pool.has_room(hog, 12 * MIB, large)
    pool.bytes = 12 * MIB
    assert pool.has_room(hog, MIB, 90 * MIB), "one may exceed the limit"
    pool.bytes = 90 * MIB
    assert not pool.has_room(second, 1, large)
    pool.wait(second, 1, large, 0.0)
    assert pool.has_room(first, MIB, small) and pool.has_room(first, 3 * MIB, small)
    assert pool.has_room(third, MIB, small) and not pool.has_room(third, 2 * MIB, small)
    pool.wait(third, 2 * MIB, small, 1.0)
    pool.grant(2.0)
    granted = [(third.reads, second.reads)]
    pool.done(first)
    pool.grant(3.0)
    granted.append((third.reads, second.reads))
    assert granted == [(False, False), (True, False)] and pool.is_wanted
    assert not pool.has_room(second, 1, large), "the room of small frames is not for large ones"


async def test_a_wait_for_memory_frees_no_more_buffers_than_it_needs(tmp_path: Path) -> None:
    """Each takes milliseconds to free."""
    async with rig(tmp_path) as node:
        node.create("t")
        for _ in range(5):
            client = await node.connect()
            client.post("produce", 9, node.produce_body("t", batch(b"x" * 600_000)))
            await run_until_idle()
        pool = node.server.memory.request_pool(CLIENT)
        kept = pool.bytes
        assert kept == sum(one.held_bytes for one in node.server._connections) > 5 * 600_000
        pool.bytes_max = (kept + MIB) * 4 // 3
        (connection, *_) = node.server._connections
        node.server.memory.want(connection, MIB + 700_000, 90 * MIB, 0.0)
        assert kept - 2 * 800_000 < pool.bytes < kept - 700_000


def test_parked_fetches_get_half_of_the_pool() -> None:
    pool = RequestPool(8_000)
    assert pool.may_park(10) and not pool.may_park(11)
    pool.park(10)
    assert not pool.may_park(1)
    large = 2 * SMALL_FRAME_BYTES_MAX
    assert pool.has_room(Holding(0, 0, 0.0), 2_001, large), "one may exceed the limit"
    assert not pool.has_room(Holding(0, 0, 0.0), 2_001, large)
    pool.unpark(10)
    assert pool.may_park(10)
