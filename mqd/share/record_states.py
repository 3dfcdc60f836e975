"""The delivery states of the records of one share partition (KIP-932), by ranges of offsets. Pure.

The ranges are in order and without gaps: from the start offset to the end offset, which is the
first offset that was never acquired. Neighbours with the same state are one range, so records that
are done cost one range, however many they are. Only unfinished records between finished ones
cost memory: RANGE_BYTES for each range.

Invariants: a record is in one range, so at most one member has acquired it. A record that is
ACKNOWLEDGED or ARCHIVED never changes its state again (I62). A DELAYED range has the time at which
it is available.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from mqd.types import Offset

RANGE_BYTES: Final = 200
"""Memory of one range, with its places in the lists."""
NO_DEADLINE: Final = 0.0
_ENTRIES_KEPT: Final = 64
"""Entries of the heap of available offsets that may be out of date, besides two for each range."""


class RecordState(IntEnum):
    """Kafka's numbers, which are in requests and records of the share coordinator."""

    DELAYED = -1
    """Available at a later time. The share coordinator has it as AVAILABLE, with the time."""
    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Given up, and its dead letter is not written yet (KIP-1191)."""
    ARCHIVED = 4


_WITH_TIME: Final = frozenset({RecordState.DELAYED, RecordState.ARCHIVING})
DONE: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""States that never change."""
GIVEN_UP_OR_DONE: Final = DONE | {RecordState.ARCHIVING}
"""States in which a record is never delivered again."""


class Batch(NamedTuple):
    """Records with one state, as the share coordinator stores them."""

    first_offset: Offset
    last_offset: Offset
    state: RecordState
    delivery_count: int
    time_ms: int = 0
    """Wall time in ms: before which an AVAILABLE record is not delivered, or since when it is
    ARCHIVING. 0: none."""


def records_in(batches: Iterable[Batch], state: RecordState) -> int:
    """How many records of these batches have this state."""
    return sum(one.last_offset - one.first_offset + 1 for one in batches if one.state is state)


