"""The progress of a delay partition says exactly what its marks say."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from mqd.errors import ProtocolError
from mqd.limits import TIMER_PROGRESS_MARKS_MAX
from mqd.protocol.record_reader import INT64_MAX
from mqd.relay.delay_progress import (
    Counts,
    Mark,
    TimerProgress,
    decode_metadata,
    decode_progress,
    encode_metadata,
)
from mqd.relay.timer_format import ENTRY, DoneEntries

marks = st.builds(Mark, st.integers(0, 5), st.integers(0, 5), st.integers(0, 6))


@settings(max_examples=50)
@given(st.lists(marks, max_size=8))
def test_a_progress_covers_what_its_marks_cover(given_marks: list[Mark]) -> None:
    progress = TimerProgress()
    for mark in given_marks:
        progress = progress.with_mark(mark)
    entries = DoneEntries(progress)
    for due in range(6):
        for offset in range(6):
            expected = any(
                offset < mark.end_offset and (due, offset) <= (mark.due_ms, mark.offset)
                for mark in given_marks
            )
            assert progress.covers(due, offset) == expected
            assert entries.covers(ENTRY.pack(due, offset, 2**64 - 1)) == expected
    ends = [mark.end_offset for mark in progress.marks]
    reached = [(mark.due_ms, mark.offset) for mark in progress.marks]
    assert ends == sorted(set(ends)) and reached == sorted(set(reached), reverse=True)
    assert decode_progress(progress.encode()) == progress


def test_what_has_passed_is_one_mark() -> None:
    progress = TimerProgress().with_mark(Mark(100, 5, 10)).with_mark(Mark(50, 10, 11))
    assert len(progress.marks) == 2
    assert progress.passed(120, 11).marks == (Mark(120, INT64_MAX, 11),)
    # The clock was set back: what the later time covers is still done.
    assert progress.passed(120, 11).passed(60, 12).marks == (
        Mark(120, INT64_MAX, 11),
        Mark(60, INT64_MAX, 12),
    )


def test_a_progress_fits_into_the_metadata_of_an_offset() -> None:
    """The default of `offset.metadata.max.bytes` is 4,096."""
    progress = TimerProgress()
    for number in range(TIMER_PROGRESS_MARKS_MAX):
        mark = Mark(INT64_MAX - number, INT64_MAX, INT64_MAX - TIMER_PROGRESS_MARKS_MAX + number)
        progress = progress.with_mark(mark)
    assert len(progress.marks) == TIMER_PROGRESS_MARKS_MAX
    text = encode_metadata(UUID(int=1), progress, Counts(*[INT64_MAX] * 4))
    assert len(text) <= 4_096
    assert decode_metadata(text, UUID(int=1)) == (progress, Counts(*[INT64_MAX] * 4))


def test_the_metadata_is_that_of_one_topic() -> None:
    text = encode_metadata(UUID(int=1), TimerProgress(), Counts(expired=3))
    assert decode_metadata(text, UUID(int=2)) is None
    assert decode_metadata("", UUID(int=1)) is None
    for damaged in (text + ",1", text.replace("3", "x"), text.rpartition(":")[0]):
        with pytest.raises(ProtocolError):
            decode_metadata(damaged, UUID(int=1))


@pytest.mark.parametrize(
    "text", ["", "1", "0 1,2", "0 1,2,3,4", "0 a,2,3", "0 1,2,3 1,2,3", "0  1,2,3", "0 5,5,5 6,6,6"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_progress(text)
