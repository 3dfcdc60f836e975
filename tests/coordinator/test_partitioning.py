"""Java's hash of names: the examples of Java, a plain loop, and its time for long names."""

from __future__ import annotations

import random
import time

import pytest

from mqd.coordinator.partitioning import partition_for

PARTITIONS = 1 << 31
"""More partitions than hash values: the partition is the hash."""
LONG_CHARS = 32_767
LONG_SECONDS_MAX = 0.001
TRIES = 5


def looped(key: str) -> int:
    """As Java documents it: s[0] * 31^(n-1) + ... + s[n-1] over UTF-16 code units."""
    value = 0
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("\U0001f600", 1772899)],
)
def test_hashes_equal_java_s_examples(key: str, expected: int) -> None:
    assert partition_for(key, PARTITIONS) == expected


def test_hashes_of_names_of_every_length() -> None:
    chosen = random.Random(1)
    for length in (*range(70), 127, 128, 129, 4_000, 4_095, 4_096, 4_097, LONG_CHARS):
        for alphabet in ("\uffff", "az0-._", "\x00\xe9\uffff\U0001f600"):
            key = "".join(chosen.choices(alphabet, k=length))
            assert partition_for(key, PARTITIONS) == looped(key), (length, alphabet)


def test_the_longest_name_takes_less_than_a_millisecond() -> None:
    """Each group request of a client hashes the group's name."""
    tried = []
    for _ in range(TRIES):
        began = time.thread_time()
        partition_for("x" * LONG_CHARS, 50)
        tried.append(time.thread_time() - began)
    assert min(tried) < LONG_SECONDS_MAX, tried
