from __future__ import annotations

from typing import Any

from mqctl.diagnosis import BAD, NOTE, OK, WARNING, Finding, Observed, diagnose
from mqd.client.descriptions import BoundUsage, ClusterDescription, LogDirectory, PartitionState, Quorum, QuorumReplica, Reassignment
from mqd.client.errors import ClientError
from mqd.client.metadata import BrokerInfo
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NOW = 1_000_000
TIMED_OUT = ClientError(ErrorCode.REQUEST_TIMED_OUT, "no answer within 5 s")
LED = PartitionState(1, 0, (1, 2, 3), (1, 2, 3))


def voter(node: int, behind_s: float = 0.0) -> QuorumReplica:
    then = NOW - int(behind_s * 1000)
    return QuorumReplica(node, 10, then, then)


def observed(*, fenced: tuple[int, ...] = (), voters: tuple[QuorumReplica, ...] = (), **given: Any) -> Observed:
    """Three nodes and one partition without a fault, but for what is given."""
    brokers = tuple(BrokerInfo(node, "host", 9090 + node, "r") for node in (1, 2, 3))
    whole: dict[str, Any] = {
        "cluster": ClusterDescription("c", 1, brokers, frozenset(fenced)),
        "quorum": Quorum(1, 4, 10, voters or tuple(voter(node) for node in (1, 2, 3))),
        "partitions": {A0: LED},
        "moves": {},
        "min_isr": {"a": 2},
        "disks": {1: [LogDirectory("/d", (), 100, 50)]},
    }
    return Observed(**whole | given)


def found(seen: Observed, check: str) -> list[Finding]:
    return [each for each in diagnose(seen) if each.check == check and each.level != OK]


def test_a_cluster_without_a_fault_is_healthy() -> None:
    assert [each.level for each in diagnose(observed())] == [OK] * 4
    assert all(each.healthy for each in diagnose(observed(partitions={})))


def test_without_any_answer_each_question_is_a_finding() -> None:
    seen = observed(cluster=TIMED_OUT, quorum=TIMED_OUT, partitions=TIMED_OUT, moves=TIMED_OUT, disks={1: TIMED_OUT}, min_isr=TIMED_OUT)
    assert {each.check: each.level for each in diagnose(seen)} == {
        "controller": BAD,
        "nodes": BAD,
        "partitions": BAD,
        "moves": WARNING,
        "disks": WARNING,
    }


def test_a_quorum_without_a_leader_is_said_first() -> None:
    first = diagnose(observed(quorum=Quorum(-1, 4, 10, (voter(1),))))[0]
    assert (first.check, first.level) == ("controller", BAD) and "a majority of the voters" in first.remedy


def test_a_voter_that_lags_says_how_many_more_may_be_lost() -> None:
    (one,) = found(observed(voters=(voter(1), voter(2), voter(3, 42))), "quorum")
    assert one.level == WARNING and "voter 3 has lagged for 42s: one more voter lost, and no metadata can change" in one.what
    (one,) = found(observed(voters=(*map(voter, (1, 2, 3, 4)), voter(5, 42))), "quorum")
    assert "1 more may be lost" in one.what
    (one,) = found(observed(voters=(voter(1), voter(2, 42), QuorumReplica(3, -1))), "quorum")
    assert one.level == BAD and "voter 3 has not been heard since node 1 leads (epoch 4)" in one.what
    assert found(observed(voters=(voter(1), voter(2), voter(3, 9))), "quorum") == []


def test_a_voter_that_is_fenced_or_silent_does_not_count_as_following() -> None:
    """One that froze a few seconds ago does not lag yet."""
    for given, why in (({"fenced": (3,)}, "is fenced"), ({"unreachable": {3: "no answer within 5 s"}}, "does not answer from here")):
        seen = observed(**given)
        assert "2 of 3 voters follow" in diagnose(seen)[0].what
        (one,) = found(seen, "quorum")
        assert one.level == WARNING and one.what == f"voter 3 {why}: one more voter lost, and no metadata can change"
    assert [one.level for one in found(observed(fenced=(2, 3)), "quorum")] == [BAD]
    assert [one.level for one in found(observed(unreachable={2: "no answer", 3: "no answer"}), "quorum")] == [WARNING]
    assert "3 of 3 voters follow" in diagnose(observed(unreachable={1: "no answer"}))[0].what, "its answer came by way of others"


def test_an_observer_that_lags_is_told() -> None:
    quorum = Quorum(1, 4, 10, (voter(1),), (voter(2, 20),))
    (one,) = found(observed(quorum=quorum), "quorum")
    assert "does not vote" in one.what


