"""What a group may commit, what it fetches, and which offsets expire: for classic groups and groups
that only store offsets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from mqd import limits
from mqd.coordinator.group.offset_store import OFFSET_BYTES
from mqd.coordinator.group.record_codec import decode, encode
from mqd.coordinator.group.records import (
    ClassicMember,
    GroupMetadata,
    GroupMetadataKey,
    OffsetCommit,
    OffsetCommitKey,
)
from mqd.coordinator.shard import NO_PRODUCER, Producer
from mqd.errors import ErrorCode, MqError
from mqd.relay.names import delay_group
from mqd.types import ZERO_UUID
from tests.coordinator.group.offset_support import (
    PRODUCER,
    Group,
    commit,
    commit_in_transaction,
    delete,
    fetch_response,
    fetched,
    log_size,
    replay,
    rows,
)
from tests.coordinator.group.support import Options, Topics, group_harness

DAY_SECONDS = 86_400.0
RETENTION_SECONDS = 7 * DAY_SECONDS
CHECK_SECONDS = 600.0


@pytest.fixture
def topics() -> Topics:
    return Topics({"t": 3, "u": 1})


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def group(topics: Topics, options: Options) -> Group:
    return group_harness(topics, options)


SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t" + b"\xff\xff\xff\xff"
"""A group of the consumer protocol, version 0, subscribed to t."""


def stable(topics: bytes = SUBSCRIPTION, protocol_type: str = "consumer") -> GroupMetadata:
    member = ClassicMember("m", None, "c", "/h", 60_000, 45_000, topics, b"")
    return GroupMetadata(protocol_type, 3, "range", "m", 0, (member,))


# -- OffsetCommit and OffsetFetch


def test_committed_offsets_are_fetched_also_from_the_next_coordinator(group: Group) -> None:
    assert commit(group, (0, 5), (2, 9), metadata="note", epoch=4) == {0: 0, 2: 0}
    for _ in range(2):
        assert fetched(group) == {0: 5, 1: -1, 2: 9}
        answer = fetch_response(group)
        assert answer == {
            "group_id": "g",
            "error_code": 0,
            "topics": [
                {
                    "name": "t",
                    "topic_id": ZERO_UUID,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 5,
                            "committed_leader_epoch": 4,
                            "metadata": "note",
                            "error_code": 0,
                        },
                        {
                            "partition_index": 2,
                            "committed_offset": 9,
                            "committed_leader_epoch": 4,
                            "metadata": "note",
                            "error_code": 0,
                        },
                    ],
                }
            ],
        }
        group.fail_over()


def test_the_record_has_kafka_s_format(group: Group, topics: Topics) -> None:
    commit(group, (1, 5), metadata="n", epoch=4)
    ((record, producer),) = group.log
    assert producer == NO_PRODUCER and not isinstance(record, bool)
    topic_id = topics.topic_id("t")
    assert topic_id is not None
    assert decode(record) == (
        OffsetCommitKey("g", "t", 1),
        OffsetCommit(5, 4, "n", group.now.wall_ms, -1, topic_id),
    )


def test_a_later_commit_replaces_an_earlier_one_even_with_a_smaller_offset(group: Group) -> None:
    commit(group, (0, 5))
    commit(group, (0, 3))
    assert fetched(group, 0) == {0: 3}
    group.fail_over()
    assert fetched(group, 0) == {0: 3}


def test_an_unknown_group_has_no_offsets_and_no_error(group: Group) -> None:
    assert fetched(group) == {0: -1, 1: -1, 2: -1}
    assert fetch_response(group)["topics"] == []


def test_unknown_partitions_are_refused_and_the_rest_is_committed(group: Group) -> None:
    assert commit(group, (0, 5), (3, 5), (-1, 5)) == {
        0: 0,
        3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert commit(group, (0, 5), topic="nowhere") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert fetched(group, 0) == {0: 5}
    assert log_size(group) == 1


def test_a_commit_for_unknown_partitions_creates_no_group(group: Group) -> None:
    commit(group, (0, 5), topic="nowhere")
    assert group.shard.state.get("g") is None


def test_metadata_is_limited_in_utf_16_units(group: Group, options: Options) -> None:
    options.own["offset.metadata.max.bytes"] = 4
    assert commit(group, (0, 5), metadata="1234") == {0: 0}
    assert commit(group, (0, 6), metadata="12345") == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert commit(group, (0, 7), metadata="ж" * 4) == {0: 0}
    assert commit(group, (0, 8), metadata="😀😀") == {0: 0}
    assert commit(group, (0, 9), metadata="😀😀1") == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert fetched(group, 0) == {0: 8}


def test_topics_by_id(group: Group, topics: Topics) -> None:
    known, unknown = topics.topic_id("t"), UUID(int=99)
    assert known is not None
    named = [
        {"topic_id": unknown, "partitions": rows((0, 1))},
        {"topic_id": known, "partitions": rows((0, 5), (3, 5))},
    ]
    answer = group.call("OffsetCommit", 10, {"group_id": "g", "topics": named})
    assert [(one["topic_id"], one["partitions"]) for one in answer["topics"]] == [
        (unknown, [{"partition_index": 0, "error_code": ErrorCode.UNKNOWN_TOPIC_ID}]),
        (
            known,
            [
                {"partition_index": 3, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
                {"partition_index": 0, "error_code": 0},
            ],
        ),
    ]
    wanted = [
        {"topic_id": unknown, "partition_indexes": [0]},
        {"topic_id": known, "partition_indexes": [0, 1]},
    ]
    found = fetch_response(group, 10, topics=wanted)["topics"]
    assert [
        (
            one["topic_id"],
            [(row["committed_offset"], row["error_code"]) for row in one["partitions"]],
        )
        for one in found
    ] == [
        (known, [(5, 0), (-1, 0)]),
        (unknown, [(-1, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]
    assert [one["topic_id"] for one in fetch_response(group, 10)["topics"]] == [known]


def test_members_of_no_group_are_refused(group: Group) -> None:
    assert commit(group, (0, 5), generation_id_or_member_epoch=1) == {
        0: ErrorCode.GROUP_ID_NOT_FOUND
    }
    assert commit(group, (0, 5), version=8, generation_id_or_member_epoch=1) == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
    assert log_size(group) == 0


def test_only_members_of_the_generation_commit(group: Group) -> None:
    replay(group, stable())
    member: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": 3}
    assert commit(group, (0, 5), (7, 5), **member) == {
        0: 0,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert commit(group, (0, 6), **member | {"generation_id_or_member_epoch": 2}) == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
    assert commit(group, (0, 6), **member | {"member_id": "n"}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert commit(group, (0, 6)) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert fetched(group, 0) == {0: 5}


def test_a_commit_extends_the_member_s_session(group: Group) -> None:
    replay(group, stable())
    for offset in range(3):
        group.advance(30)
        assert commit(group, (0, offset), member_id="m", generation_id_or_member_epoch=3) == {0: 0}
    group.advance(46)
    assert commit(group, (0, 9), member_id="m", generation_id_or_member_epoch=3) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID
    }


def test_a_commit_of_too_many_partitions_is_refused(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMITTED_PARTITIONS_MAX", 2)
    refused = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert commit(group, (0, 5), (1, 5), (2, 5)) == {0: refused, 1: refused, 2: refused}
    assert commit(group, (0, 5), (1, 5)) == {0: 0, 1: 0}


def test_the_offsets_of_a_group_are_bounded(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_OFFSETS_BYTES_MAX", 2 * OFFSET_BYTES + 5)
    assert commit(group, (0, 5), (1, 5), (2, 5), metadata="12") == {
        0: 0,
        1: 0,
        2: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
    assert commit(group, (0, 6), metadata="123") == {0: 0}
    assert commit(group, (0, 7), metadata="1234") == {0: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert commit(group, (0, 8), metadata="") == {0: 0}  # a smaller commit is always accepted
    assert fetched(group) == {0: 8, 1: 5, 2: -1}
    assert commit(group, (2, 5), group_id="other") == {2: 0}


def test_freed_room_counts_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_OFFSETS_BYTES_MAX", 2 * OFFSET_BYTES + 5)
    assert commit(group, (0, 5), (1, 5), metadata="12") == {0: 0, 1: 0}
    larger = [row | {"committed_metadata": "1234567"} for row in rows((1, 6))]
    named = {"name": "t", "partitions": rows((0, 6), (0, 7)) + larger}
    answer = group.call("OffsetCommit", 9, {"group_id": "g", "topics": [named]})
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [
        0,
        0,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ]


def test_pending_offsets_take_room_and_existing_ones_may_change(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_OFFSETS_BYTES_MAX", 2 * OFFSET_BYTES)
    refused = {0: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    commit(group, (0, 5))
    assert commit_in_transaction(group, (0, 50)) == {0: 0}
    assert commit_in_transaction(group, (0, 50), producer=Producer(8, 0)) == refused
    assert commit(group, (1, 6)) == {1: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert commit_in_transaction(group, (0, 51)) == {0: 0}
    monkeypatch.setattr(limits, "GROUP_OFFSETS_BYTES_MAX", 0)
    assert commit(group, (0, 7)) == {0: 0}
    assert commit_in_transaction(group, (0, 52)) == {0: 0}
    group.mark(PRODUCER, True)
    assert fetched(group, 0) == {0: 52}


# -- TxnOffsetCommit


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("fail_over", ["before the marker", "after the marker", "never"])
def test_offsets_of_a_transaction_count_after_its_commit(
    group: Group, committed: bool, fail_over: str
) -> None:
    commit(group, (0, 5), (1, 6))
    assert commit_in_transaction(group, (0, 50)) == {0: 0}
    assert group.log[-1][1] == PRODUCER
    if fail_over == "before the marker":
        group.fail_over()
    assert fetched(group) == {0: 5, 1: 6, 2: -1}
    unstable = -ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert fetched(group, require_stable=True) == {0: unstable, 1: 6, 2: -1}
    group.mark(PRODUCER, committed)
    if fail_over == "after the marker":
        group.fail_over()
    assert fetched(group, require_stable=True) == {0: 50 if committed else 5, 1: 6, 2: -1}


@pytest.mark.parametrize("committed", [False, True])
def test_a_list_of_stable_offsets_includes_pending_ones(group: Group, committed: bool) -> None:
    """Otherwise a reader of all stable offsets would believe that the first one is missing."""
    if committed:
        commit(group, (0, 5))
    commit_in_transaction(group, (0, 50))
    assert fetched(group, require_stable=True)[0] == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert len(fetch_response(group, require_stable=False)["topics"]) == committed
    (found,) = fetch_response(group, require_stable=True)["topics"]
    assert found["partitions"] == [
        {
            "partition_index": 0,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT,
        }
    ]


def test_each_producer_has_its_own_transaction(group: Group) -> None:
    other = Producer(8, 3)
    commit_in_transaction(group, (0, 50), (1, 51))
    commit_in_transaction(group, (0, 80), producer=other)
    group.mark(other, True)
    assert fetched(group, 0) == {0: 80}
    assert fetched(group, 0, require_stable=True) == {0: -ErrorCode.UNSTABLE_OFFSET_COMMIT}
    group.mark(PRODUCER, True)
    # the other's commit is later in the log
    assert fetched(group, require_stable=True) == {0: 80, 1: 51, 2: -1}
    group.fail_over()
    assert fetched(group, require_stable=True) == {0: 80, 1: 51, 2: -1}


def test_a_transaction_s_commit_checks_members_too(group: Group) -> None:
    assert commit_in_transaction(group, (0, 5), generation_id=1) == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
    replay(group, stable())
    assert commit_in_transaction(group, (0, 5), generation_id=2, member_id="m") == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
    assert commit_in_transaction(group, (0, 5), generation_id=3, member_id="n") == {
        0: ErrorCode.UNKNOWN_MEMBER_ID
    }
    assert log_size(group) == 1
    assert commit_in_transaction(group, (0, 5), (9, 5), generation_id=3, member_id="m") == {
        0: 0,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    # before KIP-447, producers did not send the member
    assert commit_in_transaction(group, (0, 6)) == {0: 0}


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"producer_id": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": -1}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_producer_without_a_transaction_commits_nothing(
    group: Group, request_fields: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(MqError) as caught:
        commit_in_transaction(group, (0, 5), **request_fields)
    assert caught.value.code is code


def test_refused_offsets_belong_to_no_transaction(group: Group) -> None:
    assert commit_in_transaction(group, (0, 5), topic="nowhere") == {
        0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert log_size(group) == 0


# -- OffsetDelete


def test_deleted_offsets_are_not_fetched(group: Group) -> None:
    commit(group, (0, 5), (1, 6))
    assert delete(group, 0, 2, 9) == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0: 0, 2: 0}
    assert log_size(group) == 3  # no tombstone for an offset that did not exist
    for _ in range(2):
        assert fetched(group) == {0: -1, 1: 6, 2: -1}
        group.fail_over()


def test_a_pending_offset_is_deleted_too(group: Group) -> None:
    commit_in_transaction(group, (0, 50))
    assert delete(group, 0) == {0: 0}
    group.mark(PRODUCER, True)
    assert fetched(group, 0, require_stable=True) == {0: -1}


def test_offsets_in_use_are_not_deleted(group: Group) -> None:
    commit(group, (0, 5))
    commit(group, (0, 5), topic="u")
    replay(group, stable())
    assert delete(group, 0) == {0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert delete(group, 0, topic="u") == {0: 0}
    assert fetched(group, 0) == {0: 5}


def test_offsets_of_other_protocol_types_are_not_deleted_with_members(
    group: Group,
) -> None:
    replay(group, stable(b"", "connect"))
    with pytest.raises(MqError) as caught:
        delete(group, 0)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize(
    ("group_id", "code"),
    [("", ErrorCode.INVALID_GROUP_ID), ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_a_group_must_be_named_whose_offsets_are_deleted(
    group: Group, group_id: str, code: ErrorCode
) -> None:
    with pytest.raises(MqError) as caught:
        delete(group, 0, group_id=group_id)
    assert caught.value.code is code


# -- retention


def test_offsets_of_a_group_without_members_expire_each_by_its_own_age(group: Group) -> None:
    commit(group, (0, 5))
    group.advance(DAY_SECONDS)
    commit(group, (1, 6))
    group.advance(RETENTION_SECONDS - DAY_SECONDS - CHECK_SECONDS)
    assert fetched(group) == {0: 5, 1: 6, 2: -1}
    group.advance(2 * CHECK_SECONDS)
    assert fetched(group) == {0: -1, 1: 6, 2: -1}
    group.advance(DAY_SECONDS)
    assert fetched(group) == {0: -1, 1: -1, 2: -1}


def test_a_group_is_removed_with_its_last_offset(group: Group) -> None:
    commit(group, (0, 5))
    group.advance(RETENTION_SECONDS + CHECK_SECONDS)
    assert group.shard.state.get("g") is None
    group.fail_over()
    assert group.shard.state.get("g") is None
    assert group.log[-1][0] == (encode(GroupMetadataKey("g"), stable()).key, None)


def test_offsets_of_an_empty_group_expire_after_its_last_member_left(group: Group) -> None:
    commit(group, (0, 5))
    group.advance(6 * DAY_SECONDS)
    replay(group, GroupMetadata("consumer", 3, None, None, group.now.wall_ms))
    group.advance(6 * DAY_SECONDS)
    assert fetched(group, 0) == {0: 5}
    group.advance(DAY_SECONDS + CHECK_SECONDS)
    assert fetched(group, 0) == {0: -1}
    assert group.shard.state.get("g") is None


def beating(group: Group, seconds: float) -> None:
    """Advance time for a group whose member is alive."""
    until = group.now.seconds + seconds
    while group.now.seconds < until:
        group.advance(40)
        group.call("Heartbeat", 4, {"group_id": "g", "generation_id": 3, "member_id": "m"})


def test_offsets_of_unsubscribed_topics_of_an_active_group_expire(
    group: Group, options: Options
) -> None:
    options.own["offsets.retention.minutes"] = 60
    commit(group, (0, 5))
    commit(group, (0, 6), topic="u")
    replay(group, stable())
    beating(group, 3600 + CHECK_SECONDS)
    assert fetched(group, 0) == {0: 5}
    assert fetched(group, 0, topic="u") == {0: -1}


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_offsets_of_unknown_topics_of_a_live_group_stay(
    group: Group, options: Options, protocol_type: str
) -> None:
    options.own["offsets.retention.minutes"] = 60
    commit(group, (0, 5))
    replay(group, stable(b"?", protocol_type))
    beating(group, 3600 + CHECK_SECONDS)
    assert fetched(group, 0) == {0: 5}


def test_offsets_of_an_open_transaction_do_not_expire(group: Group) -> None:
    commit(group, (0, 5))
    commit_in_transaction(group, (0, 6), (1, 7))
    group.advance(RETENTION_SECONDS + CHECK_SECONDS)
    assert fetched(group) == {0: 5, 1: -1, 2: -1}
    group.mark(PRODUCER, False)
    group.advance(CHECK_SECONDS)
    assert fetched(group) == {0: -1, 1: -1, 2: -1}
    assert group.shard.state.get("g") is None


def test_a_group_with_only_pending_offsets_stays(group: Group) -> None:
    commit_in_transaction(group, (0, 6))
    group.advance(RETENTION_SECONDS + CHECK_SECONDS)
    assert group.shard.state.get("g") is not None


def test_old_clients_set_the_retention(group: Group) -> None:
    assert commit(group, (0, 5), version=4, retention_time_ms=1_000_000) == {0: 0}
    commit(group, (1, 6))
    group.advance(600)
    assert fetched(group) == {0: 5, 1: 6, 2: -1}
    group.advance(600)
    assert fetched(group) == {0: -1, 1: 6, 2: -1}


def test_unlimited_retention_keeps_offsets(group: Group) -> None:
    assert commit(group, (0, 5), version=4, retention_time_ms=2**63 - 1) == {0: 0}
    group.advance(RETENTION_SECONDS + CHECK_SECONDS)
    group.fail_over()
    assert fetched(group, 0) == {0: 5}


def test_offsets_of_groups_of_nodes_do_not_expire(group: Group) -> None:
    """They are the progress of a relay, whose next record may be due in a year."""
    name = delay_group("t")
    commit(group, (0, 5), group_id=name)
    group.advance(60 * DAY_SECONDS)
    assert fetched(group, 0, group_id=name) == {0: 5}


def portions(group: Group) -> list[int]:
    """The bytes of keys that each later decision writes."""
    sizes: list[int] = []
    carry_out = group.carry_out

    def weigh(decision: Any) -> None:
        if decision.records:
            sizes.append(sum(len(record.key) for record in decision.records))
        carry_out(decision)

    group.carry_out = weigh  # type: ignore[method-assign]  # replaced by the test
    return sizes


def commit_to_many(group: Group, topics: Topics) -> str:
    """4,000 offsets, whose tombstones take a megabyte."""
    topic = "long" * 60
    topics.create(topic, 4_000)
    for start in range(0, 4_000, 1_000):
        commit(group, *((partition, 1) for partition in range(start, start + 1_000)), topic=topic)
    return topic


def test_many_offsets_expire_in_batches_that_fit(group: Group, topics: Topics) -> None:
    commit_to_many(group, topics)
    group.fail_over()
    group.advance(RETENTION_SECONDS - 1)
    before = log_size(group)
    sizes = portions(group)
    group.advance(CHECK_SECONDS)
    assert log_size(group) == before + 4_001
    assert len(sizes) == 4 and max(sizes) < 300 * 1024
    assert group.shard.state.get("g") is None


# -- topics that are deleted


def test_offsets_of_a_deleted_topic_are_deleted(group: Group, topics: Topics) -> None:
    commit(group, (0, 5))
    commit_in_transaction(group, (1, 6))
    commit(group, (0, 7), topic="u")
    topics.delete("t")
    group.metadata_changed()
    for _ in range(2):
        assert fetched(group, require_stable=True) == {0: -1, 1: -1, 2: -1}
        assert fetched(group, 0, topic="u") == {0: 7}
        group.fail_over()
    assert group.shard.state.get("g") is not None


def test_loading_deletes_offsets_of_topics_that_were_deleted_before(
    group: Group, topics: Topics
) -> None:
    commit(group, (0, 5))
    topics.delete("t")
    group.fail_over()
    assert fetched(group, 0) == {0: -1}


def test_a_recreated_topic_has_no_old_offsets(group: Group, topics: Topics) -> None:
    commit(group, (0, 5), (1, 6))
    topics.create("t", 3)
    commit(group, (1, 60))
    group.metadata_changed()
    assert fetched(group) == {0: -1, 1: 60, 2: -1}


def test_many_offsets_of_a_deleted_topic_are_deleted_in_batches_that_fit(
    group: Group, topics: Topics
) -> None:
    topics.delete(commit_to_many(group, topics))
    before = log_size(group)
    sizes = portions(group)
    group.metadata_changed()
    assert len(sizes) == 1
    group.advance(1)
    assert log_size(group) == before + 4_000
    assert len(sizes) == 4 and max(sizes) < 300 * 1024
    assert not group.shard.offsets.has_offsets("g")


def test_offsets_of_a_deleted_topic_are_deleted_after_a_refused_append(
    group: Group, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(group, (0, 5))
    topics.delete("t")
    with monkeypatch.context() as refused:
        refused.setattr(group, "carry_out", lambda decision: None)
        group.metadata_changed()
        group.advance(0.1)
    assert group.shard.offsets.has_offsets("g")
    group.advance(1)
    assert not group.shard.offsets.has_offsets("g")
    written = log_size(group)
    group.advance(60)
    assert log_size(group) == written


def test_requests_that_wait_for_the_new_topic_continue(group: Group, topics: Topics) -> None:
    commit(group, (0, 5))
    topics.create("t", 3)
    commit_in_transaction(group, (0, 50))
    group.metadata_changed()
    group.mark(PRODUCER, True)
    assert fetched(group, 0) == {0: 50}


def test_a_deleted_topic_is_not_found_by_its_id(group: Group, topics: Topics) -> None:
    commit(group, (0, 5))
    commit(group, (0, 7), topic="u")
    topics.delete("t")
    assert [one["name"] for one in fetch_response(group, 10)["topics"]] == ["u"]
    assert [one["name"] for one in fetch_response(group, 9)["topics"]] == ["t", "u"]


def test_an_offset_of_the_old_topic_is_not_returned_for_the_new_one(
    group: Group, topics: Topics
) -> None:
    commit(group, (0, 5))
    topic_id = topics.create("t", 3)
    answer = fetch_response(group, 10, topics=[{"topic_id": topic_id, "partition_indexes": [0]}])
    assert [row["committed_offset"] for row in answer["topics"][0]["partitions"]] == [-1]


def test_offsets_without_a_topic_id_belong_to_the_existing_topic(
    group: Group, topics: Topics
) -> None:
    # as Kafka 4.0 wrote it
    group.log.append((encode(OffsetCommitKey("g", "t", 0), OffsetCommit(5)), NO_PRODUCER))
    topics.create("v", 1)
    group.fail_over()
    assert fetched(group, 0) == {0: 5}
    answer = fetch_response(
        group, 10, topics=[{"topic_id": topics.topic_id("t"), "partition_indexes": [0]}]
    )
    assert [row["committed_offset"] for row in answer["topics"][0]["partitions"]] == [5]


def test_each_former_topic_of_the_name_is_searched_once(
    group: Group, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(group, (0, 5))
    commit(group, (0, 5), topic="u")
    searched: list[str] = []
    offsets = group.shard.offset_deletion
    delete_stale = offsets._delete_stale

    def note(group_id: str, topic: str, *rest: Any) -> bool:
        searched.append(topic)
        return delete_stale(group_id, topic, *rest)

    monkeypatch.setattr(offsets, "_delete_stale", note)
    for _ in range(3):
        topics.create("v", 1)
        group.metadata_changed()
    assert searched == ["t", "u"]
    topics.create("t", 1)
    group.metadata_changed()
    assert searched == ["t", "u", "t"]


def test_a_change_of_the_metadata_that_deletes_nothing_writes_nothing(
    group: Group, topics: Topics
) -> None:
    commit(group, (0, 5))
    before = log_size(group)
    topics.create("v", 1)
    group.metadata_changed()
    assert log_size(group) == before


# -- for other components


def test_a_group_is_deleted_with_all_its_offsets(group: Group) -> None:
    commit(group, (0, 5))
    commit_in_transaction(group, (0, 6), (1, 7))
    before = log_size(group)
    assert group.call("DeleteGroups", 2, {"groups_names": ["g"]})["results"] == [
        {"group_id": "g", "error_code": 0}
    ]
    entries = [decode(record) for record, _ in group.log[before:] if not isinstance(record, bool)]
    assert entries == [
        (OffsetCommitKey("g", "t", 0), None),
        (OffsetCommitKey("g", "t", 1), None),
        (GroupMetadataKey("g"), None),
    ]
    assert group.shard.state.get("g") is None


def test_a_group_with_many_offsets_is_deleted_in_batches_that_fit(
    group: Group, topics: Topics
) -> None:
    commit_to_many(group, topics)
    commit(group, (0, 1), group_id="h")
    sizes = portions(group)
    unfinished: list[list[bool]] = []
    written = [log_size(group)]
    while not unfinished or any(unfinished[-1]):
        rows = group.call("DeleteGroups", 2, {"groups_names": ["g", "h"]})["results"]
        unfinished.append([row.get("unfinished", False) for row in rows])
        written.append(log_size(group))
    assert unfinished == [[True, True]] * 3 + [[False, True], [False, False]]
    assert max(after - before for before, after in pairwise(written)) <= 1_001
    assert max(sizes) < 300 * 1024
    assert group.shard.state.get("g") is None and not group.shard.offsets.has_offsets("g")
    assert group.shard.state.get("h") is None
