"""The findings of `mqctl cluster health`, from states of a cluster."""

from __future__ import annotations

from typing import Any

from mqctl.diagnosis import diagnose
from mqctl.findings import BAD, NOTE, OK, WARNING, Finding, Observed
from mqd.client.descriptions import (
    BoundUsage,
    ClusterDescription,
    LogDirectory,
    PartitionState,
    Quorum,
    QuorumReplica,
    Reassignment,
)
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


def observed(
    *, fenced: tuple[int, ...] = (), voters: tuple[QuorumReplica, ...] = (), **given: Any
) -> Observed:
    """Three nodes and one partition without a fault, except for the arguments."""
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


def test_a_cluster_without_faults_is_healthy() -> None:
    assert [each.level for each in diagnose(observed())] == [OK] * 4
    assert all(each.healthy for each in diagnose(observed(partitions={})))


def test_each_failed_request_is_a_finding() -> None:
    seen = observed(
        cluster=TIMED_OUT,
        quorum=TIMED_OUT,
        partitions=TIMED_OUT,
        moves=TIMED_OUT,
        disks={1: TIMED_OUT},
        min_isr=TIMED_OUT,
    )
    assert {each.check: each.level for each in diagnose(seen)} == {
        "controller": BAD,
        "brokers": BAD,
        "partitions": BAD,
        "moves": WARNING,
        "disks": WARNING,
    }


def test_denied_requests_are_warnings_with_one_remedy() -> None:
    denied = ClientError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "x: Cluster authorization failed.")
    findings = diagnose(
        observed(quorum=denied, moves=denied, disks=dict.fromkeys((1, 2, 3), denied))
    )
    reason = "Cluster authorization failed."
    assert [(each.check, each.level, each.what) for each in findings if each.level != OK] == [
        ("controller", WARNING, f"the quorum cannot be checked: {reason}"),
        ("moves", WARNING, f"cannot list reassignments: {reason}"),
        (
            "disks",
            WARNING,
            f"cannot describe the log directories of brokers 1, 2 and 3: {reason}",
        ),
    ]
    assert [each.remedy for each in findings if each.remedy] == [
        "log in as a principal with DESCRIBE on the cluster"
    ]
    nobody = ClusterDescription("c", -1, (BrokerInfo(1, "host", 9091, None),), frozenset())
    first = diagnose(observed(quorum=denied, cluster=nobody))[0]
    assert first.level == BAD and "no controller: x: Cluster authorization failed. M" in first.what


def test_a_quorum_without_a_leader_is_the_first_finding() -> None:
    first = diagnose(observed(quorum=Quorum(-1, 4, 10, (voter(1),))))[0]
    assert (first.check, first.level) == (
        "controller",
        BAD,
    ) and "start the voters that are down" in first.remedy


def test_a_lagging_voter_is_reported_with_the_remaining_tolerance() -> None:
    (one,) = found(observed(voters=(voter(1), voter(2), voter(3, 42))), "quorum")
    assert (
        one.level == WARNING
        and "voter 3 has lagged for 42s: metadata cannot change if one more voter fails" in one.what
    )
    (one,) = found(observed(voters=(*map(voter, (1, 2, 3, 4)), voter(5, 42))), "quorum")
    assert "metadata can still change if 1 more fail" in one.what
    (one,) = found(observed(voters=(voter(1), voter(2, 42), QuorumReplica(3, -1))), "quorum")
    assert (
        one.level == BAD and "voter 3 has not contacted the leader, voter 1 (epoch 4)" in one.what
    )
    assert found(observed(voters=(voter(1), voter(2), voter(3, 9))), "quorum") == []


def test_a_voter_that_is_refused_is_reported_with_the_reason() -> None:
    refused = voter(3, 42)._replace(no_connection_reason="node 3 refuses this node: other voters")
    (one,) = found(observed(voters=(voter(1), voter(2), refused)), "quorum")
    assert (
        "voter 3 has lagged for 42s (no connection from the leader: node 3 refuses this node: "
        "other voters): metadata cannot change" in one.what
    )