@dataclass(slots=True)
class Range:
    """Records from the key of the range to `last` that have the same state."""

    last: Offset
    state: RecordState
    delivery_count: int = 0
    """How many times they were acquired."""
    member_id: str = ""
    """The member that has acquired them."""
    deadline: float = NO_DEADLINE
    """Monotonic seconds at which the acquisition lock ends."""
    next_state: RecordState | None = None
    """The state that the share coordinator stores now. Until it has, no other change begins."""
    time_ms: int = 0
    """Wall time in ms: when DELAYED records are available, or since when they are ARCHIVING."""

    def continues(self, other: Range) -> bool:
        """Whether the records after `other` are in the same state."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.deadline == other.deadline
            and self.next_state is other.next_state
            and self.time_ms == other.time_ms
        )

    def copy(self, last: Offset) -> Range:
        return Range(
            last,
            self.state,
            self.delivery_count,
            self.member_id,
            self.deadline,
            self.next_state,
            self.time_ms,
        )


class RecordStates:
    """The ranges of one share partition."""

    def __init__(self, start_offset: Offset) -> None:
        self.start_offset = start_offset
        """Kafka's SPSO: all records before it are done."""
        self._firsts: list[Offset] = []
        self._ranges: list[Range] = []
        """The range that begins at each of `_firsts`."""
        self._available: list[Offset] = []
        """A heap of offsets that became available. An entry may be out of date."""
        self._done = 0
        """Records in ranges that are done. As the next one, so that no change walks all ranges."""
        self._becoming_done = 0
        """Records whose change to such a state the share coordinator stores now."""

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[tuple[Offset, Range]]:
        return zip(self._firsts, self._ranges)

    @property
    def end_offset(self) -> Offset:
        """The first offset that was never acquired."""
        return self._ranges[-1].last + 1 if self._ranges else self.start_offset

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return RANGE_BYTES * len(self._ranges)

    def next_available(self) -> Offset | None:
        """The first available record before the end offset."""
        heap = self._available
        while heap:
            offset = heap[0]
            position = self._position_of(offset)
            if position is not None and self._ranges[position].state is RecordState.AVAILABLE:
                return offset
            heapq.heappop(heap)
        return None

    def records_from(self, offset: Offset) -> int:
        """How many records from this one on are in one state."""
        position = self._position_of(offset)
        return 0 if position is None else self._ranges[position].last - offset + 1

    def state_of(self, offset: Offset) -> RecordState | None:
        """The state of a record between the start and the end offset."""
        position = self._position_of(offset)
        return None if position is None else self._ranges[position].state

    def within(self, first: Offset, last: Offset) -> list[tuple[Offset, Range]]:
        """The ranges from `first` to `last`, both included, cut at both ends. Neither changes."""
        found: list[tuple[Offset, Range]] = []
        if last < first:
            return found
        position = max(0, bisect_right(self._firsts, first) - 1)
        while position < len(self._ranges) and self._firsts[position] <= last:
            begin, one = self._firsts[position], self._ranges[position]
            if one.last >= first:
                found.append((max(begin, first), one.copy(min(one.last, last))))
            position += 1
        return found

    def put(self, first: Offset, new: Range) -> None:
        """Replace the state of the records from `first` to `new.last`, which begin at most at the
        end offset."""
        assert self.start_offset <= first <= new.last, (self.start_offset, first, new)
        assert first <= self.end_offset, (first, self.end_offset)
        assert not new.time_ms or new.state in _WITH_TIME, (first, new)
        assert new.time_ms or new.state is not RecordState.DELAYED, (first, new)
        if first == self.end_offset:
            position = len(self._ranges)
        else:
            position = self._split(first)
            end = len(self._ranges)
            if new.last < self._ranges[-1].last:
                end = self._split(new.last + 1)
            self._remove(position, end)
        self._firsts.insert(position, first)
        self._ranges.insert(position, new)
        self._count(new.last - first + 1, new)
        if new.state is RecordState.AVAILABLE:
            self._note_available(first)
        if position + 1 < len(self._ranges):
            self._join(position + 1)
        if position:
            self._join(position)

    def store(self, batch: Batch) -> None:
        """Take over the state of a batch. Its records before the start offset are ignored. Records
        between the end offset and the batch are available.
        """
        first = max(batch.first_offset, self.start_offset)
        if first > batch.last_offset:
            return
        if first > self.end_offset:
            self.put(self.end_offset, Range(first - 1, RecordState.AVAILABLE))
        count = 0 if batch.state in DONE else batch.delivery_count
        state = batch.state
        if state is RecordState.AVAILABLE and batch.time_ms:
            state = RecordState.DELAYED
        self.put(first, Range(batch.last_offset, state, count, time_ms=batch.time_ms))

    def advance(self) -> bool:
        """Move the start offset behind records that are done. Returns whether it moved."""
        if not self._ranges or self._ranges[0].state not in DONE:
            return False
        position = 0
        while position < len(self._ranges) and self._ranges[position].state in DONE:
            self.start_offset = self._ranges[position].last + 1
            position += 1
        self._remove(0, position)
        return True

    def remove_before(self, offset: Offset) -> bool:
        """The log no longer has the records before `offset`. Returns whether the start offset
        moved."""
        if offset <= self.start_offset:
            return False
        if offset >= self.end_offset:
            self._remove(0, len(self._ranges))
        else:
            self._remove(0, self._split(offset))
        self.start_offset = offset
        self.advance()
        return True

    def done_after_start(self) -> int:
        """How many records after the start offset are done, or will be when the share coordinator
        has stored it."""
        return self._done + self._becoming_done

    # -- internals

    def _remove(self, position: int, end: int) -> None:
        """Remove the ranges at these positions, without `end`."""
        for first, one in zip(self._firsts[position:end], self._ranges[position:end]):
            self._count(first - one.last - 1, one)
        del self._firsts[position:end]
        del self._ranges[position:end]

    def _count(self, records: int, one: Range) -> None:
        """So many more records are in the state of this range. Negative: fewer."""
        if one.state in DONE:
            self._done += records
        elif one.next_state is not None and one.next_state in DONE:
            self._becoming_done += records

    def _position_of(self, offset: Offset) -> int | None:
        """The position of the range with this offset."""
        position = bisect_right(self._firsts, offset) - 1
        if position < 0 or self._ranges[position].last < offset:
            return None
        return position

    def _split(self, offset: Offset) -> int:
        """Let a range begin at `offset`, which is in one. Returns its position."""
        position = self._position_of(offset)
        assert position is not None, offset
        if self._firsts[position] == offset:
            return position
        whole = self._ranges[position]
        self._firsts.insert(position + 1, offset)
        self._ranges.insert(position + 1, whole.copy(whole.last))
        whole.last = offset - 1
        if whole.state is RecordState.AVAILABLE:
            self._note_available(offset)
        return position + 1

    def _note_available(self, offset: Offset) -> None:
        heapq.heappush(self._available, offset)
        if len(self._available) > 2 * len(self._ranges) + _ENTRIES_KEPT:  # most are out of date
            self._available = [first for first, one in self if one.state is RecordState.AVAILABLE]

    def _join(self, position: int) -> None:
        """Join the range with the one before it if both are in the same state."""
        before, after = self._ranges[position - 1], self._ranges[position]
        if after.continues(before):
            before.last = after.last
            del self._firsts[position]
            del self._ranges[position]
