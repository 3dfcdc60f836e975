"""The fields that records and commands of the metadata log consist of.

- uvarint: LEB128
- string: uvarint size, UTF-8; a nullable string has size + 1, null is 0
- uuid: 16 bytes
- node: uvarint of the node id + 1, so that -1 has a value
- bytes: uvarint size, bytes
- number: 8 bytes, IEEE 754; a nullable one has a byte 0 or 1 first
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import UUID

from mqd.types import NO_NODE, NodeId

_NUMBER = struct.Struct(">d")


def put_uvarint(out: bytearray, value: int) -> None:
    assert value >= 0, value
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_string(out: bytearray, value: str) -> None:
    data = value.encode()
    put_uvarint(out, len(data))
    out += data


def put_nullable(out: bytearray, value: str | None) -> None:
    data = b"" if value is None else value.encode()
    put_uvarint(out, 0 if value is None else len(data) + 1)
    out += data


def put_bytes(out: bytearray, value: bytes) -> None:
    put_uvarint(out, len(value))
    out += value


def put_nullable_number(out: bytearray, value: float | None) -> None:
    out.append(value is not None)
    if value is not None:
        out += _NUMBER.pack(value)


def put_node(out: bytearray, value: NodeId) -> None:
    put_uvarint(out, value - NO_NODE)


def put_nodes(out: bytearray, values: tuple[NodeId, ...]) -> None:
    """Most clusters have node ids of one byte: those are written at once."""
    if values and max(values) <= 0x7F and len(values) <= 0x7F:
        out += bytes((len(values), *values))
        return
    put_uvarint(out, len(values))
    for value in values:
        put_uvarint(out, value)


def put_distance(out: bytearray, previous: int, index: int) -> int:
    """Write one of several ascending indexes as its distance from the previous one, -1 at first. A
    run of indexes is a run of equal bytes. Returns the index.
    """
    put_uvarint(out, index - previous - 1)
    return index


class FieldReader:
    """Reads fields from bytes. Every read is checked against the bytes that are left."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self._position = position
        self._end = len(data) if end is None else end

    def take(self, size: int) -> bytes:
        start = self._position
        if size > self._end - start:
            raise ValueError("metadata command is cut off")
        self._position = start + size
        return self._data[start : self._position]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("metadata command holds a varint that never ends")

    def count(self) -> int:
        """The number of elements, of at least one byte each."""
        value = self.uvarint()
        if value > self._end - self._position:
            raise ValueError("metadata command counts more elements than it has bytes")
        return value

    def nested(self) -> FieldReader:
        size = self.uvarint()
        start = self._position
        if size > self._end - start:
            raise ValueError("metadata record is cut off")
        self._position = start + size
        return FieldReader(self._data, start, self._position)

    def string(self) -> str:
        return self.take(self.uvarint()).decode()

    def nullable(self) -> str | None:
        size = self.uvarint()
        return self.take(size - 1).decode() if size else None

    def bytes_(self) -> bytes:
        return self.take(self.uvarint())

    def nullable_number(self) -> float | None:
        if not self.uvarint():
            return None
        number: float = _NUMBER.unpack(self.take(_NUMBER.size))[0]
        return number

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def node(self) -> NodeId:
        return NodeId(self.uvarint() + NO_NODE)

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(NodeId(self.uvarint()) for _ in range(self.count()))

    def indexes(self) -> Iterator[int]:
        """Ascending indexes (`put_distance`). Read the fields of each before the next one."""
        index = -1
        for _ in range(self.count()):
            index += self.uvarint() + 1
            yield index

    def has_more(self) -> bool:
        return self._position < self._end

    def finish(self) -> None:
        if self._position != self._end:
            raise ValueError("metadata command has a tail")
