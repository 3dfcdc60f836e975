"""The two sparse indexes of one segment, in memory: offset -> position and timestamp -> offset. A
core.

disk/segment_files.py writes `take_unwritten()` to the files. Offsets are relative to the base
offset of the segment, as on disk. An index only makes lookups faster: each entry is correct, but
any entry may be missing. Missing or damaged files are rebuilt from the log.

Invariants: offsets and positions ascend strictly. An entry (t, o) of the time index means that no
batch up to offset o has a timestamp above t.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from mqd.protocol.files import decode_index, decode_time_index, encode_index, encode_time_index


class OffsetIndex:
    """(last offset of a batch, start position of that batch), one for about each
    `index.interval.bytes`.
    """

    __slots__ = ("_offsets", "_positions", "_written", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")
        self._written = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def unwritten(self) -> int:
        """The number of entries that the file lacks."""
        return len(self._offsets) - self._written

    @classmethod
    def load(cls, base_offset: int, data: bytes, log_size: int) -> OffsetIndex:
        """Decode a file. FileFormatError if it cannot belong to a segment of `log_size` bytes."""
        index = cls(base_offset)
        index._offsets, index._positions = decode_index(data, log_size)
        index._written = len(index._offsets)
        return index

    def append(self, last_offset: int, position: int) -> None:
        # An entry points to the start of a batch that is written (I13).
        self._offsets.append(last_offset - self.base_offset)
        self._positions.append(position)

    def position_of(self, offset: int) -> int:
        """The start of a batch at or before `offset`, where a search for it begins."""
        found = bisect_right(self._offsets, offset - self.base_offset)
        return self._positions[found - 1] if found else 0

    def position_after(self, offset: int) -> int:
        """A start of a batch from which on all offsets are at least `offset`; far beyond any
        segment if none is known.
        """
        found = bisect_left(self._offsets, offset - self.base_offset) + 1
        return self._positions[found] if found < len(self._positions) else 1 << 62

    def batch_start_before(self, position: int) -> int:
        """The last known start of a batch at or before `position`."""
        found = bisect_right(self._positions, position)
        return self._positions[found - 1] if found else 0

    def last_offset(self) -> int:
        return self.base_offset + self._offsets[-1]

    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def truncate(self, end_offset: int, size: int) -> None:
        """Remove entries at or after `end_offset`, or beyond `size` bytes."""
        keep = min(
            bisect_left(self._offsets, end_offset - self.base_offset),
            bisect_left(self._positions, size),
        )
        del self._offsets[keep:], self._positions[keep:]
        self._written = min(self._written, keep)

    def encode(self) -> bytes:
        """All entries. The caller writes them."""
        self.unwrite()
        return self.take_unwritten()

    def unwrite(self) -> None:
        """The file was removed: it lacks all entries."""
        self._written = 0

    def take_unwritten(self) -> bytes:
        """The entries that the file lacks. The caller writes them."""
        data = encode_index(self._offsets[self._written :], self._positions[self._written :])
        self._written = len(self._offsets)
        return data


class TimeIndex:
    """(largest timestamp so far, last offset of the batch with it). Timestamps in ms."""

    __slots__ = ("_offsets", "_timestamps", "_written", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")
        self._written = 0

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def unwritten(self) -> int:
        return len(self._timestamps) - self._written

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Decode a file. FileFormatError if it is damaged."""
        index = cls(base_offset)
        index._timestamps, index._offsets = decode_time_index(data)
        index._written = len(index._timestamps)
        return index

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is larger than that of the last entry, and not -1."""
        if timestamp > (self._timestamps[-1] if self._timestamps else -1):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def offset_before(self, timestamp: int) -> int:
        """An offset up to which every batch is older than `timestamp`. A search begins there."""
        found = bisect_left(self._timestamps, timestamp)
        return self.base_offset + self._offsets[found - 1] if found else self.base_offset

    def last_before(self, end_offset: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry below `end_offset`; (-1, base offset) if there is
        none.
        """
        found = bisect_left(self._offsets, end_offset - self.base_offset)
        return (
            (self._timestamps[found - 1], self.base_offset + self._offsets[found - 1])
            if found
            else (-1, self.base_offset)
        )

    def truncate(self, end_offset: int) -> None:
        """Remove entries at or after `end_offset`."""
        keep = bisect_left(self._offsets, end_offset - self.base_offset)
        del self._offsets[keep:], self._timestamps[keep:]
        self._written = min(self._written, keep)

    def encode(self) -> bytes:
        """All entries. The caller writes them."""
        self.unwrite()
        return self.take_unwritten()

    def unwrite(self) -> None:
        """The file was removed: it lacks all entries."""
        self._written = 0

    def take_unwritten(self) -> bytes:
        """The entries that the file lacks. The caller writes them."""
        data = encode_time_index(self._timestamps[self._written :], self._offsets[self._written :])
        self._written = len(self._timestamps)
        return data
