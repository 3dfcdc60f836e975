"""The bound on the producer ids of a node: which ones are evicted by a flood."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, strategies as st

from mqd.limits import KIB, PRODUCERS_PER_SLICE
from mqd.log.log_config import LogConfig
from mqd.log.producer_expiry import expire, forget_oldest
from mqd.log.producer_memory import FORGET_DOWN_TO, kept_per_partition
from mqd.log.producers import Producers
from mqd.types import TopicPartition
from tests.log.support import Harness, batch

GIB = KIB**3


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 2000))
def test_eviction_fits_the_bound_and_keeps_small_partitions(counts: list[int], most: int) -> None:
    kept = kept_per_partition(counts, most)
    if kept is None:
        assert sum(counts) <= most
        return
    left = [min(count, kept) for count in counts]
    assert sum(left) <= most * FORGET_DOWN_TO < sum(counts)
    assert sum(left) + len(counts) > int(most * FORGET_DOWN_TO), "no more than necessary is evicted"


def test_a_flood_in_one_partition_takes_nothing_from_the_others() -> None:
    assert kept_per_partition([10, 5000, 20], 1000) == 870


def test_the_least_recently_used_are_evicted_except_in_a_transaction() -> None:
    producers = Producers()
    for number in range(10):
        attributes = 0x10 if number == 1 else 0
        producers.replay(number, 0, 0, number, 0, 0, attributes)
    producers.replay(0, 0, 1, 10, 0, 0, 0)
    list(forget_oldest(producers, 4))
    assert [entry.producer_id for entry in producers.entries()] == [1, 7, 8, 9, 0]


def test_many_are_evicted_in_slices_and_a_returning_one_stays() -> None:
    producers = Producers()
    count = 3 * PRODUCERS_PER_SLICE
    for number in range(count):
        producers.replay(number, 0, 0, number, 0, 0, 0)
    steps = forget_oldest(producers, 0)
    next(steps)
    assert len(producers) == count - PRODUCERS_PER_SLICE + 1
    del producers.states[count - 1]
    producers.replay(count - 1, 0, 0, count, 0, 0, 0)
    assert len(list(steps)) == 2
    assert [entry.producer_id for entry in producers.entries()] == [count - 1]


def test_expiry_is_sliced_too() -> None:
    producers = Producers()
    for number in range(2 * PRODUCERS_PER_SLICE):
        producers.replay(number, 0, 0, number, 0, 0, 0)
    assert len(list(expire(producers, 0, 10))) == 2 and len(producers) == 2 * PRODUCERS_PER_SLICE
    list(expire(producers, 100, 10))
    assert len(producers) == 0


async def test_a_node_evicts_producers_over_its_bound(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    harness.service.producer_bound.producers_max = 100
    flooded = harness.open(LogConfig())
    quiet = harness.open(LogConfig(), TopicPartition("quiet", 0))
    for number in range(200):
        harness.write(flooded, batch(b"x", producer_id=number, sequence=0))
    for number in range(10):
        harness.write(quiet, batch(b"x", producer_id=number, sequence=0))
    await harness.service.producer_bound.forget_excess()
    assert len(quiet.producers) == 10 and len(flooded.producers) == 80
    assert harness.service.producer_bound.forgotten == 120
    kept = [entry.producer_id for entry in flooded.producers.entries()]
    assert kept == list(range(120, 200))
    harness.kill()


async def test_few_snapshots_of_a_partition_wait_for_a_sync(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200))
    for number in range(12):
        harness.write(log, batch(b"x" * 100, producer_id=1, sequence=number))
    assert len(log.segments) > 8 and len(log.durability.unwritten_snapshots) <= 2
    harness.kill()
