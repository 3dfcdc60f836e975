"""What the parts of a group shard share: deadlines, one group under one id whatever its type, and
which part gets which record.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqd.coordinator.group.acknowledged import AcknowledgedOffsets
from mqd.coordinator.group.classic_group import ClassicGroup, ClassicState
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.offset_store import OffsetStore
from mqd.coordinator.group.record_codec import decode, encode
from mqd.coordinator.group.records import ClassicMember, GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.share_partitions import SharePartitionsOfGroups
from mqd.coordinator.group.timers import Timers
from mqd.coordinator.record_format import RecordFormatError
from mqd.errors import ErrorCode
from mqd.protocol import apis
from tests.coordinator.group.classic_support import GROUP, Groups

# -- deadlines


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("take"), st.just(0), st.integers(0, 20)),
            st.tuples(st.just("put off"), st.just(0), st.integers(0, 5)),
        )
    )
)
def test_the_last_set_deadline_counts(steps: list[tuple[str, int, int]]) -> None:
    timers = Timers()
    model: dict[tuple[str, ...], float] = {}
    for step, number, at in steps:
        key = ("kind", str(number))
        if step == "set":
            timers.set(key, at)
            model[key] = at
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        elif step == "put off":
            timers.put_off(at)
            model = {one: when + at for one, when in model.items()}
        else:
            due = {one for one, when in model.items() if when <= at and when == min(model.values())}
            taken = timers.take_expired(at)
            assert (taken in due) if due else taken is None
            if taken is not None:
                del model[taken]
        assert timers.next() == min(model.values(), default=None)
        assert set(timers) == set(model) and len(timers) == len(model)


def test_a_deadline_postponed_a_thousand_times_is_one_entry() -> None:
    timers = Timers()
    for at in range(1000):
        timers.set(("kind", "key"), at)
    assert len(timers._heap) == 1
    assert timers.next() == 999


def test_a_thousand_sessions_end_at_once_in_portions() -> None:
    groups = Groups(group_initial_rebalance_delay_ms=0)
    for number in range(1000):
        groups.join(version=4, group_id=f"g{number}", session_ms=6000)
    assert len(groups.classic_timers()) == 1000
    groups.advance(5.9)
    groups.now = groups.now._replace(seconds=groups.now.seconds + 1)
    groups.carry_out(groups.shard.on_deadline(groups.now))
    assert len(groups.classic_timers()) == 900
    groups.advance(0)
    assert not groups.classic_timers()


# -- parts


def test_every_call_record_and_deadline_has_one_part() -> None:
    shard = Groups().shard
    classic = {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"}
    consumer = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
    offsets = {"OffsetCommit", "OffsetFetch", "OffsetDelete", "TxnOffsetCommit"}
    share = {"ShareGroupHeartbeat", "ShareGroupDescribe"}
    of_nodes = {
        *SharePartitionsOfGroups(shard.state).handlers(),
        *AcknowledgedOffsets(shard.state, OffsetStore()).handlers(),
    }
    assert set(shard._handlers) == classic | consumer | share | offsets | of_nodes | {
        "DescribeGroups",
        "ListGroups",
        "DeleteGroups",
    }
    assert all(apis.by_name(name).name == name for name in set(shard._handlers) - of_nodes)


# -- one group under one id


def beat(groups: Groups, member_id: str, epoch: int) -> Any:
    first = (
        {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        if epoch == 0
        else {}
    )
    return groups.call(
        "ConsumerGroupHeartbeat",
        1,
        {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, **first},
    )


def listed(groups: Groups) -> list[tuple[str, str, str, str]]:
    rows = groups.call("ListGroups", 5, {"states_filter": [], "types_filter": []})["groups"]
    return [
        (row["group_id"], row["protocol_type"], row["group_state"], row["group_type"])
        for row in rows
    ]


def test_an_empty_consumer_group_becomes_classic_for_a_classic_member() -> None:
    groups = Groups()
    beat(groups, "m", 0)
    assert isinstance(groups.shard.state.by_id[GROUP], ConsumerGroup)
    assert groups.describe()["error_message"] == f"Group {GROUP} is not a classic group."
    beat(groups, "m", -1)
    assert listed(groups) == [(GROUP, "consumer", "Empty", "consumer")]
    before = len(groups.log)
    ticket = groups.join()
    appended = [record for record, _ in groups.log[before:] if isinstance(record, tuple)]
    assert len(appended) == len(groups.log) - before, "not the end of a transaction"
    entries = [decode(record) for record in appended]
    kinds = [(entry.key, entry.value is None) for entry in entries]
    assert [deleted for _, deleted in kinds] == [True] * (len(kinds) - 1) + [False]
    assert kinds[-1][0] == GroupMetadataKey(GROUP)
    groups.advance(3)
    assert groups.answer(ticket)["generation_id"] == 4
    assert listed(groups) == [(GROUP, "consumer", "CompletingRebalance", "classic")]
    groups.fail_over()
    assert listed(groups) == [(GROUP, "", "Empty", "classic")]


def test_an_empty_classic_group_becomes_a_consumer_group() -> None:
    groups = Groups()
    (one,) = groups.form(None)
    groups.leave(one)
    assert beat(groups, "m", 0)["member_epoch"] > 0
    assert listed(groups)[0][3] == "consumer"
    groups.fail_over()
    assert isinstance(groups.shard.state.by_id[GROUP], ConsumerGroup)
    assert not groups.classic_timers()


def test_offsets_alone_form_a_group_that_can_be_joined_and_deleted() -> None:
    groups = Groups()
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    request = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    groups.call("OffsetCommit", 2, request)
    group = groups.group()
    assert group.is_simple and groups.describe()["group_state"] == "Empty"
    groups.fail_over()
    assert groups.group().is_simple
    ticket = groups.join()
    groups.advance(3)
    assert groups.answer(ticket)["generation_id"] == 1
    assert not groups.group().is_simple
    groups.leave(groups.answer(ticket)["member_id"])
    answer = groups.call("DeleteGroups", 2, {"groups_names": [GROUP]})
    assert answer["results"] == [{"group_id": GROUP, "error_code": ErrorCode.NONE}]
    assert not groups.shard.offsets.has_offsets(GROUP)
    groups.fail_over()
    assert not groups.shard.state.by_id and not groups.shard.offsets.has_offsets(GROUP)


def test_states_of_a_classic_group_have_few_predecessors() -> None:
    group = ClassicGroup("g", None)
    for state in ClassicState:
        try:
            group.enter(state, 0)
        except AssertionError:
            continue
        assert state is ClassicState.PREPARING_REBALANCE
        break


def test_members_fenced_for_long_need_no_rebalance() -> None:
    groups = Groups()
    request = {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "topic_partitions": [],
    }
    groups.call("ConsumerGroupHeartbeat", 1, {**request, "subscribed_topic_names": ["t"]})
    groups.advance(40)
    groups.shard.on_absence(100)
    groups.advance(104)
    assert (
        groups.call(
            "ConsumerGroupHeartbeat", 1, {"group_id": GROUP, "member_id": "m", "member_epoch": 2}
        )["member_epoch"]
        == 2
    )


def _member(member_id: str, instance_id: str | None = None) -> ClassicMember:
    return ClassicMember(member_id, instance_id, "client", "/10.0.0.1", 1000, 1000, b"", b"")


@pytest.mark.parametrize(
    ("members", "protocol"),
    [
        ((_member("a"), _member("a")), "range"),
        ((_member("a", "i"), _member("b", "i")), "range"),
        ((_member("a"),), None),
    ],
)
def test_records_with_impossible_members_are_refused(
    members: tuple[ClassicMember, ...], protocol: str | None
) -> None:
    groups = Groups()
    value = GroupMetadata("consumer", 3, protocol, "a", 0, members)
    with pytest.raises(RecordFormatError):
        groups.shard.replay(encode(GroupMetadataKey(GROUP), value))
    assert groups.shard.state.get(GROUP) is None
