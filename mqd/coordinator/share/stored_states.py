"""The delivery states of the records of one share partition, as the share coordinator stores them.
Pure.

A record that is in no batch is available, was never delivered, and is not delayed. Done records
have the delivery count 0, because nobody needs it.

Invariant: the batches are in order, do not overlap, and two neighbours of one state are one batch.
No offset is above SHARE_OFFSET_MAX, so the first offset behind a batch is an INT64 (I67).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from mqd.limits import SHARE_OFFSET_MAX
from mqd.share.record_states import DONE, RANGE_BYTES, Batch, RecordState
from mqd.types import Offset

DELIVERY_COUNT_MAX: Final = 2**15 - 1
_WITH_TIME: Final = frozenset({RecordState.AVAILABLE, RecordState.ARCHIVING})
_STORED: Final = DONE | _WITH_TIME
_NEVER_DELIVERED: Final = RecordState.AVAILABLE, 0, 0
"""State, delivery count and time of records that are in no batch."""
_first = attrgetter("first_offset")
_last = attrgetter("last_offset")


class StoredStates:
    """The batches of one share partition."""

    def __init__(self, start_offset: Offset, batches: Iterable[Batch] = ()) -> None:
        self.start_offset = start_offset
        """All records before it are done."""
        self.batches: list[Batch] = []
        self.store(batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return RANGE_BYTES * len(self.batches)

    def copy(self) -> StoredStates:
        made = StoredStates(self.start_offset)
        made.batches = self.batches.copy()
        return made

    def store(self, updates: Iterable[Batch]) -> None:
        """Take over the states of these batches: a later one replaces an earlier one. Records
        before the start offset are ignored, and so is what no leader may write.

        Takes as long as the batches from the first to the last update are many.
        """
        updates = [one for found in updates if (one := _possible(found, self.start_offset))]
        if not updates:
            return
        if not are_in_order(updates):  # an earlier release may have written them
            for one in updates:
                self._merge([one])
            return
        self._merge(updates)

    def _merge(self, updates: Sequence[Batch]) -> None:
        # with the neighbours, which may have the same state
        begin = max(0, bisect_left(self.batches, updates[0].first_offset, key=_last) - 1)
        end = bisect_right(self.batches, updates[-1].last_offset, key=_first) + 1
        self.batches[begin:end] = _merged(self.batches[begin:end], updates)

    def advance(self) -> None:
        """Move the start offset behind records that are done."""
        passed = 0
        for one in self.batches:
            if one.first_offset != self.start_offset or one.state not in DONE:
                break
            self.start_offset = one.last_offset + 1
            passed += 1
        del self.batches[:passed]

    def remove_before(self, offset: Offset) -> None:
        """The records before `offset` are done."""
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        passed = bisect_left(self.batches, offset, key=_last)
        del self.batches[:passed]
        if self.batches and self.batches[0].first_offset < offset:
            self.batches[0] = self.batches[0]._replace(first_offset=offset)


def are_in_order(batches: Sequence[Batch]) -> bool:
    """Whether each begins behind the one before it."""
    return all(before.last_offset < after.first_offset for before, after in pairwise(batches))


def is_valid(batch: Batch) -> bool:
    """Whether a leader may write this batch."""
    return (
        0 <= batch.first_offset <= batch.last_offset <= SHARE_OFFSET_MAX
        and batch.state in _STORED
        and 0 <= batch.delivery_count <= DELIVERY_COUNT_MAX
        and (batch.time_ms == 0 or (batch.time_ms > 0 and batch.state in _WITH_TIME))
    )


def _possible(batch: Batch, start_offset: Offset) -> Batch | None:
    """The batch from the start offset on, with values that a leader may write. None if nothing is
    left. A log may have others, which an earlier release has accepted."""
    first = max(batch.first_offset, start_offset)
    last = min(batch.last_offset, SHARE_OFFSET_MAX)
    if first > last:
        return None
    if batch.state in DONE:
        return Batch(first, last, batch.state, 0)
    count = min(max(0, batch.delivery_count), DELIVERY_COUNT_MAX)
    if batch.state in _WITH_TIME:
        return Batch(first, last, batch.state, count, max(0, batch.time_ms))
    return Batch(first, last, RecordState.AVAILABLE, count)


def _merged(batches: Sequence[Batch], updates: Sequence[Batch]) -> list[Batch]:
    """The batches after the updates. Both are in order."""
    found: list[Batch] = []

    def add(first: Offset, last: Offset, one: Batch) -> None:
        if first > last or one[2:] == _NEVER_DELIVERED:
            return
        before = found[-1] if found else None
        if before is not None and before.last_offset + 1 == first and before[2:] == one[2:]:
            found[-1] = before._replace(last_offset=last)
        else:
            found.append(Batch(first, last, *one[2:]))

    position = 0
    rest: Batch | None = None
    """The part of the batch before `position` that is behind the last update."""
    for update in updates:
        while True:
            if rest is None:
                if position == len(batches):
                    break
                rest = batches[position]
                position += 1
            if rest.first_offset > update.last_offset:
                break
            add(rest.first_offset, min(rest.last_offset, update.first_offset - 1), rest)
            if rest.last_offset > update.last_offset:
                rest = rest._replace(first_offset=max(rest.first_offset, update.last_offset + 1))
                break
            rest = None
        add(update.first_offset, update.last_offset, update)
    if rest is not None:
        add(rest.first_offset, rest.last_offset, rest)
    for one in batches[position:]:
        add(one.first_offset, one.last_offset, one)
    return found
