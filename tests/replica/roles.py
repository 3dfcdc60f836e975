"""Assignments of one partition to three nodes, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from mqd.replica.assignment import Assignment
from mqd.replica.partition import Partition
from mqd.replica.settings import TopicSettings
from mqd.types import NodeId, TopicPartition
from tests.replica.replicas import ME, PLAIN, TOPIC_ID, TWO, Replicas

TP = TopicPartition("t", 0)

THREE = NodeId(3)


class Fetchers:
    """Records which leaders are followed."""

    def __init__(self, replicas: Replicas) -> None:
        self.calls: list[tuple[str, NodeId, int]] = []
        replicas.ports.follow, replicas.ports.unfollow = self.follow, self.unfollow

    def follow(self, partition: Partition) -> None:
        self.calls.append(("follow", partition.assignment.leader, partition.leader_epoch))

    def unfollow(self, partition: Partition) -> None:
        self.calls.append(("unfollow", partition.assignment.leader, partition.leader_epoch))

    def taken(self) -> list[tuple[str, NodeId, int]]:
        calls, self.calls = self.calls, []
        return calls


def assign(
    replicas: Replicas,
    leader: NodeId,
    epoch: int,
    partition_epoch: int,
    isr: Sequence[NodeId],
    elr: Sequence[NodeId] = (),
) -> None:
    given = Assignment(
        TP, TOPIC_ID, leader, epoch, (ME, TWO, THREE), tuple(isr), partition_epoch, tuple(elr)
    )
    replicas.replica.assignments.apply([given], {"t": TopicSettings(PLAIN, 1)})
