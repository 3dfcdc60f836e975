"""The check of topics with one producer at a time."""

from __future__ import annotations

from mqd.testing.owner_check import Span, check_owners
from mqd.types import TopicPartition

A = TopicPartition("a", 0)


def span(owner: str, number: int, *times: float, topic: str = "a") -> Span:
    """A transaction whose records were sent at these times, and acknowledged a second later."""
    made = Span(topic, owner, f"{owner}.{number}")
    for sent in times:
        made.wrote(sent, sent + 1)
    return made


def test_transactions_of_two_owners_do_not_overlap_in_time() -> None:
    first = span("one", 1, 0.0, 5.0)
    assert check_owners([first, span("two", 1, 5.0, 9.0)], {}) == []
    assert check_owners([first, span("two", 1, 2.0, 3.9)], {}) != []
    assert check_owners([first, span("two", 1, 2.0)], {}) == [], "one record has no duration"
    assert check_owners([first, span("one", 2, 2.0, 3.9)], {}) == [], "the same owner"
    assert check_owners([first, span("two", 1, 2.0, 3.9, topic="b")], {}) == []


def test_transactions_of_two_owners_do_not_overlap_in_a_log() -> None:
    spans = [span("one", 1, 0.0), span("one", 2, 9.0), span("two", 1, 5.0)]
    in_turn = [(0, b"one.1.0"), (1, b"one.1.1"), (3, b"two.1.0"), (5, b"one.2.0")]
    assert check_owners(spans, {A: in_turn}) == []
    [found] = check_owners(spans, {A: [(0, b"one.1.0"), (1, b"two.1.0"), (2, b"one.1.1")]})
    assert "two-owners" in str(found)
