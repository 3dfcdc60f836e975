"""One segment of a log: the state of one file of batches. A core.

The state describes the written part of the file: `size` bytes, offsets below `next_offset`. Bytes
in the file beyond `size` are not part of the log. The segment holds its `File` for the functions in
disk/, which read and write it.

Invariants: base_offset <= next_offset; each index entry is the start of a batch below `size`;
`(max_timestamp, max_timestamp_offset)` is of the first batch with the largest timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqd.log.index import OffsetIndex, TimeIndex
from mqd.log.transaction_index import TransactionIndex
from mqd.protocol.files import RELATIVE_OFFSET_MAX, AbortedTransaction
from mqd.types import NO_TIMESTAMP, Offset

if TYPE_CHECKING:
    from mqd.io.disk import File


class Segment:
    """See the head of this file. An older segment may be closed: its file and indexes are None, and
    are opened again for the next read.
    """

    __slots__ = (
        "_bytes_since_index",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "has_key_filter",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "suffix",
        "time_index",
        "transaction_index",
    )

    def __init__(self, base_offset: Offset, created_ms: int, file: File | None = None) -> None:
        self.base_offset = base_offset
        self.created_ms = created_ms
        """Time when this process created or loaded the segment, in ms."""
        self.file = file
        self.size = 0
        self.next_offset = base_offset
        self.index: OffsetIndex | None = OffsetIndex(base_offset)
        self.time_index: TimeIndex | None = TimeIndex(base_offset)
        self.first_timestamp = NO_TIMESTAMP
        """Largest timestamp of the first batch. `segment.ms` counts from it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """Last offset of the first batch with the largest timestamp."""
        self.transaction_index: TransactionIndex | None = TransactionIndex()
        """None: not loaded."""
        self.has_key_filter = False
        """Whether its key filter is known to be there (manager/key_indexer.py)."""
        self.suffix = ""
        """Suffix of its file names during a swap (disk/segment_swap.py)."""
        self._bytes_since_index = 0

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset} {self.size} bytes>"

    def add(
        self, last_offset: Offset, size: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """A batch was appended to the file."""
        assert self.index is not None and self.time_index is not None
        assert self.next_offset <= last_offset <= self.base_offset + RELATIVE_OFFSET_MAX, (
            self,
            last_offset,
        )
        self.note_time(last_offset, max_timestamp)
        if not self.size:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > index_interval_bytes:
            self.index.append(last_offset, self.size)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size
        self.size += size
        self.next_offset = last_offset + 1

    def note_time(self, last_offset: Offset, max_timestamp: int) -> None:
        """Update the largest timestamp for one batch."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Markers in the batches that were added last have aborted these."""
        assert self.transaction_index is not None
        self.transaction_index.extend(transactions)

    def restore(
        self,
        size: int,
        next_offset: Offset,
        index: OffsetIndex,
        time_index: TimeIndex,
        first_timestamp: int,
    ) -> None:
        """Load the state up to the last index entry. The caller then calls `add` for each batch
        from there on.
        """
        assert not self.size
        self.index, self.time_index = index, time_index
        self.size, self.next_offset, self.first_timestamp = size, next_offset, first_timestamp
        self.max_timestamp, self.max_timestamp_offset = time_index.last()

    def on_truncated(self, size: int, next_offset: Offset) -> None:
        """The file was truncated to `size` bytes, and the last batch ends before `next_offset`.

        If the batch with the largest timestamp was removed, `max_timestamp` covers the batches up
        to the last index entry. The caller then calls `note_time` for each batch after it.
        """
        assert self.index is not None and self.time_index is not None
        self.size, self.next_offset = size, next_offset
        self.index.truncate(next_offset, size)
        if self.transaction_index is not None:
            self.transaction_index.truncate(next_offset)
        self.time_index.truncate(next_offset)
        self._bytes_since_index = size - self.index.last_position()
        if not size:
            self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
            self.max_timestamp_offset = self.base_offset
        elif self.max_timestamp_offset >= next_offset:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()

    def on_inactive(self) -> None:
        """Nothing more is appended: the time index gets its last entry."""
        assert self.time_index is not None
        self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
