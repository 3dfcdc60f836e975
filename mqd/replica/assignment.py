"""One partition in the metadata."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mqd.types import NodeId, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas, the leader and the ISR of one partition in one partition epoch."""

    topic_partition: TopicPartition
    topic_id: UUID
    leader: NodeId
    """NO_NODE if no replica can lead."""
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    partition_epoch: int = 0
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas (KIP-966)."""
    adding: tuple[NodeId, ...] = ()
    """Members of `replicas` that a reassignment adds."""
    removing: tuple[NodeId, ...] = ()
    """Members of `replicas` that the reassignment removes when the added ones are in sync."""
    lost: tuple[NodeId, ...] = ()
    """Replicas that lost their logs and were not in sync since then."""
    is_new: bool = False
    """Whether this assignment created the partition."""

    begins_at: Offset | None = None
    """Where this node, as the leader of a partition in memory that is lost, has begun or begins an
    empty log (I59)."""

    def lost_since(self, earlier: Assignment) -> frozenset[NodeId]:
        """Replicas that this assignment lists as lost, if it is newer than `earlier`.

        A replica that `earlier` also lists may have lost its new copy, too: nothing shows it.
        """
        return frozenset(self.lost if self.partition_epoch > earlier.partition_epoch else ())
