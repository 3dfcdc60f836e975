# mypy: disallow-subclassing-any=False
"""The primitive types of every message: constructs for Kafka's numbers, lengths, strings and bytes.
structures.py has arrays, structures and tagged fields.

They parse from a `Cursor` and build into any stream with `write`. The invariants, because the bytes
come from unauthenticated clients:

* a length is compared with the remaining bytes before anything is allocated for it;
* every error in the bytes raises `ProtocolError`, never another exception;
* only strings are copied; bytes fields are slices of the caller's buffer, and valid as long as it.

A wrong value in an encoder is a bug of mqd, and raises an assertion or another exception.
Encodings: https://kafka.apache.org/protocol#protocol_types, KIP-482 for the compact ones.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from construct import Construct, FormatField

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.chunks import Unread
from mqd.types import ZERO_UUID


class Cursor:
    """The position of a decoder in a buffer, and the limits on the rest of the message.

    Invariant: position <= end <= len(view).
    """

    __slots__ = (
        "copies",
        "elements_left",
        "end",
        "position",
        "string_bytes_left",
        "tagged_fields",
        "value_bytes",
        "view",
    )

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        position: int,
        elements_max: int,
        *,
        copies: bool = False,
        string_bytes_max: int = sys.maxsize,
    ) -> None:
        """`copies`: values are copies, never views of the buffer. `string_bytes_max`: of all
        strings of the message.
        """
        self.view = memoryview(buffer)
        self.position = position
        self.end = len(self.view)
        self.elements_left = elements_max
        self.copies = copies
        self.string_bytes_left = string_bytes_max
        self.value_bytes = 0
        """Bytes of all strings and blobs decoded so far."""
        self.tagged_fields = 0
        """The number of tagged fields read so far."""
        assert 0 <= position <= self.end, (position, self.end)

    def advance(self, size: int) -> int:
        """Move the position by `size` bytes, and return the old position."""
        start = self.position
        if size > self.end - start:
            raise ProtocolError(f"{size} bytes needed at {start}, {self.end - start} left")
        self.position = start + size
        return start


# -- numbers


class Number(FormatField):
    """A big-endian number of fixed size, with its letter in the struct module ("?" is a boolean:
    every byte except 0 is true).
    """

    def __init__(self, letter: str) -> None:
        super().__init__(">", letter)
        self.letter = letter
        self._struct = struct.Struct(self.fmtstr)

    def _parse(self, stream: Cursor, context: Any, path: str) -> Any:
        return self._struct.unpack_from(stream.view, stream.advance(self.length))[0]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        stream.write(self._struct.pack(obj))


class Uuid(Construct):
    """Sixteen bytes; all zero means null."""

    def _parse(self, stream: Cursor, context: Any, path: str) -> UUID:
        start = stream.advance(16)
        number = int.from_bytes(stream.view[start : start + 16], "big")
        return UUID(int=number) if number else ZERO_UUID

    def _build(self, obj: UUID, stream: Any, context: Any, path: str) -> None:
        stream.write(obj.bytes)

    def _sizeof(self, context: Any, path: str) -> int:
        return 16


def read_unsigned_varint(stream: Cursor, bytes_max: int = 5) -> int:
    """An unsigned varint: seven bits in each byte, lowest first. At most `bytes_max` bytes: 5 hold
    32 bits, 10 hold 64.
    """
    view, position, end = stream.view, stream.position, stream.end
    value = shift = 0
    while position < end:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if shift == 7 * bytes_max and value >> (32 if bytes_max == 5 else 64):
                raise ProtocolError(f"varint at {stream.position} is too large")
            stream.position = position
            return value
        if shift == 7 * bytes_max:
            raise ProtocolError(f"varint at {stream.position} is longer than {bytes_max} bytes")
    raise ProtocolError(f"varint at {stream.position} is cut off")


def pack_unsigned_varint(value: int) -> bytes:
    """The shortest varint of a non-negative number."""
    if value < 0x80:
        return _ONE_BYTE[value]
    packed = bytearray()
    while value >= 0x80:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


class Varint(Construct):
    """A signed number as a zigzag varint: 0, -1, 1, -2 become 0, 1, 2, 3."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        assert bytes_max in (5, 10)
        self.bytes_max = bytes_max
        self._magnitude_max = 1 << (31 if bytes_max == 5 else 63)

    def _parse(self, stream: Cursor, context: Any, path: str) -> int:
        value = read_unsigned_varint(stream, self.bytes_max)
        return (value >> 1) ^ -(value & 1)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> None:
        assert -self._magnitude_max <= obj < self._magnitude_max, obj
        stream.write(pack_unsigned_varint(obj << 1 if obj >= 0 else (-obj << 1) - 1))


# -- lengths of strings, blobs and arrays; -1 means null


class Length(NamedTuple):
    read: Callable[[Cursor], int]
    pack: Callable[[int], bytes]
    bytes_min: int


