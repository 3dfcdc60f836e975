"""The task that fetches from a leader: it repeats fetches, interrupts a waiting fetch, reconnects,
and ends. In virtual time.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mqd.client.errors import ConnectionBroken
from mqd.errors import ErrorCode
from mqd.io.disk import ArgumentsT, ResultT
from mqd.io.entropy import RandomEntropy
from mqd.log.disk.sync_plan import SyncPlan
from mqd.log.log_config import LogConfig
from mqd.log.manager.reading import storage_error
from mqd.log.partition_log import LogFailure
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.hot_fetch_request import FetchRequest
from mqd.protocol.hot_fetch_response import encode_fetch_response_parts
from mqd.protocol.hot_follower import VERSION
from mqd.protocol.schema import Api
from mqd.replica.assignment import Assignment
from mqd.replica.fetchers import SYNC_SECONDS_MAX, Fetchers
from mqd.replica.follower import FollowerOptions
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.types import NodeId, TopicPartition
from tests.log.support import TOPIC_ID, FaultyDisk, Harness
from tests.replica.followers import request_of

ME = NodeId(2)
OPTIONS = FollowerOptions(backoff_seconds=1.0, wait_seconds_max=0.5, timeout_seconds=3.0)


def records(offset: int, epoch: int = 1, count: int = 1) -> bytes:
    return bytes(
        build_batch([(b"k", b"v")] * count, base_offset=offset, partition_leader_epoch=epoch)
    )


class Leader:
    """Responds to fetches from a list of batches for each partition; an empty fetch waits until the
    next batch completes it.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.batches: dict[int, list[bytes]] = {}
        self.log_starts: dict[int, int] = {}
        """The first offset of a partition's batches, if it is not 0."""
        self.on_request: Callable[[], object] = lambda: None
        self.requests: list[tuple[float, FetchRequest]] = []
        self.connections: list[Connection] = []
        self.refuses = False
        self.silent = False

    def offsets(self) -> list[tuple[int, int]]:
        return [
            (one.partition, one.fetch_offset)
            for _, request in self.requests
            for _, _, rows in request.topics
            for one in rows
        ]


class Connection:
    """The part of a Line that fetching uses."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.requested: dict[int, int] = {}
        self.broken: str | None = None
        self.free = trio.Event()
        self.freed = 0
        self.wait_until: float | None = None

    async def send(
        self, api: Api, version: int, body: bytes | bytearray, *, wanted: bool = True
    ) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        if api.key == 18:
            assert not wanted
            self.free.set()
            self.freed += 1
            return
        assert version == VERSION and self.wait_until is None, "one fetch at a time"
        request = request_of(body)
        self.leader.on_request()
        self.leader.requests.append((trio.current_time(), request))
        for _, _, rows in request.topics:
            for one in rows:
                self.requested[one.partition] = one.fetch_offset
        for _, _, forgotten in request.forgotten:
            for index in forgotten:
                del self.requested[index]
        self.free = trio.Event()
        self.wait_until = trio.current_time() + (
            1e9 if self.leader.silent else request.max_wait_ms / 1000
        )

    async def response(self) -> tuple[memoryview, int]:
        assert self.wait_until is not None
        found = self._rows()
        if not found:
            with trio.move_on_at(self.wait_until):
                await self.free.wait()
            self._check()
            found = self._rows()
        self.wait_until = None
        parts = encode_fetch_response_parts(
            VERSION, 0, 0, 0, 9, [(None, TOPIC_ID.bytes, found)] if found else []
        )
        return memoryview(b"".join(map(bytes, parts))), 9

    def _rows(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for partition, offset in self.requested.items():
            batches = self.leader.batches.get(partition, [])
            start = self.leader.log_starts.get(partition, 0)
            end = start + len(batches)
            if offset < start:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
                rows.append((partition, code, end, end, start, None, -1, []))
            elif offset < end:
                found = batches[offset - start : offset - start + 1]
                rows.append((partition, 0, end, end, start, None, -1, found))
        return rows

    def _check(self) -> None:
        if self.broken is not None:
            raise ConnectionBroken(self.broken, sent=True)

    def close(self, reason: str = "closed") -> None:
        self.broken = self.broken or reason
        self.free.set()


class Node:
    """A follower's shell, with leaders that a test controls."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.leaders = {1: Leader(1), 3: Leader(3)}
        self.dialled: list[float] = []
        replica = ReplicaService(
            node_id=ME, logs=harness.service, clock=harness.clock, entropy=RandomEntropy()
        )
        self.fetchers = Fetchers(
            node_id=ME,
            replica=replica,
            logs=harness.service,
            clock=harness.clock,
            entropy=RandomEntropy(),
            options=OPTIONS,
            connect=self.connect,  # type: ignore[arg-type]  # a fake connection
            broker_epoch=lambda: 5,
        )

    async def connect(self, node_id: NodeId) -> Connection:
        await trio.lowlevel.checkpoint()
        self.dialled.append(trio.current_time())
        leader = self.leaders[node_id]
        if leader.refuses:
            raise OSError("nobody listens")
        leader.connections.append(Connection(leader))
        return leader.connections[-1]

    def partition(
        self, index: int, leader: int = 1, epoch: int = 1, config: LogConfig | None = None
    ) -> Partition:
        log = self.harness.open(config, TopicPartition("orders", index))
        nodes = (NodeId(1), ME, NodeId(3))
        partition = Partition(
            ME,
            log,
            Assignment(TopicPartition("orders", index), TOPIC_ID, NodeId(leader), 0, nodes, nodes),
            1,
        )
        self.lead(partition, leader, epoch)
        return partition

    def lead(self, partition: Partition, leader: int, epoch: int) -> None:
        before = partition.assignment
        assignment = Assignment(
            before.topic_partition,
            TOPIC_ID,
            NodeId(leader),
            epoch,
            before.replicas,
            before.isr,
            partition_epoch=epoch,
        )
        partition.assign(assignment, 1)
        self.fetchers.follow(partition)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.fetchers.run)
        nursery.start_soon(node.harness.service.run)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    harness = Harness(tmp_path)
    await harness.service.start()
    return Node(harness)


