"""Random histories of a cluster: whatever is registered, fenced, altered, elected, reassigned and
lost, the invariants of KIP-966 hold.

A model beside the image tracks which replicas of each partition have every committed record. A
clean election elects one of these replicas.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    Register,
    Unregister,
    decide_expire,
    decide_heartbeat,
    decide_register,
    decide_unregister,
)
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.elections import (
    ElectLeaders,
    Rebalance,
    decide_elect_leaders,
    decide_rebalance,
)
from mqd.controller.image import PartitionImage
from mqd.controller.isr import (
    AlterPartitions,
    IsrChangeRequest,
    ReportOfflineReplicas,
    decide_alter_partitions,
    decide_report_offline,
)
from mqd.controller.reassignments import (
    AlterReassignments,
    Reassignment,
    decide_alter_reassignments,
)
from mqd.controller.records import CreateTopic, Placement
from mqd.controller.sweeps import ReviewPartitions, decide_review_partitions
from mqd.errors import MqError
from mqd.types import NO_NODE, NodeId, TopicPartition
from tests.controller.cluster import CLUSTER, with_brokers
from tests.controller.test_image import check_partition

T0 = TopicPartition("t", 0)
NODES = [NodeId(n) for n in range(1, 6)]
nodes = st.sampled_from(NODES)
steps = st.one_of(
    st.tuples(st.just("register"), nodes, st.booleans()),
    st.tuples(st.just("beat"), nodes, st.none()),
    st.tuples(st.just("beat"), nodes, st.none()),
    st.tuples(st.just("fence"), nodes, st.none()),
    st.tuples(st.just("leave"), nodes, st.none()),
    st.tuples(st.just("unregister"), nodes, st.none()),
    st.tuples(st.just("expire"), st.sets(nodes, min_size=1, max_size=3), st.none()),
    st.tuples(st.just("isr"), st.sets(nodes), st.booleans()),
    st.tuples(st.just("isr"), st.sets(nodes), st.booleans()),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("elect"), st.sampled_from([0, 0, 0, 1]), st.none()),
    st.tuples(st.just("rebalance"), st.none(), st.none()),
    st.tuples(st.just("settle"), st.none(), st.none()),
    st.tuples(st.just("move"), st.lists(nodes, min_size=1, max_size=3, unique=True), st.none()),
    st.tuples(st.just("cancel"), st.none(), st.none()),
    st.tuples(st.just("lose"), nodes, st.none()),
)


class Life:
    """One partition of a cluster of five, and the log end of each replica."""

    def __init__(self, least: int, factor: int, unclean: bool) -> None:
        self.replica = with_brokers(*NODES)
        self.options = DecisionOptions(least, unclean)
        self.incarnations = 0
        replicas = tuple(NODES[:factor])
        self.replica.commit(
            [CreateTopic("t", UUID(int=1), (Placement(replicas, replicas[0], replicas),), ())]
        )
        self.committed = 0
        self.ends: dict[NodeId, int] = defaultdict(int)
        self.unclean = False

    @property
    def partition(self) -> PartitionImage:
        return self.replica.image.topics["t"].partitions[0]

    def step(self, kind: str, what: Any, value: object) -> None:
        before = self.partition
        lost_before = set(self.replica.image.lost_replicas)
        try:
            self._do(kind, what, value)
        except MqError:
            pass
        self.check(before, kind, what)
        still_here = {replica for replica in lost_before if replica[2] in self.partition.replicas}
        assert (
            kind in ("lose", "register", "isr", "unregister")
            or still_here == self.replica.image.lost_replicas
        )

    def _do(self, kind: str, what: Any, value: object) -> None:
        replica, image, options, partition = (
            self.replica,
            self.replica.image,
            self.options,
            self.partition,
        )
        broker = image.brokers.get(NodeId(what)) if isinstance(what, int) else None
        epoch = -1 if broker is None else broker.epoch
        if kind == "register":
            self.incarnations += 1
            node = NodeId(what)
            if not value:  # it may have lost all records
                self.ends[node] = 0
            op = Register(
                node,
                CLUSTER,
                UUID(int=10**6 + self.incarnations),
                "h",
                1,
                None,
                epoch if value else epoch - 1,
            )
            replica.run(decide_register, op, options)
        elif kind in ("beat", "fence", "leave"):
            op2 = Heartbeat(NodeId(what), epoch, image.index, kind == "fence", kind == "leave")
            replica.run(decide_heartbeat, op2, options)
        elif kind == "unregister":
            replica.run(decide_unregister, Unregister(NodeId(what)), options)
        elif kind == "expire":
            silent = tuple(
                (node, image.brokers[node].epoch) for node in sorted(what) if node in image.brokers
            )
            replica.run(decide_expire, ExpireSessions(silent), options)
        elif kind == "isr" and partition.leader != NO_NODE:
            wanted = tuple(sorted({partition.leader, *what}))
            members = tuple(
                (node, image.brokers[node].epoch if node in image.brokers else 0) for node in wanted
            )
            # a leader that does not know the newest partition epoch
            stale = not value and len(wanted) == 1
            change = IsrChangeRequest(
                UUID(int=1), 0, partition.leader_epoch, partition.partition_epoch - stale, members
            )
            op3 = AlterPartitions(
                partition.leader, image.brokers[partition.leader].epoch, (change,)
            )
            (result,) = replica.run(decide_alter_partitions, op3, options)
            assert not (stale and result.error_code == 0)
            if result.error_code == 0 or self.partition.isr != partition.isr:
                for node in wanted:  # they joined because they had caught up
                    self.ends[node] = max(self.ends[node], self.committed)
        elif kind == "commit":
            least = min(options.min_insync_replicas, len(partition.replicas))
            if partition.leader != NO_NODE and len(partition.isr) >= least and not partition.elr:
                self.committed += 1
                for node in partition.isr:
                    self.ends[node] = self.committed
        elif kind == "elect":
            replica.run(decide_elect_leaders, ElectLeaders(what, (T0,)), options)
        elif kind == "rebalance":
            replica.run(decide_rebalance, Rebalance(), options)
        elif kind == "settle":
            replica.run(decide_review_partitions, ReviewPartitions(), options)
        elif kind in ("move", "cancel"):
            target: tuple[NodeId, ...] | None = tuple(what) if kind == "move" else None
            replica.run(
                decide_alter_reassignments, AlterReassignments((Reassignment(T0, target),)), options
            )
        elif kind == "lose" and broker is not None:
            # an unregistered broker reports nothing: it reports its epochs when it registers
            self.ends[NodeId(what)] = 0
            op4 = ReportOfflineReplicas(NodeId(what), epoch, ((UUID(int=1), 0),))
            replica.run(decide_report_offline, op4, options)

    def check(self, before: PartitionImage, kind: str, what: Any) -> None:
        partition, image = self.partition, self.replica.image
        check_partition(image, partition)
        least = min(self.options.min_insync_replicas, len(partition.replicas))
        assert len(partition.isr) < least or not partition.elr
        assert len(partition.isr) < least or not partition.last_known_elr
        assert (
            partition.leader_epoch >= before.leader_epoch
            and partition.partition_epoch >= before.partition_epoch
        )
        assert partition == before or partition.partition_epoch > before.partition_epoch
        gone = set(before.replicas) - set(partition.replicas)
        if partition.leader != before.leader or gone:
            assert partition.leader_epoch > before.leader_epoch
        if not partition.adding and kind in ("isr", "move") and partition != before:
            assert not partition.removing or set(partition.isr) <= set(partition.removing)
        may_lead = image.may_lead() - {node for _, _, node in image.lost_replicas}
        if partition.leader == NO_NODE:
            assert may_lead.isdisjoint(partition.elr)
            assert not (self.options.unclean_election and may_lead & set(partition.replicas))
        assert (
            partition.isr
            or partition.elr
            or partition.last_known_elr
            or self.options.unclean_election
        ), "the eligible replicas are missing"
        trusted = {*before.isr, *before.elr}
        if partition.leader not in (NO_NODE, before.leader) and partition.leader not in trusted:
            last_resort = not partition.elr and before.last_known_elr == (partition.leader,)
            unclean = self.options.unclean_election or (kind == "elect" and what == 1)
            # the last step of a reassignment may elect a replica that just caught up
            joined = kind == "isr"
            assert last_resort or unclean or joined, (before, partition, kind)
            if not joined:
                self.committed = min(self.committed, self.ends[partition.leader])
        if not {*partition.isr, *partition.elr}:
            return
        for node in {*partition.isr, *partition.elr}:
            if partition.leader == NO_NODE or node in partition.elr:
                continue
            if self.ends[node] < self.committed:
                raise AssertionError(
                    (node, self.ends[node], self.committed, before, partition, kind)
                )
        for node in partition.elr:
            assert self.ends[node] >= self.committed, (
                node,
                dict(self.ends),
                self.committed,
                before,
                partition,
                kind,
            )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(steps, max_size=40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([False, False, True]),
)
def test_every_leader_has_all_committed_records(
    script: list[tuple[str, object, object]], least: int, factor: int, unclean: bool
) -> None:
    life = Life(least, factor, unclean)
    for kind, what, value in script:
        life.step(kind, what, value)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=4, unique=True),
    st.lists(nodes, min_size=1, max_size=3, unique=True),
    st.integers(1, 3),
)
def test_a_completed_reassignment_is_its_target(
    target: list[NodeId], detour: list[NodeId], least: int
) -> None:
    life = Life(least, 3, False)
    life.step("move", detour, None)
    life.step("move", target, None)
    everybody = set(life.partition.replicas)
    life.step("isr", everybody, True)
    partition = life.partition
    assert partition.replicas == tuple(target) and not partition.adding and not partition.removing
    assert set(partition.isr) == set(target) and partition.leader in target


def test_a_reassignment_step_by_step() -> None:
    life = Life(2, 3, False)
    epoch = life.partition.leader_epoch
    life.step("move", [NodeId(4), NodeId(5), NodeId(1)], None)
    partition = life.partition
    assert (partition.replicas, partition.adding, partition.removing) == (
        (4, 5, 1, 2, 3),
        (4, 5),
        (2, 3),
    )
    assert partition.isr == (1, 2, 3) and partition.leader_epoch == epoch
    life.step("isr", {1, 2, 3, 4}, True)
    assert life.partition.adding == (4, 5)
    life.step("isr", {1, 2, 3, 4, 5}, True)
    partition = life.partition
    assert (partition.replicas, partition.leader, partition.isr, partition.leader_epoch) == (
        (4, 5, 1),
        1,
        (1, 4, 5),
        epoch + 1,
    )
    life.step("elect", 0, None)
    assert life.partition.leader == 4


def test_a_cancelled_reassignment_restores_the_replicas() -> None:
    life = Life(2, 3, False)
    life.step("move", [NodeId(4), NodeId(2), NodeId(1)], None)
    life.step("isr", {1, 2, 4}, True)
    assert life.partition.replicas == (4, 2, 1)
    life.step("move", [NodeId(5), NodeId(2), NodeId(1)], None)
    life.step("cancel", None, None)
    partition = life.partition
    assert (partition.replicas, partition.adding, partition.removing) == ((2, 1, 4), (), ())


@pytest.mark.parametrize(("least", "clean", "leader"), [(2, True, 2), (1, True, 3), (2, False, 2)])
def test_three_replicas_fail_one_after_the_other(least: int, clean: bool, leader: int) -> None:
    """RF 3: the first replica to return with all records leads."""
    life = Life(least, 3, False)
    for node in NODES[:3]:
        life.step("fence", node, None)
    partition = life.partition
    assert (partition.leader, partition.isr, partition.last_known_elr) == (NO_NODE, (), (3,))
    assert partition.elr == ((2, 3) if least == 2 else (3,))
    life.step("beat", NODES[0], None)
    assert life.partition.leader == NO_NODE
    if not clean:
        life.step("register", NODES[2], False)
        life.step("beat", NODES[2], None)
        assert life.partition.leader == NO_NODE
    life.step("beat", NODES[1], None)
    life.step("beat", NODES[2], None)
    assert life.partition.leader == leader


def test_a_lost_replica_leads_only_when_in_sync_or_after_a_restart() -> None:
    life = Life(1, 1, False)
    life.step("lose", NODES[0], None)
    assert (life.partition.leader, life.partition.isr, life.partition.last_known_elr) == (
        NO_NODE,
        (),
        (1,),
    )
    life.step("settle", None, None)
    life.step("fence", NODES[0], None)
    life.step("beat", NODES[0], None)
    life.step("elect", 1, None)
    assert life.partition.leader == NO_NODE
    life.step("register", NODES[0], True)
    life.step("lose", NODES[0], None)  # reported again before the first heartbeat
    life.step("beat", NODES[0], None)
    assert life.partition.leader == NO_NODE
    life.step("register", NODES[0], True)
    life.step("beat", NODES[0], None)
    assert life.partition.leader == 1 and not life.replica.image.lost_replicas


def test_a_removal_completes_when_a_remaining_replica_is_in_sync() -> None:
    life = Life(2, 3, False)
    life.step("fence", NODES[2], None)
    life.step("fence", NODES[1], None)
    life.step("beat", NODES[1], None)
    assert (life.partition.isr, life.partition.elr) == ((1,), (2,))
    life.step("move", [NODES[1]], None)
    assert list(life.partition.removing) == [1, 3]
    life.step("fence", NODES[0], None)
    assert (life.partition.leader, life.partition.replicas, life.partition.removing) == (
        2,
        (2,),
        (),
    )


def test_a_removed_replica_is_no_longer_marked_lost() -> None:
    life = Life(1, 2, False)
    life.step("lose", NODES[1], None)
    assert life.replica.image.lost_replicas
    life.step("move", [NODES[0]], None)
    assert life.partition.replicas == (1,) and not life.replica.image.lost_replicas
