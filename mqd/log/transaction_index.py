"""The aborted transactions of one segment, in the order of their markers: what a reader of
committed records must leave out. A core.

An entry belongs to the segment that holds its marker; the records may lie in earlier ones. Kafka's
file (`.txnindex`) holds the same, and is there only where there is an entry. Other than the other
indexes this one is no mere aid: without its entry the records of an aborted transaction would be
given out. So the file is written whole, with the segment's sync and before the recovery point
passes the segment (disk/sync_plan.py); up to there recovery makes the index anew from the log.

Invariants: markers ascend strictly; each transaction begins before its marker, and so does what was
stable when it ended.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from mqd.protocol.files import (
    AbortedTransaction,
    FileFormatError,
    decode_txn_index,
    encode_txn_index,
)
from mqd.types import Offset

_NONE = tuple(array("q") for _ in AbortedTransaction._fields)


class AbortedIndex:
    """See the head of this file: 32 bytes an entry, and next to nothing where there is none."""

    __slots__ = ("_columns", "stale")

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._columns = _NONE
        self.stale = False
        """Whether the file holds something else."""
        for transaction in transactions:
            self._append(transaction)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(AbortedTransaction._make, zip(*self._columns, strict=True))

    @classmethod
    def load(cls, data: bytes, base_offset: Offset, next_offset: Offset) -> AbortedIndex:
        """From the bytes of a file.

        FileFormatError where they make no sense for a segment of these offsets.
        """
        transactions = decode_txn_index(data)
        if (
            transactions
            and not base_offset
            <= transactions[0].last_offset
            <= transactions[-1].last_offset
            < next_offset
        ):
            raise FileFormatError(
                f"the transaction index has markers outside of offsets {base_offset} to "
                f"{next_offset}"
            )
        return cls(transactions)

    def encode(self) -> bytes:
        """The whole file; from here on it counts as written."""
        self.stale = False
        return encode_txn_index(self)

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
        """Forget transactions whose markers are at or after `end_offset`: they are open again."""
        keep = bisect_left(self._columns[2], end_offset)
        if keep < len(self):
            self.stale = True
            for column in self._columns:
                del column[keep:]

    def overlapping(
        self, start_offset: Offset, end_offset: Offset
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those that have a record in [start, end), and whether that is all: markers in
        later segments may end more of them otherwise.
        """
        producer_ids, first_offsets, last_offsets, stable_offsets = self._columns
        found = []
        for at in range(bisect_left(last_offsets, start_offset), len(self)):
            if first_offsets[at] < end_offset:
                found.append(
                    AbortedTransaction(
                        producer_ids[at], first_offsets[at], last_offsets[at], stable_offsets[at]
                    )
                )
            if stable_offsets[at] >= end_offset:
                return found, True
        return found, False
