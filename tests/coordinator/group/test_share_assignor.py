"""The assignor of share groups, and targets that take more than one slice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.group import share_assignor
from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.share_group import LEAVING
from mqd.limits import ASSIGNMENT_STEPS_PER_SLICE
from tests.coordinator.group.test_share import Shares


def assign(
    subscribed: Mapping[str, Collection[UUID]],
    partitions: Mapping[UUID, Collection[int]],
    held: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    work = share_assignor.assign(subscribed, partitions, held)
    try:
        while next(work) < ASSIGNMENT_STEPS_PER_SLICE:
            pass
    except StopIteration as end:
        return dict(end.value)
    raise AssertionError("one step is longer than a slice")


@pytest.mark.parametrize("seed", range(60))
def test_every_partition_has_a_member_and_every_member_a_partition(seed: int) -> None:
    dice = Random(seed)
    partitions = {UUID(int=topic): range(dice.randint(0, 5)) for topic in range(4)}
    subscriptions = [
        frozenset(UUID(int=one) for one in dice.sample(range(5), dice.randint(1, 4)))
        for _ in range(dice.randint(1, 4))
    ]
    members = {f"m{number}": dice.choice(subscriptions) for number in range(dice.randint(1, 12))}
    held: dict[str, Any] = {}
    for _ in range(3):
        places = {
            (topic, one)
            for topic in {topic for topics in members.values() for topic in topics}
            for one in partitions.get(topic, ())
        }
        assigned = assign(members, partitions, held)
        given = [
            (topic, one)
            for target in assigned.values()
            for topic, found in target.items()
            for one in found
        ]
        assert set(given) == places
        for member, topics in members.items():
            target = assigned[member]
            assert list(target) == sorted(target) and all(target.values())
            assert all(list(found) == sorted(set(found)) for found in target.values())
            assert set(target) <= topics
            assert target or not any(partitions.get(topic) for topic in topics)
        if len(set(members.values())) == 1 and places:
            assert assign(members, partitions, assigned) == assigned, "nothing changes"
            sizes = [sum(map(len, target.values())) for target in assigned.values()]
            assert max(sizes) <= max(1, -(-len(places) // len(members)))
        held = assigned
        members.pop(dice.choice(sorted(members)), None)
        if not members:
            break


SLOW = {"a": 40}


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("share_targets", "target_queue"):
        for name in ("SLICE", "PORTION"):
            monkeypatch.setattr(f"mqd.coordinator.group.{module}.ASSIGNMENT_STEPS_PER_{name}", 600)


def join(shares: Shares, *members: str) -> None:
    for member in members:
        shares.join(member)


@pytest.mark.usefixtures("small_slices")
def test_a_large_target_is_computed_and_written_in_slices() -> None:
    shares = Shares(SLOW)
    join(shares, "m0", "m1", "m2")
    group = shares.group
    assert group.assignment_epoch < group.epoch and not any(group.targets.values())
    written = len(shares.harness.log)
    steps = 0
    while group.assignment_epoch < group.epoch:
        deadline = shares.harness.shard.next_deadline()
        assert deadline is not None
        before = len(shares.harness.log)
        shares.harness.advance(max(0.0, deadline - shares.harness.now.seconds))
        assert len(shares.harness.log) - before <= 3, "a portion"
        steps += 1
        assert steps < 100
    assert steps > 3 and len(shares.harness.log) >= written + 4
    shares.settle()
    owned = sorted(one for found in shares.assigned().values() for one in found)
    assert owned == list(range(40))
    account = shares.harness.shard.account
    shares.harness.advance(5)
    assert account.exact == shares.harness.shard.recount()


@pytest.mark.usefixtures("small_slices")
def test_members_that_leave_during_a_computation_get_nothing() -> None:
    shares = Shares(SLOW)
    join(shares, "m0", "m1", "m2")
    shares.harness.advance(0.05)
    shares.beat("m1", LEAVING)
    shares.harness.advance(3)
    assert "m1" not in shares.group.targets
    for _ in range(3):
        shares.settle()
        shares.harness.advance(3)
    assert set(shares.assigned()) == {"m0", "m2"}
    owned = sorted(one for found in shares.assigned().values() for one in found)
    assert owned == list(range(40))


@pytest.mark.usefixtures("small_slices")
def test_the_next_coordinator_computes_the_target_again() -> None:
    shares = Shares(SLOW)
    join(shares, "m0", "m1")
    shares.harness.advance(0.05)
    shares.harness.fail_over()
    for _ in range(3):
        shares.settle()
        shares.harness.advance(3)
    owned = sorted(one for found in shares.assigned().values() for one in found)
    assert owned == list(range(40))


@pytest.mark.usefixtures("small_slices")
def test_the_target_of_a_deleted_group_is_dropped() -> None:
    shares = Shares(SLOW)
    join(shares, "m0")
    shares.harness.advance(0.05)
    shares.beat("m0", LEAVING)
    shares.harness.advance(1)
    assert shares.harness.shard.share.computation_bytes == 0
    assert not shares.harness.shard.share.targets.queue.has(shares.group)
    join(shares, "m0")
    shares.harness.advance(3)
    shares.settle()
    assert shares.assigned() == {"m0": list(range(40))}
