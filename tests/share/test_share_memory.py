"""The memory of all share partitions that a node leads."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import KIB, MIB
from mqd.share.memory import LED_BYTES, STATE_BYTES_MAX, ShareMemory
from mqd.share.record_states import RANGE_BYTES

QUARTER = 256 * KIB


@dataclass
class One:
    size: int = 0


@dataclass
class Node:
    """The share partitions of a node with a bound of 1 MiB."""

    partitions: list[One] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.memory = ShareMemory(4 * QUARTER, lambda: self.partitions)

    def part(self) -> int:
        """After another count."""
        self.now += 1.0
        return self.memory.part(self.now)


def test_one_partition_may_take_a_quarter() -> None:
    assert Node([One()]).part() == QUARTER
    assert ShareMemory(64 * MIB, lambda: [One()]).part(0.0) == STATE_BYTES_MAX


def test_a_large_partition_takes_nothing_from_others() -> None:
    node = Node([One(QUARTER), *[One(1000) for _ in range(3)]])
    assert 0.9 * QUARTER // 4 < node.part() < QUARTER // 4
    node.partitions[0].size = 1000
    assert node.part() == QUARTER


def test_greedy_partitions_stay_within_the_bound() -> None:
    """Each takes twice its part for acknowledgements, and once for the order by key."""
    node = Node()
    with pytest.raises(MqError, match="Retry later"):
        while True:
            node.memory.load(LED_BYTES, node.now + 1.0)
            node.partitions.append(One(LED_BYTES))
            for one in node.partitions:
                ranges = min(3 * node.part(), one.size - LED_BYTES + 20_000)
                one.size = max(one.size, LED_BYTES + ranges)
            assert sum(one.size for one in node.partitions) <= 1.1 * node.memory.bytes_max
    assert len(node.partitions) > 20
    assert node.part() == 2 * RANGE_BYTES, "each can make progress"


def test_a_state_without_room_is_not_loaded(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.memory.load(3 * QUARTER, 0.1)
    with pytest.raises(MqError, match=r"group\.share\.partition\.memory\.bytes") as refused:
        node.memory.load(2 * QUARTER, 0.2)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and refused.value.code.retriable
    with caplog.at_level(logging.WARNING):
        node.memory.load(2 * QUARTER, 1.0)  # what was loaded is gone
        node.partitions = [One(3 * QUARTER)]
        node.memory.load(0, 2.0)
        node.memory.load(0, 3.0)
    [line] = [record.message for record in caplog.records]
    assert "partitions=1" in line and f"bytes={3 * QUARTER}" in line
