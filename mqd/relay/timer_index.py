"""The timer index of one delay partition: its pending records, by the time at which they are due.

The index is derived from the log, and may be rebuilt from it at any time. The caller reads the log
in order of offsets, up to the last stable offset, and reports each record: `add`, `cancel` for a
tombstone, `read_to` for all others. It takes due records with `pop`, and commits the `progress()`
of the index together with what it has done with them. Then `confirm` says so. After a failed
commit, `rewind` makes the records pending again. After a restart or a failover, `load` gets the
last committed progress.

Hashes of keys have 64 bits, so different keys may have the same one. `cancelled_by`, `replaced_by`
and `latest_of` therefore return offsets of records whose key may be equal. The caller reads these
records and compares the keys, which makes the result exact.

Invariant: an entry that the committed progress does not cover is pending, or was popped and is not
confirmed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from mqd.relay.delay_progress import Mark, Progress
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

NO_KEY: Final = 0
"""The key hash of a record without a key. Nothing cancels or replaces it."""


class Entry(NamedTuple):
    """A pending record."""

    due_ms: int
    offset: Offset
    key_hash: int


def key_hash_of(key: bytes | None) -> int:
    """64 bits; NO_KEY for a record without a key."""
    if key is None:
        return NO_KEY
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") or 1


class TimerIndex:
    """`directory`: that of the partition's log. `epoch_of`: the leader epoch of the record at an
    offset. `keeps_keys`: whether `replaced_by` and `latest_of` are used (`mqd.delay.replace`).
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic_id: UUID,
        partition: int,
        epoch_of: Callable[[Offset], int],
        *,
        keeps_keys: bool = False,
    ) -> None:
        self.next_offset: Offset = 0
        """The first offset that the index does not know yet: the caller reads the log from here."""
        self._pending: list[Entry] = []
        self._popped: list[Entry] = []
        self._progress = self._confirmed = Progress()
        self._tombstones: dict[int, list[Offset]] = {}
        self._records: dict[int, list[Offset]] = {}

    async def load(self, progress: Progress, log_start: Offset, log_end: Offset) -> None:
        """Open what an earlier run of the node has left. The caller then reads the log from
        `next_offset`. `log_end`: the end of what is committed.
        """
        self._progress = self._confirmed = progress
        self.next_offset = log_start

    async def run(self) -> None:
        """Write and merge files in the background, until it is cancelled. Raises StorageError."""

    @property
    def has_room(self) -> bool:
        """Whether further records may be added. If not, `wait_for_room` first."""
        return True

    async def wait_for_room(self) -> None:
        """Wait until the task of `run` has written what the memory has no room for."""

    # -- from the log

    def add(self, due_ms: int, offset: Offset, key_hash: int = NO_KEY) -> None:
        """The record at `offset` is due at `due_ms`."""
        assert offset >= self.next_offset and due_ms >= 0, (due_ms, offset, self.next_offset)
        self.next_offset = offset + 1
        if key_hash:
            self._records.setdefault(key_hash, []).append(offset)
        if not self._confirmed.covers(due_ms, offset):
            heapq.heappush(self._pending, Entry(due_ms, offset, key_hash))

    def cancel(self, key_hash: int, offset: Offset) -> None:
        """The record at `offset` is a tombstone. It cancels earlier records with its key."""
        assert offset >= self.next_offset, (offset, self.next_offset)
        self.next_offset = offset + 1
        self._tombstones.setdefault(key_hash, []).append(offset)
        self._records.setdefault(key_hash, []).append(offset)

    def read_to(self, offset: Offset) -> None:
        """No other record below `offset` belongs into the index."""
        self.next_offset = max(self.next_offset, offset)

    # -- in the order of time

    def __len__(self) -> int:
        """Pending entries, with cancelled and replaced ones until they are due."""
        return len(self._pending)

    def peek(self) -> Entry | None:
        """The entry that is due first, and of these the one with the smallest offset."""
        return self._pending[0] if self._pending else None

    def pop(self) -> Entry:
        """Take the entry of `peek`. IndexError if there is none."""
        entry = heapq.heappop(self._pending)
        self._popped.append(entry)
        self._progress = self._progress.with_mark(
            Mark(entry.due_ms, entry.offset, self.next_offset)
        )
        return entry

    def passed(self, now_ms: int) -> None:
        """Nothing is due by `now_ms` any more. This keeps the progress short."""
        first = self.peek()
        assert first is None or first.due_ms > now_ms, (first, now_ms)
        self._progress = self._progress.passed(now_ms, self.next_offset)

    def progress(self) -> Progress:
        """What is done if everything is that was popped so far."""
        return self._progress

    def confirm(self, progress: Progress) -> None:
        """An earlier result of `progress()` is committed."""
        self._confirmed = progress
        self._popped = [one for one in self._popped if not progress.covers(one.due_ms, one.offset)]

    def rewind(self) -> None:
        """A commit failed: entries that were popped and not confirmed are pending again."""
        for entry in self._popped:
            heapq.heappush(self._pending, entry)
        self._popped.clear()
        self._progress = self._confirmed

    def lowest_offset(self) -> Offset | None:
        """No entry below this offset is pending, or popped and not confirmed. The log may be
        deleted up to here. None if there is no entry.
        """
        return min((one.offset for one in (*self._pending, *self._popped)), default=None)

    # -- by key

    def cancelled_by(self, key_hash: int, offset: Offset) -> Iterator[Offset]:
        """Tombstones after `offset` that have this key hash, the newest first. If one of them has
        the key of the record at `offset`, that record is cancelled.
        """
        return (one for one in reversed(self._tombstones.get(key_hash, ())) if one > offset)

    def replaced_by(self, key_hash: int, offset: Offset) -> Iterator[Offset]:
        """Records and tombstones after `offset` that have this key hash, the newest first.
        Needs `keeps_keys`."""
        return (one for one in reversed(self._records.get(key_hash, ())) if one > offset)

    def latest_of(self, key_hash: int) -> Offset | None:
        """The newest record or tombstone with this key hash, if it is at or above
        `lowest_offset()`. Needs `keeps_keys`."""
        return next(self.replaced_by(key_hash, -1), None)
