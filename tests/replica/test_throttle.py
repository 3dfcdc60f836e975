"""Replication quotas: what they apply to, and how the rate is measured."""

from __future__ import annotations

import pytest

from mqd.replica.throttle import EVERY_PARTITION, WINDOWS, Throttle, throttled_partitions
from mqd.types import NodeId, TopicPartition

THREE = NodeId(3)


def test_a_list_names_partitions_and_nodes() -> None:
    assert throttled_partitions(["0:3", "1:4", " 2:3 "], THREE) == frozenset({0, 2})
    assert throttled_partitions(["0:4", "*"], THREE) is EVERY_PARTITION
    assert throttled_partitions([], THREE) == frozenset()
    for wrong in ("7", "a:3", "0:b", ""):
        with pytest.raises(ValueError):
            throttled_partitions([wrong], THREE)


def test_it_applies_to_the_named_replicas() -> None:
    throttle = Throttle()
    assert not throttle.is_throttled(TopicPartition("t", 0))
    throttle.set_partitions("t", frozenset({1}))
    assert not throttle.is_throttled(TopicPartition("t", 0)) and throttle.is_throttled(
        TopicPartition("t", 1)
    )
    throttle.set_partitions("t", EVERY_PARTITION)
    assert throttle.is_throttled(TopicPartition("t", 0)) and not throttle.is_throttled(
        TopicPartition("u", 0)
    )
    throttle.set_partitions("t", frozenset())
    assert not throttle.is_throttled(TopicPartition("t", 0))


def test_without_a_rate_nothing_is_throttled() -> None:
    throttle = Throttle()
    throttle.record(1 << 40, 0.0)
    assert throttle.allows(0.0)


def test_an_overshoot_causes_a_pause() -> None:
    throttle = Throttle()
    throttle.set_rate(1000)
    assert throttle.allows(5.0)
    throttle.record(4000, 5.0)
    assert not throttle.allows(5.0) and not throttle.allows(8.9)
    assert throttle.allows(9.0)


def test_the_rate_holds_over_time_and_old_windows_expire() -> None:
    throttle = Throttle()
    throttle.set_rate(1000)
    moved, now = 0, 100.0
    while now < 200.0:
        if throttle.allows(now):
            throttle.record(300, now)
            moved += 300
        now += 0.1
    assert 90_000 <= moved <= 115_000
    assert throttle.rate(now) > 0
    assert throttle.rate(now + WINDOWS + 1) == 0


def test_a_burst_does_not_last_longer_than_the_windows() -> None:
    throttle = Throttle()
    throttle.set_rate(10)
    throttle.record(1 << 30, 0.0)
    assert not throttle.allows(WINDOWS - 0.1)
    assert throttle.allows(WINDOWS)
