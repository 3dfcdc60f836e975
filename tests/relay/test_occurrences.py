"""Occurrences of schedules that are cancelled while they are written."""

from __future__ import annotations

import random

import pytest

from mqd.protocol.record_reader import Record
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.delay_records import ends, repeats_since
from mqd.relay.delay_topic import DelayTopic
from mqd.relay.occurrences import Cancellations, OccurrenceWindow

DELAY = DelayTopic("orders")
SCHEDULE = ("mqd-cron", b"* * * * *")
LOG = {
    40: Record(40, 0, b"k", b"v", [SCHEDULE]),
    41: Record(41, 0, b"k", None, []),
    42: Record(42, 0, b"k", b"v", [SCHEDULE, ("mqd-cron-since", b"41")]),
}
"""The example at the head of occurrences.py."""


def cancelled(window: OccurrenceWindow, known: int) -> list[int]:
    """The offsets of the occurrences that are compared, and were cancelled."""
    assert window.overlaps(known, 43)
    occurrences = [
        found
        for record in LOG.values()
        if (found := window.occurrence_of(DELAY, record, known, TimerProgress())) is not None
    ]
    search = Cancellations(DELAY, occurrences)
    for offset in range(search.start, search.end):
        search.read(LOG[offset])
    return [record.offset for record in search.cancelled()]


def test_a_tombstone_that_arrives_while_an_occurrence_is_written() -> None:
    window = OccurrenceWindow()
    window.begin(0, 10)
    assert not window.overlaps(40, 41) and window.floor(41, 41) == 41
    window.writes(41)
    assert window.floor(43, 41) == 41, "the tombstone at 41 must stay"
    window.written(43)
    assert cancelled(window, 41) == [42]
    window.settled(43)
    assert not window.overlaps(41, 43)
    assert window.floor(42, 42) == 41 and window.floor(43, 43) == 43


def test_the_next_relay_compares_what_an_earlier_one_may_have_written() -> None:
    window = OccurrenceWindow()
    window.begin(41, 43)
    assert window.floor(43, 41) == 41
    assert cancelled(window, 41) == [42]


@pytest.mark.parametrize("replaces", (False, True))
@pytest.mark.parametrize("seed", range(20))
def test_cancelled_occurrences_are_found_in_one_pass(seed: int, replaces: bool) -> None:
    """Against the definition, record by record."""
    dice, found = random.Random(seed), DelayTopic("orders", replaces=replaces)
    log = []
    for offset in range(60):
        kind = dice.choice(("plain", "tombstone", "cancels", "occurrence"))
        headers: list[tuple[str, bytes | None]] = []
        if kind == "cancels":
            headers = [("mqd-cancels", b"%d" % dice.randrange(60))]
        if kind == "occurrence":
            headers = [("mqd-cron", b"* * * * *"), ("mqd-cron-since", b"%d" % dice.randrange(60))]
        value = None if kind in ("tombstone", "cancels") else b"v"
        log.append(Record(offset, 0, dice.choice((b"a", b"b", b"c")), value, headers))
    occurrences = [(since, one) for one in log if (since := repeats_since(found, one)) is not None]
    search = Cancellations(found, occurrences)
    for one in log[search.start : search.end]:
        search.read(one)
    assert search.cancelled() == [
        one
        for since, one in occurrences
        if any(
            other.key == one.key and ends(found, other, one.offset)
            for other in log[since : one.offset]
        )
    ]
