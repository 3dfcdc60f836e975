"""Registration, fencing and elections."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    HeartbeatReply,
    Register,
    Sessions,
    decide_expire,
    decide_heartbeat,
    decide_register,
    elect,
)
from mqd.controller.image import PartitionImage
from mqd.controller.records import CreateTopic, Placement
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_NODE, NodeId
from tests.controller.cluster import CLUSTER, Replica, add_broker, create_topics, new_topic, with_brokers

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def register(replica: Replica, incarnation: int, cluster: str = CLUSTER) -> None:
    replica.run(decide_register, Register(ONE, cluster, UUID(int=incarnation), "h", 9092, "r"))


def test_the_first_registration_formats_the_log() -> None:
    replica = Replica()
    register(replica, 1)
    assert replica.image.cluster_id == CLUSTER
    assert replica.image.features == {"mqd.metadata.version": 1}
    broker = replica.image.brokers[ONE]
    assert (broker.epoch, broker.fenced, broker.rack) == (replica.index, True, "r")
    with pytest.raises(MqError) as refusal:
        register(replica, 1, "another")
    assert refusal.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_the_same_incarnation_registers_once_and_a_new_one_replaces_it_at_once() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    old = replica.image.brokers[ONE]
    replica.run(decide_register, Register(ONE, CLUSTER, old.incarnation, old.host, old.port, old.rack))
    assert replica.image.brokers[ONE] is old
    register(replica, 77)
    new = replica.image.brokers[ONE]
    assert new.epoch == replica.index > old.epoch and new.fenced
    assert [(p.leader, p.leader_epoch, p.isr) for p in replica.image.topics["t"].partitions] == [(NO_NODE, 1, (ONE,))] * 2
    with pytest.raises(MqError) as refusal:
        decide_heartbeat(replica.image, Heartbeat(ONE, old.epoch, replica.index), 0)
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    reply = replica.run(decide_heartbeat, Heartbeat(ONE, new.epoch, replica.index))
    assert reply == HeartbeatReply(caught_up=True, fenced=False, should_shut_down=False)
    assert [(p.leader, p.leader_epoch, p.partition_epoch) for p in replica.image.topics["t"].partitions] == [(1, 2, 2)] * 2


def test_a_broker_leads_only_after_it_has_applied_its_registration() -> None:
    replica = Replica()
    register(replica, 1)
    epoch = replica.image.brokers[ONE].epoch
    assert replica.run(decide_heartbeat, Heartbeat(ONE, epoch, epoch - 1)) == HeartbeatReply(False, True, False)
    assert not replica.run(decide_heartbeat, Heartbeat(ONE, epoch, epoch)).fenced
    assert decide_heartbeat(replica.image, Heartbeat(ONE, epoch, epoch), 0).records == ()
    with pytest.raises(MqError) as refusal:
        decide_heartbeat(replica.image, Heartbeat(TWO, 1, 1), 0)
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_that_goes_hands_over_what_it_leads() -> None:
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit([CreateTopic("t", UUID(int=1), (Placement(both, ONE, both), Placement((ONE,), ONE, (ONE,))), ())])
    epoch = replica.image.brokers[ONE].epoch
    reply = replica.run(decide_heartbeat, Heartbeat(ONE, epoch, replica.index, want_shut_down=True))
    assert reply == HeartbeatReply(True, True, True)
    assert [(p.leader, p.isr) for p in replica.image.topics["t"].partitions] == [(TWO, (TWO,)), (NO_NODE, (ONE,))]


def test_only_the_silent_of_the_same_registration_are_fenced() -> None:
    replica = with_brokers(1, 2)
    stale = replica.image.brokers[ONE].epoch
    add_broker(replica, 1, incarnation=5)
    op = ExpireSessions(((ONE, stale), (TWO, replica.image.brokers[TWO].epoch), (THREE, 9)))
    assert replica.run(decide_expire, op) == (TWO,)
    assert [broker.node_id for broker in replica.image.alive_brokers()] == [ONE]


@given(st.permutations([1, 2, 3]), st.sets(st.sampled_from([1, 2, 3]), min_size=1), st.sets(st.sampled_from([1, 2, 3])), st.data())
def test_elections_keep_to_the_in_sync(replicas: list[int], isr: set[int], alive: set[int], data: st.DataObject) -> None:
    in_sync = tuple(NodeId(node) for node in replicas if node in isr)
    leader = data.draw(st.sampled_from([NO_NODE, *in_sync]))
    before = PartitionImage(leader, 3, 3, tuple(map(NodeId, replicas)), in_sync)
    after, isr_after = elect(before, {NodeId(node) for node in alive})
    if not isr & alive:
        assert (after, isr_after) == (NO_NODE, in_sync)
    else:
        assert set(isr_after) == isr & alive and after in isr_after
        assert leader not in isr_after or after == leader


def test_a_large_topic_changes_hands() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 10_000))
    commands = len(replica.log)
    register(replica, 9)
    assert {p.leader for p in replica.image.topics["t"].partitions} == {NO_NODE}
    assert len(replica.log) == commands + 1 and len(replica.log[-1][1]) < 5_000


def test_sessions() -> None:
    replica = with_brokers(1, 2)
    sessions = Sessions(3.0)
    sessions.restart(replica.image, 10.0)
    sessions.touch(ONE, 12.0)
    assert sessions.silent(replica.image, 12.9) == ()
    assert sessions.silent(replica.image, 13.0) == ((TWO, replica.image.brokers[TWO].epoch),)
    add_broker(replica, 3)
    assert [node for node, _ in sessions.silent(replica.image, 15.5)] == [1, 2]  # 3 is heard of for the first time
    assert [node for node, _ in sessions.silent(replica.image, 18.5)] == [1, 2, 3]
