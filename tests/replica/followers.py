"""Replicas of one partition, each with its log and the replication cores, and a leader that
responds to fetches from its log.

Nothing here waits: a test decides which replica leads, writes and fetches, in which order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
import trio.testing

from mqd.io.entropy import RandomEntropy
from mqd.log.disk.sync_plan import plan_sync
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches
from mqd.protocol.hot_fetch_request import FetchPartition, FetchRequest, decode_fetch_request
from mqd.protocol.hot_follower import VERSION, FetchedPartition, FetchedTopics
from mqd.protocol.record_reader import iterate_records
from mqd.replica.assignment import Assignment
from mqd.replica.fetchers import Fetchers
from mqd.replica.follower import Action, Follower, FollowerOptions
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.throttle import Throttle
from mqd.types import NodeId
from tests.log.support import PARTITION, TOPIC_ID, Harness, InlineDisk, batch

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=0)


def assignment_of(
    leader: int, epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...] | None = None
) -> Assignment:
    nodes = tuple(map(NodeId, isr))
    everyone = tuple(map(NodeId, replicas)) if replicas is not None else nodes
    return Assignment(
        PARTITION, TOPIC_ID, NodeId(leader), epoch, everyone, nodes, partition_epoch=epoch
    )


def request_of(body: bytes | bytearray) -> FetchRequest:
    return decode_fetch_request(memoryview(bytes(body)), 0, len(body), VERSION)


class Replica:
    """One node's copy."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.node_id = NodeId(node_id)
        self.harness = Harness(directory, disk=InlineDisk())
        self.assignment: Assignment | None = None
        trio.run(self.harness.service.start)
        self._open()

    @property
    def logs(self) -> LogService:
        return self.harness.service

    def _open(self) -> None:
        self.log: PartitionLog = self.harness.open(CONFIG)
        replica = ReplicaService(
            node_id=self.node_id, logs=self.logs, clock=self.harness.clock, entropy=RandomEntropy()
        )
        self.fetchers = Fetchers(
            node_id=self.node_id,
            replica=replica,
            logs=self.logs,
            clock=Now(),
            entropy=RandomEntropy(),
            options=FollowerOptions(),
            connect=_nobody,
            broker_epoch=lambda: 1,
        )
        self.core = Follower(NodeId(-1), self.node_id, FollowerOptions(), Throttle())
        self.partition = Partition(self.node_id, self.log, assignment_of(-1, 0, (1, 2, 3)), 1)
        recovered = self.logs.checkpointed_high_watermark(PARTITION)
        self.partition.high_watermark = min(
            max(recovered, self.log.log_start_offset), self.log.log_end_offset
        )

    def assign(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.partition.assign(assignment, 1)
        if self.partition.is_leader:
            self.core.unfollow(self.partition)
        else:
            self.core = Follower(assignment.leader, self.node_id, FollowerOptions(), Throttle())
            self.core.follow(self.partition)

    def assignment_with_isr(self, isr: tuple[int, ...]) -> Assignment:
        """Its assignment, with another ISR."""
        assert self.assignment is not None
        epoch = self.assignment.partition_epoch + 1
        return replace(self.assignment, isr=tuple(map(NodeId, isr)), partition_epoch=epoch)

    def append(self, *values: bytes, producer_id: int = -1, sequence: int = -1) -> int:
        """Write one batch as the leader. Returns its end offset."""
        data = batch(*values, producer_id=producer_id, sequence=sequence)
        self.harness.write(self.log, data, epoch=self.partition.leader_epoch)
        self.partition.advance()
        return self.log.log_end_offset

    def fetch(self, leader: Replica, now: float = 0.0) -> list[Action]:
        """One fetch from the leader, applied. Returns the request."""
        body = self.core.next_request(1, now)
        if body is None:
            return []
        actions = self.core.on_response(leader.answer(request_of(body)), now)
        trio.run(self.fetchers._apply, self.core, actions)
        durability = self.log.durability
        if durability.unsynced_truncation is not None or durability.unsynced_reset:
            self._sync()
        return actions

    def _sync(self) -> None:
        """What the service's task does when a truncation requires it: no segment begins before."""
        plan = plan_sync(self.harness.disk, self.log, whole=True)
        plan.run(self.harness.disk)
        self.logs.after_sync(plan)
        trio.run(self.logs.checkpoint_recovery_points)

    def requested(self) -> FetchPartition:
        """Its next fetch, computed without state."""
        self.core.disconnected()
        body = self.core.next_request(1, 1e9)
        assert body is not None
        return request_of(body).topics[0][2][0]

    def answer(self, request: FetchRequest) -> FetchedTopics:
        """The response of a leader, without a session."""
        [(_, topic_id, [requested])] = request.topics
        assert topic_id == TOPIC_ID.bytes
        return FetchedTopics(0, 0, 0, [(topic_id, [self.row(requested, request.replica_id)])])

    def row(self, requested: FetchPartition, node_id: int) -> FetchedPartition:
        """One partition's part of a response."""
        partition, log = self.partition, self.log
        ends = (partition.high_watermark, log.log_start_offset)
        if not partition.is_leader or requested.current_leader_epoch != partition.leader_epoch:
            return FetchedPartition(0, 6, -1, -1, None, memoryview(b""))
        if requested.last_fetched_epoch >= 0:
            diverging = log.epochs.divergence(
                requested.last_fetched_epoch, requested.fetch_offset, log.log_end_offset
            )
            if diverging is not None:
                return FetchedPartition(0, 0, *ends, diverging, memoryview(b""))
        if not log.log_start_offset <= requested.fetch_offset <= log.log_end_offset:
            return FetchedPartition(0, 1, *ends, None, memoryview(b""))
        if NodeId(node_id) in partition.followers:
            partition.follower_fetched(
                NodeId(node_id), 1, requested.fetch_offset, requested.log_start_offset, 0.0
            )
        read = self.logs.read(
            log,
            requested.fetch_offset,
            max_bytes=1000,
            limit_offset=log.written_end_offset,
            min_one=True,
        )
        data = b"".join(one.file.read_at(one.position, one.size) for one in read.ranges)
        return FetchedPartition(
            0, 0, partition.high_watermark, log.log_start_offset, None, memoryview(data)
        )

    def kill(self) -> None:
        """kill -9 and a restart: written data is there, data in memory is lost."""
        # nothing syncs a new log here: the checkpoint stops waiting for it
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(self.logs.housekeeping.store, "replication-offset-checkpoint", clock=clock)
        trio.run(self.harness.restart)
        self._open()
        if self.assignment is not None:
            self.partition = Partition(self.node_id, self.log, self.assignment, 1)
            log = self.log
            recovered = max(log.checkpointed_high_watermark, log.log_start_offset)
            self.partition.high_watermark = min(recovered, log.log_end_offset)

    def note_high_watermark(self) -> None:
        self.logs.checkpoint_high_watermark(PARTITION, self.partition.high_watermark)

    def content(self) -> bytes:
        """The bytes of all batches from the log start on."""
        out = b""
        for segment in self.log.segments:
            out += self.log_bytes(segment.base_offset)
        return out

    def log_bytes(self, base_offset: int) -> bytes:
        return (self.log.path / f"{base_offset:020d}.log").read_bytes()

    def values(self) -> list[tuple[int, bytes | None]]:
        data = self.content()
        return [
            (record.offset, record.value)
            for position, _, header in iterate_batches(data)
            for record in iterate_records(data, position, header=header)
        ]

    @property
    def cuts(self) -> int:
        """How often something was truncated below the high watermark."""
        return self.logs.truncation.below_high_watermark


class Now:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


async def _nobody(node_id: NodeId) -> Any:
    raise OSError("there is no network here")


def receive_leader(replicas: list[Replica], leader: int, epoch: int, isr: tuple[int, ...]) -> None:
    """These replicas (and no others) receive the new leader."""
    for replica in replicas:
        replica.assign(assignment_of(leader, epoch, isr, (1, 2, 3)))


def fetch_until_stable(replicas: list[Replica], leader: Replica, rounds: int = 60) -> None:
    """All replicas fetch until no state changes any more."""
    for _ in range(rounds):
        before = [
            (one.log.log_end_offset, one.log.truncations, one.partition.high_watermark)
            for one in replicas
        ]
        for replica in replicas:
            if replica is not leader:
                replica.fetch(leader, now=1e9)
        if before == [
            (one.log.log_end_offset, one.log.truncations, one.partition.high_watermark)
            for one in replicas
        ]:
            return
    raise AssertionError("it does not come to rest")
