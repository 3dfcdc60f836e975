"""Large target assignments: computed and written in slices, between heartbeats."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.record_codec import decode
from mqd.coordinator.group.records import TargetAssignmentMemberKey, TargetAssignmentMetadataKey
from mqd.coordinator.group.target_computation import TargetComputation
from mqd.coordinator.shard import CoordinatorRecord, Moment
from tests.coordinator.group.consumer_support import GROUP, Group, owners
from tests.coordinator.group.support import Topics

MEMBERS = 6
TOPICS = {"a": 40, "b": 3, "c": 7}
SOON = 0.021
"""Seconds: longer than the pause between two slices."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Few steps are a slice."""
    for module in ("target_assignment", "target_queue"):
        monkeypatch.setattr(f"mqd.coordinator.group.{module}.ASSIGNMENT_STEPS_PER_SLICE", 300)
        monkeypatch.setattr(f"mqd.coordinator.group.{module}.ASSIGNMENT_STEPS_PER_PORTION", 700)
    return monkeypatch


def joined(**options: object) -> Group:
    """A group whose first target is not computed yet."""
    group = Group(TOPICS, **options)
    for number in range(MEMBERS):
        group.join(f"m{number}", ["a", "b"] if number % 2 else ["a", "c"])
    return group


def slices(group: Group) -> list[list[CoordinatorRecord]]:
    """The records of each slice, until nothing is left to do soon."""
    found = []
    harness = group.harness
    while ("consumer-assign",) in harness.shard.state.timers:
        before = len(harness.log)
        harness.advance(SOON)
        found.append([entry for entry, _ in harness.log[before:] if not isinstance(entry, bool)])
    return found


def disjoint_targets(group: Group) -> set[tuple[object, int]]:
    places = [
        (topic_id, partition)
        for target in group.state.targets.values()
        for topic_id, partitions in target.items()
        for partition in partitions
    ]
    assert len(places) == len(set(places))
    return set(places)


def test_a_large_target_comes_later_and_is_the_same(slow: pytest.MonkeyPatch) -> None:
    sliced = joined()
    assert sliced.state.assignment_epoch == 1 and not any(sliced.state.targets.values())
    assert sliced.described()["group_state"] == "Assigning"
    answer = sliced.beat("m0", 1, owned=())
    assert answer["member_epoch"] == 1 and not sliced.assigned(answer)
    work = slices(sliced)
    assert len(work) > 5
    assert sliced.state.assignment_epoch == sliced.state.epoch == MEMBERS + 1
    assert len(disjoint_targets(sliced)) == sum(TOPICS.values())
    at_once = TargetComputation(sliced.state.members, {}, {}, "uniform", sliced.topics)
    assert at_once.advance(10**9)
    assert sliced.state.targets == at_once.assigned
    answer = sliced.beat("m0", 1, owned=())
    assert answer["member_epoch"] == MEMBERS + 1 and sliced.assigned(answer)


def test_a_small_target_is_in_the_response() -> None:
    group = joined()
    assert group.state.assignment_epoch > 1 and not slices(group)


def test_records_are_written_in_portions_and_the_epoch_comes_last(
    slow: pytest.MonkeyPatch,
) -> None:
    group = joined()
    portions = [records for records in slices(group) if records]
    kinds = [[type(decode(record).key) for record in records] for records in portions]
    assert kinds[-1] == [TargetAssignmentMetadataKey]
    assert len(kinds) > 3 and all(len(one) <= 2 for one in kinds)
    assert {kind for one in kinds[:-1] for kind in one} == {TargetAssignmentMemberKey}


def test_a_part_of_a_target_is_no_target_for_the_next_coordinator(
    slow: pytest.MonkeyPatch,
) -> None:
    group = joined()
    while not any(group.state.targets.values()):
        group.later(SOON)
    group.harness.fail_over()
    assert group.state.assignment_epoch == 1
    group.beat("m0", 1, owned=())
    assert slices(group)
    assert group.state.assignment_epoch == group.state.epoch
    assert len(disjoint_targets(group)) == sum(TOPICS.values())


@pytest.mark.parametrize("portion", [700, 10**6])
def test_a_portion_that_was_not_appended_is_written_again(
    slow: pytest.MonkeyPatch, portion: int
) -> None:
    slow.setattr("mqd.coordinator.group.target_queue.ASSIGNMENT_STEPS_PER_PORTION", portion)
    group = joined()
    harness, lost = group.harness, 0
    while group.state.assignment_epoch == 1:
        deadline = harness.shard.next_deadline()
        assert deadline is not None
        harness.now = Moment(deadline, harness.now.wall_ms)
        decision = harness.shard.on_deadline(harness.now)
        if decision.records and lost < 3:
            lost += 1
        else:
            harness.carry_out(decision)
    assert lost == 3 and len(disjoint_targets(group)) == sum(TOPICS.values())


def test_members_that_come_and_go_do_not_stop_the_computation(slow: pytest.MonkeyPatch) -> None:
    group = joined()
    reached = 0
    for number in range(MEMBERS, MEMBERS + 40):
        group.join(f"m{number:03}", ["a"])
        if number % 3:
            group.leave(f"m{number:03}")
        elif (former := f"m{number - MEMBERS:03}") in group.state.members:
            group.leave(former)
        group.later(SOON)
        reached = max(reached, group.state.assignment_epoch)
        assert group.state.assignment_epoch <= group.state.epoch
        assert group.state.targets.keys() <= group.state.members.keys()
        owners(group.state)
    assert reached > MEMBERS  # a target for an epoch on the way
    slices(group)
    disjoint_targets(group)
    group.later()
    group.beat("m0", group.state.members["m0"].epoch, owned=())
    slices(group)
    assert group.state.assignment_epoch == group.state.epoch
    assert len(disjoint_targets(group)) == sum(TOPICS.values())