def test_a_fenced_node_and_one_out_of_reach_are_told_apart() -> None:
    fenced, unreachable = found(observed(fenced=(3,), unreachable={2: "nothing listens at host:9092"}), "nodes")
    assert "node 3 at host:9093, rack r is fenced" in fenced.what
    look, unregister = fenced.remedy.split("; only if its machine is gone for good: ")
    assert look.startswith("look into its log: a node that runs is refused where its peers file")
    assert "drain" not in look and "broker drain 3" in unregister and "unregister 3" in unregister
    assert "node 2 does not answer" in unreachable.what and "nothing listens" in unreachable.what


def test_a_voter_that_is_no_broker_is_told() -> None:
    (one,) = found(observed(voters=tuple(map(voter, (1, 2, 3, 9)))), "nodes")
    assert one.level == WARNING and "node 9 votes" in one.what


def test_a_leaderless_partition_says_who_must_come_back() -> None:
    state = PartitionState(-1, 5, (1, 2, 3), (), (2,), (), (2, 3))
    (one,) = found(observed(fenced=(2, 3), partitions={A0: state, A1: state}), "leaderless")
    assert "2 partitions (a-0, a-1) without a leader" in one.what
    assert one.remedy.startswith("bring back node 2, which has every acknowledged record") and "--unclean" in one.remedy
    (one,) = found(observed(partitions={A0: state._replace(elr=(), last_known_elr=(3,))}), "leaderless")
    assert one.remedy.startswith("bring back node 3, which was in sync last") and "elect-leader a:0 --unclean" in one.remedy
    (one,) = found(observed(partitions={A0: state._replace(elr=())}), "leaderless")
    assert one.remedy.startswith("bring back nodes 1, 2 or 3;")
    (one,) = found(observed(partitions={A0: PartitionState(-1, 5, (3,), (), (3,), (), (3,))}), "leaderless")
    assert one.remedy.endswith("no other replica lives") and "--unclean" not in one.remedy


def test_who_has_every_record_is_not_said_of_partitions_of_which_a_node_was_the_last_leader_only() -> None:
    state = PartitionState(-1, 5, (1, 2), (), (), (), (1, 2))
    seen = observed(fenced=(1, 2), partitions={A0: state._replace(elr=(2,)), A1: state._replace(last_known_elr=(2,))})
    whole, last = found(seen, "leaderless")
    assert "(a-0)" in whole.what and whole.remedy.startswith("bring back node 2, which has every acknowledged record")
    assert "(a-1)" in last.what and last.remedy.startswith("bring back node 2, which was in sync last")


def test_replicas_that_a_move_adds_count_for_the_minimum_as_brokers_count_them() -> None:
    moving = {A0: Reassignment((1, 2, 3), (2, 3), ())}
    (one,) = found(observed(partitions={A0: PartitionState(1, 5, (1, 2, 3), (1,))}, moves=moving), "min-isr")
    assert one.level == BAD and "producers with acks=all are refused" in one.what
    assert not found(observed(partitions={A0: PartitionState(1, 5, (1, 2, 3), (1, 2))}, moves=moving), "min-isr")


def test_without_a_controller_nothing_that_loses_records_is_advised() -> None:
    states = {A0: PartitionState(-1, 5, (1, 2, 3), (), (2,)), A1: PartitionState(-1, 5, (1, 2, 3), (3,))}
    unsupported = ClientError(ErrorCode.UNSUPPORTED_VERSION, "no such request")
    nobody = ClusterDescription("c", -1, (BrokerInfo(1, "host", 9091, None),), frozenset())
    for given in ({"quorum": TIMED_OUT}, {"quorum": Quorum(-1, 4, 10, (voter(1),))}, {"quorum": unsupported, "cluster": nobody}):
        (one,) = found(observed(partitions=states, **given), "leaderless")
        assert "2 partitions (a-0, a-1) without a leader" in one.what
        assert one.remedy.startswith("they are led again when there is a controller") and "--unclean" not in one.remedy
    assert all("--unclean" in one.remedy for one in found(observed(partitions=states, quorum=unsupported), "leaderless"))


def test_each_partition_is_told_of_once_by_its_worst_fault() -> None:
    below = PartitionState(1, 0, (1, 2, 3), (1,), (2,), (), (2, 3))
    behind = PartitionState(1, 0, (1, 2, 3), (1, 2), (), (), (3,))
    seen = observed(fenced=(2, 3), partitions={A0: below, A1: behind})
    (one,) = found(seen, "min-isr")
    assert "1 partition (a-0) below" in one.what and one.remedy.startswith("bring back nodes 2 and 3")
    (one,) = found(seen, "replication")
    assert one.level == WARNING and "(a-1)" in one.what and "bring back node 3;" in one.remedy
    assert found(seen, "offline") == []


