"""How far a delay partition has been relayed: which entries of its timer index are done. Pure.

Entries leave the index in the order (due time, offset), but arrive in the order of offsets. So one
position is not enough: a record that arrives late may be due before what was relayed already. A
mark (due time, offset, end offset) says that all entries below its end offset are done, up to
(due time, offset) in the order of time. A progress is a few marks. While records are relayed as
soon as they are due, it is one.

Invariant: end offsets ascend, and (due time, offset) descend: no mark says what another one says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from mqd.errors import ProtocolError
from mqd.protocol.record_reader import INT64_MAX
from mqd.types import Offset

_VERSION: Final = 0
_MARK: Final = Struct(">qqq")


class Mark(NamedTuple):
    due_ms: int
    offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class Progress:
    """The entries that are done. An empty one: none is."""

    marks: tuple[Mark, ...] = ()

    def covers(self, due_ms: int, offset: Offset) -> bool:
        """Whether the entry is done."""
        return any(
            offset < mark.end_offset and (due_ms, offset) <= (mark.due_ms, mark.offset)
            for mark in self.marks
        )

    def with_mark(self, mark: Mark) -> Progress:
        """This progress after `mark`, whose end offset is not below those of other marks."""
        assert not self.marks or mark.end_offset >= self.marks[-1].end_offset, (self, mark)
        reached = (mark.due_ms, mark.offset)
        kept = [
            one
            for one in self.marks
            if (one.due_ms, one.offset) > reached or one.end_offset > mark.end_offset
        ]
        if kept and kept[-1].end_offset == mark.end_offset:
            return self  # that one is later in time, and says more
        return Progress((*kept, mark))

    def passed(self, now_ms: int, end_offset: Offset) -> Progress:
        """This progress when nothing that is due by `now_ms` is left below `end_offset`."""
        return self.with_mark(Mark(now_ms, INT64_MAX, end_offset))

    def encode(self) -> bytes:
        return bytes((_VERSION,)) + b"".join(_MARK.pack(*mark) for mark in self.marks)


def decode_progress(data: bytes) -> Progress:
    """The inverse of `encode`. Raises ProtocolError."""
    if not data or data[0] != _VERSION or (len(data) - 1) % _MARK.size:
        raise ProtocolError(f"a progress of version {data[:1]!r} with {len(data)} bytes")
    marks: Iterable[Mark] = map(Mark._make, _MARK.iter_unpack(memoryview(data)[1:]))
    progress = Progress()
    for mark in marks:
        if progress.marks and mark.end_offset <= progress.marks[-1].end_offset:
            raise ProtocolError(f"the end offsets of a progress do not ascend: {mark}")
        progress = progress.with_mark(mark)
    return progress
