"""The partitions of this node: opens and closes them as the metadata says, and runs the turn that makes appends count.

A turn: handlers call `append_nowait` any number of times and hand over their tickets; `end_of_turn` writes everything
that was queued with one vectored write a log, moves the high watermarks, and frees whoever waited for that. Between an
append and the end of its turn there is no await, so nobody ever sees a record that is not written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import FETCH_SESSIONS_MAX
from mqd.log.partition_log import Appended, LogConfig, PartitionLog
from mqd.log.service import LogService
from mqd.replica.fetch_session import FetchSessions
from mqd.replica.partition import Assignment, Partition
from mqd.replica.waiters import Deadlines, FetchWaiter, ProduceTicket
from mqd.types import NodeId, TopicPartition

logger = logging.getLogger(__name__)

RETRY_SECONDS = 3.0
"""How often partitions are tried that could not be opened."""
CHECKPOINT_SECONDS = 5.0
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a partition needs to know of its topic's configuration."""

    log: LogConfig
    min_insync_replicas: int


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    partitions: int
    leaders: int
    parked_produces: int
    parked_fetches: int
    fetch_sessions: int
    offline: int


class ReplicaService:
    """Every partition that this node holds, by name and by topic id."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        logs: LogService,
        clock: Clock,
        entropy: Entropy,
        fetch_sessions_max: int = FETCH_SESSIONS_MAX,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        """`checkpoint_seconds`: how often the high watermarks are written down."""
        self.node_id = node_id
        self.logs = logs
        self.sessions = FetchSessions(entropy.below, fetch_sessions_max)
        self.by_name: dict[bytes, dict[int, Partition]] = {}
        """Topic name in UTF-8 -> partition index -> Partition: the lookup of the hot path."""
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        """The same by the topic id's 16 bytes."""
        self.offline: dict[TopicPartition, str] = {}
        """Partitions assigned to this node whose log could not be opened, and why."""
        self._retries: dict[TopicPartition, tuple[Assignment, TopicSettings]] = {}
        """Those of them that are tried again: the reason may pass."""
        self._retry_wanted = trio.Event()
        self._clock = clock
        self._checkpoint_seconds = checkpoint_seconds
        self._touched: list[Partition] = []
        self._tickets: list[ProduceTicket] = []
        self._produce_deadlines: Deadlines[ProduceTicket] = Deadlines()
        self._fetch_deadlines: Deadlines[FetchWaiter] = Deadlines()
        self._earlier = trio.Event()
        self._sleeping_until = math.inf

    # -- what the metadata says ------------------------------------------------------------------------------------

    def apply(self, assignments: Iterable[Assignment], settings: Mapping[str, TopicSettings]) -> None:
        """Open, lead or stop leading each partition as its newest assignment says."""
        offline_before = len(self.offline)
        for assignment in assignments:
            topic = assignment.topic_partition.topic
            partition = self.get(assignment.topic_partition)
            if self.node_id not in assignment.replicas:
                self._forget_offline(assignment.topic_partition)
                if partition is not None:
                    self._close(partition)
                continue
            topic_settings = settings[topic]
            if partition is None:
                try:
                    log = self.logs.open(assignment.topic_partition, assignment.topic_id, topic_settings.log)
                except (StorageError, OSError, MqError) as error:
                    self.offline[assignment.topic_partition] = str(error)
                    self._retries.pop(assignment.topic_partition, None)
                    if not isinstance(error, MqError):  # a fence stays; a disk without space and too many open files pass
                        self._retries[assignment.topic_partition] = assignment, topic_settings
                        self._retry_wanted.set()
                    continue
                self._forget_offline(assignment.topic_partition)
                partition = Partition(self.node_id, log, assignment, topic_settings.min_insync_replicas)
                recovered = self.logs.recovered_high_watermark(assignment.topic_partition)
                partition.high_watermark = min(max(recovered, log.log_start_offset), log.log_end_offset)
                self.by_name.setdefault(topic.encode(), {})[assignment.topic_partition.partition] = partition
                self.by_id.setdefault(assignment.topic_id.bytes, {})[assignment.topic_partition.partition] = partition
            if partition.assign(assignment, topic_settings.min_insync_replicas):
                self._wake(partition)
            elif not partition.is_leader:
                self._refuse_waiting(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(self.offline) > offline_before:
            self._tell_offline()

    def _forget_offline(self, topic_partition: TopicPartition) -> None:
        self.offline.pop(topic_partition, None)
        self._retries.pop(topic_partition, None)

    def _tell_offline(self) -> None:
        example, reason = next(reversed(self.offline.items()))
        logger.error("partitions are offline count=%d for_example=%s reason=%s", len(self.offline), example, reason)

    def configure(self, topic: str, settings: TopicSettings) -> None:
        """A topic's configuration changed."""
        for topic_partition, (assignment, _) in self._retries.items():
            if topic_partition.topic == topic:
                self._retries[topic_partition] = assignment, settings
        for partition in self.by_name.get(topic.encode(), {}).values():
            self.logs.update_config(partition.log, settings.log)
            partition.configure(settings.min_insync_replicas)
            if partition.advance():
                self._wake(partition)

    def delete(self, topic: str) -> None:
        """The topic is gone from the metadata: so are its logs."""
        for partition in list(self.by_name.get(topic.encode(), {}).values()):
            self._close(partition)
        for offline in [one for one in self.offline if one.topic == topic]:
            self._forget_offline(offline)
            self.logs.delete(offline)

    def remove_strays(self, known: Mapping[TopicPartition, UUID]) -> list[TopicPartition]:
        """Remove logs on disk that no assignment to this node explains: their topics went while it was down.

        Then the reverse: what is assigned, was here, and is gone stays offline. Once, before the first assignment is carried out.
        """
        strays = [tp for tp, log in self.logs.logs.items() if known.get(tp) != log.topic_id]
        for stray in strays:
            logger.warning("removing the log of a partition that this node no longer holds partition=%s", stray)
            self.logs.delete(stray)
        self.logs.settle_missing(known)
        return strays

    def _close(self, partition: Partition) -> None:
        topic_partition = partition.assignment.topic_partition
        partition.is_leader = partition.serves = False
        for table, key in ((self.by_name, topic_partition.topic.encode()), (self.by_id, partition.assignment.topic_id.bytes)):
            partitions = table[key]
            del partitions[topic_partition.partition]
            if not partitions:
                del table[key]
        self._refuse_waiting(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.logs.delete(topic_partition)

    def _refuse_waiting(self, partition: Partition, code: ErrorCode) -> None:
        """Send whoever waits here away: the outcome is unknown, the client finds out from the next leader."""
        while partition.acks:
            append, ticket = partition.acks.popleft()
            if not ticket.freed:
                ticket.refuse(append, code)
                ticket.settle()
        for waiter in list(partition.fetches):
            waiter.free()

    # -- looking ---------------------------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self.by_name.get(topic_partition.topic.encode(), {}).get(topic_partition.partition)

    def partitions(self) -> list[Partition]:
        return [partition for partitions in self.by_name.values() for partition in partitions.values()]

    def statistics(self) -> ReplicaStatistics:
        partitions = self.partitions()
        return ReplicaStatistics(
            partitions=len(partitions),
            leaders=sum(partition.is_leader for partition in partitions),
            parked_produces=sum(len(partition.acks) for partition in partitions),
            parked_fetches=len({id(waiter) for partition in partitions for waiter in partition.fetches}),
            fetch_sessions=len(self.sessions),
            offline=len(self.offline),
        )

    # -- the turn --------------------------------------------------------------------------------------------------

    def append_nowait(self, partition: Partition, records: memoryview, acks: int, now_ms: int) -> Appended:
        """Queue one batch. `records` must stay as it is until `end_of_turn`. Raises MqError where it is refused."""
        if not partition.is_leader or (acks == -1 and partition.short_of_replicas):
            partition.check_append(acks)
        log = partition.log
        if log.touched:  # the service knows already that this log has something to write in this turn
            appended = log.plan_append(records, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        else:
            appended = self.logs.append_nowait(log, records, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        partition.news_bytes += len(records)
        if not partition.touched:
            partition.touched = True
            self._touched.append(partition)
        return appended

    def wait_committed(self, ticket: ProduceTicket) -> None:
        """Free the ticket when everything in it is committed; looked at when the turn ends."""
        self._tickets.append(ticket)

    def end_of_turn(self) -> None:
        """Write what the turn queued, and free whoever waited for it. Harmless when nothing was queued."""
        touched, tickets = self._touched, self._tickets
        if not touched and not tickets:
            return
        self._touched, self._tickets = [], []
        failed: dict[PartitionLog, StorageError] = dict(self.logs.flush()) if touched else {}
        moved: list[Partition] = []
        for partition in touched:
            partition.touched = False
            if failed and partition.log in failed:
                self._after_failed_write(partition)
            if partition.advance():
                moved.append(partition)
        for ticket in tickets:
            for append in ticket.appends:
                partition = append[0]
                if failed and partition.log in failed:
                    ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                elif partition.high_watermark < append[1]:
                    if partition.log.failed is not None and not partition.log.heals:  # its directory went later in this turn
                        ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                        continue
                    partition.acks.append((append, ticket))
                    ticket.waiting += 1
            if not ticket.waiting:
                ticket.freed = True
                ticket.release()
            else:
                self._produce_deadlines.add(ticket)
                self._wake_timer(ticket.deadline)
        for partition in moved:
            self._wake(partition)

    def _after_failed_write(self, partition: Partition) -> None:
        """The log was put back to what is on disk: whoever waited for offsets beyond that is told so."""
        end = partition.log.log_end_offset
        waiting = list(partition.acks)
        partition.acks.clear()
        for append, ticket in waiting:
            if append[1] <= end:
                partition.acks.append((append, ticket))
            elif not ticket.freed:
                ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                ticket.settle()

    def on_durable(self, log: PartitionLog) -> None:
        """More of a log is on stable storage: what waited for that may be committed now."""
        partition = self.get(log.topic_partition)
        if partition is not None and partition.log is log and partition.advance():
            self._wake(partition)

    def on_directory_failed(self, directory: Path) -> None:
        """Nothing that waits for a sync there will see one."""
        for partition in self.partitions():
            if partition.log.directory == directory:
                self._refuse_waiting(partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def _wake(self, partition: Partition) -> None:
        acks = partition.acks
        high_watermark = partition.high_watermark
        while acks and acks[0][0][1] <= high_watermark:
            _, ticket = acks.popleft()
            if not ticket.freed:
                ticket.settle()
        if partition.fetches:
            for waiter in list(partition.fetches):
                waiter.bytes_wanted -= partition.news_bytes
                if waiter.bytes_wanted <= 0:
                    waiter.free()
        partition.news_bytes = 0

    # -- time ------------------------------------------------------------------------------------------------------

    def park(self, waiter: FetchWaiter, partitions: Iterable[Partition]) -> None:
        """Hold a fetch until one of its partitions has news or its deadline comes."""
        waiter.partitions = tuple(partitions)
        for partition in waiter.partitions:
            partition.fetches.add(waiter)
        self._fetch_deadlines.add(waiter)
        self._wake_timer(waiter.deadline)

    def _wake_timer(self, deadline: float) -> None:
        if deadline < self._sleeping_until:
            self._earlier.set()

    async def run(self) -> None:
        """Free what waited too long, and checkpoint the high watermarks; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_deadlines)
            nursery.start_soon(self._run_checkpoints)
            nursery.start_soon(self._run_retries)

    async def _run_deadlines(self) -> None:
        while True:
            now = self._clock.monotonic()
            for waiter in self._fetch_deadlines.expired(now):
                waiter.free()
            for ticket in self._produce_deadlines.expired(now):
                for append in ticket.appends:
                    if append[0].high_watermark < append[1]:
                        ticket.refuse(append, ErrorCode.REQUEST_TIMED_OUT)
                ticket.free()
            deadlines = [self._fetch_deadlines.next_deadline(), self._produce_deadlines.next_deadline()]
            self._sleeping_until = min((one for one in deadlines if one is not None), default=math.inf)
            self._earlier = trio.Event()
            with trio.move_on_after(max(0.0, self._sleeping_until - self._clock.monotonic())):
                await self._earlier.wait()
            self._sleeping_until = -math.inf

    async def _run_checkpoints(self) -> None:
        while True:
            await trio.sleep(self._checkpoint_seconds)
            self.checkpoint_high_watermarks()

    async def _run_retries(self) -> None:
        """Every few seconds, open what could not be opened; when one fails, the others wait for the next round."""
        while True:
            await self._retry_wanted.wait()
            self._retry_wanted = trio.Event()
            await trio.sleep(RETRY_SECONDS)
            before = len(self.offline)
            for topic_partition in list(self._retries):
                if topic_partition in self._retries:
                    assignment, settings = self._retries[topic_partition]
                    self.apply([assignment], {topic_partition.topic: settings})
                    if topic_partition in self._retries:
                        break
                await trio.lowlevel.checkpoint()
            if self._retries:
                self._retry_wanted.set()
            if len(self.offline) < before:
                logger.info("partitions are online again count=%d still_offline=%d", before - len(self.offline), len(self.offline))

    def checkpoint_high_watermarks(self) -> None:
        for partition in self.partitions():
            self.logs.checkpoint_high_watermark(partition.assignment.topic_partition, partition.high_watermark)
