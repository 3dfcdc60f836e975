"""The newest offset of each key, in memory of a fixed size: an open-addressing hash table of
digests. A core.

Kafka's SkimpyOffsetMap with another hash: 16 bytes of digest and 8 of the offset for each slot,
whatever the size of the keys. Two keys with one digest would be one key; with 128 bits of BLAKE2b
nobody has found or can make such a pair.

Invariants: an entry, once there, is only ever replaced by one with a higher offset; at most
`load_factor` of the slots are taken.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct
from typing import Final

from mqd.types import NO_OFFSET, Offset

BYTES_PER_SLOT: Final = 24
DIGEST_BYTES: Final = 16

_WORDS = Struct("<QQ").unpack
_PIECE_BYTES: Final = 256 << 10


def _zeros(count: int) -> array[int]:
    """Made piece by piece, so that no other thread waits for all of it: 40 MiB at once hold
    the interpreter for 25 ms.
    """
    zeros = array("Q")
    piece = bytes(_PIECE_BYTES)
    for _ in range(count * zeros.itemsize // _PIECE_BYTES):
        zeros.frombytes(piece)
    zeros.frombytes(piece[: count * zeros.itemsize % _PIECE_BYTES])
    return zeros


class KeyMap:
    """See the head of this file. Takes `slots` * 24 bytes, all of them at once."""

    __slots__ = ("_first_words", "_offsets", "_second_words", "_slots", "count", "count_max")

    def __init__(self, slots: int, load_factor: float = 0.9) -> None:
        assert slots > 1
        self._slots = slots
        self._first_words = _zeros(slots)
        self._second_words = _zeros(slots)
        self._offsets = _zeros(slots)
        """One more than the offset; 0 is a free slot."""
        self.count = 0
        self.count_max = max(1, min(slots - 1, int(slots * load_factor)))
        """A search ends at a free slot: there is always one."""

    @property
    def size_bytes(self) -> int:
        return self._slots * BYTES_PER_SLOT

    def put(self, key: bytes, offset: Offset) -> bool:
        """Note that `key` is at `offset`, which is above any that was noted of it.

        False, and nothing is noted, where it is full.
        """
        first, second = _WORDS(blake2b(key, digest_size=DIGEST_BYTES).digest())
        slot = first % self._slots
        offsets, first_words = self._offsets, self._first_words
        while known := offsets[slot]:
            if first_words[slot] == first and self._second_words[slot] == second:
                assert known <= offset, (known, offset)
                offsets[slot] = offset + 1
                return True
            slot = slot + 1 if slot + 1 < self._slots else 0
        if self.count >= self.count_max:
            return False
        self.count += 1
        first_words[slot], self._second_words[slot], offsets[slot] = first, second, offset + 1
        return True

    def get(self, key: bytes) -> Offset:
        """The newest offset of `key`; NO_OFFSET where none was noted."""
        first, second = _WORDS(blake2b(key, digest_size=DIGEST_BYTES).digest())
        slot = first % self._slots
        offsets, first_words = self._offsets, self._first_words
        while known := offsets[slot]:
            if first_words[slot] == first and self._second_words[slot] == second:
                found: int = known - 1
                return found
            slot = slot + 1 if slot + 1 < self._slots else 0
        return NO_OFFSET
