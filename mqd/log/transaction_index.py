"""Kafka's transaction index (`.txnindex`): the aborted transactions of one segment, in the order of
their markers. A core.

A consumer with read_committed skips the records of these transactions. An entry belongs to the
segment with the marker; the records may be in earlier segments. A segment without entries has no
file.

The other indexes only make lookups faster. Without an entry of this index, consumers would receive
aborted records. So each sync of the segment writes the whole file, before the recovery point passes
the segment (disk/sync_plan.py). After the recovery point, recovery rebuilds the index from the
log.

Invariants: marker offsets ascend strictly. The first offset and the last stable offset of an entry
are below its marker.
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
        """The whole file. The caller writes it: the index is no longer stale."""
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
        producer_ids, first_offsets, last_offsets, stable_offsets = self._columns
        found = []
        for index in range(bisect_left(last_offsets, start_offset), len(self)):
            if first_offsets[index] < end_offset:
                found.append(
                    AbortedTransaction(
                        producer_ids[index],
                        first_offsets[index],
                        last_offsets[index],
                        stable_offsets[index],
                    )
                )
            if stable_offsets[index] >= end_offset:
                return found, True
        return found, False
