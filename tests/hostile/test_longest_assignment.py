"""Steps of the event loop that compute and write the target assignment of a large consumer group
(KIP-848) or share group (KIP-932): heartbeats of many members, and the slices between them.

Times are CPU time. A run with a step above the bound is repeated: each step counts with its
shortest time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from uuid import UUID

import pytest

from tests.coordinator.group.consumer_support import Group
from tests.coordinator.group.support import Topics
from tests.coordinator.group.test_share import Shares
from tests.hostile.machine import longest_step

SECONDS_MAX = 0.05
MEMBERS = 40
TOPICS = {"large": 10_000} | {f"t{number}": 1 for number in range(3_000)}

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("mixed", [True, False])
def test_a_step_of_a_large_assignment(
    monkeypatch: pytest.MonkeyPatch, assignor: str, mixed: bool
) -> None:
    monkeypatch.setattr(Topics, "digest", cache(Topics.digest))
    longest = longest_step(partial(steps, assignor, mixed), SECONDS_MAX)
    print(f"{assignor}, {'mixed' if mixed else 'equal'} subscriptions: {longest * 1000:.0f} ms")
    assert longest < SECONDS_MAX


def steps(assignor: str, mixed: bool) -> list[float]:
    """Members join one after the other. Each step of the shard is timed, with its replay."""
    group = Group(TOPICS)
    names = list(TOPICS)
    times = []
    for number in range(MEMBERS):
        topics = [*names[:1], *names[1 + number % 7 :: 1 + number % 5]] if mixed else names
        times.append(timed(partial(group.join, f"m{number}", topics, server_assignor=assignor)))
        times.extend(timed_deadlines(group, 1.1))
    assert sum(len(target) for target in group.state.targets.values()) >= len(TOPICS) - 1
    return times


def timed(step: Callable[[], object]) -> float:
    began = time.thread_time()
    step()
    return time.thread_time() - began


def timed_deadlines(group: Group | Shares, seconds: float) -> list[float]:
    harness, found = group.harness, []
    until = harness.now.seconds + seconds
    while (deadline := harness.shard.next_deadline()) is not None and deadline <= until:
        harness.advance(max(0.0, deadline - harness.now.seconds) - 1e-9)
        found.append(timed(lambda: harness.advance(1e-9)))
    harness.advance(until - harness.now.seconds)
    return found


# -- share groups

SHARE_MEMBERS = 60


@pytest.mark.parametrize("mixed", [True, False])
def test_a_step_of_a_large_share_group(monkeypatch: pytest.MonkeyPatch, mixed: bool) -> None:
    monkeypatch.setattr(Topics, "digest", cache(Topics.digest))
    longest = longest_step(partial(share_steps, mixed), SECONDS_MAX)
    print(f"share group, {'mixed' if mixed else 'equal'} subscriptions: {longest * 1000:.0f} ms")
    assert longest < SECONDS_MAX


def share_steps(mixed: bool) -> list[float]:
    """As `steps`, for a share group."""
    shares = Shares(TOPICS)
    names = list(TOPICS)
    states: dict[UUID, range] = {}
    for name, partitions in TOPICS.items():
        topic_id = shares.topics.topic_id(name)
        assert topic_id is not None
        states[topic_id] = range(partitions)
    times = []
    for number in range(SHARE_MEMBERS):
        topics = [*names[:1], *names[1 + number % 7 :: 1 + number % 5]] if mixed else names
        join = partial(shares.beat, f"m{number}", 0, subscribed_topic_names=topics)
        times.append(timed(join))
        if not number:
            shares.initialize(states)
        times.extend(timed_deadlines(shares, 1.1))
    for name, member in list(shares.group.members.items()):
        times.append(timed(partial(shares.beat, name, member.epoch)))
    times.extend(timed_deadlines(shares, 1.1))
    assert sum(len(target) for target in shares.group.targets.values()) >= len(TOPICS) - 1
    return times