def test_a_fenced_or_silent_voter_does_not_count_as_a_follower() -> None:
    """One that froze a few seconds ago does not lag yet."""
    for given, why in (
        ({"fenced": (3,)}, "is fenced"),
        ({"unreachable": {3: "no answer within 5 s"}}, "is unreachable from here"),
    ):
        seen = observed(**given)
        assert "2 of 3 voters follow" in diagnose(seen)[0].what
        (one,) = found(seen, "quorum")
        assert (
            one.level == WARNING
            and one.what == f"voter 3 {why}: metadata cannot change if one more voter fails"
        )
    assert [one.level for one in found(observed(fenced=(2, 3)), "quorum")] == [BAD]
    assert [
        one.level for one in found(observed(unreachable={2: "no answer", 3: "no answer"}), "quorum")
    ] == [WARNING]
    assert "3 of 3 voters follow" in diagnose(observed(unreachable={1: "no answer"}))[0].what, (
        "other nodes forwarded its response"
    )


def test_a_lagging_observer_is_reported() -> None:
    quorum = Quorum(1, 4, 10, (voter(1),), (voter(2, 20),))
    (one,) = found(observed(quorum=quorum), "quorum")
    assert one.what.startswith("observer 2 ")


def test_fenced_and_unreachable_nodes_have_different_findings() -> None:
    fenced, unreachable = found(
        observed(fenced=(3,), unreachable={2: "nothing listens at host:9092"}), "brokers"
    )
    assert "broker 3 at host:9093, rack r is fenced" in fenced.what
    look, unregister = fenced.remedy.split(". Only if its machine is lost for good: ")
    assert look.startswith("start it; if it runs, check its log. A broker whose peers file")
    assert "or whose certificate has expired (`mqctl cert show`), is rejected" in look
    assert "drain" not in look and "broker drain 3" in unregister and "unregister 3" in unregister
    assert (
        "broker 2 is unreachable from here" in unreachable.what
        and "nothing listens" in unreachable.what
    )


def test_a_voter_without_a_broker_registration_is_reported() -> None:
    (one,) = found(observed(voters=tuple(map(voter, (1, 2, 3, 9)))), "brokers")
    assert one.level == WARNING and "voter 9 is not registered" in one.what


def test_a_leaderless_partition_names_the_node_to_restart() -> None:
    state = PartitionState(-1, 5, (1, 2, 3), (), (2,), (), (2, 3))
    (one,) = found(observed(fenced=(2, 3), partitions={A0: state, A1: state}), "leaderless")
    assert "2 partitions (a-0, a-1) without a leader" in one.what
    assert (
        one.remedy.startswith("restart broker 2, which has all acknowledged records")
        and "--unclean" in one.remedy
    )
    (one,) = found(
        observed(partitions={A0: state._replace(elr=(), last_known_elr=(3,))}), "leaderless"
    )
    assert (
        one.remedy.startswith("restart broker 3, which was the last in sync")
        and "elect-leader a:0 --unclean" in one.remedy
    )
    (one,) = found(observed(partitions={A0: state._replace(elr=())}), "leaderless")
    assert one.remedy.startswith("restart brokers 1, 2 or 3;")
    (one,) = found(
        observed(partitions={A0: PartitionState(-1, 5, (3,), (), (3,), (), (3,))}), "leaderless"
    )
    assert one.remedy.endswith("no other replica is alive") and "--unclean" not in one.remedy


def test_only_eligible_leader_replicas_are_reported_with_all_records() -> None:
    state = PartitionState(-1, 5, (1, 2), (), (), (), (1, 2))
    seen = observed(
        fenced=(1, 2),
        partitions={A0: state._replace(elr=(2,)), A1: state._replace(last_known_elr=(2,))},
    )
    whole, last = found(seen, "leaderless")
    assert "(a-0)" in whole.what and whole.remedy.startswith(
        "restart broker 2, which has all acknowledged records"
    )
    assert "(a-1)" in last.what and last.remedy.startswith(
        "restart broker 2, which was the last in sync"
    )


def test_replicas_that_a_move_adds_count_for_min_insync_replicas() -> None:
    moving = {A0: Reassignment((1, 2, 3), (2, 3), ())}
    (one,) = found(
        observed(partitions={A0: PartitionState(1, 5, (1, 2, 3), (1,))}, moves=moving), "min-isr"
    )
    assert one.level == BAD and "acks=all writes are rejected" in one.what
    assert not found(
        observed(partitions={A0: PartitionState(1, 5, (1, 2, 3), (1, 2))}, moves=moving), "min-isr"
    )


