"""One partition as this node sees it: its role, epochs, in-sync replicas and high watermark.

A core: no clock, no socket, no disk. The log's end offsets come in, the high watermark and refusals go out.

Invariants (docs/INVARIANTS.md):
- log start <= high watermark <= log end.                                  (I4)
- The high watermark never goes back while this node leads.                (I5)
- It advances only while the in-sync replicas are at least the effective minimum (KIP-966), and never beyond
  what every in-sync replica has - where `flush.before.ack` is set: has on stable storage.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.log.partition_log import PartitionLog
from mqd.replica.waiters import Append, FetchWaiter, ProduceTicket
from mqd.types import NO_EPOCH, NodeId, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the metadata says of one partition: who holds it, who leads it, since which epoch."""

    topic_partition: TopicPartition
    topic_id: UUID
    leader: NodeId
    """NO_NODE while nobody can lead."""
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


class Partition:
    """Leader or not; the state that Produce and Fetch of one partition meet."""

    __slots__ = (
        "acks",
        "assignment",
        "fetches",
        "high_watermark",
        "is_leader",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "news_bytes",
        "node_id",
        "short_of_replicas",
        "touched",
    )

    def __init__(self, node_id: NodeId, log: PartitionLog, assignment: Assignment, min_insync_replicas: int) -> None:
        self.node_id = node_id
        self.log = log
        self.assignment = assignment
        self.leader_epoch = NO_EPOCH
        self.is_leader = False
        self.min_insync_replicas = min_insync_replicas
        self.high_watermark: Offset = log.log_start_offset
        self.short_of_replicas = False
        """Fewer in-sync replicas than `min.insync.replicas` asks for: nothing is accepted with acks=all, nothing is committed."""
        self.acks: deque[tuple[Append, ProduceTicket]] = deque()
        """Produce requests that wait for the high watermark, in the order of their offsets."""
        self.fetches: set[FetchWaiter] = set()
        """Fetch requests parked here until there is enough to send."""
        self.touched = False
        """Whether this turn of the loop appended here; reset when the turn ends."""
        self.news_bytes = 0
        """Bytes appended since parked fetches were last looked at."""

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "not leader"
        return f"<Partition {self.assignment.topic_partition} {role} epoch={self.leader_epoch} hw={self.high_watermark}>"

    def assign(self, assignment: Assignment, min_insync_replicas: int) -> bool:
        """Take a newer assignment; tells whether the high watermark moved. Where the leadership went, the caller sends clients away."""
        assert assignment.topic_id == self.assignment.topic_id, (assignment, self.assignment)
        assert assignment.leader_epoch >= self.assignment.leader_epoch, (assignment, self.assignment)
        was_leader = self.is_leader and assignment.leader_epoch == self.leader_epoch
        self.assignment = assignment
        self.configure(min_insync_replicas)
        self.is_leader = assignment.leader == self.node_id
        self.leader_epoch = assignment.leader_epoch
        if self.is_leader and not was_leader:
            self.log.epochs.assign(assignment.leader_epoch, self.log.log_end_offset)
        return self.advance()

    def configure(self, min_insync_replicas: int) -> None:
        self.min_insync_replicas = min_insync_replicas
        self.short_of_replicas = len(self.assignment.isr) < self.effective_min_insync_replicas

    @property
    def effective_min_insync_replicas(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (KIP-966)."""
        return min(self.min_insync_replicas, len(self.assignment.replicas))

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is open. Without transactions: the high watermark."""
        return self.high_watermark

    def local_end_offset(self) -> Offset:
        """End of what this replica may count as its own: written, or on stable storage where the topic asks for it."""
        log = self.log
        return log.durable_end_offset if log.config.flush_before_ack else log.written_end_offset

    def advance(self) -> bool:
        """Move the high watermark to where the in-sync replicas allow it; tells whether it moved.

        The only in-sync replica until "Cluster" lands is the leader itself, so its own end is the minimum.
        """
        if not self.is_leader or self.short_of_replicas:
            return False
        end = self.local_end_offset()
        moved = end > self.high_watermark
        if moved:
            self.high_watermark = end
        assert self.log.log_start_offset <= self.high_watermark <= self.log.log_end_offset, self
        return moved

    def check_append(self, acks: int) -> None:
        """Raises MqError when a produce with `acks` cannot be accepted here now."""
        if not self.is_leader:
            raise self.not_leader()
        if acks == -1 and self.short_of_replicas:
            raise MqError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.assignment.isr)} replicas in sync, {self.effective_min_insync_replicas} needed by min.insync.replicas",
            )

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence a request by the epoch that its sender believes in (KIP-320); -1 means it does not say."""
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                raise MqError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch}: refresh the metadata")
            if current_leader_epoch > self.leader_epoch:
                raise MqError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"this node knows leader epoch {self.leader_epoch} only: try again")
        if not self.is_leader:
            raise self.not_leader()

    def not_leader(self) -> MqError:
        return MqError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.assignment.leader} leads {self.assignment.topic_partition}")
