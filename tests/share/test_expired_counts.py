"""Counts of expired records."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.share import expired_counts
from mqd.share.expired_counts import ExpiredCounts
from mqd.share.ports import ShareKey

TOPIC = UUID(int=1)
KEYS = [ShareKey(group, TOPIC, 0) for group in ("a", "b", "c")]


def test_counts_end_with_the_leadership() -> None:
    counts, other = ExpiredCounts(), ShareKey("a", TOPIC, 1)
    for key in (KEYS[0], KEYS[0], KEYS[1], other):
        counts.add(key, 2)
    assert [counts.get(key) for key in (*KEYS, other)] == [4, 2, 0, 2]
    counts.forget_partition(TOPIC, 0)
    counts.forget_partition(TOPIC, 7)
    assert [counts.get(key) for key in (*KEYS, other)] == [0, 0, 0, 2]


def test_the_number_of_counts_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expired_counts, "SHARE_EXPIRED_COUNTS_MAX", 2)
    counts = ExpiredCounts()
    for key in (*KEYS, KEYS[2]):
        counts.add(key, 1)
    assert [counts.get(key) for key in KEYS] == [0, 1, 2]
