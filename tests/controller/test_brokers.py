"""Registration, fencing and elections."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    HeartbeatReply,
    Register,
    Unregister,
    decide_expire,
    decide_heartbeat,
    decide_register,
    decide_unregister,
)
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.records import CreateTopic, Placement
from mqd.controller.sessions import Sessions
from mqd.controller.snapshot import encode_snapshot, restore
from mqd.controller.sweeps import (
    PARTITIONS_PER_DECISION,
    ReviewPartitions,
    decide_review_partitions,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_NODE, NodeId
from tests.controller.cluster import (
    CLUSTER,
    Replica,
    add_broker,
    create_topics,
    new_topic,
    with_brokers,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def register(replica: Replica, incarnation: int, cluster: str = CLUSTER) -> None:
    replica.run(decide_register, Register(ONE, cluster, UUID(int=incarnation), "h", 9092, "r"))


@pytest.mark.parametrize(
    ("finalized", "supported", "joins"), [(3, 0, False), (3, 3, True), (2, 0, True)]
)
def test_a_release_that_cannot_read_the_metadata_is_kept_out(
    finalized: int, supported: int, joins: bool
) -> None:
    replica = with_brokers(1)
    replica.image.features["mqd.metadata.version"] = finalized
    op = Register(TWO, CLUSTER, UUID(int=7), "h", 9092, None, metadata_version_max=supported)
    if joins:
        replica.run(decide_register, op)
    else:
        with pytest.raises(MqError, match="does not support the finalized version 3"):
            replica.run(decide_register, op)
    assert (TWO in replica.image.brokers) == joins


def test_the_first_registration_formats_the_log() -> None:
    replica = Replica()
    register(replica, 1)
    assert replica.image.cluster_id == CLUSTER
    assert replica.image.features == {
        "mqd.metadata.version": 3,
        "group.version": 1,
        "share.version": 1,
        "transaction.version": 2,
    }
    broker = replica.image.brokers[ONE]
    assert (broker.epoch, broker.fenced, broker.rack) == (replica.index, True, "r")
    with pytest.raises(MqError) as refusal:
        register(replica, 1, "another")
    assert refusal.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_an_incarnation_registers_once_and_a_new_one_replaces_it() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    old = replica.image.brokers[ONE]
    replica.run(
        decide_register, Register(ONE, CLUSTER, old.incarnation, old.host, old.port, old.rack)
    )
    assert replica.image.brokers[ONE] is old
    register(replica, 77)
    new = replica.image.brokers[ONE]
    assert new.epoch == replica.index > old.epoch and new.fenced
    assert [(p.leader, p.leader_epoch, p.isr) for p in replica.image.topics["t"].partitions] == [
        (NO_NODE, 1, ())
    ] * 2
    with pytest.raises(MqError) as refusal:
        decide_heartbeat(replica.image, Heartbeat(ONE, old.epoch, replica.index), DecisionOptions())
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    reply = replica.run(decide_heartbeat, Heartbeat(ONE, new.epoch, replica.index))
    assert reply == HeartbeatReply(caught_up=True, fenced=False, should_shut_down=False)
    assert [
        (p.leader, p.leader_epoch, p.partition_epoch) for p in replica.image.topics["t"].partitions
    ] == [(1, 2, 2)] * 2


def test_a_broker_leads_only_after_it_has_applied_its_registration() -> None:
    replica = Replica()
    register(replica, 1)
    epoch = replica.image.brokers[ONE].epoch
    assert replica.run(decide_heartbeat, Heartbeat(ONE, epoch, epoch - 1)) == HeartbeatReply(
        False, True, False
    )
    assert not replica.run(decide_heartbeat, Heartbeat(ONE, epoch, epoch)).fenced
    assert (
        decide_heartbeat(replica.image, Heartbeat(ONE, epoch, epoch), DecisionOptions()).records
        == ()
    )
    with pytest.raises(MqError) as refusal:
        decide_heartbeat(replica.image, Heartbeat(TWO, 1, 1), DecisionOptions())
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_leaving_broker_transfers_leadership_before_it_is_fenced() -> None:
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit(
        [
            CreateTopic(
                "t", UUID(int=1), (Placement(both, ONE, both), Placement((ONE,), ONE, (ONE,))), ()
            )
        ]
    )
    epoch = replica.image.brokers[ONE].epoch
    leaving = Heartbeat(ONE, epoch, replica.index, want_shut_down=True)
    assert replica.run(decide_heartbeat, leaving) == HeartbeatReply(True, False, False)
    assert [(p.leader, p.isr, p.elr) for p in replica.image.topics["t"].partitions] == [
        (TWO, (TWO,), ()),
        (NO_NODE, (), (ONE,)),
    ]
    assert replica.image.is_alive(ONE) and replica.image.brokers[ONE].in_controlled_shutdown
    assert replica.run(decide_heartbeat, leaving) == HeartbeatReply(True, True, True)
    assert not replica.image.is_alive(ONE)
    assert replica.run(decide_heartbeat, leaving) == HeartbeatReply(True, True, True)
    replica.run(decide_heartbeat, Heartbeat(ONE, epoch, replica.index))
    assert (
        replica.image.topics["t"].partitions[1].leader == ONE
        and not replica.image.brokers[ONE].in_controlled_shutdown
    )


def test_a_broker_with_an_unclean_log_leaves_the_elr() -> None:
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit(
        [
            CreateTopic(
                "t", UUID(int=1), (Placement(both, ONE, both),), (("min.insync.replicas", "2"),)
            )
        ]
    )
    epoch = replica.image.brokers[ONE].epoch
    replica.run(
        decide_expire, ExpireSessions(((ONE, epoch), (TWO, replica.image.brokers[TWO].epoch)))
    )
    partition = replica.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (
        NO_NODE,
        (),
        both,
        (ONE,),
    )
    replica.run(
        decide_register,
        Register(ONE, CLUSTER, UUID(int=5), "h", 9092, None, previous_broker_epoch=epoch - 1),
    )
    partition = replica.image.topics["t"].partitions[0]
    assert (partition.leader, partition.elr, partition.last_known_elr) == (NO_NODE, (TWO,), (ONE,))
    replica.run(decide_heartbeat, Heartbeat(ONE, replica.image.brokers[ONE].epoch, replica.index))
    # node 2 has the records that 1 may have lost
    assert replica.image.topics["t"].partitions[0].leader == NO_NODE
    add_broker(replica, 2, incarnation=6)  # neither has a clean log: the last leader remains
    partition = replica.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.elr) == (ONE, (ONE,), ())


def test_a_broker_with_clean_logs_stays_in_the_elr() -> None:
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit(
        [
            CreateTopic(
                "t", UUID(int=1), (Placement(both, ONE, both),), (("min.insync.replicas", "2"),)
            )
        ]
    )
    epoch = replica.image.brokers[ONE].epoch
    replica.run(decide_expire, ExpireSessions(((TWO, replica.image.brokers[TWO].epoch),)))
    replica.run(
        decide_register,
        Register(ONE, CLUSTER, UUID(int=5), "h", 9092, None, previous_broker_epoch=epoch),
    )
    assert replica.image.topics["t"].partitions[0].elr == both
    replica.run(decide_heartbeat, Heartbeat(ONE, replica.image.brokers[ONE].epoch, replica.index))
    partition = replica.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.elr) == (ONE, (ONE,), (TWO,))


@pytest.mark.parametrize("unfenced", [False, True], ids=["never unfenced", "unfenced"])
def test_a_process_that_ended_before_it_was_unfenced_changes_no_elr(
    unfenced: bool,
) -> None:
    """It is killed between its registration and the write of the file that names it. Each time, it
    reports the previous registration.
    """
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit(
        [
            CreateTopic(
                "t", UUID(int=1), (Placement(both, ONE, both),), (("min.insync.replicas", "2"),)
            )
        ]
    )
    epoch = replica.image.brokers[ONE].epoch
    replica.run(
        decide_expire, ExpireSessions(((ONE, epoch), (TWO, replica.image.brokers[TWO].epoch)))
    )
    for incarnation in (5, 6):
        replica.run(
            decide_register,
            Register(
                ONE, CLUSTER, UUID(int=incarnation), "h", 9092, None, previous_broker_epoch=epoch
            ),
        )
        assert replica.image.topics["t"].partitions[0].elr == both
        if unfenced:
            replica.run(
                decide_heartbeat, Heartbeat(ONE, replica.image.brokers[ONE].epoch, replica.index)
            )
            replica.run(decide_expire, ExpireSessions(((ONE, replica.image.brokers[ONE].epoch),)))
            break
    restored = MetadataImage()
    restore(restored, encode_snapshot(replica.image))
    assert restored.brokers == replica.image.brokers
    replica.run(
        decide_register,
        Register(ONE, CLUSTER, UUID(int=7), "h", 9092, None, previous_broker_epoch=epoch),
    )
    assert replica.image.topics["t"].partitions[0].elr == ((TWO,) if unfenced else both)
    replica.run(decide_register, Register(ONE, CLUSTER, UUID(int=8), "h", 9092, None))
    assert replica.image.topics["t"].partitions[0].elr == (TWO,)


def reported(replica: Replica, serial: int) -> None:
    replica.run(
        decide_heartbeat,
        Heartbeat(ONE, replica.image.brokers[ONE].epoch, replica.index, disk_serial=serial),
    )


def test_the_serial_of_a_disk_is_stored_and_never_falls() -> None:
    replica = with_brokers(1)
    for serial, kept in ((3, 3), (3, 3), (2, 3), (9, 9)):
        reported(replica, serial)
        assert replica.image.brokers[ONE].disk_serial == kept
    again = MetadataImage()
    restore(again, encode_snapshot(replica.image))
    assert again.brokers == replica.image.brokers


def test_metadata_of_version_1_has_no_serials() -> None:
    replica = with_brokers(1)
    replica.image.features["mqd.metadata.version"] = 1
    reported(replica, 3)
    assert replica.image.brokers[ONE].disk_serial == 0


@pytest.mark.parametrize(("found", "vouches"), [(8, False), (9, True), (10, True)])
def test_a_broker_whose_disk_is_an_older_copy_leaves_every_elr(found: int, vouches: bool) -> None:
    """Not even for its present registration: the copy names that registration, and is older
    nevertheless.
    """
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit(
        [
            CreateTopic(
                "t", UUID(int=1), (Placement(both, ONE, both),), (("min.insync.replicas", "2"),)
            )
        ]
    )
    reported(replica, 9)
    epoch = replica.image.brokers[ONE].epoch
    for incarnation in (71, 72):  # the first of these processes ends before it is unfenced
        again = Register(
            ONE, CLUSTER, UUID(int=incarnation), "h", 9092, "r", epoch, disk_serial=found
        )
        replica.run(decide_register, again)
        partition = replica.image.topics["t"].partitions[0]
        assert (ONE in {*partition.isr, *partition.elr}) == vouches
        assert replica.image.brokers[ONE].disk_serial == (9 if vouches else 0)


def test_a_broker_is_unregistered_and_may_register_again() -> None:
    replica = with_brokers(1, 2)
    both = (ONE, TWO)
    replica.commit([CreateTopic("t", UUID(int=1), (Placement(both, ONE, both),), ())])
    replica.run(decide_unregister, Unregister(ONE))
    assert sorted(replica.image.brokers) == [TWO]
    assert replica.image.topics["t"].partitions[0].leader == TWO
    with pytest.raises(MqError) as refusal:
        replica.run(decide_unregister, Unregister(ONE))
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    add_broker(replica, 1)
    assert replica.image.is_alive(ONE)


def test_only_silent_brokers_of_the_same_registration_are_fenced() -> None:
    replica = with_brokers(1, 2)
    stale = replica.image.brokers[ONE].epoch
    add_broker(replica, 1, incarnation=5)
    op = ExpireSessions(((ONE, stale), (TWO, replica.image.brokers[TWO].epoch), (THREE, 9)))
    assert replica.run(decide_expire, op) == (TWO,)
    assert [broker.node_id for broker in replica.image.alive_brokers()] == [ONE]


@pytest.mark.slow
def test_leadership_of_a_large_topic_moves() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 10_000))
    commands = len(replica.log)
    register(replica, 9)
    assert {p.leader for p in replica.image.topics["t"].partitions} == {NO_NODE}
    assert len(replica.log) == commands + 10_000 // PARTITIONS_PER_DECISION
    assert all(len(command) < 5_000 for _, command in replica.log[commands:])
    epoch = replica.image.brokers[ONE].epoch
    replica.run(decide_heartbeat, Heartbeat(ONE, epoch, replica.index))
    assert {p.leader for p in replica.image.topics["t"].partitions[:PARTITIONS_PER_DECISION]} == {
        ONE
    }
    replica.run(decide_review_partitions, ReviewPartitions())
    assert {p.leader for p in replica.image.topics["t"].partitions} == {ONE}


def test_sessions() -> None:
    replica = with_brokers(1, 2)
    sessions = Sessions(3.0)
    sessions.restart(replica.image, 10.0)
    sessions.touch(ONE, 12.0)
    assert sessions.silent(replica.image, 12.9) == ()
    assert sessions.silent(replica.image, 13.0) == ((TWO, replica.image.brokers[TWO].epoch),)
    add_broker(replica, 3)
    # 3 is seen for the first time
    assert [node for node, _ in sessions.silent(replica.image, 15.5)] == [1, 2]
    assert [node for node, _ in sessions.silent(replica.image, 18.5)] == [1, 2, 3]