def test_without_a_controller_no_unclean_election_is_advised() -> None:
    states = {
        A0: PartitionState(-1, 5, (1, 2, 3), (), (2,)),
        A1: PartitionState(-1, 5, (1, 2, 3), (3,)),
    }
    unsupported = ClientError(ErrorCode.UNSUPPORTED_VERSION, "no such request")
    nobody = ClusterDescription("c", -1, (BrokerInfo(1, "host", 9091, None),), frozenset())
    for given in (
        {"quorum": TIMED_OUT},
        {"quorum": Quorum(-1, 4, 10, (voter(1),))},
        {"quorum": unsupported, "cluster": nobody},
    ):
        (one,) = found(observed(partitions=states, **given), "leaderless")
        assert "2 partitions (a-0, a-1) without a leader" in one.what
        assert (
            one.remedy.startswith("restore the controller first: it elects their leaders")
            and "--unclean" not in one.remedy
        )
    assert all(
        "--unclean" in one.remedy
        for one in found(observed(partitions=states, quorum=unsupported), "leaderless")
    )


def test_each_partition_is_reported_once_with_its_worst_problem() -> None:
    below = PartitionState(1, 0, (1, 2, 3), (1,), (2,), (), (2, 3))
    behind = PartitionState(1, 0, (1, 2, 3), (1, 2), (), (), (3,))
    seen = observed(fenced=(2, 3), partitions={A0: below, A1: behind})
    (one,) = found(seen, "min-isr")
    assert "1 partition (a-0) below" in one.what and one.remedy.startswith(
        "restart brokers 2 and 3"
    )
    (one,) = found(seen, "replication")
    assert one.level == WARNING and "(a-1)" in one.what and "restart broker 3;" in one.remedy
    assert found(seen, "offline") == []


def test_partitions_with_fewer_replicas_than_min_insync_replicas_are_a_note() -> None:
    single = PartitionState(1, 0, (1,), (1,))
    (one,) = found(observed(partitions={A0: LED, A1: single}), "min-isr")
    assert (
        one.level == NOTE
        and "1 partition (a-1) with fewer replicas than min.insync.replicas" in one.what
    )
    assert found(observed(partitions={A1: single}, min_isr={}), "min-isr") == []
    growing = Reassignment((1, 2), (2,), ())
    assert (
        found(
            observed(
                partitions={A1: single._replace(replicas=(1, 2), isr=(1, 2))}, moves={A1: growing}
            ),
            "min-isr",
        )
        == []
    )


def test_an_offline_replica_on_a_live_node_points_at_its_disk() -> None:
    state = PartitionState(1, 0, (1, 2, 3), (1, 3), (), (), (2,))
    (one,) = found(observed(partitions={A0: state}), "offline")
    assert one.level == BAD and "mqctl broker describe 2" in one.remedy


def test_a_topic_in_memory_does_not_point_at_a_disk() -> None:
    state = PartitionState(1, 0, (1, 2, 3), (1, 3), (), (), (2,))
    seen = observed(partitions={A0: state}, topic_configs={"a": {"mqd.storage": "memory"}})
    assert not found(seen, "offline")
    (one,) = found(seen, "memory")
    assert one.level == WARNING and "broker 2 restarted" in one.what and "disk" not in one.remedy


def test_the_targets_of_delay_topics() -> None:
    source = TopicPartition("a.delay", 0)
    configs = {"a.delay": {"mqd.delay.target": "a"}, "a": {"mqd.producer.access": "shared"}}
    assert not found(observed(partitions={A0: LED, source: LED}, topic_configs=configs), "delay")
    (one,) = found(observed(partitions={source: LED}, topic_configs=configs), "delay")
    assert one.level == WARNING and "'a', its mqd.delay.target, does not exist" in one.what
    assert "mqctl topic create a`" in one.remedy
    configs["a"] = {"mqd.producer.access": "exclusive"}
    configs["a.delay"] |= {"mqd.dlq.topic": "b"}
    exclusive, missing = found(
        observed(partitions={A0: LED, source: LED}, topic_configs=configs), "delay"
    )
    assert "mqd.producer.access=exclusive" in exclusive.what
    assert "'b', its mqd.dlq.topic, does not exist" in missing.what


