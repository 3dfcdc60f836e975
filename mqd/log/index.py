"""The two sparse indexes of one segment, in memory: last offset -> position, and time -> offset.

A core; the service writes `take_unwritten()` to the files. Entries are relative to the segment's
base offset, as on disk. An index is an aid: every entry is true, but none need be there, and both
are built again from the log when their files are missing or refused.

Invariants: offsets and positions ascend strictly; (t, o) in the time index says that no batch up to
o is younger than t.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from mqd.protocol.files import decode_index, decode_time_index, encode_index, encode_time_index


class OffsetIndex:
    """(last offset of a batch, where that batch begins), about one a `index.interval.bytes`."""

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
        """Entries that the file has not got."""
        return len(self._offsets) - self._written

    @classmethod
    def load(cls, base_offset: int, data: bytes, log_size: int) -> OffsetIndex:
        """From the bytes of a file.

        FileFormatError when they make no sense for a log of `log_size` bytes.
        """
        index = cls(base_offset)
        index._offsets, index._positions = decode_index(data, log_size)
        index._written = len(index._offsets)
        return index

    def append(self, last_offset: int, position: int) -> None:
        # An entry points to the start of a batch that is written (I13).
        self._offsets.append(last_offset - self.base_offset)
        self._positions.append(position)

    def position_of(self, offset: int) -> int:
        """Where to begin to look for `offset`: the start of a batch that is not behind it."""
        found = bisect_right(self._offsets, offset - self.base_offset)
        return self._positions[found - 1] if found else 0

    def border_before(self, position: int) -> int:
        """The last known start of a batch that is not after `position`."""
        found = bisect_right(self._positions, position)
        return self._positions[found - 1] if found else 0

    def last_offset(self) -> int:
        return self.base_offset + self._offsets[-1]

    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def truncate(self, end_offset: int, size: int) -> None:
        """Forget entries at or after `end_offset`, or beyond `size` bytes."""
        keep = min(
            bisect_left(self._offsets, end_offset - self.base_offset),
            bisect_left(self._positions, size),
        )
        del self._offsets[keep:], self._positions[keep:]
        self._written = min(self._written, keep)

    def encode(self) -> bytes:
        """All entries, now counted as written."""
        self.unwrite()
        return self.take_unwritten()

    def unwrite(self) -> None:
        """The file is gone: no entry is written."""
        self._written = 0

    def take_unwritten(self) -> bytes:
        """The entries that the file lacks, now counted as written."""
        data = encode_index(self._offsets[self._written :], self._positions[self._written :])
        self._written = len(self._offsets)
        return data


class TimeIndex:
    """(largest timestamp so far, last offset of the batch that has it); timestamps in ms,
    ascending.
    """

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
        """From the bytes of a file; FileFormatError when they make no sense."""
        index = cls(base_offset)
        index._timestamps, index._offsets = decode_time_index(data)
        index._written = len(index._timestamps)
        return index

    def append(self, timestamp: int, offset: int) -> None:
        """Note the largest timestamp so far; nothing when it is not larger than what is
        there (or is no time at all).
        """
        if timestamp > (self._timestamps[-1] if self._timestamps else -1):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def offset_before(self, timestamp: int) -> int:
        """An offset up to which every batch is older than `timestamp`: where to begin to
        look for it.
        """
        found = bisect_left(self._timestamps, timestamp)
        return self.base_offset + self._offsets[found - 1] if found else self.base_offset

    def last_before(self, end_offset: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry below `end_offset`; (-1, base offset) when
        there is none.
        """
        found = bisect_left(self._offsets, end_offset - self.base_offset)
        return (
            (self._timestamps[found - 1], self.base_offset + self._offsets[found - 1])
            if found
            else (-1, self.base_offset)
        )

    def truncate(self, end_offset: int) -> None:
        """Forget entries at or after `end_offset`."""
        keep = bisect_left(self._offsets, end_offset - self.base_offset)
        del self._offsets[keep:], self._timestamps[keep:]
        self._written = min(self._written, keep)

    def encode(self) -> bytes:
        """All entries, now counted as written."""
        self.unwrite()
        return self.take_unwritten()

    def unwrite(self) -> None:
        """The file is gone: no entry is written."""
        self._written = 0

    def take_unwritten(self) -> bytes:
        """The entries that the file lacks, now counted as written."""
        data = encode_time_index(self._timestamps[self._written :], self._offsets[self._written :])
        self._written = len(self._timestamps)
        return data