async def test_fetched_batches_are_appended_and_the_next_fetch_continues(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.leaders[1].batches = {0: [records(0), records(1), records(2)]}
    partition = node.partition(0)
    async with running(node):
        await until(lambda: partition.log.log_end_offset == 3)
        await until(lambda: len(node.leaders[1].requests) == 4)
    assert node.leaders[1].offsets() == [(0, 0), (0, 1), (0, 2), (0, 3)], (
        "each fetch continues at the log end"
    )
    assert partition.high_watermark == 3


async def test_a_new_partition_interrupts_a_waiting_fetch(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.partition(0)
    leader = node.leaders[1]
    leader.batches = {1: [records(0)]}
    async with running(node):
        await until(lambda: leader.requests)
        await trio.sleep(0.1)
        at = trio.current_time()
        partition = node.partition(1)
        await until(lambda: partition.log.log_end_offset == 1)
        assert trio.current_time() - at < 0.05
    assert (
        len(leader.connections) == 1 and len(node.dialled) == 1 and leader.connections[0].freed == 1
    )


async def test_a_partition_is_fetched_from_its_new_leader_at_once(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    partition = node.partition(0)
    node.leaders[3].batches = {0: [records(0, epoch=2)]}
    async with running(node):
        await until(lambda: node.leaders[1].requests)
        at = trio.current_time()
        node.lead(partition, 3, 2)
        await until(lambda: partition.log.log_end_offset == 1)
        assert trio.current_time() - at < 0.05
        await until(lambda: node.leaders[1].connections[0].broken is not None)
        node.lead(partition, 1, 3)
        await until(lambda: len(node.leaders[1].connections) == 2)


async def test_a_broken_connection_is_replaced_at_once_and_a_refused_one_later(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.partition(0)
    leader = node.leaders[1]
    async with running(node):
        await trio.sleep(3)
        at = trio.current_time()
        leader.refuses = True
        leader.connections[0].close("cut")
        await trio.sleep(30)
        tries = [when - at for when in node.dialled[1:]]
        assert tries[0] < 0.01 and tries[2] < 0.2
        pauses = [later - earlier for earlier, later in zip(tries[-6:], tries[-5:])]
        assert all(0.4 <= pause <= 1.6 for pause in pauses) and len(tries) < 90
        count_before = len(leader.requests)
        leader.refuses = False
        await until(lambda: len(leader.requests) > count_before)
        assert len(leader.connections) == 2 and leader.requests[count_before][1].session_epoch == 0


async def test_an_unresponsive_leader_is_disconnected(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.partition(0)
    leader = node.leaders[1]
    leader.silent = True
    async with running(node):
        await until(lambda: len(leader.connections) == 2)
    assert leader.requests[0][0] + 3.5 == pytest.approx(node.dialled[1], abs=0.1)


async def test_damaged_records_are_reported_counted_and_fetched_again(
    node: Node, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = bytearray(records(0))
    wrong[-1] ^= 1
    leader = node.leaders[1]
    leader.batches = {0: [bytes(wrong)], 1: [records(0)]}
    partition, other = node.partition(0), node.partition(1)
    async with running(node):
        await until(lambda: caplog.text.count("cannot append fetched records") == 2)
        assert other.log.log_end_offset == 1 and partition.log.log_end_offset == 0
        leader.batches[0] = [records(0)]
        await until(lambda: partition.log.log_end_offset == 1)
    assert "CRC" in caplog.text


async def test_with_flush_before_ack_the_next_fetch_follows_the_sync(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    partition = node.partition(0, config=LogConfig(flush_before_ack=True))
    node.leaders[1].batches = {0: [records(0), records(1)]}
    durable: list[int] = []
    connection_asked = node.leaders[1].requests
    async with running(node):
        await until(lambda: len(connection_asked) == 3)
        durable.append(partition.log.durability.end_offset)
    assert durable == [2] and node.leaders[1].offsets() == [(0, 0), (0, 1), (0, 2)]


async def test_a_reset_log_is_durable_before_the_next_fetch_acknowledges_it(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    partition = node.partition(0)
    node.leaders[1].log_starts[0] = 10
    node.leaders[1].batches = {0: [records(10)]}
    synced: list[bool] = []
    node.leaders[1].on_request = lambda: synced.append(not partition.log.durability.unsynced_reset)
    async with running(node):
        await until(lambda: (0, 11) in node.leaders[1].offsets())
    assert node.leaders[1].offsets() == [(0, 0), (0, 10), (0, 11)]
    assert node.fetchers.resets == 1 and synced == [True, True, True]


async def test_a_log_reset_after_a_full_disk_is_made_durable_too(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    partition = node.partition(0)
    partition.log.failure = LogFailure("no space", is_retriable=True)
    node.leaders[1].log_starts[0] = 10
    node.leaders[1].batches = {0: [records(10)]}
    async with running(node):
        await until(lambda: (0, 11) in node.leaders[1].offsets())
    assert partition.log.failure is None


class SlowDisk(FaultyDisk):
    """Syncs of one log directory take five seconds."""

    def __init__(self, slow: Path) -> None:
        super().__init__()
        self.slow = slow

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        plan = getattr(call, "__self__", None)
        if isinstance(plan, SyncPlan) and plan.log.directory == self.slow:
            await trio.sleep(5)
        return call(*args)


async def test_a_slow_disk_delays_only_its_own_partitions(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    harness = Harness(slow, quick, disk=SlowDisk(slow))
    await harness.service.start()
    node = Node(harness)
    flushed = LogConfig(flush_before_ack=True)
    partitions = [node.partition(0, config=flushed), node.partition(1, config=flushed)]
    assert [partition.log.directory for partition in partitions] == [slow, quick]
    node.leaders[1].batches = {
        0: [records(0), records(1)],
        1: [records(number) for number in range(10)],
    }
    async with running(node):
        at = trio.current_time()
        await until(lambda: (1, 10) in node.leaders[1].offsets())
        assert trio.current_time() - at < 2
        assert (0, 1) not in node.leaders[1].offsets()
        await until(lambda: (0, 2) in node.leaders[1].offsets())


class FullDisk(FaultyDisk):
    """Syncs find no space although the log was written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.refused = 0

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        await trio.lowlevel.checkpoint()
        if isinstance(plan := getattr(call, "__self__", None), SyncPlan) and self.is_full:
            self.refused += 1
            raise storage_error(
                f"cannot write beside {plan.log.path}", OSError(errno.ENOSPC, "no space")
            )
        return call(*args)


async def test_a_full_disk_is_checked_at_intervals(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path, disk=(disk := FullDisk()))
    await harness.service.start()
    node = Node(harness)
    node.partition(0, config=LogConfig(flush_before_ack=True))
    node.leaders[1].batches = {0: [records(0)]}
    async with running(node):
        await until(lambda: disk.refused)
        await trio.sleep(1)
        assert 2 <= disk.refused <= 1 / SYNC_SECONDS_MAX + 2
        assert (0, 1) not in node.leaders[1].offsets()
        disk.is_full = False
        await until(lambda: (0, 1) in node.leaders[1].offsets())


async def test_appends_to_a_full_disk_are_retried_at_longer_and_longer_intervals(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path, disk=(disk := FaultyDisk()))
    await harness.service.start()
    node = Node(harness)
    partition = node.partition(0)
    node.leaders[1].batches = {0: [records(0)]}
    disk.free = 0
    partition.log.failure = LogFailure("no space", is_retriable=True)
    async with running(node):
        await trio.sleep(20)
        assert 20 <= caplog.text.count("cannot append fetched records") <= 30
        disk.free, freed_at = 1 << 40, trio.current_time()
        await until(lambda: partition.log.log_end_offset == 1)
        assert trio.current_time() - freed_at < OPTIONS.backoff_seconds + 0.1


async def test_responses_for_a_partition_that_is_no_longer_followed_do_nothing(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    partition = node.partition(0)
    leader = node.leaders[1]
    async with running(node):
        await until(lambda: leader.requests)
        node.fetchers.unfollow(partition)
        leader.batches = {0: [records(0)]}
        await trio.sleep(5)
        assert partition.log.log_end_offset == 0
        assert all(connection.broken for connection in leader.connections)
