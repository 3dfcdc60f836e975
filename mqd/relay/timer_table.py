"""The newest entries of a timer index, in memory: a heap, and the keys of their records. Pure.

A table has all entries of a range of offsets. When it is full it is sealed: it gets no further
records, and is written to a file. Until then its entries can be taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from mqd.limits import TIMER_TABLE_OFFSETS_MAX
from mqd.relay.timer_format import KEY, NO_KEY, key_code
from mqd.types import Offset


class TimerTable:
    """Records at offsets from `start` on. `end` is set when the table is sealed."""

    __slots__ = ("_earlier", "_newest", "end", "heap", "start")

    def __init__(self, start: Offset) -> None:
        self.start = self.end = start
        self.heap: list[bytes] = []
        """Pending entries, a heap."""
        self._newest: dict[int, int] = {}
        """The code (`key_code`) of the newest record with each key hash."""
        self._earlier: dict[int, int] = {}
        """The code of the next older record with the same hash, by code."""

    def add(self, entry: bytes) -> None:
        heapq.heappush(self.heap, entry)

    def add_key(self, key_hash: int, offset: Offset, is_tombstone: bool) -> None:
        assert key_hash != NO_KEY
        code = key_code(offset, is_tombstone)
        earlier = self._newest.get(key_hash)
        if earlier is not None:
            self._earlier[code] = earlier
        self._newest[key_hash] = code

    def is_full(self, entries_max: int, end: Offset) -> bool:
        """Whether the table is to be sealed if the index has read to `end`."""
        return (
            len(self.heap) >= entries_max
            or len(self._newest) + len(self._earlier) >= entries_max
            or end - self.start >= TIMER_TABLE_OFFSETS_MAX
        )

    def newest_key(self, key_hash: int, below: Offset, tombstones_only: bool) -> Offset | None:
        """The newest record below an offset that has this key hash."""
        code = self._newest.get(key_hash)
        while code is not None and (code >> 1 >= below or (tombstones_only and not code & 1)):
            code = self._earlier.get(code)
        return None if code is None else code >> 1

    def keys(self) -> Iterator[bytes]:
        """All keys, in no order."""
        for key_hash, newest in self._newest.items():
            code: int | None = newest
            while code is not None:
                yield KEY.pack(key_hash, code)
                code = self._earlier.get(code)

    def entries_with(self, others: Iterable[bytes]) -> list[bytes]:
        """The pending entries of the table, and those of `others` that are in its range."""
        start, end = self.start.to_bytes(8, "big"), self.end.to_bytes(8, "big")
        return [*self.heap, *(one for one in others if start <= one[8:16] < end)]

    def lowest_offset(self) -> Offset | None:
        """The smallest offset of a pending entry."""
        lowest = min([entry[8:16] for entry in self.heap], default=None)
        return None if lowest is None else int.from_bytes(lowest, "big")
