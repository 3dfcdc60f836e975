"""The partitions of a node: connects the parts, and keeps the contact with the controller.

The parts:
- partition_table.py: the partitions
- assignments.py: applies the metadata to them
- offline.py: logs that cannot be used
- turn.py: appends
- parked.py: requests that wait
- isr_changes.py: changes of the ISRs
- fetch_session.py: the sessions of incremental fetches

Followers' tasks are in fetchers.py.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import trio

from mqd.errors import ErrorCode
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import FETCH_SESSIONS_MAX
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.replica.assignments import Assignments
from mqd.replica.fetch_session import FetchSessions, FollowerSessions
from mqd.replica.isr_changes import IsrChanges
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.offline import OfflineReplicas
from mqd.replica.parked import ParkedRequests
from mqd.replica.partition import Partition
from mqd.replica.partition_table import PartitionTable
from mqd.replica.ports import ReplicaPorts
from mqd.replica.turn import Turn
from mqd.types import NodeId, Offset

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 5.0
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`."""
LAG_SECONDS = 30.0
"""Kafka's `replica.lag.time.max.ms`."""
CHECK_SECONDS_MAX = 1.0
"""The longest pause between two checks for out-of-sync replicas and failed logs."""
_CHECKED_AT_ONCE = 1000


class ReplicaService:
    """See the head of this file. All methods but `run` and `check` are synchronous."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        logs: LogService,
        clock: Clock,
        entropy: Entropy,
        ports: ReplicaPorts | None = None,
        consumers_read_from_followers: bool = False,
        fetch_sessions_max: int = FETCH_SESSIONS_MAX,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        lag_seconds: float = LAG_SECONDS,
    ) -> None:
        """`consumers_read_from_followers`: KIP-392. `checkpoint_seconds`: the interval of high
        watermark checkpoints. `lag_seconds`: `replica.lag.time.max.ms`.
        """
        ports = ports if ports is not None else ReplicaPorts()
        self.node_id = node_id
        self.logs = logs
        self._clock = clock
        self._checkpoint_seconds = checkpoint_seconds
        self._lag_seconds = lag_seconds

        self.in_contact = True
        self._contact_until = ports.contact_until
        self.contact_ends_at = math.inf
        """The result of the last `contact_until`."""
        self.lost_contact_at = -math.inf
        """Monotonic seconds."""

        self.sessions = FetchSessions(entropy.below, fetch_sessions_max)
        self.follower_sessions = FollowerSessions(entropy.below)
        self.parked = ParkedRequests(consumers_read_from_followers)
        self._table = PartitionTable()
        self._turn = Turn(logs, self.parked)
        self._isr_changes = IsrChanges(self.parked, clock, ports.alter_partitions)
        self._offline = OfflineReplicas(node_id, ports)
        self.assignments = Assignments(
            node_id,
            logs,
            clock,
            ports,
            IsrConditions(lag_seconds, ports.eligible_epoch),
            self._table,
            self._offline,
            self.parked,
            self._isr_changes,
            self.follower_sessions,
            lambda: self.in_contact,
        )
        self.eligible_epoch = ports.eligible_epoch
        self._give_access()

    def _give_access(self) -> None:
        """Callers use the parts through the service."""
        self.by_name, self.by_id = self._table.by_name, self._table.by_id
        self.get = self._table.get
        self.partitions = self._table.partitions

        self.append_nowait = self._turn.append_nowait
        self.append_marker_nowait = self._turn.append_marker_nowait
        self.wait_committed = self._turn.wait_committed
        self.end_of_turn = self._turn.end_of_turn
        self.park_fetch = self.parked.park_fetch

        self.follower_fetched = self._isr_changes.follower_fetched

        self.leader_throttle = self.assignments.leader_throttle
        self.follower_throttle = self.assignments.follower_throttle
        self.offline = self._offline.reasons
        self.log_failed = self._offline.log_failed

    @property
    def low_watermark_moved(self) -> trio.Event:
        return self._isr_changes.low_watermark_moved

    # -- the controller ----------------------------------------------------------------------------

    def judge_contact(self, now: float) -> None:
        """Find out whether this node is in contact at `now`.

        Also called before the first request at or after `contact_ends_at` is served: requests may
        have waited while this process did not run (I26).
        """
        self.contact_ends_at = self._contact_until()
        self.set_in_contact(now < self.contact_ends_at)

    def set_in_contact(self, in_contact: bool) -> None:
        """Whether this node is in contact with a controller that has a majority. Without contact,
        other nodes may lead its partitions, so it rejects clients, also the parked requests (I26).

        Followers are still served, because epochs fence their fetches.
        """
        if in_contact == self.in_contact:
            return
        self.in_contact = in_contact
        if not in_contact:
            self.lost_contact_at = self._clock.monotonic()
        logger.log(
            logging.INFO if in_contact else logging.WARNING,
            "contact with the controller changed in_contact=%s clients=%s",
            in_contact,
            "served" if in_contact else "redirected",
        )
        for partition in self.partitions():
            partition.set_in_contact(in_contact)
            if partition.is_leader and not in_contact:
                self.parked.reject(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def brokers_changed(self) -> None:
        """Brokers were added, removed or fenced, or are shutting down."""
        self._isr_changes.eligibility_changed(self.partitions())

    # -- the logs ----------------------------------------------------------------------------------

    def on_durable(self, log: PartitionLog) -> None:
        """More of a log is on stable storage: batches that waited for that may be committed."""
        partition = self.get(log.topic_partition)
        if partition is None or partition.log is not log:
            return
        if partition.syncs:
            self.parked.synced(partition)
        if partition.advance():
            self.parked.high_watermark_moved(partition)

    def on_directory_failed(self, directory: Path) -> None:
        """A log directory is offline: syncs that requests wait for do not happen."""
        for partition in self.partitions():
            if partition.log.directory == directory:
                self.parked.reject(partition, ErrorCode.KAFKA_STORAGE_ERROR)
                self.log_failed(partition)

    def on_log_start_moved(self, log: PartitionLog) -> None:
        """Retention has removed records. Followers of an idle partition would not learn it without
        this.
        """
        partition = self.get(log.topic_partition)
        if partition is not None and partition.log is log:
            self.parked.wake_followers([partition])

    def high_watermark_of(self, log: PartitionLog) -> Offset:
        """The high watermark of the replica with this log, or a lower bound."""
        partition = self.get(log.topic_partition)
        if partition is None or partition.log is not log:
            return log.checkpointed_high_watermark
        return partition.high_watermark

    def delete_records(self, partition: Partition, offset: Offset) -> None:
        """Move the log start of a partition that this node leads to `offset`, and wake its
        followers. Raises MqError as `LogService.delete_records` does.
        """
        self.logs.delete_records(partition.log, offset)
        self.parked.wake_followers([partition])

    def follower_advanced(self, partition: Partition) -> None:
        """This node follows, and `Partition.follower_progress` has changed: take the log start of
        the leader, and wake the consumers that read here.
        """
        log = partition.log
        if partition.leader_log_start_offset > log.log_start_offset:
            self.logs.delete_records(
                log, min(partition.leader_log_start_offset, log.written_end_offset)
            )
        partition.log_replaced()
        self.parked.free_fetches(partition)

    def checkpoint_high_watermarks(self) -> None:
        for partition in self.partitions():
            self.logs.checkpoint_high_watermark(
                partition.assignment.topic_partition, partition.high_watermark
            )

    # -- tasks -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Expire parked requests, checkpoint high watermarks, open offline partitions again, and
        keep the ISRs up to date; until cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_deadlines)
            nursery.start_soon(self._run_checkpoints)
            nursery.start_soon(self.assignments.run_retries)
            nursery.start_soon(self._isr_changes.run)
            nursery.start_soon(self._run_checks)

    async def _run_deadlines(self) -> None:
        parked = self.parked
        while True:
            due_at = parked.timer_due_at = parked.expire(self._clock.monotonic())
            earlier_deadline = trio.Event()
            parked.wake_timer = earlier_deadline.set
            with trio.move_on_after(max(0.0, due_at - self._clock.monotonic())):
                await earlier_deadline.wait()
            parked.timer_due_at = -math.inf

    async def _run_checkpoints(self) -> None:
        while True:
            await trio.sleep(self._checkpoint_seconds)
            self.checkpoint_high_watermarks()

    async def _run_checks(self) -> None:
        while True:
            await trio.sleep(min(self._lag_seconds / 2, CHECK_SECONDS_MAX))
            await self.check()

    async def check(self) -> None:
        """Check each partition once for out-of-sync replicas and for a failed log."""
        for number, partition in enumerate(self.partitions()):
            if number % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            self._isr_changes.check_lag(partition)
            # A deleted partition has no log either.
            if (
                partition.log.failure is not None
                and self.get(partition.assignment.topic_partition) is partition
            ):
                self.log_failed(partition)
