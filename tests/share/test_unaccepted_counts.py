"""Counts of records that no member accepted."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.share import unaccepted_counts
from mqd.share.ports import ShareKey
from mqd.share.unaccepted_counts import LOG_SECONDS, LineCount, UnacceptedCounts

TOPIC = UUID(int=1)
KEYS = [ShareKey(group, TOPIC, 0) for group in ("a", "b", "c")]


def test_counts_end_with_the_leadership() -> None:
    counts, other = UnacceptedCounts(), ShareKey("a", TOPIC, 1)
    for key in (KEYS[0], KEYS[0], KEYS[1], other):
        counts.add(key, expired=2, given_up=1)
    assert counts.get(KEYS[0]) == (4, 2)
    assert [counts.get(key).expired for key in (*KEYS, other)] == [4, 2, 0, 2]
    counts.forget_partition(TOPIC, 0)
    counts.forget_partition(TOPIC, 7)
    assert [counts.get(key).expired for key in (*KEYS, other)] == [0, 0, 0, 2]


def test_the_number_of_counts_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unaccepted_counts, "SHARE_UNACCEPTED_COUNTS_MAX", 2)
    counts = UnacceptedCounts()
    for key in (*KEYS, KEYS[2]):
        counts.add(key, given_up=1)
    assert [counts.get(key).given_up for key in KEYS] == [0, 1, 2]


def test_a_log_line_has_the_records_since_the_last_one() -> None:
    line = LineCount()
    assert [
        line.due(count, now) for count, now in ((3, 5.0), (4, 6.0), (1, 5.0 + LOG_SECONDS))
    ] == [
        3,
        0,
        5,
    ]
