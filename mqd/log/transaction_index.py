"""Kafka's transaction index (`.txnindex`): the aborted transactions of one segment, in the order of
their markers. A core.

A consumer with read_committed skips the records of these transactions. An entry belongs to the
segment with the marker; the records may be in earlier segments. A segment without entries has no
file.

The other indexes only make lookups faster. Without an entry of this index, consumers would receive
aborted records. So each sync of the segment writes the whole file, before the recovery point passes
the segment (disk/sync_plan.py). After the recovery point, recovery rebuilds the index from the
log.

Invariants: marker offsets ascend strictly, and last stable offsets never descend. The first offset
of an entry is below its marker.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter

from mqd.limits import ABORTED_AT_ONCE
from mqd.protocol.files import (
    AbortedTransaction,
    FileFormatError,
    decode_txn_index_columns,
    encode_txn_index_columns,
)
from mqd.protocol.slices import WHOLE_SLICE, Slices
from mqd.types import Offset

_FIRST_OFFSET = itemgetter(1)
_NONE = tuple(array("q") for _ in AbortedTransaction._fields)


class TransactionIndex:
    """See the head of this file. 32 bytes for each entry; empty indexes share their columns."""

    __slots__ = ("_columns", "stale")

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._columns = _NONE
        self.stale = False
        """Whether the file differs from this index."""
        for transaction in transactions:
            self._append(transaction)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(AbortedTransaction._make, zip(*self._columns, strict=True))

    @classmethod
    def load(cls, data: bytes, base_offset: Offset, next_offset: Offset) -> TransactionIndex:
        """Decode a file. FileFormatError if it cannot belong to a segment of these offsets."""
        columns = decode_txn_index_columns(data)
        last_offsets = columns[2]
        if last_offsets and not base_offset <= last_offsets[0] <= last_offsets[-1] < next_offset:
            raise FileFormatError(
                f"the transaction index has markers outside of offsets {base_offset} to "
                f"{next_offset}"
            )
        index = cls()
        if last_offsets:
            index._columns = columns
        return index

    def encode(self) -> bytes:
        """The whole file. The caller writes it: the index is no longer stale."""
        self.stale = False
        return encode_txn_index_columns(self._columns)

    def extend(self, transactions: Iterable[AbortedTransaction]) -> None:
        for transaction in transactions:
            assert not self or transaction.last_offset > self._columns[2][-1], transaction
            self._append(transaction)
            self.stale = True

    def _append(self, transaction: AbortedTransaction) -> None:
        if self._columns is _NONE:
            self._columns = tuple(array("q") for _ in _NONE)
        for column, value in zip(self._columns, transaction, strict=True):
            column.append(value)

    def truncate(self, end_offset: Offset) -> None:
        """Remove transactions whose markers are at or after `end_offset`. They are open again."""
        keep = bisect_left(self._columns[2], end_offset)
        if keep < len(self):
            self.stale = True
            for column in self._columns:
                del column[keep:]

    def overlapping(
        self, start_offset: Offset, end_offset: Offset
    ) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with a record in [start, end), and whether the result is complete. If not,
        later segments may hold markers of more such transactions.
        """
        positions, is_complete = self.candidates(start_offset, end_offset)
        found = [
            AbortedTransaction(*(column[index] for column in self._columns))
            for index in positions
            if self._columns[1][index] < end_offset
        ]
        return found, is_complete

    def candidates(self, start_offset: Offset, end_offset: Offset) -> tuple[range, bool]:
        """Positions of the transactions that may have a record in [start, end), and whether the
        result is complete, as for `overlapping`.
        """
        _, _, last_offsets, stable_offsets = self._columns
        first = bisect_left(last_offsets, start_offset)
        last = bisect_left(stable_offsets, end_offset, first)
        return range(first, min(last + 1, len(self))), last < len(self)

    def begun_before(self, end_offset: Offset, positions: range) -> list[tuple[int, Offset]]:
        """(producer id, first offset) of those at `positions` that have begun below an offset."""
        part = slice(positions.start, positions.stop)
        producer_ids, first_offsets, _, _ = self._columns
        return [one for one in zip(producer_ids[part], first_offsets[part]) if one[1] < end_offset]


class AbortedCandidates:
    """The transactions that may have a record between two offsets, in all segments, to be listed in
    slices.

    It keeps the indexes from before: meanwhile, a compaction may give the log others, and retention
    may remove them.
    """

    __slots__ = ("_end_offset", "_parts", "count")

    def __init__(self, end_offset: Offset) -> None:
        self._end_offset = end_offset
        self._parts: list[tuple[TransactionIndex, range]] = []
        self.count = 0

    def add(self, index: TransactionIndex, positions: range) -> None:
        self._parts.append((index, positions))
        self.count += len(positions)

    def listed(self) -> Slices[list[tuple[int, Offset]]]:
        """(producer id, first offset) of those with a record there, by their first offset."""
        chunks = []
        for index, positions in self._parts:
            for first in range(0, len(positions), ABORTED_AT_ONCE):
                part = positions[first : first + ABORTED_AT_ONCE]
                chunk = index.begun_before(self._end_offset, part)
                chunk.sort(key=_FIRST_OFFSET)
                chunks.append(chunk)
                yield WHOLE_SLICE
        if len(chunks) == 1:
            return chunks[0]
        found = []
        for one in merge(*chunks, key=_FIRST_OFFSET):
            found.append(one)
            if len(found) % ABORTED_AT_ONCE == 0:
                yield WHOLE_SLICE
        return found
