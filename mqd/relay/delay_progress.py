"""How far a delay partition has been relayed: which entries of its timer index are done. Pure.

Entries leave the index in the order (due time, offset), but arrive in the order of offsets. So one
position is not enough: a record that arrives late may be due before what was relayed already. A
mark (due time, offset, end offset) says that all entries below its end offset are done, up to
(due time, offset) in the order of time. A progress is a few marks. While records are relayed as
soon as they are due, it is one.

The metadata of a committed offset has the id of the topic, the progress, and counts of what became
of the records: `TOPIC-ID:PROGRESS:COUNTS`.

Invariant: end offsets ascend, and (due time, offset) descend: no mark repeats another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from mqd.errors import ProtocolError
from mqd.protocol.record_reader import INT64_MAX
from mqd.types import Offset

_VERSION: Final = "0"
_SEPARATOR: Final = ","
_PART: Final = ":"


class Mark(NamedTuple):
    due_ms: int
    offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """The entries that are done. An empty one: none is."""

    marks: tuple[Mark, ...] = ()

    def covers(self, due_ms: int, offset: Offset) -> bool:
        """Whether the entry is done."""
        return any(
            offset < mark.end_offset and (due_ms, offset) <= (mark.due_ms, mark.offset)
            for mark in self.marks
        )

    def with_mark(self, mark: Mark) -> TimerProgress:
        """This progress and what `mark` says."""
        reached, end = (mark.due_ms, mark.offset), mark.end_offset
        if len(self.marks) <= 1 and all(  # nearly always
            (one.due_ms, one.offset) <= reached and one.end_offset <= end for one in self.marks
        ):
            return TimerProgress((mark,))
        if any((one.due_ms, one.offset) >= reached and one.end_offset >= end for one in self.marks):
            return self
        before = [one for one in self.marks if (one.due_ms, one.offset) > reached]
        after = [one for one in self.marks if one.end_offset > end]
        return TimerProgress((*before, mark, *after))

    def passed(self, now_ms: int, end_offset: Offset) -> TimerProgress:
        """This progress when nothing that is due by `now_ms` is left below `end_offset`."""
        return self.with_mark(Mark(now_ms, INT64_MAX, end_offset))

    def encode(self) -> str:
        """As text, for a record. TIMER_PROGRESS_MARKS_MAX marks have at most 3,840 characters."""
        marks = (_SEPARATOR.join(map(str, mark)) for mark in self.marks)
        return " ".join((_VERSION, *marks))


def decode_progress(text: str) -> TimerProgress:
    """The inverse of `encode`. Raises ProtocolError."""
    version, *marks = text.split(" ")
    progress = TimerProgress()
    try:
        for mark in marks:
            due_ms, offset, end_offset = map(int, mark.split(_SEPARATOR))
            progress = progress.with_mark(Mark(due_ms, offset, end_offset))
    except ValueError:
        raise ProtocolError(f"a progress with the text {text[:100]!r}") from None
    if version != _VERSION or progress.encode() != text:
        raise ProtocolError(f"a progress with the text {text[:100]!r}")
    return progress


class Counts(NamedTuple):
    """What became of the records of a delay partition, since its topic was created."""

    relayed: int = 0
    cancelled: int = 0
    """By tombstones, or replaced by later records."""
    expired: int = 0
    failed: int = 0
    """Not relayed for another reason: no attempts left, bad headers, refused by the target."""

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(int.__add__, self, other))


def encode_metadata(topic_id: UUID, progress: TimerProgress, counts: Counts) -> str:
    return _PART.join((topic_id.hex, progress.encode(), _SEPARATOR.join(map(str, counts))))


def decode_metadata(text: str, topic_id: UUID) -> tuple[TimerProgress, Counts] | None:
    """The inverse. None: it is of another topic, such as an earlier one with the same name. Raises
    ProtocolError."""
    owner, _, rest = text.partition(_PART)
    if owner != topic_id.hex:
        return None
    progress, _, counts = rest.partition(_PART)
    try:
        return decode_progress(progress), Counts(*map(int, counts.split(_SEPARATOR)))
    except (TypeError, ValueError):
        raise ProtocolError(f"counts with the text {counts[:100]!r}") from None
