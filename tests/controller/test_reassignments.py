"""Reassignments that would remove the last replica with all records."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    Register,
    decide_expire,
    decide_heartbeat,
    decide_register,
)
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.elections import ElectionType, ElectLeaders, decide_elect_leaders
from mqd.controller.image import PartitionImage
from mqd.controller.isr import AlterPartitions, IsrChangeRequest, decide_alter_partitions
from mqd.controller.reassignments import (
    AlterReassignments,
    Reassignment,
    decide_alter_reassignments,
)
from mqd.controller.records import CreateTopic, Placement, SetConfigs
from mqd.errors import ErrorCode
from mqd.types import NO_NODE, NodeId, TopicPartition
from tests.controller.cluster import CLUSTER, Replica, with_brokers

ONE, TWO, THREE, FOUR, FIVE = map(NodeId, range(1, 6))
T0 = TopicPartition("t", 0)
TOPIC = UUID(int=1)
OPTIONS = DecisionOptions(1, False)


def partition(replica: Replica) -> PartitionImage:
    return replica.image.topics["t"].partitions[0]


def epoch(replica: Replica, node_id: NodeId) -> int:
    return replica.image.brokers[node_id].epoch


def expire(replica: Replica, *nodes: NodeId) -> None:
    replica.run(
        decide_expire,
        ExpireSessions(tuple((node_id, epoch(replica, node_id)) for node_id in nodes)),
        OPTIONS,
    )


def alter(replica: Replica, target: tuple[NodeId, ...] | None) -> ErrorCode:
    (result,) = replica.run(
        decide_alter_reassignments, AlterReassignments((Reassignment(T0, target),)), OPTIONS
    )
    return ErrorCode(result.error_code)


@pytest.fixture
def stuck() -> Replica:
    """During the reassignment from 1 and 2 to 3 and 4: 3 is in sync, is the only leader, and
    restarts after a power failure. It is the last known leader.
    """
    replica = with_brokers(ONE, TWO, THREE, FOUR, FIVE)
    replica.commit([CreateTopic("t", TOPIC, (Placement((ONE, TWO), ONE, (ONE, TWO)),), ())])
    assert alter(replica, (THREE, FOUR)) is ErrorCode.NONE
    before = partition(replica)
    members = tuple((node_id, epoch(replica, node_id)) for node_id in (ONE, TWO, THREE))
    change = IsrChangeRequest(TOPIC, 0, before.leader_epoch, before.partition_epoch, members)
    replica.run(
        decide_alter_partitions, AlterPartitions(ONE, epoch(replica, ONE), (change,)), OPTIONS
    )
    expire(replica, ONE, TWO)
    replica.run(decide_register, Register(THREE, CLUSTER, UUID(int=99), "host", 1, None), OPTIONS)
    found = partition(replica)
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (NO_NODE, (), (), (THREE,))
    return replica


@pytest.mark.parametrize("target", [None, (FOUR, FIVE), (ONE, TWO)])
def test_a_reassignment_must_keep_the_last_known_leader(
    stuck: Replica, target: tuple[NodeId, ...] | None
) -> None:
    before = partition(stuck)
    assert alter(stuck, target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition(stuck) == before
    stuck.run(decide_heartbeat, Heartbeat(THREE, epoch(stuck, THREE), stuck.index), OPTIONS)
    assert partition(stuck).leader == THREE


def test_a_new_target_with_the_last_known_leader_is_accepted(stuck: Replica) -> None:
    assert alter(stuck, (FIVE, THREE)) is ErrorCode.NONE
    assert partition(stuck).last_known_elr == (THREE,)


@pytest.mark.parametrize("how", ["by an operator", "by the topic"])
def test_a_reassignment_may_be_cancelled_where_lost_records_are_accepted(
    stuck: Replica, how: str
) -> None:
    if how == "by the topic":
        stuck.commit([SetConfigs("topic", "t", (("unclean.leader.election.enable", "true"),))])
    else:
        stuck.run(decide_heartbeat, Heartbeat(ONE, epoch(stuck, ONE), stuck.index), OPTIONS)
        stuck.run(decide_elect_leaders, ElectLeaders(ElectionType.UNCLEAN, (T0,)), OPTIONS)
        assert partition(stuck).leader == ONE
    assert alter(stuck, None) is ErrorCode.NONE
    assert set(partition(stuck).replicas) == {ONE, TWO}
