"""The order of records with the same key, for a share group with `share.key.affinity` (beyond
KIP-932; as FIFO message groups of SQS). Pure.

A share partition knows the keys of its unfinished records up to `known_end`, in the order of the
log. The first unfinished record of a key is its head. Only heads are delivered, so one member at a
time has a record of the key, and a released record comes before later ones of its key. A record
without a key waits for no other.

Keys are not stored: a new leader reads the keys of unfinished records again before it delivers
records beyond them. Two keys with one hash wait for each other.

Invariant: a queue has the unfinished records of one key, in order, without gaps up to `known_end`.
An offset in `_ready` is a head, or has no key. Its record was available when it was added (I63).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mqd.types import Offset

ENTRY_BYTES: Final = 300
"""Memory of one unfinished record, with its place in a queue."""


class KeyOf(NamedTuple):
    """The key of one record."""

    offset: Offset
    key_hash: int | None
    """None for a record without a key."""


class KeyAffinity:
    """The unfinished records of one share partition, by key."""

    def __init__(self, start_offset: Offset) -> None:
        self.known_end = start_offset
        """The keys of all unfinished records before it are known."""
        self._queues: dict[int, deque[Offset]] = {}
        self._keys: dict[Offset, int | None] = {}
        """All known unfinished records."""
        self._ready: list[Offset] = []
        """In order. As many as all known records at most: a few thousand, by `Limits.state_bytes`.
        So a change of the list takes about a microsecond."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return ENTRY_BYTES * len(self._keys)

    def next_ready(self) -> Offset | None:
        """The first record that may be delivered."""
        return self._ready[0] if self._ready else None

    def ready_between(self, first: Offset, last: Offset) -> list[Offset]:
        """The records that may be delivered, in order, of these offsets."""
        ready = self._ready
        return ready[bisect_left(ready, first) : bisect_left(ready, last + 1)]

    def learn(
        self, keys: Iterable[KeyOf], end: Offset, is_available: Callable[[Offset], bool]
    ) -> None:
        """The keys of all unfinished records from `known_end` on up to `end`, in order. Records
        before `known_end` are ignored. `is_available(offset)`: whether it is not acquired.
        """
        for offset, key_hash in keys:
            if offset < self.known_end:
                continue
            self._keys[offset] = key_hash
            if key_hash is not None:
                queue = self._queues.setdefault(key_hash, deque())
                assert not queue or queue[-1] < offset, (queue[-1], offset)
                queue.append(offset)
            if is_available(offset):
                self.available(offset)
        self.known_end = max(self.known_end, end)

    def acquired(self, offset: Offset) -> None:
        """The record is delivered to a member."""
        was_ready = self._not_ready(offset)
        assert was_ready, offset

    def withhold(self, first: Offset, last: Offset) -> None:
        """These records are not delivered, until they are done or available."""
        for offset in self.within(first, last):
            self._not_ready(offset)

    def available(self, offset: Offset) -> bool:
        """The record may be delivered, if it is the head of its key. Returns whether it is."""
        if offset not in self._keys:
            return False
        key_hash = self._keys[offset]
        if key_hash is not None and self._queues[key_hash][0] != offset:
            return False
        ready = self._ready
        at = bisect_left(ready, offset)
        if at < len(ready) and ready[at] == offset:
            return False
        ready.insert(at, offset)
        return True

    def done(self, offset: Offset) -> Offset | None:
        """The record is never delivered again. Returns the new head of its key, if there is one:
        the caller says whether it is `available`.
        """
        if offset not in self._keys:
            return None
        key_hash = self._keys.pop(offset)
        self._not_ready(offset)
        if key_hash is None:
            return None
        queue = self._queues[key_hash]
        if queue[0] != offset:  # several were acquired before the group got this option
            queue.remove(offset)
            return None
        queue.popleft()
        if not queue:
            del self._queues[key_hash]
            return None
        return queue[0]

    def within(self, first: Offset, last: Offset) -> list[Offset]:
        """The known unfinished records of these offsets, in order. Takes no longer for millions of
        offsets."""
        if last - first < len(self._keys):
            return [one for one in range(first, last + 1) if one in self._keys]
        return sorted(one for one in self._keys if first <= one <= last)

    def _not_ready(self, offset: Offset) -> bool:
        """Returns whether it was ready."""
        ready = self._ready
        at = bisect_left(ready, offset)
        if at == len(ready) or ready[at] != offset:
            return False
        del ready[at]
        return True

    def check(self) -> None:
        """Assert the invariant, for tests."""
        for key_hash, queue in self._queues.items():
            assert list(queue) == sorted(queue), queue
            assert all(self._keys[one] == key_hash for one in queue)
        for offset in self._ready:
            key_of = self._keys[offset]
            assert key_of is None or self._queues[key_of][0] == offset
        assert self._ready == sorted(set(self._ready))
