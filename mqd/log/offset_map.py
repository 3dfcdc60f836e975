"""The newest offset of each key, in memory of a fixed size: an open-addressing hash table of
digests. A core.

This is Kafka's SkimpyOffsetMap with another hash. A slot has 16 bytes of the digest and 8 of the
offset, whatever the size of the key. Two keys with the same digest would count as one key, but no
collision of 128 bits of BLAKE2b is known.

Invariants: the offset of an entry only increases. At most `load_factor` of the slots are used.
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
    """Allocated in pieces, so that other threads can run: 40 MiB in one piece block the interpreter
    for 25 ms.
    """
    zeros = array("Q")
    piece = bytes(_PIECE_BYTES)
    for _ in range(count * zeros.itemsize // _PIECE_BYTES):
        zeros.frombytes(piece)
    zeros.frombytes(piece[: count * zeros.itemsize % _PIECE_BYTES])
    return zeros


class OffsetMap:
    """See the head of this file. Allocates `slots` * 24 bytes at once."""

    __slots__ = ("_first_words", "_offsets", "_second_words", "_slots", "count", "count_max")

    def __init__(self, slots: int, load_factor: float = 0.9) -> None:
        assert slots > 1
        self._slots = slots
        self._first_words = _zeros(slots)
        self._second_words = _zeros(slots)
        self._offsets = _zeros(slots)
        """Offset + 1; 0 is a free slot."""
        self.count = 0
        self.count_max = max(1, min(slots - 1, int(slots * load_factor)))
        """Below the number of slots: a search ends at a free slot."""

    @property
    def size_bytes(self) -> int:
        return self._slots * BYTES_PER_SLOT

    def put(self, key: bytes, offset: Offset) -> bool:
        """Store the offset of a key, above its stored one. False, and nothing is changed, if the
        map is full.
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
        """The newest offset of `key`; NO_OFFSET for an unknown key."""
        first, second = _WORDS(blake2b(key, digest_size=DIGEST_BYTES).digest())
        slot = first % self._slots
        offsets, first_words = self._offsets, self._first_words
        while known := offsets[slot]:
            if first_words[slot] == first and self._second_words[slot] == second:
                found: int = known - 1
                return found
            slot = slot + 1 if slot + 1 < self._slots else 0
        return NO_OFFSET