def _fixed_length(letter: str) -> Length:
    packer = struct.Struct(">" + letter)

    def read(stream: Cursor) -> int:
        length: int = packer.unpack_from(stream.view, stream.advance(packer.size))[0]
        if length < -1:
            raise ProtocolError(f"negative length {length} at {stream.position - packer.size}")
        return length

    return Length(read, packer.pack, packer.size)


LENGTH_16 = _fixed_length("h")
LENGTH_32 = _fixed_length("l")
LENGTH_COMPACT = Length(
    lambda stream: read_unsigned_varint(stream) - 1,
    lambda length: pack_unsigned_varint(length + 1),
    1,
)


# -- strings and blobs


_TOO_MANY_STRING_BYTES = "too many bytes of strings in one message"


class String(Construct):
    """UTF-8, at most limits.STRING_BYTES_MAX bytes. `cut`: the encoder truncates a longer string
    instead of raising an error.
    """

    def __init__(self, length: Length, *, nullable: bool, cut: bool = False) -> None:
        super().__init__()
        self.length = length
        self.nullable = nullable
        self.cut = cut

    def _parse(self, stream: Cursor, context: Any, path: str) -> str | None:
        size = self.length.read(stream)
        if size < 0:
            check_null(self.nullable, stream)
            return None
        if size > limits.STRING_BYTES_MAX:
            raise ProtocolError(f"string of {size} bytes at {stream.position}")
        start = stream.advance(size)
        stream.value_bytes += size
        stream.string_bytes_left -= size
        if stream.string_bytes_left < 0:
            raise ProtocolError(_TOO_MANY_STRING_BYTES)
        try:
            return str(stream.view[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"string at {start} is not UTF-8: {error.reason}") from None

    def _build(self, obj: str | None, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            assert self.nullable, "null in a string that cannot be null"
            stream.write(self.length.pack(-1))
            return
        encoded = obj.encode()
        if self.cut and len(encoded) > limits.STRING_BYTES_MAX:
            encoded = encoded[: limits.STRING_BYTES_MAX].decode(errors="ignore").encode()
        assert len(encoded) <= limits.STRING_BYTES_MAX, len(encoded)
        stream.write(self.length.pack(len(encoded)) + encoded)

    def parse_several(self, count: int, stream: Cursor) -> list[str | None]:
        """As `_parse`, so many times. The common case, a short string with a compact length, takes
        half of the time."""
        found: list[str | None] = []
        compact, view, end = self.length is LENGTH_COMPACT, stream.view, stream.end
        for _ in range(count):
            start = stream.position + 1
            if compact and start <= end and 0 < (length := view[start - 1]) < 0x80:
                stop = start + length - 1
                if stop <= end:
                    try:
                        found.append(str(view[start:stop], "utf-8"))
                    except UnicodeDecodeError as error:
                        raise ProtocolError(
                            f"string at {start} is not UTF-8: {error.reason}"
                        ) from None
                    stream.position = stop
                    stream.value_bytes += length - 1
                    stream.string_bytes_left -= length - 1
                    continue
            found.append(self._parse(stream, None, ""))
        if stream.string_bytes_left < 0:
            raise ProtocolError(_TOO_MANY_STRING_BYTES)
        return found

    def build_several(self, strings: Iterable[str | None], stream: Any) -> None:
        """As `_build`, for each of them."""
        parts = []
        compact = self.length is LENGTH_COMPACT
        for one in strings:
            if compact and one is not None and len(encoded := one.encode()) < 0x7F:
                parts.append(_ONE_BYTE[len(encoded) + 1])
                parts.append(encoded)
            else:
                stream.write(b"".join(parts))
                parts.clear()
                self._build(one, stream, None, "")
        stream.write(b"".join(parts))


class Blob(Construct):
    """Opaque bytes, such as record batches: a slice of the buffer, or a copy."""

    def __init__(self, length: Length, *, nullable: bool) -> None:
        super().__init__()
        self.length = length
        self.nullable = nullable

    def _parse(self, stream: Cursor, context: Any, path: str) -> bytes | memoryview | None:
        size = self.length.read(stream)
        if size < 0:
            check_null(self.nullable, stream)
            return None
        start = stream.advance(size)
        stream.value_bytes += size
        part = stream.view[start : start + size]
        return bytes(part) if stream.copies else part

    def _build(
        self,
        obj: bytes | bytearray | memoryview | Unread | None,
        stream: Any,
        context: Any,
        path: str,
    ) -> None:
        if obj is None:
            assert self.nullable, "null in bytes that cannot be null"
            stream.write(self.length.pack(-1))
            return
        stream.write(self.length.pack(len(obj)))
        stream.write(obj)


def check_null(nullable: bool, stream: Cursor) -> None:
    if not nullable:
        raise ProtocolError(f"null before {stream.position} where there must be a value")
