"""The key filter of a segment (`.keyfilter`): which sections of it may have a record with a key.

A format of mqd's own; Apache Kafka ignores the file. A section is a part of the segment, about 1
MiB of whole batches. The filter is a Bloom filter for each section, stored across: row `r` has one
bit for each section, its bit `r`. So a lookup reads `HASHES` rows, whatever the number of sections,
and the conjunction of these rows has a bit for each section that may have the key.

    head        magic "mqKF", version int16, hashes int16, base offset, next offset and size of the
                segment int64, position int64 and CRC-32C uint32 of its last batch, sections, rows,
                bytes of a row, rows of a block: int32 each
    sections    four columns of int64: positions, first offsets, smallest and largest timestamps
    blocks      the CRC-32C of each block, uint32
    CRC-32C     of everything before it, uint32
    rows        bit `s % 8` of byte `s // 8` of a row belongs to section `s`

Numbers are big-endian. A filter belongs to a segment only if base offset, next offset, size and
last batch are equal. Each block has a CRC, so that a damaged filter is never taken for the absence
of a key.

Binary fuse filters of the same keys take 9.3 bits a key, these 16 and less. But without numpy a
binary fuse filter takes 6.5 us a key to build, and all hashes must be distinct and in memory. This
one takes half of that (bench machine), and memory for the filter alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple
from zlib import crc32

from crc32c import crc32c

from mqd.limits import KEY_FILTER_BYTES_MAX, KEY_FILTER_SECTIONS_MAX
from mqd.protocol.files import FileFormatError

HASHES: Final = 4
BITS_PER_KEY: Final = 16
"""With four hashes, one of 400 sections without the key is read in vain."""
FILL_MAX: Final = 0.3
"""A filter with few distinct keys is halved while at most this part of its bits is set."""
SECTION_BYTES: Final = 1 << 20
SECTION_BYTES_MIN: Final = 1 << 14
SECTIONS: Final = 64
"""A small segment has about this many sections, of at least SECTION_BYTES_MIN."""
SECTION_RECORDS: Final = 32_768

_MAGIC = b"mqKF"
_VERSION = 1
_HEAD = Struct(">4shhqqqqIiiii")
HEAD_BYTES: Final = _HEAD.size
_CRC = Struct(">I")
_COLUMNS = 4
_BLOCK_BYTES = 4096
_PIECE_BYTES = 64 << 10
_ROWS_MULTIPLE = 1024
"""The number of rows is a multiple, so that a filter can be halved ten times."""

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1
"""The timestamps of a section whose records could not be read: it may have any key."""


class SegmentState(NamedTuple):
    """The segment that a filter belongs to."""

    base_offset: int
    next_offset: int
    size: int
    last_position: int
    """Where its last batch begins."""
    last_crc: int
    """The CRC of this batch, which depends on every byte of it."""


class Section(NamedTuple):
    """A part of a segment: whole batches from `position` on, to the position of the next one."""

    position: int
    first_offset: int
    min_timestamp: int
    max_timestamp: int


def hash_of(key: bytes) -> int:
    """64 bits: two CRCs of different polynomials. Half the time of BLAKE2b. Keys that collide on
    purpose cost time, and change no result.
    """
    return crc32(key) << 32 | crc32c(key)


def section_bytes(segment_bytes: int) -> int:
    """The size at which a section of a segment ends."""
    return min(SECTION_BYTES, max(SECTION_BYTES_MIN, segment_bytes // SECTIONS))


class KeyFilterBuilder:
    """Builds the filter of a segment with `sections` sections, of at most `keys_max` keys each.

    Memory: the filter, at most KEY_FILTER_BYTES_MAX.
    """

    def __init__(self, sections: int, keys_max: int) -> None:
        assert 0 < sections <= KEY_FILTER_SECTIONS_MAX
        self._row_bytes = (sections + 7) // 8
        wanted = max(1, -(-keys_max * BITS_PER_KEY // _ROWS_MULTIPLE)) * _ROWS_MULTIPLE
        most = KEY_FILTER_BYTES_MAX // self._row_bytes // _ROWS_MULTIPLE * _ROWS_MULTIPLE
        self._rows = min(wanted, max(most, _ROWS_MULTIPLE))
        self._table = _zeros(self._rows * self._row_bytes)

    def add(self, section: int, hashes: Iterable[int]) -> None:
        """Add the keys of one section, by their `hash_of`."""
        table, rows, row_bytes = self._table, self._rows, self._row_bytes
        column, bit = section >> 3, 1 << (section & 7)
        for one in hashes:
            row = one & 0xFFFFFFFF
            step = one >> 32 | 1
            table[row % rows * row_bytes + column] |= bit
            row += step
            table[row % rows * row_bytes + column] |= bit
            row += step
            table[row % rows * row_bytes + column] |= bit
            row += step
            table[row % rows * row_bytes + column] |= bit

    def add_all(self, section: int) -> None:
        """The section may have any key."""
        column, bit = section >> 3, 1 << (section & 7)
        for position in range(column, len(self._table), self._row_bytes):
            self._table[position] |= bit

    def encode(
        self, state: SegmentState, sections: Sequence[Section]
    ) -> list[bytes | bytearray | memoryview]:
        """The whole file, in parts. The builder holds nothing afterwards."""
        table, self._table = self._table, bytearray()
        rows, row_bytes = self._rows, self._row_bytes
        while not rows % 2:
            halved, bits = _halved(table)
            rows //= 2
            if bits > FILL_MAX * rows * len(sections):
                rows *= 2
                break
            table = halved
        block_rows = max(1, _BLOCK_BYTES // row_bytes)
        block = block_rows * row_bytes
        view = memoryview(table)
        crcs = array("I", (crc32c(view[at : at + block]) for at in range(0, len(view), block)))
        head = b"".join(
            [
                _HEAD.pack(
                    *(_MAGIC, _VERSION, HASHES, *state, len(sections), rows, row_bytes, block_rows)
                ),
                *(_big_endian(array("q", column)) for column in zip(*sections, strict=True)),
                _big_endian(crcs),
            ]
        )
        return [head, _CRC.pack(crc32c(head)), table]


def _zeros(size: int) -> bytearray:
    """In pieces, so that other threads can run."""
    zeros = bytearray()
    for _ in range(size // _PIECE_BYTES):
        zeros += bytes(_PIECE_BYTES)
    return zeros + bytes(size % _PIECE_BYTES)


def _halved(table: bytearray) -> tuple[bytearray, int]:
    """The first half or-ed with the second, and how many bits are set. In pieces, as above."""
    half, halved, bits = len(table) // 2, bytearray(), 0
    view = memoryview(table)
    for start in range(0, half, _PIECE_BYTES):
        size = min(_PIECE_BYTES, half - start)
        both = int.from_bytes(view[start : start + size], "little") | int.from_bytes(
            view[half + start : half + start + size], "little"
        )
        bits += both.bit_count()
        halved += both.to_bytes(size, "little")
    return halved, bits


class KeyFilter:
    """The part of a filter before its rows. `read_at(position, size)` reads the file."""

    def __init__(self, read_at: Callable[[int, int], bytes]) -> None:
        """FileFormatError if the file is damaged or of another version; OSError."""
        self._read_at = read_at
        head = read_at(0, HEAD_BYTES)
        if len(head) < HEAD_BYTES or head[:4] != _MAGIC:
            raise FileFormatError("the key filter has no valid head")
        _magic, version, hashes, *state = _HEAD.unpack(head)
        if version != _VERSION:
            raise FileFormatError(f"the key filter has version {version}; {_VERSION} is known")
        *segment, sections, rows, self._row_bytes, self._block_rows = state
        self.state = SegmentState(*segment)
        if not (
            hashes == HASHES
            and 0 < sections <= KEY_FILTER_SECTIONS_MAX
            and self._row_bytes == (sections + 7) // 8
            and 0 < rows * self._row_bytes <= 2 * KEY_FILTER_BYTES_MAX
            and self._block_rows == max(1, _BLOCK_BYTES // self._row_bytes)
        ):
            raise FileFormatError("the sizes in the head of the key filter are impossible")
        blocks = -(-rows // self._block_rows)
        size = sections * _COLUMNS * 8 + blocks * 4
        rest = read_at(HEAD_BYTES, size + _CRC.size)
        if (
            len(rest) < size + _CRC.size
            or crc32c(head + rest[:size]) != _CRC.unpack_from(rest, size)[0]
        ):
            raise FileFormatError("the head of the key filter has a wrong CRC")
        columns = [
            _from_big_endian("q", rest[at : at + sections * 8])
            for at in range(0, sections * _COLUMNS * 8, sections * 8)
        ]
        self.sections = [Section(*one) for one in zip(*columns, strict=True)]
        self.rows = rows
        self._crcs = _from_big_endian("I", rest[sections * _COLUMNS * 8 : size])
        self._start = HEAD_BYTES + size + _CRC.size
        self.size = self._start + rows * self._row_bytes
        """Bytes of the file."""

    def candidates(self, key_hash: int) -> list[int]:
        """The sections that may have a key with this hash, ascending. FileFormatError, OSError."""
        row, step = key_hash & 0xFFFFFFFF, key_hash >> 32 | 1
        found = (1 << len(self.sections)) - 1
        for number in range(HASHES):
            found &= self._row((row + number * step) % self.rows)
        sections = []
        while found:
            lowest = found & -found
            sections.append(lowest.bit_length() - 1)
            found ^= lowest
        return sections

    def _row(self, row: int) -> int:
        block = row // self._block_rows
        data = self._block(block)
        start = (row - block * self._block_rows) * self._row_bytes
        return int.from_bytes(data[start : start + self._row_bytes], "little")

    def _block(self, block: int) -> bytes:
        first = block * self._block_rows
        size = min(self._block_rows, self.rows - first) * self._row_bytes
        data = self._read_at(self._start + first * self._row_bytes, size)
        # (I55) A cleared bit would be the absence of a key.
        if len(data) != size or crc32c(data) != self._crcs[block]:
            raise FileFormatError(f"block {block} of the key filter has a wrong CRC")
        return data

    def check(self) -> None:
        """Read all blocks. FileFormatError, OSError."""
        for block in range(len(self._crcs)):
            self._block(block)

    def end_of(self, section: int) -> int:
        """The position at which a section ends."""
        following = section + 1
        return (
            self.sections[following].position if following < len(self.sections) else self.state.size
        )


def _big_endian(values: array[int]) -> bytes:
    if byteorder == "little":
        values.byteswap()
    return values.tobytes()


def _from_big_endian(kind: str, data: bytes) -> array[int]:
    values = array(kind, data)
    if byteorder == "little":
        values.byteswap()
    return values
