"""The partitions of this node: opens and closes them as the metadata says, and runs the turn that
makes appends count.

A turn: handlers call `append_nowait` any number of times and hand over their tickets; `end_of_turn`
writes everything that was queued with one vectored write a log, moves the high watermarks, and
frees whoever waited for that. Between an append and the end of its turn there is no await, so
nobody ever sees a record that is not written.

With followers, a high watermark moves when the last of them that counts has fetched
(`follower_fetched`), in the turn of that fetch. Who joins and leaves the in-sync replicas is
proposed to the controller by one task, many partitions a request.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from uuid import UUID

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import FETCH_SESSIONS_MAX
from mqd.log.appending import Appended, plan_append
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.replica.fetch_session import FetchSessions, FollowerSessions
from mqd.replica.isr import Verdict
from mqd.replica.partition import Assignment, Follows, Partition, Rules
from mqd.replica.progress import Fetching
from mqd.replica.settings import ReplicaStatistics, TopicSettings
from mqd.replica.throttle import Throttle, throttled_partitions
from mqd.replica.waiters import Append, Deadlines, FetchWaiter, ProduceTicket, until_durable
from mqd.types import NO_NODE, IsrChange, IsrOutcome, NodeId, Offset, TopicPartition

logger = logging.getLogger(__name__)

RETRY_SECONDS = 3.0
"""How often partitions are tried that could not be opened."""
CHECKPOINT_SECONDS = 5.0
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`."""
LAG_SECONDS = 30.0
"""Kafka's `replica.lag.time.max.ms`."""
ISR_CHANGES_AT_ONCE = 1000
"""Partitions in one request to the controller."""
ISR_RETRY_SECONDS = (0.05, 0.5)
"""First and longest pause after a request that the controller did not take, or whose
outcome is not known.
"""
CHECK_SECONDS_MAX = 1.0
"""How often at least partitions are looked at for followers that fell behind and for logs
that failed.
"""
_CHECKED_AT_ONCE = 1000


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
        lag_seconds: float = LAG_SECONDS,
    ) -> None:
        """`checkpoint_seconds`: how often the high watermarks are written down. `lag_seconds`:
        `replica.lag.time.max.ms`.

        The attributes `fetchers`, `alter_partitions`, `eligible`, `contact_until` and `on_offline`
        are set by whoever builds the node, before the first `apply`; a node that leads nothing with
        followers needs none of them.
        """
        self.node_id = node_id
        self.fetchers: Follows | None = None
        self.alter_partitions: (
            Callable[[Sequence[IsrChange]], Awaitable[list[IsrOutcome]]] | None
        ) = None
        """Asks the controller. Raises MqError where the outcome is not known."""
        self.on_offline: Callable[[UUID, int], None] | None = None
        """Called with the topic id and the index of a partition whose log here cannot be used."""
        """Told once that the log of a partition cannot be used, until it could be opened again."""
        self.on_role_changed: Callable[[Partition], None] | None = None
        """Told when a partition begins or ends to be led from here, or its leader epoch
        changes; the partition tells which.
        """
        self.in_contact = True
        self.contact_until: Callable[[], float] = lambda: math.inf
        """Gives the monotonic time from which on others may lead what this node leads."""
        self.contact_ends_at = math.inf  # the same as last asked for
        self.lost_contact_at = -math.inf  # monotonic seconds
        self.tells_high_watermarks = False
        """Whether consumers read from followers (KIP-392): these then hear of a new high
        watermark at once.
        """
        self.leader_throttle, self.follower_throttle = Throttle(), Throttle()
        """Their rates are set by whoever knows the node's configuration, the replicas they
        apply to with each `TopicSettings`.
        """
        self.low_watermark_moved = trio.Event()
        """Set, and replaced by a fresh one, when a follower has told of a new log start, or
        other replicas count.
        """
        self._rules = Rules(lag_seconds)
        self._proposals: dict[TopicPartition, tuple[Partition, IsrChange]] = {}
        self._proposed = trio.Event()
        self._reported: set[TopicPartition] = set()  # of which `on_offline` was told
        self.logs = logs
        self.sessions = FetchSessions(entropy.below, fetch_sessions_max)
        self.follower_sessions = FollowerSessions(entropy.below)
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

    @property
    def eligible(self) -> Callable[[NodeId], int | None]:
        """The broker epoch of a node that is alive and not shutting down, None for any
        other: who may join an ISR.
        """
        return self._rules.eligible

    @eligible.setter
    def eligible(self, eligible: Callable[[NodeId], int | None]) -> None:
        self._rules.eligible = eligible

    # -- what the metadata says --------------------------------------------------------------------

    def apply(
        self, assignments: Iterable[Assignment], settings: Mapping[str, TopicSettings]
    ) -> None:
        """Open, lead or stop leading each partition as its newest assignment says."""
        offline_before = len(self.offline)
        for assignment in assignments:
            topic_partition = assignment.topic_partition
            partition = self.get(topic_partition)
            if self.node_id not in assignment.replicas:
                if partition is not None:
                    self._close(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if topic_partition in self.offline or topic_partition in self.logs.logs:
                    self.forget(topic_partition)
                continue
            topic_settings = settings[topic_partition.topic]
            if self._may_begin_anew(assignment, partition):
                if partition is not None:
                    self._close(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    partition = None
                self.logs.discard_corrupt(topic_partition)
            if partition is None:
                partition = self._open(assignment, topic_settings)
                if partition is None:
                    continue
                self._throttle(topic_partition.topic, topic_settings)
            self._assign(partition, assignment, topic_settings)
        if len(self.offline) > offline_before:
            self._tell_offline()
        self._low_watermark_may_have_moved()

    def _may_begin_anew(self, assignment: Assignment, partition: Partition | None) -> bool:
        """Whether a log that cannot be used may be replaced by a copy of the leader's:
        nobody counts on what it holds.
        """
        lost = (
            assignment.topic_partition in self.offline if partition is None else partition.is_lost
        )
        others_lead = assignment.leader not in (self.node_id, NO_NODE)
        return (
            lost
            and others_lead
            and self.node_id not in assignment.isr
            and self.node_id not in assignment.elr
        )

    def _open(self, assignment: Assignment, settings: TopicSettings) -> Partition | None:
        """The partition on its log; None where that cannot be opened, which is noted."""
        topic_partition = assignment.topic_partition
        try:
            log = self.logs.open(topic_partition, assignment.topic_id, settings.log)
        except (StorageError, OSError, MqError) as error:
            self.offline[topic_partition] = str(error)
            self._retries.pop(topic_partition, None)
            if isinstance(error, MqError):  # a fence stays: the other replicas must do
                # of which somebody does not know, or not any more
                if self.node_id in assignment.isr:
                    self._reported.discard(topic_partition)
                self._report_offline(assignment)
            else:  # a disk without space and too many open files pass
                self._retries[topic_partition] = assignment, settings
                self._retry_wanted.set()
            return None
        self._forget_offline(topic_partition)
        partition = Partition(
            self.node_id, log, assignment, settings.min_insync_replicas, self._rules
        )
        partition.set_in_contact(self.in_contact)
        partition.high_watermark = min(
            max(self.logs.recovered_high_watermark(topic_partition), log.log_start_offset),
            log.log_end_offset,
        )
        self.by_name.setdefault(topic_partition.topic.encode(), {})[topic_partition.partition] = (
            partition
        )
        self.by_id.setdefault(assignment.topic_id.bytes, {})[topic_partition.partition] = partition
        return partition

    def _assign(
        self, partition: Partition, assignment: Assignment, settings: TopicSettings
    ) -> None:
        before = (partition.assignment.leader, partition.leader_epoch)
        led, in_sync = partition.is_leader, partition.isr | partition.lost_since(assignment)
        if partition.assign(assignment, settings.min_insync_replicas, self._clock.monotonic()):
            self._wake(partition)
        if led and partition.is_leader:
            # by the controller: it may have lost its log
            for node_id in sorted(in_sync - partition.isr - {self.node_id}):
                self.follower_sessions.drop(node_id)
        # its leader did not know, and took it in: tell once more
        if partition.is_lost and self.node_id in assignment.isr:
            self._reported.discard(assignment.topic_partition)
            self.log_failed(partition)
        if before != (partition.assignment.leader, partition.leader_epoch):
            if not (led and partition.is_leader):
                self._refuse_waiting(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._tell_followers([partition])
            if self.fetchers is not None:
                if partition.is_leader or assignment.leader == NO_NODE or partition.is_lost:
                    self.fetchers.unfollow(partition)
                else:
                    self.fetchers.follow(partition)
            self._tell_role(partition)
        self._after_isr(partition)

    def _tell_role(self, partition: Partition) -> None:
        if self.on_role_changed is not None:
            self.on_role_changed(partition)

    def _after_isr(self, partition: Partition) -> None:
        """Replicas or minimum changed: others may join now, and who waits for a commit that
        they are too few for is told so.
        """
        change = partition.expand(self._clock.monotonic())
        if change is not None:
            self._propose(partition, change)
        if partition.short_of_replicas and partition.acks:
            self._refuse_all(partition, partition.acks, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def brokers_changed(self) -> None:
        """Nodes came, went or are shutting down: high watermarks need not wait for
        followers that can no longer join.
        """
        now = self._clock.monotonic()
        for partition in self.partitions():
            if partition.followers:
                self._count(partition, now)

    def _count(self, partition: Partition, now: float) -> None:
        partition.count(now)
        if partition.advance():
            self._wake(partition)

    def judge_contact(self, now: float) -> None:
        """Before anything is served at or after `contact_ends_at`, too: requests that
        waited while this process did not run.
        """
        self.contact_ends_at = self.contact_until()
        self.set_in_contact(now < self.contact_ends_at)

    def set_in_contact(self, in_contact: bool) -> None:
        """Whether this node hears from a controller that has its majority; without it, what it
        leads may have another leader by now.

        Producers and consumers are sent away then, those that wait included. Followers are served
        on: what they fetch is fenced by epochs.
        """
        if in_contact == self.in_contact:
            return
        self.in_contact = in_contact
        if not in_contact:
            self.lost_contact_at = self._clock.monotonic()
        logger.log(
            logging.INFO if in_contact else logging.WARNING,
            "in contact with the controller again"
            if in_contact
            else "no contact with the controller: clients are redirected",
        )
        for partition in self.partitions():
            partition.set_in_contact(in_contact)
            if partition.is_leader and not in_contact:
                self._refuse_waiting(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _forget_offline(self, topic_partition: TopicPartition) -> None:
        self.offline.pop(topic_partition, None)
        self._retries.pop(topic_partition, None)
        self._reported.discard(topic_partition)

    def _report_offline(self, assignment: Assignment) -> None:
        topic_partition = assignment.topic_partition
        if topic_partition not in self._reported:
            self._reported.add(topic_partition)
            if self.on_offline is not None:
                self.on_offline(assignment.topic_id, topic_partition.partition)

    def _tell_offline(self) -> None:
        example, reason = next(reversed(self.offline.items()))
        logger.error(
            "partitions are offline count=%d for_example=%s reason=%s",
            len(self.offline),
            example,
            reason,
        )

    def configure(self, topic: str, settings: TopicSettings) -> None:
        """A topic's configuration changed."""
        self._throttle(topic, settings)
        for topic_partition, (assignment, _) in self._retries.items():
            if topic_partition.topic == topic:
                self._retries[topic_partition] = assignment, settings
        for partition in self.by_name.get(topic.encode(), {}).values():
            self.logs.update_config(partition.log, settings.log)
            partition.configure(settings.min_insync_replicas)
            if partition.advance():
                self._wake(partition)
            self._after_isr(partition)

    def _throttle(self, topic: str, settings: TopicSettings) -> None:
        for throttle, entries in (
            (self.leader_throttle, settings.leader_throttled),
            (self.follower_throttle, settings.follower_throttled),
        ):
            try:
                throttle.set_partitions(topic, throttled_partitions(entries, self.node_id))
            except ValueError as error:
                logger.warning("cannot throttle replicas topic=%s reason=%s", topic, error)
                throttle.set_partitions(topic, frozenset())

    def delete(self, topic: str) -> None:
        """The topic is gone from the metadata: so are its logs."""
        for partition in self.retire(topic):
            self.remove(partition)

    def retire(self, topic: str) -> list[Partition]:
        """The topic is gone from the metadata: nobody finds it now.

        Its partitions are to be removed before others take their names.
        """
        self.leader_throttle.set_partitions(topic, frozenset())
        self.follower_throttle.set_partitions(topic, frozenset())
        for offline in [one for one in self.offline if one.topic == topic]:
            self.forget(offline)
        retired = list(self.by_name.pop(topic.encode(), {}).values())
        for partition in retired:
            partition.is_leader = partition.serves = False
            self.by_id.pop(partition.assignment.topic_id.bytes, None)
        return retired

    def remove(self, partition: Partition) -> None:
        """Send away who waits on a partition that was retired, and delete its log."""
        self._let_go(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.logs.delete(partition.assignment.topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """A partition that is not held here any more and not open: its log goes, also one
        that was found at the start and never opened.
        """
        self._forget_offline(topic_partition)
        self.logs.delete(topic_partition)

    def remove_strays(self, known: Mapping[TopicPartition, UUID]) -> list[TopicPartition]:
        """Remove logs on disk that no assignment to this node explains: their topics went while it
        was down.

        Then the reverse: what is assigned, was here, and is gone stays offline. Once, before the
        first assignment is carried out.
        """
        strays = [tp for tp, log in self.logs.logs.items() if known.get(tp) != log.topic_id]
        for stray in strays:
            logger.warning(
                "removing the log of a partition that this node no longer holds partition=%s", stray
            )
            self.logs.delete(stray)
        self.logs.settle_missing(known)
        return strays

    def _close(self, partition: Partition, code: ErrorCode) -> None:
        """Nobody finds the partition here any more; who waits on it is told `code`.

        Its log is the caller's.
        """
        topic_partition = partition.assignment.topic_partition
        partition.is_leader = partition.serves = False
        for table, key in (
            (self.by_name, topic_partition.topic.encode()),
            (self.by_id, partition.assignment.topic_id.bytes),
        ):
            partitions = table[key]
            del partitions[topic_partition.partition]
            if not partitions:
                del table[key]
        self._let_go(partition, code)

    def _let_go(self, partition: Partition, code: ErrorCode) -> None:
        topic_partition = partition.assignment.topic_partition
        if self.fetchers is not None:
            self.fetchers.unfollow(partition)
        self._proposals.pop(topic_partition, None)
        self._reported.discard(topic_partition)
        self._refuse_waiting(partition, code)
        self._tell_followers([partition])
        self._tell_role(partition)

    def _refuse_waiting(self, partition: Partition, code: ErrorCode) -> None:
        """Send whoever waits here away: the outcome is unknown, the client finds out from
        the next leader.
        """
        self._refuse_all(partition, partition.acks, code)
        self._refuse_all(partition, partition.syncs, code)
        for waiter in list(partition.fetches):
            waiter.free()

    @staticmethod
    def _refuse_all(
        partition: Partition, waiting: deque[tuple[Append, ProduceTicket]], code: ErrorCode
    ) -> None:
        while waiting:
            append, ticket = waiting.popleft()
            if not ticket.freed:
                ticket.refuse(append, code)
                ticket.settle()

    # -- looking -----------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self.by_name.get(topic_partition.topic.encode(), {}).get(topic_partition.partition)

    def partitions(self) -> list[Partition]:
        return [
            partition for partitions in self.by_name.values() for partition in partitions.values()
        ]

    def statistics(self) -> ReplicaStatistics:
        partitions = self.partitions()
        return ReplicaStatistics(
            partitions=len(partitions),
            leaders=sum(partition.is_leader for partition in partitions),
            parked_produces=sum(
                len(partition.acks) + len(partition.syncs) for partition in partitions
            ),
            parked_fetches=len(
                {
                    id(waiter)
                    for partition in partitions
                    for waiter in partition.fetches
                    if not waiter.freed
                }
            ),
            fetch_sessions=len(self.sessions),
            offline=len(self.offline),
        )

    # -- the turn ----------------------------------------------------------------------------------

    def append_nowait(
        self, partition: Partition, records: memoryview, acks: int, now_ms: int, client: bool = True
    ) -> Appended:
        """Queue one batch, a coordinator's or a `client`'s; `records` must stay as it is
        until `end_of_turn`. MqError: refused.
        """
        if not partition.serves or (acks == -1 and partition.short_of_replicas):
            partition.check_append(acks)
        if partition.watches and not partition.touched:
            partition.before_write()
        log = partition.log
        # the service knows already that this log has something to write in this turn
        if log.touched:
            appended = plan_append(
                log, records, leader_epoch=partition.leader_epoch, now_ms=now_ms, client=client
            )
        else:
            appended = self.logs.append_nowait(
                log, records, leader_epoch=partition.leader_epoch, now_ms=now_ms, client=client
            )
        partition.news_bytes += len(records)
        if not partition.touched:
            partition.touched = True
            self._touched.append(partition)
        return appended

    def append_marker_nowait(
        self,
        partition: Partition,
        producer: tuple[int, int],
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
        transaction_version: int = 0,
    ) -> Appended:
        """Queue the marker that ends a transaction of `producer` (id, epoch of the marker). MqError
        as `append_nowait` with acks=-1, and those of `Producers.check_marker`.
        """
        partition.check_append(-1)
        partition.log.producers.check_marker(*producer, coordinator_epoch, transaction_version)
        marker = build_end_marker(*producer, EndMarker(committed, coordinator_epoch), now_ms)
        return self.append_nowait(partition, memoryview(marker), -1, now_ms, client=False)

    def wait_committed(self, ticket: ProduceTicket) -> None:
        """Free the ticket when everything in it is committed; looked at when the turn ends."""
        self._tickets.append(ticket)

    def end_of_turn(self) -> None:
        """Write what the turn queued, and free whoever waited for it.

        Harmless when nothing was queued.
        """
        touched, tickets = self._touched, self._tickets
        if not touched and not tickets:
            return
        self._touched, self._tickets = [], []
        failed: dict[PartitionLog, StorageError] = dict(self.logs.flush()) if touched else {}
        moved: list[Partition] = []
        followed = False
        for partition in touched:
            partition.touched = False
            if partition.watches:
                followed = True
            if failed and partition.log in failed:
                self._after_failed_write(partition)
            if partition.advance():
                moved.append(partition)
        if followed:
            self._tell_followers(touched)
        for ticket in tickets:
            for append in ticket.appends:
                partition = append[0]
                if failed and partition.log in failed:
                    ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                elif partition.high_watermark < append[1]:
                    failure = partition.log.failure
                    if failure is not None and not failure.is_retriable:
                        # Its directory went offline later in this turn.
                        ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                        continue
                    # Only the high watermark frees it (I1).
                    partition.acks.append((append, ticket))
                    ticket.waiting += 1
                elif append[1] < -1 and not partition.is_settled(append[1]):
                    partition.syncs.append((append, ticket))
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
        """The log was put back to what is on disk: whoever waited for offsets beyond that
        is told so.
        """
        end = partition.log.log_end_offset
        if partition.is_leader:  # the cut took the epoch along, where nothing was written in it
            partition.log.epochs.assign(partition.leader_epoch, end)
        for queue in (partition.acks, partition.syncs):
            waiting = list(queue)
            queue.clear()
            for append, ticket in waiting:
                if max(append[1], until_durable(append[1])) <= end:
                    queue.append((append, ticket))
                elif not ticket.freed:
                    ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                    ticket.settle()

    def on_durable(self, log: PartitionLog) -> None:
        """More of a log is on stable storage: what waited for that may be committed now."""
        partition = self.get(log.topic_partition)
        if partition is None or partition.log is not log:
            return
        syncs = partition.syncs
        while syncs and partition.is_settled(syncs[0][0][1]):
            _, ticket = syncs.popleft()
            if not ticket.freed:
                ticket.settle()
        if partition.advance():
            self._wake(partition)

    def on_log_start_moved(self, log: PartitionLog) -> None:
        """Retention has removed records of a log: followers of an idle partition would not
        learn it otherwise.
        """
        partition = self.get(log.topic_partition)
        if partition is not None and partition.log is log:
            self._tell_followers([partition])

    def on_directory_failed(self, directory: Path) -> None:
        """Nothing that waits for a sync there will see one."""
        for partition in self.partitions():
            if partition.log.directory == directory:
                self._refuse_waiting(partition, ErrorCode.KAFKA_STORAGE_ERROR)
                self.log_failed(partition)

    def log_failed(self, partition: Partition) -> None:
        """The log may have become useless: if so, stop following, and have others lead.

        Harmless when it is not, or was told.
        """
        if partition.is_lost:
            if self.fetchers is not None:
                self.fetchers.unfollow(partition)
            self._report_offline(partition.assignment)

    def _wake(self, partition: Partition) -> None:
        acks = partition.acks
        high_watermark = partition.high_watermark
        while acks and acks[0][0][1] <= high_watermark:
            _, ticket = acks.popleft()
            if not ticket.freed:
                ticket.settle()
        if partition.fetches:
            news, stable_news = partition.news_bytes, partition.stable_news()
            for waiter in list(partition.fetches):
                waiter.bytes_wanted -= stable_news if waiter.read_committed else news
                if waiter.bytes_wanted <= 0:
                    waiter.free()
        partition.news_bytes = (
            partition.uncommitted_bytes()
            if high_watermark < partition.log.written_end_offset
            else 0
        )
        if self.tells_high_watermarks:
            self._tell_followers([partition])
        else:
            for watch in partition.watches:
                # they hear of the high watermark with their next answer, which is never far
                watch.note()

    @staticmethod
    def _tell_followers(partitions: Sequence[Partition]) -> None:
        """There is something new in these: followers that wait are answered, each once,
        with all of it.
        """
        sessions = dict.fromkeys(
            watch.note() for partition in partitions for watch in partition.watches
        )
        for session in sessions:
            session.wake()

    # -- followers ---------------------------------------------------------------------------------

    def follower_fetched(
        self,
        partition: Partition,
        node_id: NodeId,
        broker_epoch: int,
        offset: Offset,
        log_start: Offset,
        session: Fetching | None = None,
    ) -> None:
        """A follower's fetch was found in order: it has everything below `offset`.

        Moves the high watermark, proposes that it joins.
        """
        follower = partition.followers[node_id]
        start_before = follower.log_start_offset
        moved, proposal = partition.follower_fetched(
            node_id, broker_epoch, offset, log_start, self._clock.monotonic(), session
        )
        if proposal is not None:
            self._propose(partition, proposal)
        if moved:
            self._wake(partition)
        if log_start != start_before:
            self._low_watermark_may_have_moved()

    def _low_watermark_may_have_moved(self) -> None:
        moved, self.low_watermark_moved = self.low_watermark_moved, trio.Event()
        moved.set()

    def follower_advanced(self, partition: Partition) -> None:
        """This node follows, and `Partition.follower_progress` had news: take over the log
        start, wake consumers that read here.
        """
        log = partition.log
        if partition.leader_log_start_offset > log.log_start_offset:
            self.logs.delete_records(
                log, min(partition.leader_log_start_offset, log.written_end_offset)
            )
        partition.log_replaced()
        for waiter in list(partition.fetches):
            waiter.bytes_wanted = 0
            waiter.free()

    def delete_records(self, partition: Partition, offset: Offset) -> None:
        """Let a partition that this node leads begin at `offset`, and tell its followers.

        MqError as `LogService.delete_records`.
        """
        self.logs.delete_records(partition.log, offset)
        self._tell_followers([partition])

    def _propose(self, partition: Partition, change: IsrChange) -> None:
        self._proposals[change.topic_partition] = partition, change
        self._proposed.set()

    async def _run_isr_changes(self) -> None:
        """Carry proposals to the controller, and its answers back; one request at a time,
        with a pause after one that did not help.
        """
        pause, longest = ISR_RETRY_SECONDS
        while True:
            await self._proposed.wait()
            if await self._send_proposals():
                pause = ISR_RETRY_SECONDS[0]
            else:
                await trio.sleep(pause)
                pause = min(2 * pause, longest)

    async def _send_proposals(self) -> bool:
        """Send what is in flight, as far as it goes into one request; tells whether all of
        that was decided.
        """
        sent = dict(islice(self._proposals.items(), ISR_CHANGES_AT_ONCE))
        outcomes: dict[TopicPartition, IsrOutcome] = {}
        if self.alter_partitions is not None:
            try:
                found = await self.alter_partitions([change for _, change in sent.values()])
            except MqError as error:
                logger.warning(
                    "cannot change in-sync replicas, will retry partitions=%d reason=%s",
                    len(sent),
                    error,
                )
            else:
                outcomes = {outcome.topic_partition: outcome for outcome in found}
        now = self._clock.monotonic()
        decided = True
        for topic_partition, (partition, change) in sent.items():
            verdict = partition.in_sync.settle(change, outcomes.get(topic_partition))
            if verdict is Verdict.RETRY:
                decided = False
                continue
            if self._proposals.get(topic_partition, (None, None))[1] is change:
                del self._proposals[topic_partition]
            if verdict in (Verdict.COMMITTED, Verdict.DROPPED):
                decided = decided and verdict is Verdict.COMMITTED
                if verdict is Verdict.COMMITTED:
                    logger.info(
                        "in-sync replicas changed partition=%s isr=%s",
                        topic_partition,
                        sorted(partition.isr),
                    )
                if partition.isr_settled(now):
                    self._wake(partition)
                self._after_isr(partition)
        if not self._proposals:
            self._proposed = trio.Event()
        self._low_watermark_may_have_moved()
        return decided

    async def _run_checks(self) -> None:
        """Let followers go that are behind for too long, and report logs that failed."""
        while True:
            await trio.sleep(min(self._rules.lag_max / 2, CHECK_SECONDS_MAX))
            await self.check()

    async def check(self) -> None:
        """One round over all partitions."""
        for number, partition in enumerate(self.partitions()):
            if number % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if partition.followers:
                now = self._clock.monotonic()
                change = partition.shrink(now) or partition.expand(now)
                if change is not None:
                    self._propose(partition, change)
                self._count(partition, now)
            # or its log is gone
            if (
                partition.log.failure is not None
                and self.get(partition.assignment.topic_partition) is partition
            ):
                self.log_failed(partition)

    # -- time --------------------------------------------------------------------------------------

    def park(self, waiter: FetchWaiter, partitions: Iterable[Partition]) -> None:
        """Hold a fetch until one of its partitions has news or its deadline comes."""
        waiter.park(partitions)
        self._fetch_deadlines.add(waiter)
        self._wake_timer(waiter.deadline)

    def _wake_timer(self, deadline: float) -> None:
        if deadline < self._sleeping_until:
            self._earlier.set()

    async def run(self) -> None:
        """Free what waited too long, checkpoint the high watermarks, keep the in-sync
        replicas true; until cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_deadlines)
            nursery.start_soon(self._run_checkpoints)
            nursery.start_soon(self._run_retries)
            nursery.start_soon(self._run_isr_changes)
            nursery.start_soon(self._run_checks)

    async def _run_deadlines(self) -> None:
        while True:
            now = self._clock.monotonic()
            for waiter in self._fetch_deadlines.expired(now):
                waiter.free()
            for ticket in self._produce_deadlines.expired(now):
                for append in ticket.appends:
                    if not append[0].is_settled(append[1]):
                        ticket.refuse(append, ErrorCode.REQUEST_TIMED_OUT)
                ticket.free()
            deadlines = [
                self._fetch_deadlines.next_deadline(),
                self._produce_deadlines.next_deadline(),
            ]
            self._sleeping_until = min(
                (one for one in deadlines if one is not None), default=math.inf
            )
            self._earlier = trio.Event()
            with trio.move_on_after(max(0.0, self._sleeping_until - self._clock.monotonic())):
                await self._earlier.wait()
            self._sleeping_until = -math.inf

    async def _run_checkpoints(self) -> None:
        while True:
            await trio.sleep(self._checkpoint_seconds)
            self.checkpoint_high_watermarks()

    async def _run_retries(self) -> None:
        """Every few seconds, open what could not be opened; when one fails, the others wait
        for the next round.
        """
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
                logger.info(
                    "partitions are online again count=%d still_offline=%d",
                    before - len(self.offline),
                    len(self.offline),
                )

    def checkpoint_high_watermarks(self) -> None:
        for partition in self.partitions():
            self.logs.checkpoint_high_watermark(
                partition.assignment.topic_partition, partition.high_watermark
            )
