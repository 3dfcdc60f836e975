"""Several replicas of one partition and a controller, stepped at random: every replica that may
lead has all committed records.

The replicas are the real `Partition`; logs are lists of the epochs in which each offset was
written, the controller is the rules of KIP-966 on one value, and messages between them are late,
lost or overtaken by newer metadata.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from hypothesis import given, settings, strategies as st

from mqd.errors import ErrorCode
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.replica.assignment import Assignment
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.partition import Partition
from mqd.types import NO_NODE, IsrChange, IsrOutcome, NodeId, TopicPartition

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7, version=4)
LAG_MAX = 10.0


@dataclass
class Replica:
    """One node: the partition under test, its records by epoch, and whether the process runs."""

    partition: Partition
    epochs: list[int] = field(default_factory=list)
    alive: bool = True

    def append(self, epochs: list[int]) -> None:
        self.epochs += epochs
        log = self.partition.log
        log.log_end_offset = log.written_end_offset = len(self.epochs)

    def truncate(self, end: int) -> None:
        del self.epochs[end:]
        log = self.partition.log
        log.log_end_offset = log.written_end_offset = end
        log.epochs.truncate_from_end(end)
        self.partition.log_replaced()


class Replication:
    """See the docstring of the file. One seed, one walk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.committed: list[int] = []
        """The epoch of every record that any leader's high watermark has passed."""
        nodes = tuple(NodeId(number) for number in range(self.random.randint(3, 5)))
        self.minimum = self.random.choice((1, 2, 2, 3))
        self.truth = Assignment(TP, TOPIC_ID, nodes[0], 0, nodes, nodes)
        self.fenced: set[NodeId] = set()
        self.late: IsrChange | None = None
        self.replicas: dict[NodeId, Replica] = {}
        self.watermarks = dict.fromkeys(nodes, 0)
        for node in nodes:
            log = PartitionLog(TP, TOPIC_ID, Path("logs"), LogConfig(), [Segment(0, 0)])
            conditions = IsrConditions(LAG_MAX, lambda other: None if other in self.fenced else 1)
            partition = Partition(node, log, self.truth, self.minimum, conditions)
            self.replicas[node] = Replica(partition)
            partition.assign(self.truth, self.minimum, self.now)

    def walk(self, steps: int) -> None:
        kinds, weights = zip(*WEIGHTS.items())
        for kind in self.random.choices(kinds, weights, k=steps):
            node = NodeId(self.random.randrange(len(self.replicas)))
            kind(self, node)
            self.check_invariants()

    def moved(self, replica: Replica) -> None:
        """A leader's high watermark may have advanced: what is below it is permanently
        committed.
        """
        high_watermark = replica.partition.high_watermark
        assert (
            replica.epochs[:high_watermark][: len(self.committed)]
            == self.committed[:high_watermark]
        ), "a committed record was replaced"
        if high_watermark > len(self.committed):
            self.committed = replica.epochs[:high_watermark]

    # -- the controller

    def change(self, isr: set[NodeId], leader: NodeId | None = None) -> None:
        """KIP-966: replicas that leave an ISR that is too small stay eligible; with enough replicas
        in sync, no other is eligible.
        """
        truth = self.truth
        needed = min(self.minimum, len(truth.replicas))
        elr = set() if len(isr) >= needed else (set(truth.elr) | set(truth.isr)) - isr
        new_leader = truth.leader if leader is None else leader
        self.truth = replace(
            truth,
            leader=new_leader,
            leader_epoch=truth.leader_epoch + (new_leader != truth.leader),
            partition_epoch=truth.partition_epoch + 1,
            isr=tuple(sorted(isr)),
            elr=tuple(sorted(elr)),
        )

    def elect(self) -> None:
        truth = self.truth
        if (
            truth.leader != NO_NODE
            and truth.leader not in self.fenced
            and truth.leader in truth.isr
        ):
            return
        living = [node for node in (*truth.isr, *truth.elr) if node not in self.fenced]
        if not living:
            if truth.leader != NO_NODE:
                self.change(set(truth.isr), NO_NODE)
            return
        self.change(
            {node for node in truth.isr if node not in self.fenced} | {living[0]}, living[0]
        )

    def fence(self, node: NodeId) -> None:
        """A node is considered dead; its process may continue, with its old metadata."""
        self.fenced.add(node)
        if node in self.truth.isr:
            self.change(set(self.truth.isr) - {node})
        self.elect()

    def unfence(self, node: NodeId) -> None:
        self.fenced.discard(node)
        self.elect()

    def alter_partition(self, node: NodeId) -> None:
        """A proposal reaches the controller or is lost, and so is its response."""
        replica = self.replicas[node]
        received, answered = self.random.random() < 0.7, self.random.random() < 0.6
        change = replica.partition.in_sync.proposal
        if change is None:
            return
        outcome = self.decide(change) if received else None
        self.late = change if self.random.random() < 0.5 else self.late
        replica.partition.in_sync.on_outcome(change, outcome if answered else None)
        replica.partition.isr_decided(self.now)
        self.moved(replica)

    def overtaken(self, node: NodeId) -> None:
        """The controller receives an attempt after its own repetitions; the response is lost."""
        if self.late is not None:
            self.decide(self.late)

    def decide(self, change: IsrChange) -> IsrOutcome:
        truth = self.truth
        if change.leader_epoch != truth.leader_epoch:
            return IsrOutcome(TP, ErrorCode.FENCED_LEADER_EPOCH)
        if change.partition_epoch != truth.partition_epoch:
            return IsrOutcome(TP, ErrorCode.INVALID_UPDATE_VERSION)
        if any(node in self.fenced for node, _ in change.isr):
            self.change(set(truth.isr))
            return IsrOutcome(TP, ErrorCode.INELIGIBLE_REPLICA)
        self.change({node for node, _ in change.isr})
        truth = self.truth
        return IsrOutcome(
            TP, ErrorCode.NONE, truth.leader, truth.leader_epoch, truth.isr, truth.partition_epoch
        )

    # -- the nodes

    def receive_metadata(self, node: NodeId) -> None:
        """The newest metadata reaches one node, without the versions that it missed."""
        replica = self.replicas[node]
        # nodes need not agree with the controller on `min.insync.replicas`
        minimum = self.random.choice((1, self.minimum))
        replica.partition.assign(self.truth, minimum, self.now)
        if replica.partition.is_leader:
            self.moved(replica)

    def produce(self, node: NodeId) -> None:
        replica = self.replicas[node]
        partition = replica.partition
        if partition.is_leader:
            partition.membership.before_write()
            replica.append([partition.leader_epoch] * self.random.randint(1, 3))
            partition.advance()
            self.moved(replica)

    def fetch(self, node: NodeId) -> None:
        """A follower sends a fetch to the leader in its metadata, with its epoch; diverging logs
        are truncated first.
        """
        count = self.random.randint(0, 3)
        follower = self.replicas[node]
        assignment = follower.partition.assignment
        if follower.partition.is_leader or assignment.leader == NO_NODE:
            return
        leader = self.replicas[assignment.leader]
        if (
            not leader.partition.is_leader
            or leader.partition.leader_epoch != assignment.leader_epoch
        ):
            return
        common = 0
        while (
            common < min(len(leader.epochs), len(follower.epochs))
            and leader.epochs[common] == follower.epochs[common]
        ):
            common += 1
        if common < len(follower.epochs):
            follower.truncate(common)
            self.watermarks[node] = min(self.watermarks[node], common)
            assert common >= follower.partition.high_watermark
            return
        leader.partition.follower_fetched(node, 1, common, 0, self.now)
        self.moved(leader)
        follower.append(leader.epochs[common : common + count])
        follower.partition.follower_progress(leader.partition.high_watermark, 0)

    def check(self, node: NodeId) -> None:
        partition = self.replicas[node].partition
        if not partition.shrink_isr(self.now):
            partition.expand_isr(self.now)
        if partition.is_leader:
            partition.membership.recount(self.now)
            partition.advance()
            self.moved(self.replicas[partition.node_id])

    def wait(self, node: NodeId) -> None:
        self.now += self.random.choice((1.0, 6.0, 20.0))

    # -- what must hold

    def check_invariants(self) -> None:
        for node in (*self.truth.isr, *self.truth.elr):
            assert self.replicas[node].epochs[: len(self.committed)] == self.committed, (
                f"node {node} may lead and lacks committed records"
            )
        for node, replica in self.replicas.items():
            partition = replica.partition
            high_watermark = partition.high_watermark
            assert high_watermark >= self.watermarks[node], (
                f"the high watermark of node {node} decreased"
            )
            assert replica.epochs[:high_watermark] == self.committed[:high_watermark], (
                f"node {node} treats uncommitted records as committed"
            )
            self.watermarks[node] = high_watermark
            if partition.is_leader and partition.leader_epoch == self.truth.leader_epoch:
                for member in partition.in_sync.maximal:
                    assert len(self.replicas[member].epochs) >= high_watermark, (
                        f"node {member} lacks records that leader {node} committed"
                    )


WEIGHTS = {
    Replication.fetch: 20,
    Replication.produce: 4,
    Replication.receive_metadata: 10,
    Replication.alter_partition: 5,
    Replication.overtaken: 1,
    Replication.check: 4,
    Replication.fence: 0.7,
    Replication.unfence: 4,
    Replication.wait: 0.3,
}


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_every_electable_replica_has_all_committed_records(seed: int) -> None:
    Replication(seed).walk(600)


def test_the_walks_commit_records_under_several_leaders() -> None:
    """Records are committed under several leaders: a model without events would prove nothing."""
    walks = [Replication(seed) for seed in range(20)]
    for walk in walks:
        walk.walk(600)
    assert sum(len(set(walk.committed)) for walk in walks) > 40
    assert all(walk.committed for walk in walks)
