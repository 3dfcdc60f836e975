"""Applies the metadata to the partitions of this node: opens, assigns, configures, closes and
deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from uuid import UUID

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.log.service import LogService
from mqd.replica.assignment import Assignment
from mqd.replica.fetch_session import FollowerSessions
from mqd.replica.isr_changes import IsrChanges
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.offline import OfflineReplicas
from mqd.replica.parked import ParkedRequests
from mqd.replica.partition import Partition
from mqd.replica.partition_table import PartitionTable
from mqd.replica.ports import ReplicaPorts
from mqd.replica.settings import TopicSettings
from mqd.replica.throttle import Throttle, throttled_partitions
from mqd.types import NO_NODE, NodeId, TopicPartition

logger = logging.getLogger(__name__)


class Assignments:
    def __init__(
        self,
        node_id: NodeId,
        logs: LogService,
        clock: Clock,
        ports: ReplicaPorts,
        conditions: IsrConditions,
        table: PartitionTable,
        offline: OfflineReplicas,
        parked: ParkedRequests,
        isr_changes: IsrChanges,
        follower_sessions: FollowerSessions,
        in_contact: Callable[[], bool],
    ) -> None:
        self.leader_throttle, self.follower_throttle = Throttle(), Throttle()
        """`daemon.py` sets their rates. Each `TopicSettings` sets the replicas that they apply to.
        """
        self._node_id = node_id
        self._logs = logs
        self._clock = clock
        self._ports = ports
        self._conditions = conditions
        self._table = table
        self._offline = offline
        self._parked = parked
        self._isr_changes = isr_changes
        self._follower_sessions = follower_sessions
        self._in_contact = in_contact

    # -- assignments -------------------------------------------------------------------------------

    def apply(
        self, assignments: Iterable[Assignment], settings: Mapping[str, TopicSettings]
    ) -> None:
        """Open, lead, follow or close each partition, as its newest assignment requires."""
        offline = self._offline.reasons
        offline_before = len(offline)
        for assignment in assignments:
            topic_partition = assignment.topic_partition
            partition = self._table.get(topic_partition)
            if self._node_id not in assignment.replicas:
                if partition is not None:
                    self._close(partition)
                if topic_partition in offline or topic_partition in self._logs.logs:
                    self.remove_unopened(topic_partition)
                continue
            topic_settings = settings[topic_partition.topic]
            begins_at = assignment.begins_at
            if (
                begins_at is not None
                and partition is not None
                and partition.log.log_end_offset < begins_at
            ):
                # It had begun to copy the records of a leader that has lost them, too (I59).
                self._close(partition)
                self._logs.delete(topic_partition)
                partition = None
            if self._may_copy_again(assignment, partition):
                if partition is not None:
                    self._close(partition)
                    partition = None
                self._logs.discard_corrupt(topic_partition)
            if partition is None:
                partition = self._open(assignment, topic_settings)
                if partition is None:
                    continue
                self._throttle(topic_partition.topic, topic_settings)
            self._assign(partition, assignment, topic_settings)
        if len(offline) > offline_before:
            self._offline.log_reasons()
        self._isr_changes.low_watermarks_changed()

    def _may_copy_again(self, assignment: Assignment, partition: Partition | None) -> bool:
        """Whether a log that cannot be used may be replaced by a copy of the leader's: no election
        counts on its records (I25).
        """
        if partition is None:
            is_lost = assignment.topic_partition in self._offline.reasons
        else:
            is_lost = partition.is_lost
        return (
            is_lost
            and assignment.leader not in (self._node_id, NO_NODE)
            and self._node_id not in assignment.isr
            and self._node_id not in assignment.elr
        )

    def _open(self, assignment: Assignment, settings: TopicSettings) -> Partition | None:
        """The partition with its log. None if the log cannot be opened; then it is offline."""
        topic_partition = assignment.topic_partition
        try:
            log = self._logs.open(
                topic_partition,
                assignment.topic_id,
                settings.log,
                begin_again_at=assignment.begins_at,
            )
        except (StorageError, OSError, MqError) as error:
            self._offline.could_not_open(assignment, settings, error)
            return None
        self._offline.forget(topic_partition)
        partition = Partition(
            self._node_id, log, assignment, settings.min_insync_replicas, self._conditions
        )
        partition.set_in_contact(self._in_contact())
        partition.set_shared(settings.is_shared)
        partition.high_watermark = min(
            max(self._logs.checkpointed_high_watermark(topic_partition), log.log_start_offset),
            log.log_end_offset,
        )
        self._table.add(partition)
        return partition

    def _assign(
        self, partition: Partition, assignment: Assignment, settings: TopicSettings
    ) -> None:
        leader_before = (partition.assignment.leader, partition.leader_epoch)
        led = partition.is_leader
        in_sync = partition.isr | assignment.lost_since(partition.assignment)
        if partition.assign(assignment, settings.min_insync_replicas, self._clock.monotonic()):
            self._parked.high_watermark_moved(partition)
        if led and partition.is_leader:
            # The controller removed them from the ISR, so they may have lost their logs.
            for node_id in sorted(in_sync - partition.isr - {self._node_id}):
                self._follower_sessions.drop(node_id)
        if partition.is_lost and self._node_id in assignment.isr:
            self._offline.joined_isr_while_lost(partition)
        if leader_before != (partition.assignment.leader, partition.leader_epoch):
            if not (led and partition.is_leader):
                self._parked.reject(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._parked.wake_followers([partition])
            if partition.is_leader or assignment.leader == NO_NODE or partition.is_lost:
                self._ports.unfollow(partition)
            else:
                self._ports.follow(partition)
            self._ports.on_role_changed(partition)
        self._isr_changes.membership_changed(partition)

    async def run_retries(self) -> None:
        """Open partitions again that could not be opened, until cancelled. If one fails again, the
        others wait for the next round.
        """
        retries = self._offline.retries
        while True:
            await self._offline.retries_due()
            before = len(self._offline.reasons)
            for topic_partition in list(retries):
                if topic_partition in retries:
                    assignment, settings = retries[topic_partition]
                    self.apply([assignment], {topic_partition.topic: settings})
                    if topic_partition in retries:
                        break
                await trio.lowlevel.checkpoint()
            self._offline.retry_later(before)

    # -- configuration -----------------------------------------------------------------------------

    def configure(self, topic: str, settings: TopicSettings) -> None:
        """Apply a changed configuration of a topic."""
        self._throttle(topic, settings)
        self._offline.configure(topic, settings)
        for partition in self._table.of_topic(topic):
            self._logs.update_config(partition.log, settings.log)
            partition.configure(settings.min_insync_replicas)
            partition.set_shared(settings.is_shared)
            if partition.advance():
                self._parked.high_watermark_moved(partition)
            self._isr_changes.membership_changed(partition)

    def _throttle(self, topic: str, settings: TopicSettings) -> None:
        for throttle, entries in (
            (self.leader_throttle, settings.leader_throttled),
            (self.follower_throttle, settings.follower_throttled),
        ):
            try:
                throttle.set_partitions(topic, throttled_partitions(entries, self._node_id))
            except ValueError as error:
                logger.warning("cannot throttle replicas topic=%s reason=%s", topic, error)
                throttle.set_partitions(topic, frozenset())

    # -- removal -----------------------------------------------------------------------------------

    def delete(self, topic: str) -> None:
        """The metadata no longer has the topic: delete its partitions and their logs (I18)."""
        for partition in self.retire(topic):
            self.remove(partition)

    def retire(self, topic: str) -> list[Partition]:
        """The metadata no longer has the topic: no request finds its partitions from now on.

        The caller removes the returned partitions before other partitions get their names.
        """
        self.leader_throttle.set_partitions(topic, frozenset())
        self.follower_throttle.set_partitions(topic, frozenset())
        for offline in [one for one in self._offline.reasons if one.topic == topic]:
            self.remove_unopened(offline)
        retired = self._table.remove_topic(topic)
        for partition in retired:
            partition.close()
        return retired

    def remove(self, partition: Partition) -> None:
        """Reject the requests that are parked at a retired partition, and delete its log."""
        self._release(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._logs.delete(partition.assignment.topic_partition)

    def remove_unopened(self, topic_partition: TopicPartition) -> None:
        """Delete the log of a partition that is not open and no longer assigned to this node. It
        may never have been open since the start.
        """
        self._offline.forget(topic_partition)
        self._logs.delete(topic_partition)

    def remove_strays(
        self, assigned: Mapping[TopicPartition, UUID], in_memory: Collection[TopicPartition] = ()
    ) -> list[TopicPartition]:
        """Delete logs on disk that are not assigned to this node: their topics were deleted while
        the node was down. Then take assigned logs offline that are missing on disk (I18), or that
        ended with the last process (I59).

        Called once, before the first `apply`. `in_memory`: those of topics with
        `mqd.storage=memory`.
        """
        strays = [tp for tp, log in self._logs.logs.items() if assigned.get(tp) != log.topic_id]
        for stray in strays:
            logger.warning(
                "removing the log of a partition that this node no longer holds partition=%s", stray
            )
            self._logs.delete(stray)
        self._logs.fence_lost_in_memory(in_memory)
        self._logs.fence_missing(assigned)
        return strays

    def _close(self, partition: Partition) -> None:
        """This node no longer has the partition, or must open it again. The log remains."""
        partition.close()
        self._table.remove(partition)
        self._release(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _release(self, partition: Partition, code: ErrorCode) -> None:
        """End everything that refers to a closed partition."""
        topic_partition = partition.assignment.topic_partition
        self._ports.unfollow(partition)
        self._isr_changes.withdraw(topic_partition)
        self._offline.closed(topic_partition)
        self._parked.reject(partition, code)
        self._parked.wake_followers([partition])
        self._ports.on_role_changed(partition)
