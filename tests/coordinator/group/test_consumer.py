"""Consumer groups as their members see them (KIP-848).

Codes, epochs and messages are what Apache Kafka 4.3.1 returns for the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.group import records
from mqd.coordinator.group.consumer_member import LEAVING, LEAVING_FOR_NOW
from mqd.coordinator.group.record_codec import encode, tombstone
from mqd.coordinator.shard import NO_PRODUCER, CoordinatorRecord
from mqd.errors import ErrorCode, MqError
from tests.coordinator.group.consumer_support import GROUP, Group, owners


def test_the_first_member_gets_everything_at_once() -> None:
    group = Group({"a": 3, "b": 2})
    answer = group.join("m1", ["a", "b"])
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval_ms"]) == (
        "m1",
        2,
        5000,
    )
    assert group.assigned(answer) == [0, 0, 1, 1, 2]
    assert "assignment" not in group.beat("m1", 2)
    assert group.assigned(
        group.beat("m1", 2, rebalance_timeout_ms=5, subscribed_topic_names=["a", "b"], owned=())
    ) == [0, 0, 1, 1, 2]


def two_members() -> Group:
    """m1 has 0 and 1 of four partitions, m2 has 2 and 3, both in epoch 3."""
    group = Group()
    group.join("m1")
    group.later()
    group.join("m2")
    group.beat("m1", 2)
    group.beat("m1", 2, owned=[("a", 0), ("a", 1)])
    assert group.assigned(group.beat("m2", 3)) == [2, 3]
    return group


def test_a_partition_moves_only_after_its_owner_revoked_it() -> None:
    group = Group()
    group.join("m1")
    group.later()
    joined = group.join("m2")
    assert (joined["member_epoch"], group.assigned(joined)) == (3, [])
    requested = group.beat("m1", 2)
    assert (requested["member_epoch"], group.assigned(requested)) == (2, [0, 1])
    assert group.state.members["m1"].state.name == "UNREVOKED_PARTITIONS"
    assert "assignment" not in group.beat("m2", 3)
    assert group.beat("m1", 2)["member_epoch"] == 2
    assert group.beat("m1", 2, owned=[("a", 0), ("a", 1), ("a", 3)])["member_epoch"] == 2
    assert "assignment" not in group.beat("m2", 3)
    assert group.beat("m1", 2, owned=[("a", 0), ("a", 1)])["member_epoch"] == 3
    assert group.described()["group_state"] == "Reconciling"
    assert group.assigned(group.beat("m2", 3)) == [2, 3]
    assert group.described()["group_state"] == "Stable"


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    group = Group()
    group.join("m1", rebalance_timeout_ms=10_000)
    group.later()
    group.join("m2")
    group.beat("m1", 2)
    group.later(5)
    group.beat("m1", 2)
    group.later(4)
    assert "m1" in group.state.members
    group.later(1.5)
    assert "m1" not in group.state.members
    assert group.refusal("m1", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.assigned(group.beat("m2", 3)) == [0, 1, 2, 3]


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    group = two_members()
    group.later(30)
    group.beat("m2", 3)
    group.later(16)
    assert sorted(group.state.members) == ["m2"]
    assert group.assigned(group.beat("m2", 3)) == [0, 1, 2, 3]


def test_a_silent_member_is_removed_later_if_the_log_refuses_the_records() -> None:
    """Appends fail while too few replicas are in sync. Without a retry, no other member would ever
    get its partitions.
    """
    group = two_members()
    group.later(30)
    group.beat("m2", 3)
    harness = group.harness
    harness.now = harness.now._replace(seconds=harness.now.seconds + 16)
    assert harness.shard.on_deadline(harness.now).records, "the records are not written"
    assert sorted(group.state.members) == ["m1", "m2"]
    group.later(1.1)
    assert sorted(group.state.members) == ["m2"]


def test_a_group_may_have_its_own_session_timeout() -> None:
    group = Group(consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=7000)
    assert group.join("m1")["heartbeat_interval_ms"] == 7000
    group.later(49)
    assert "m1" in group.state.members
    group.later(2)
    assert "m1" not in group.state.members


def test_a_leaving_member_frees_its_partitions_at_once() -> None:
    group = two_members()
    group.later()
    assert group.leave("m1") == {"member_id": "m1", "member_epoch": LEAVING}
    assert group.described()["group_state"] == "Assigning"
    answer = group.beat("m2", 3)
    assert (answer["member_epoch"], group.assigned(answer)) == (4, [0, 1, 2, 3])
    group.leave("m2")
    assert group.described()["group_state"] == "Empty"


def test_targets_are_computed_once_per_interval() -> None:
    group = Group()
    group.join("m1")
    assert group.join("m2")["member_epoch"] == group.join("m3")["member_epoch"] == 2
    assert "assignment" not in group.beat("m1", 2)
    assert group.state.epoch == 4 and group.state.assignment_epoch == 2
    group.later(0.9)
    group.beat("m1", 2)
    assert group.state.assignment_epoch == 2
    group.later(0.2)
    assert group.assigned(group.beat("m1", 2)) == [0, 1]
    assert group.state.assignment_epoch == 4


def test_a_wall_clock_that_was_set_back_does_not_delay_a_target() -> None:
    group = Group()
    group.join("m1")
    harness = group.harness
    harness.now = harness.now._replace(wall_ms=harness.now.wall_ms - 3_600_000)
    assert group.join("m2")["member_epoch"] == 3


def test_a_wrong_member_epoch_is_fenced() -> None:
    group = two_members()
    group.later()
    assert group.refusal("m1", 4) is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.refusal("m1", 1) is ErrorCode.FENCED_MEMBER_EPOCH
    with pytest.raises(
        MqError,
        match=r"has a smaller member epoch \(1\) than the one known by the group coordinator \(3\)",
    ):
        group.beat("m1", 1)


def test_the_previous_epoch_is_accepted_from_a_member_with_a_subset() -> None:
    group = Group()
    group.join("m1")
    group.later()
    group.join("m2")
    group.beat("m1", 2)
    group.beat("m1", 2, owned=[("a", 0), ("a", 1)])  # the response, epoch 3, is lost
    assert group.refusal("m1", 2) is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.refusal("m1", 2, owned=[("a", 0), ("a", 3)]) is ErrorCode.FENCED_MEMBER_EPOCH
    again = group.beat(
        "m1", 2, owned=[("a", 0)], rebalance_timeout_ms=1, subscribed_topic_names=["a"]
    )
    assert (again["member_epoch"], group.assigned(again)) == (3, [0, 1])


def test_a_member_may_join_again_and_keeps_its_partitions() -> None:
    group = two_members()
    again = group.join("m1")
    assert (again["member_epoch"], group.assigned(again)) == (3, [0, 1])
    assert group.state.epoch == 3


def test_unsubscribed_partitions_are_revoked_before_the_next_target() -> None:
    group = Group({"a": 2, "b": 2})
    group.join("m1", ["a", "b"])
    requested = group.beat("m1", 2, subscribed_topic_names=["b"])
    assert (requested["member_epoch"], group.assigned(requested)) == (2, [0, 1])
    assert group.state.assignment_epoch == 2, "the interval is not over"
    assert [
        group.topics.topic_name(topic_id) for topic_id in group.state.members["m1"].revoking
    ] == ["a"]
    group.later()
    assert group.beat("m1", 2, owned=[("b", 0), ("b", 1)])["member_epoch"] == 3


def test_a_topic_that_is_created_grown_or_deleted_causes_a_new_assignment() -> None:
    group = Group({"a": 1})
    group.join("m1", ["a", "b"])

    def changed() -> list[int] | None:
        group.harness.metadata_changed()
        group.later()
        return group.assigned(group.beat("m1", group.state.members["m1"].epoch, owned=()))

    group.topics.create("unrelated", 5)
    assert changed() is None and group.state.epoch == 2
    group.topics.create("b", 2)
    assert changed() == [0, 0, 1]
    group.topics.delete("b")
    assert changed() == [0] and group.state.epoch == 4
    assert group.state.members["m1"].state.name == "STABLE"


def test_members_choose_the_assignor_by_majority() -> None:
    group = Group({"a": 4, "b": 4})
    group.join("m1", ["a", "b"], server_assignor="range")
    assert group.described()["assignor_name"] == "range"
    group.later()
    group.join("m2", ["a", "b"], server_assignor="range")
    group.beat("m1", 2)
    targets = group.state.targets["m1"].values()
    assert all(
        len(partitions) == 2 and partitions[1] == partitions[0] + 1 for partitions in targets
    )
    with pytest.raises(
        MqError, match=r"ServerAssignor zz is not supported. Supported assignors: uniform, range."
    ) as refused:
        group.join("m3", server_assignor="zz")
    assert refused.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_full_group_accepts_no_member() -> None:
    group = Group(group_consumer_max_size=1)
    group.join("m1")
    with pytest.raises(MqError) as refused:
        group.join("m2")
    assert refused.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.beat("m1", 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"instance_id": " "}, "InstanceId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        ({"member_epoch": LEAVING_FOR_NOW}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_requests_are_refused(wrong: dict[str, Any], message: str) -> None:
    group = Group()
    right = {
        "group_id": GROUP,
        "member_id": "m1",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1,
        "subscribed_topic_names": ["a"],
    }
    with pytest.raises(MqError) as refused:
        group.harness.call(
            "consumer_group_heartbeat", 1, {"topic_partitions": [], **right, **wrong}
        )
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, message)
    assert group.harness.log == []


def test_an_unknown_group_or_member_is_an_error() -> None:
    group = Group()
    assert group.refusal("m1", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert group.refusal("m1", LEAVING) is ErrorCode.GROUP_ID_NOT_FOUND
    group.join("m1")
    assert group.refusal("m2", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.refusal("m2", LEAVING) is ErrorCode.UNKNOWN_MEMBER_ID
    [row] = group.harness.call("consumer_group_describe", 1, {"group_ids": ["x"]})["groups"]
    assert (row["error_code"], row["error_message"]) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group x not found.",
    )


def test_version_0_gives_members_an_id() -> None:
    group = Group()
    answer = group.join("", version=0)
    assert answer["member_id"] == "id-1" and group.assigned(answer) == [0, 1, 2, 3]


# -- static members


def test_a_static_member_that_returns_gets_its_partitions_back() -> None:
    group = two_members()
    group.later()
    group.join("s1", instance_id="i")
    for member_id in ("m1", "m2"):
        keeps = group.assigned(group.beat(member_id, 3))
        if keeps is not None:
            group.beat(member_id, 3, owned=[("a", partition) for partition in keeps])
    held = group.assigned(group.beat("s1", group.state.members["s1"].epoch, instance_id="i"))
    assert held
    epoch = group.state.epoch
    assert group.leave("s1", LEAVING_FOR_NOW, instance_id="i") == {
        "member_id": "s1",
        "member_epoch": -2,
    }
    group.later(20)
    group.beat("m1", group.state.members["m1"].epoch)
    back = group.join("s2", instance_id="i")
    assert group.assigned(back) == held
    assert (back["member_epoch"], group.state.epoch) == (epoch, epoch), "no new assignment"
    assert group.refusal("s1", epoch, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed_when_its_session_ends() -> None:
    group = Group()
    group.join("s1", instance_id="i")
    group.leave("s1", LEAVING_FOR_NOW, instance_id="i")
    group.later(46)
    assert group.state.is_empty


def test_a_static_member_may_rejoin_after_a_lost_response() -> None:
    group = Group()
    first = group.join("s1", instance_id="i")
    group.harness.fail_over()
    assert group.join("s1", instance_id="i") == first
    group.later()
    group.join("s2", instance_id="j")
    result = group.join("s1", instance_id="i", topics=[])
    assert group.assigned(result) == []
    group.later()
    epoch = group.beat("s2", 3)["member_epoch"]
    assert group.assigned(group.beat("s2", epoch)) in (None, [0, 1, 2, 3])
    assert list(group.state.owners.values()) == ["s2"] * 4


def test_an_active_instance_is_not_replaced() -> None:
    group = Group()
    group.join("s1", instance_id="i")
    with pytest.raises(MqError) as refused:
        group.join("s2", instance_id="i")
    assert refused.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    assert group.refusal("s2", 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert group.refusal("s1", 2, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    group.leave("s1", instance_id="i")
    assert group.join("s2", instance_id="i")["member_id"] == "s2"


def test_a_static_member_may_return_under_its_own_id() -> None:
    group = Group()
    group.join("s1", instance_id="i")
    group.leave("s1", LEAVING_FOR_NOW, instance_id="i")
    assert group.assigned(group.join("s1", instance_id="i")) == [0, 1, 2, 3]
    group.later(30)
    group.beat("s1", 2, instance_id="i")
    group.later(30)
    assert "s1" in group.state.members
    group.later(16)
    assert group.state.is_empty


# -- expressions


def test_expressions_are_resolved_when_a_member_sends_them() -> None:
    group = Group({"red-1": 1, "red-2": 1, "blue": 1, "xred-1": 1})
    answer = group.join("m1", None, subscribed_topic_regex="red-.*")
    assert group.assigned(answer) == [0, 0]
    described = group.described()["members"][0]
    assert described["subscribed_topic_regex"] == "red-.*"
    assert [row["topic_name"] for row in described["assignment"]["topic_partitions"]] == [
        "red-1",
        "red-2",
    ]
    assert group.state.subscribed(["red-1", "blue"]).topics == ["red-1"]


def test_new_topics_are_matched_after_a_while() -> None:
    group = Group({"red-1": 1})
    group.join("m1", None, subscribed_topic_regex="red-.*")
    group.topics.create("red-2", 1)
    group.harness.metadata_changed()
    group.later(5)
    assert "assignment" not in group.beat("m1", 2)
    group.later(6)
    assert group.assigned(group.beat("m1", 2)) == [0, 0]
    group.topics.delete("red-1")
    group.harness.metadata_changed()
    group.later()
    group.beat("m1", 3, owned=[("red-2", 0)])
    assert [
        group.topics.topic_name(topic_id) for topic_id in group.state.members["m1"].assigned
    ] == ["red-2"]


def test_an_expression_is_removed_with_its_last_member() -> None:
    group = Group({"red": 1, "blue": 1})
    group.join("m1", None, subscribed_topic_regex="r.*")
    group.join("m2", None, subscribed_topic_regex="r.*")
    group.join("m3", None, subscribed_topic_regex="b.*")
    group.leave("m1")
    assert sorted(group.state.subscriptions.expressions) == ["b.*", "r.*"]
    group.leave("m2")
    assert sorted(group.state.subscriptions.expressions) == ["b.*"]
    group.later()
    group.beat("m3", 2, subscribed_topic_regex="", subscribed_topic_names=["red"])
    assert group.state.subscriptions.expressions == {} and dict(
        group.state.subscriptions.names
    ) == {"red": 1}


@pytest.mark.parametrize("wrong", ["(", "a{2000}", "(?=x)", "\\1", "[", "x" * 30_000])
def test_invalid_expressions_are_refused(wrong: str) -> None:
    group = Group()
    with pytest.raises(MqError) as refused:
        group.join("m1", None, subscribed_topic_regex=wrong)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert group.harness.log == []


def test_a_long_search_runs_in_slices_between_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqd.coordinator.group.subscriptions.Resolution.advance.__defaults__", (1,))
    group = Group({f"t{number}": 1 for number in range(10)})
    assert group.assigned(group.join("m1", None, subscribed_topic_regex="t[0-4]")) == []
    group.beat("m1", 1)
    group.later(0.1)
    assert group.state.subscriptions.expressions == {}
    group.later(0.5)
    assert group.state.subscriptions.expressions["t[0-4]"].topics == ("t0", "t1", "t2", "t3", "t4")
    assert group.assigned(group.beat("m1", 1)) == [0] * 5


# -- commits


def commit_check(
    group: Group, member_id: str, epoch: int, partition: int, **more: Any
) -> ErrorCode:
    topic_id = group.topics.topic_id("a")
    assert topic_id is not None
    try:
        check = group.state.check_commit(
            member_id, epoch, None, **{"transactional": False, "version": 9, **more}
        )
        if check is not None:
            check("a", topic_id, partition)
    except MqError as error:
        return error.code
    return ErrorCode.NONE


def test_commits_are_accepted_from_the_owner_of_the_partition() -> None:
    group = two_members()
    assert commit_check(group, "m1", 3, 3) is ErrorCode.NONE, "the newest epoch may commit anything"
    assert commit_check(group, "m1", 2, 0) is ErrorCode.NONE, (
        "the member has had the partition since epoch 2"
    )
    assert commit_check(group, "m1", 2, 2) is ErrorCode.STALE_MEMBER_EPOCH, (
        "the member no longer has the partition"
    )
    assert commit_check(group, "m2", 2, 2) is ErrorCode.STALE_MEMBER_EPOCH, (
        "the member got the partition in epoch 3"
    )
    assert commit_check(group, "m1", 4, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit_check(group, "zz", 3, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_check(group, "m1", 3, 0, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit_check(group, "", -1, 0, transactional=True) is ErrorCode.NONE
    assert commit_check(group, "", -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    group.leave("m1")
    group.leave("m2")
    assert commit_check(group, "", -1, 0) is ErrorCode.NONE


def test_offsets_are_read_by_members_of_the_epoch() -> None:
    group = two_members()
    group.state.check_fetch("m1", 3)
    group.state.check_fetch(None, -1)
    for member_id, epoch, code in (
        ("m1", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("zz", 3, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(MqError) as refused:
            group.state.check_fetch(member_id, epoch)
        assert refused.value.code is code


# -- the log


def test_topic_records_of_kafka_4_0_are_deleted_when_the_group_changes() -> None:
    group = Group()
    group.join("m1")
    old = encode(records.PartitionMetadataKey(GROUP), records.PartitionMetadata(()))
    group.harness.shard.replay(old)
    group.join("m2")
    written = [entry for entry, _ in group.harness.log]
    assert CoordinatorRecord(old.key, None) in written and not group.state.has_partition_metadata


def test_a_deleted_group_leaves_nothing() -> None:
    group = Group({"red": 1})
    group.join("m1", None, subscribed_topic_regex="r.*")
    with pytest.raises(MqError):
        group.state.check_delete()
    group.leave("m1")
    group.state.check_delete()
    for record in group.state.tombstones():
        group.harness.shard.replay(record)
    assert group.harness.shard.state.get(GROUP) is None


def test_replay_skips_tombstones_of_missing_records() -> None:
    group = Group()
    for key in (
        records.MemberMetadataKey(GROUP, "m"),
        records.ConsumerGroupMetadataKey(GROUP),
        records.TargetAssignmentMetadataKey(GROUP),
    ):
        group.harness.shard.replay(tombstone(key))
    assert group.harness.shard.state.get(GROUP) is None


def test_sessions_restart_with_the_next_coordinator() -> None:
    group = two_members()
    group.later(40)
    group.harness.fail_over()
    group.later(40)
    assert sorted(group.state.members) == ["m1", "m2"]
    group.later(6)
    assert group.state.is_empty


def test_the_rebalance_timeout_restarts_with_the_next_coordinator() -> None:
    group = Group()
    group.join("m1", rebalance_timeout_ms=10_000)
    group.later()
    group.join("m2")
    group.beat("m1", 2)
    group.later(9)
    group.harness.fail_over()
    group.later(9)
    assert "m1" in group.state.members
    group.later(2)
    assert "m1" not in group.state.members


def test_a_member_with_metadata_larger_than_a_message_is_refused() -> None:
    group = Group(message_max_bytes=10_000)
    with pytest.raises(MqError, match=r"message\.max\.bytes") as refused:
        group.join("m1", topics=[f"{number:0100}" for number in range(100)])
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert group.harness.shard.state.get(GROUP) is None
    assert group.join("m1")["member_epoch"] == 2


def test_members_with_the_same_partition_must_rejoin(caplog: pytest.LogCaptureFixture) -> None:
    """Records were lost, or foreign ones were written: the next coordinator gives each partition to
    one member, and the others keep theirs.
    """
    group = Group({"a": 4, "b": 2})
    for member_id, topic in (("m1", "a"), ("m2", "a"), ("m3", "b")):
        group.join(member_id, [topic])
        group.later()
        for _ in range(2):
            for one in list(group.state.members.values()):
                kept = [
                    (topic_id, partition)
                    for topic_id, partitions in one.assigned.items()
                    for partition in partitions
                ]
                group.beat(one.member_id, one.epoch, owned=kept)
    before = dict(group.state.members)
    assert [len(list(one.owned_partitions())) for one in before.values()] == [2, 2, 2]
    same = replace(before["m2"], assigned=before["m1"].assigned)
    group.harness.log.append(
        (
            encode(records.CurrentMemberAssignmentKey(GROUP, "m2"), same.assignment()),
            NO_PRODUCER,
        )
    )
    group.harness.fail_over()
    arguments = [record.args for record in caplog.records if "another member owns" in record.msg]
    assert sorted(str(args[1]) for args in arguments if isinstance(args, tuple)) == ["m1", "m2"]
    group.later()
    assert (
        list(group.state.members) == ["m3"]
        and group.state.members["m3"].assigned == before["m3"].assigned
    )
    for member_id in ("m1", "m2"):
        assert group.refusal(member_id, before[member_id].epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        group.join(member_id)
    assert owners(group.state)


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("rebalance waits")
    ]
    caplog.clear()
    return found


@pytest.mark.parametrize("fails_over", [False, True])
def test_log_lines_name_the_members_that_a_rebalance_waits_for(
    caplog: pytest.LogCaptureFixture, fails_over: bool
) -> None:
    caplog.set_level("INFO")
    group = Group()
    group.join("m1", rebalance_timeout_ms=60_000)
    group.later()
    group.later(20)
    assert waits(caplog) == [], "it has its full assignment"
    group.join("m2")
    group.beat("m1", 2)
    if fails_over:
        group.harness.fail_over()
    for _ in range(3):
        group.beat("m2", 3)
        group.beat("m1", 2, owned=[("a", partition) for partition in range(4)])
        group.later(5)
    assert waits(caplog) == [
        "rebalance waits for members group=g epoch=3 state=Reconciling awaited=m1 at /10.0.0.1"
    ]
    group.beat("m1", 2, owned=[("a", 0), ("a", 1)])
    group.later(1)
    group.join("m3")
    group.later(14)
    assert waits(caplog) == []
    group.later(2)
    [line] = waits(caplog)
    assert "epoch=4" in line and "m1 at" in line and "m2 at" in line and "m3 at" not in line
