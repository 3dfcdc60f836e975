"""The replicas of this node whose log cannot be used: the reasons, the reports to the controller,
and the retries.
"""

from __future__ import annotations

import logging

import trio

from mqd.errors import MqError
from mqd.log.memory_logs import LOST
from mqd.replica.assignment import Assignment
from mqd.replica.partition import Partition
from mqd.replica.ports import ReplicaPorts
from mqd.replica.settings import TopicSettings
from mqd.types import NodeId, TopicPartition

logger = logging.getLogger(__name__)

RETRY_SECONDS = 3.0
"""The pause before partitions that could not be opened are opened again."""


class OfflineReplicas:
    def __init__(self, node_id: NodeId, ports: ReplicaPorts) -> None:
        self.reasons: dict[TopicPartition, str] = {}
        """The partitions that could not be opened, and why."""
        self.retries: dict[TopicPartition, tuple[Assignment, TopicSettings]] = {}
        """The members of `reasons` that are opened again later, because the reason may pass."""
        self._node_id = node_id
        self._ports = ports
        self._reported: set[TopicPartition] = set()
        """The partitions for which `on_offline` was called."""
        self._has_retries = trio.Event()

    def could_not_open(
        self, assignment: Assignment, settings: TopicSettings, error: Exception
    ) -> None:
        topic_partition = assignment.topic_partition
        self.reasons[topic_partition] = str(error)
        self.retries.pop(topic_partition, None)
        if isinstance(error, MqError):
            # A fenced log stays fenced, so other replicas must lead.
            if self._node_id in assignment.isr:
                # The controller does not know of the loss, or no longer knows of it.
                self._reported.discard(topic_partition)
            self._report(assignment)
        else:
            # A lack of disk space or of file descriptors passes.
            self.retries[topic_partition] = assignment, settings
            self._has_retries.set()

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition is open, or no longer assigned to this node."""
        self.reasons.pop(topic_partition, None)
        self.retries.pop(topic_partition, None)
        self._reported.discard(topic_partition)

    def closed(self, topic_partition: TopicPartition) -> None:
        """The partition was open, and is closed."""
        self._reported.discard(topic_partition)

    def configure(self, topic: str, settings: TopicSettings) -> None:
        for topic_partition, (assignment, _) in self.retries.items():
            if topic_partition.topic == topic:
                self.retries[topic_partition] = assignment, settings

    def log_failed(self, partition: Partition) -> None:
        """The log of an open partition may have failed. If so, stop following, and let other
        replicas lead.

        Does nothing if the log is usable, or if its loss was reported before.
        """
        if partition.is_lost:
            self._ports.unfollow(partition)
            self._report(partition.assignment)

    def joined_isr_while_lost(self, partition: Partition) -> None:
        """The metadata counts a lost replica as in sync, because the leader did not know of the
        loss: report it again.
        """
        self._reported.discard(partition.assignment.topic_partition)
        self.log_failed(partition)

    def _report(self, assignment: Assignment) -> None:
        topic_partition = assignment.topic_partition
        if topic_partition not in self._reported:
            self._reported.add(topic_partition)
            self._ports.on_offline(assignment.topic_id, topic_partition.partition)

    def log_reasons(self) -> None:
        """Log how many partitions are offline, with one example. Those that were in memory are
        expected to be so after a start."""
        lost = {place: reason for place, reason in self.reasons.items() if LOST in reason}
        others = {place: reason for place, reason in self.reasons.items() if place not in lost}
        if lost:
            logger.info(
                "partitions in memory have no records yet count=%d for_example=%s",
                len(lost),
                next(reversed(lost)),
            )
        if others:
            example, reason = next(reversed(others.items()))
            logger.error(
                "partitions are offline count=%d for_example=%s reason=%s",
                len(others),
                example,
                reason,
            )

    async def retries_due(self) -> None:
        """Return when there are retries, after a pause."""
        await self._has_retries.wait()
        self._has_retries = trio.Event()
        await trio.sleep(RETRY_SECONDS)

    def retry_later(self, before: int) -> None:
        """A round of retries ended. `before`: how many partitions were offline when it began."""
        if self.retries:
            self._has_retries.set()
        if len(self.reasons) < before:
            logger.info(
                "partitions are online again count=%d still_offline=%d",
                before - len(self.reasons),
                len(self.reasons),
            )
