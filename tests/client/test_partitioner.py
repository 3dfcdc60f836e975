from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from aiokafka.partitioner import murmur2 as oracle
from hypothesis import given, strategies as st

from mqd.client.partitioner import (
    RoundRobinPartitioner,
    StickyPartitioner,
    murmur2,
    partition_for_key,
)

# Results of Apache Kafka's own Utils.murmur2, from its unit test.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"abc": 479470107,
    b"": 275646681,
}


def test_hash_equals_kafkas() -> None:
    for key, expected in KAFKA.items():
        assert murmur2(key) == expected % 2**32


@given(st.binary(max_size=70))
def test_hash_equals_an_independent_one(key: bytes) -> None:
    assert murmur2(key) == oracle(key) % 2**32
    assert murmur2(memoryview(key)) == murmur2(key)


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_key_has_one_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count
    assert partition_for_key(key, count) == (oracle(key) & 0x7FFFFFFF) % count


def test_sticky_stays_for_its_bytes_and_then_moves() -> None:
    random = Random(1)
    sticky = StickyPartitioner(100, random.randrange)
    chosen = [sticky.partition(10, range(4)) for _ in range(4000)]
    runs = [chosen[start : start + 10] for start in range(0, 4000, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in pairwise(runs))
    assert all(count > 800 for count in Counter(chosen).values())


def test_sticky_leaves_a_partition_that_lost_its_leader() -> None:
    sticky = StickyPartitioner(1000, Random(2).randrange)
    first = sticky.partition(1, [0, 1, 2])
    rest = [each for each in (0, 1, 2) if each != first]
    assert sticky.partition(1, rest) in rest
    assert sticky.partition(10_000, [7]) == 7 == sticky.partition(1, [7])


def test_round_robin_uses_each_led_partition_in_turn_for_any_key() -> None:
    choose = RoundRobinPartitioner()
    assert [choose("a", key, range(4), (0, 2, 3)) for key in (b"k", b"k", None, b"k")] == [
        0,
        2,
        3,
        0,
    ]
    assert choose("b", b"k", range(1), (0,)) == 0
    assert choose("a", None, range(4), (0, 2, 3)) == 2, "each topic has its own sequence"