def test_missing_topics_of_dead_letters() -> None:
    given: dict[str, Any] = {
        "topic_configs": {"a": {"mqd.dlq.topic": "typo"}, "b": {"mqd.dlq.topic": "a"}},
        "group_dead_letters": {"billing": "gone", "other": "a"},
    }
    topic, group = found(observed(**given), "dead letters")
    assert "'typo', mqd.dlq.topic of topic a, does not exist" in topic.what
    assert "mqctl topic create typo`" in topic.remedy and "config set a " in topic.remedy
    assert "'gone', errors.deadletterqueue.topic.name of group billing, does not" in group.what
    assert "mqctl group config set billing" in group.remedy
    assert (topic.level, group.level) == (WARNING, WARNING)
    later = found(observed(**given, creates_topics=True), "dead letters")
    assert [each.level for each in later] == [NOTE, NOTE]
    assert "first dead letter" in later[0].what and "check the name" in later[0].remedy


def test_many_partitions_are_counted_and_some_named() -> None:
    states = {TopicPartition("a", index): LED._replace(isr=(1, 2)) for index in range(50)}
    (one,) = found(observed(partitions=states), "replication")
    assert (
        "50 partitions (a-0, a-1, a-2, a-3, a-4 ..)" in one.what
        and "check the log of broker 3" in one.remedy
    )


def test_non_preferred_leaders_and_moves_are_notes() -> None:
    seen = observed(
        partitions={A0: LED._replace(leader=2)},
        moves={A0: Reassignment((1, 2, 3), (3,), ())},
        throttled="broker 1",
    )
    assert [(each.check, each.level) for each in diagnose(seen) if each.level != OK] == [
        ("leaders", NOTE),
        ("moves", NOTE),
    ]
    assert all(each.healthy for each in diagnose(seen))


def test_a_preferred_leader_that_is_not_in_sync_is_not_reported() -> None:
    assert found(observed(partitions={A0: LED._replace(leader=2, isr=(2, 3))}), "leaders") == []


def test_a_throttle_without_moves_is_reported() -> None:
    (one,) = found(observed(throttled="topic a, broker 1"), "moves")
    assert one.level == WARNING and "--clear-throttle" in one.remedy


def test_failed_and_full_disks_are_reported() -> None:
    failed = ClientError(ErrorCode.KAFKA_STORAGE_ERROR, "/e: it broke")
    directories = [
        LogDirectory("/e", error=failed),
        LogDirectory("/f", (), 100, 10),
        LogDirectory("/g", (), 100, 2),
    ]
    rows = found(observed(disks={2: directories}), "disks")
    assert [each.level for each in rows] == [BAD, WARNING, BAD] and "10%" in rows[1].what


def bounds(*rows: tuple[int, str, int]) -> list[Finding]:
    """Findings about bounds of 100 MiB, with the percentage of each on a node."""
    usage: dict[int, list[BoundUsage]] = {}
    for node, name, percent in rows:
        usage.setdefault(node, []).append(BoundUsage(name, percent << 20, 100 << 20))
    return [each for each in diagnose(observed(usage=usage)) if each.check == "bounds"]


def test_bounds_are_reported_before_they_are_reached() -> None:
    (finding,) = bounds((1, "metadata", 49), (2, "__consumer_offsets-3", 12))
    assert finding.level == OK and "at most 49%" in finding.what
    (finding,) = bounds((1, "metadata", 55), (2, "metadata", 56))
    assert finding.level == NOTE and "metadata uses 56.0 MiB, 56% of its bound" in finding.what
    assert (
        "new topics, partitions and config overrides are rejected" in finding.what
        and "metadata.image.max.bytes" in finding.remedy
    )
    first, second = bounds(
        (1, "__consumer_offsets-3", 95), (1, "__transaction_state-4", 80), (2, "metadata", 1)
    )
    assert (first.level, second.level) == (BAD, WARNING)
    assert (
        "__consumer_offsets-3 on broker 1" in first.what
        and "group.coordinator.memory.bytes" in first.remedy
    )
    assert (
        "new transactional ids are rejected" in second.what
        and "transaction.coordinator.memory.bytes" in second.remedy
    )


def test_a_node_that_does_not_report_its_bounds_is_a_note() -> None:
    found_ = [each for each in diagnose(observed(usage={1: TIMED_OUT})) if each.check == "bounds"]
    assert [each.level for each in found_] == [NOTE]