@pytest.mark.parametrize("portions", [0, 2])
def test_a_static_member_that_got_another_id_gets_its_part(
    slow: pytest.MonkeyPatch, portions: int
) -> None:
    group = joined()
    group.join("old", ["a", "b"], instance_id="i")
    seen = 0
    while seen < portions:
        before = len(group.harness.log)
        group.later(SOON)
        seen += len(group.harness.log) > before
    group.leave("old", -2, instance_id="i")
    group.join("new", ["a", "b"], instance_id="i")
    epoch = group.state.epoch
    slices(group)
    assert group.state.assignment_epoch == group.state.epoch == epoch
    assert group.state.targets["new"] and "old" not in group.state.targets
    assert len(disjoint_targets(group)) == sum(TOPICS.values())


def test_the_computation_ends_with_its_group(slow: pytest.MonkeyPatch) -> None:
    group = joined()
    group.later(2 * SOON)
    account = group.harness.shard.account
    assert group.harness.shard.consumer.computation_bytes > 0
    for number in range(MEMBERS):
        group.leave(f"m{number}")
    group.later(2 * SOON)
    assert group.harness.shard.consumer.computation_bytes == 0
    assert ("consumer-assign",) not in group.harness.shard.state.timers
    assert group.state.assignment_epoch == 1
    [row] = group.harness.call("delete_groups", 2, {"groups_names": [GROUP]})["results"]
    assert not row["error_code"] and account.exact == 0


def test_another_group_of_the_same_name_does_not_get_the_target(slow: pytest.MonkeyPatch) -> None:
    group = joined()
    group.later(2 * SOON)
    for number in range(MEMBERS):
        group.leave(f"m{number}")
    group.harness.call("delete_groups", 2, {"groups_names": [GROUP]})
    group.join("m0", ["b"])
    slices(group)
    assert len(disjoint_targets(group)) == TOPICS["b"]
    assert group.state.assignment_epoch == group.state.epoch


def test_a_topic_may_be_deleted_meanwhile(slow: pytest.MonkeyPatch) -> None:
    group = joined()
    group.topics.delete("a")
    group.harness.metadata_changed()
    slices(group)
    group.later()
    group.beat("m0", group.state.members["m0"].epoch, owned=())
    slices(group)
    assert len(disjoint_targets(group)) == TOPICS["b"] + TOPICS["c"]


def test_one_slice_in_each_call_and_one_group_at_a_time(slow: pytest.MonkeyPatch) -> None:
    group = joined()
    group.harness.call(
        "consumer_group_heartbeat",
        1,
        {
            "group_id": "other",
            "member_id": "x",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ["a", "b", "c"],
            "topic_partitions": [],
        },
    )
    steps: list[int] = []
    advance = TargetComputation.advance

    def counted(computation: TargetComputation, limit: int) -> bool:
        steps.append(limit)
        return advance(computation, limit)

    slow.setattr(TargetComputation, "advance", counted)
    harness = group.harness
    harness.shard.state.timers.set(("consumer-resolve", GROUP), harness.now.seconds)
    for search_is_due in (True, False, False):
        harness.now = Moment(harness.now.seconds + 1, harness.now.wall_ms)
        before = len(steps)
        harness.carry_out(harness.shard.on_deadline(harness.now))
        assert len(steps) - before == (0 if search_is_due else 1)
    slices(group)
    other = harness.shard.state.get("other")
    assert other is not None and other.state_name() == "Reconciling"


def test_members_that_join_before_the_target_take_its_memory_once(
    slow: pytest.MonkeyPatch,
) -> None:
    """Each subscribes to the same 50 partitions."""
    group = joined()
    before = group.harness.shard.account.usage().used
    group.join("more", ["a", "b", "c"])
    assert group.harness.shard.account.usage().used - before < 400 * 50


@settings(deadline=None)
@given(st.integers(0, 2**32).map(Random), st.integers(1, 500))
def test_slices_do_not_change_the_result(chance: Random, steps: int) -> None:
    topics = Topics({f"t{number}": chance.randrange(1, 9) for number in range(6)})
    resolved = {"x": frozenset(chance.sample(sorted(topics.names()), 3))}
    names = [*topics.names(), "unknown"]
    members = {
        f"m{number}": ConsumerGroupMember(
            f"m{number}",
            topic_names=tuple(sorted(chance.sample(names, chance.randrange(6)))),
            topic_regex=chance.choice(["", "x", "y"]),
            server_assignor=chance.choice([None, "uniform", "range", "unknown"]),
        )
        for number in range(chance.randrange(1, 8))
    }
    at_once = TargetComputation(members, {}, resolved, "uniform", topics)
    assert at_once.advance(10**9)
    sliced = TargetComputation(members, at_once.assigned, resolved, "uniform", topics)
    again = TargetComputation(members, at_once.assigned, resolved, "uniform", topics)
    assert again.advance(10**9)
    while not sliced.advance(steps):
        pass
    assert sliced.assigned == again.assigned and sliced.assigned.keys() == members.keys()