def test_partitions_with_fewer_replicas_than_must_be_in_sync_are_a_note() -> None:
    single = PartitionState(1, 0, (1,), (1,))
    (one,) = found(observed(partitions={A0: LED, A1: single}), "min-isr")
    assert one.level == NOTE and "1 partition (a-1) with fewer replicas than min.insync.replicas" in one.what
    assert found(observed(partitions={A1: single}, min_isr={}), "min-isr") == []
    growing = Reassignment((1, 2), (2,), ())
    assert found(observed(partitions={A1: single._replace(replicas=(1, 2), isr=(1, 2))}, moves={A1: growing}), "min-isr") == []


def test_a_replica_that_is_offline_on_a_living_node_points_at_its_disk() -> None:
    state = PartitionState(1, 0, (1, 2, 3), (1, 3), (), (), (2,))
    (one,) = found(observed(partitions={A0: state}), "offline")
    assert one.level == BAD and "mqctl broker describe 2" in one.remedy


def test_many_partitions_are_counted_and_some_named() -> None:
    states = {TopicPartition("a", index): LED._replace(isr=(1, 2)) for index in range(50)}
    (one,) = found(observed(partitions=states), "replication")
    assert "50 partitions (a-0, a-1, a-2, a-3, a-4 ..)" in one.what and "look into the log of node 3" in one.remedy


def test_leaders_out_of_place_and_moves_are_notes() -> None:
    seen = observed(partitions={A0: LED._replace(leader=2)}, moves={A0: Reassignment((1, 2, 3), (3,), ())}, throttled="node 1")
    assert [(each.check, each.level) for each in diagnose(seen) if each.level != OK] == [("leaders", NOTE), ("moves", NOTE)]
    assert all(each.healthy for each in diagnose(seen))


def test_a_leader_that_is_preferred_but_not_in_sync_is_no_news() -> None:
    assert found(observed(partitions={A0: LED._replace(leader=2, isr=(2, 3))}), "leaders") == []


def test_a_throttle_without_moves_is_told() -> None:
    (one,) = found(observed(throttled="topic a, node 1"), "moves")
    assert one.level == WARNING and "--clear-throttle" in one.remedy


def test_disks_that_fail_or_fill_up() -> None:
    failed = ClientError(ErrorCode.KAFKA_STORAGE_ERROR, "/e: it broke")
    directories = [LogDirectory("/e", error=failed), LogDirectory("/f", (), 100, 10), LogDirectory("/g", (), 100, 2)]
    rows = found(observed(disks={2: directories}), "disks")
    assert [each.level for each in rows] == [BAD, WARNING, BAD] and "10%" in rows[1].what


def bounds(*rows: tuple[int, str, int]) -> list[Finding]:
    """Of bounds of 100 MiB, with the percentage of each on a node."""
    usage: dict[int, list[BoundUsage]] = {}
    for node, name, percent in rows:
        usage.setdefault(node, []).append(BoundUsage(name, percent << 20, 100 << 20))
    return [each for each in diagnose(observed(usage=usage)) if each.check == "bounds"]


def test_bounds_are_reported_before_they_are_reached() -> None:
    (finding,) = bounds((1, "metadata", 49), (2, "__consumer_offsets-3", 12))
    assert finding.level == OK and "at most 49%" in finding.what
    (finding,) = bounds((1, "metadata", 55), (2, "metadata", 56))
    assert finding.level == NOTE and "metadata takes 56.0 MiB, 56% of what it may" in finding.what
    assert "no topic, partition or config override is created" in finding.what and "metadata.image.max.bytes" in finding.remedy
    first, second = bounds((1, "__consumer_offsets-3", 95), (1, "__transaction_state-4", 80), (2, "metadata", 1))
    assert (first.level, second.level) == (BAD, WARNING)
    assert "__consumer_offsets-3 on node 1" in first.what and "group.coordinator.memory.bytes" in first.remedy
    assert "new transactional ids are refused" in second.what and "transaction.coordinator.memory.bytes" in second.remedy


def test_a_node_that_does_not_report_its_bounds_is_a_note() -> None:
    found_ = [each for each in diagnose(observed(usage={1: TIMED_OUT})) if each.check == "bounds"]
    assert [each.level for each in found_] == [NOTE]
