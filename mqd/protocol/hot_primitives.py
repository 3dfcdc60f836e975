"""Reading and writing Kafka's types by hand, for the hot codecs: functions over a buffer and
positions, no objects.

Every reader compares with `end` before it reads, raises ProtocolError as primitives.py does, and
returns (value, position after it). Strings are bytes, checked to be UTF-8. Writers append to a
bytearray.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from mqd import limits
from mqd.errors import ProtocolError

Buffer = bytes | bytearray | memoryview
NodeEndpoint = tuple[int, str, int, str | None]

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")
INT32_INT32 = Struct(">ii")
INT32_INT64 = Struct(">iq")
INT64_INT32 = Struct(">qi")
INT64_INT64 = Struct(">qq")


def need(position: int, size: int, end: int) -> None:
    if size > end - position:
        raise ProtocolError(f"{size} bytes needed, {end - position} left")


def finish(position: int, end: int) -> None:
    if position != end:
        raise ProtocolError(f"{end - position} bytes are left over")


def unsigned_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                raise ProtocolError("a varint is too large")
            return value, position
        shift += 7
        if shift == 35:
            raise ProtocolError("a varint is longer than 5 bytes")
    raise ProtocolError("a varint is cut off")


def array_count(buffer: Buffer, position: int, end: int, left: int) -> tuple[int, int]:
    """The length of an array that cannot be null. `left`: the number of elements that the message
    may still have.
    """
    need(position, 4, end)
    (elements,) = INT32.unpack_from(buffer, position)
    if not 0 <= elements <= left:
        raise ProtocolError(f"an array of {elements} elements")
    return elements, position + 4


def compact_array_count(buffer: Buffer, position: int, end: int, left: int) -> tuple[int, int]:
    elements, position = unsigned_varint(buffer, position, end)
    if not 0 < elements <= left + 1:
        raise ProtocolError(f"an array of {elements - 1} elements")
    return elements - 1, position


def string(buffer: Buffer, position: int, end: int) -> tuple[bytes, int]:
    string, position = nullable_string(buffer, position, end)
    if string is None:
        raise ProtocolError("null where there must be a string")
    return string, position


def nullable_string(buffer: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    need(position, 2, end)
    (size,) = INT16.unpack_from(buffer, position)
    return _string_of(buffer, position + 2, size, end)


def compact_string(buffer: Buffer, position: int, end: int) -> tuple[bytes, int]:
    string, position = compact_nullable_string(buffer, position, end)
    if string is None:
        raise ProtocolError("null where there must be a string")
    return string, position


def compact_nullable_string(buffer: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = unsigned_varint(buffer, position, end)
    return _string_of(buffer, position, size - 1, end)


def _string_of(buffer: Buffer, position: int, size: int, end: int) -> tuple[bytes | None, int]:
    if size < 0:
        if size != -1:
            raise ProtocolError(f"a string of {size} bytes")
        return None, position
    if size > limits.STRING_BYTES_MAX:
        raise ProtocolError(f"a string of {size} bytes")
    need(position, size, end)
    string = bytes(buffer[position : position + size])
    if not string.isascii():
        try:
            string.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string is not UTF-8: {error.reason}") from None
    return string, position + size


def uuid(buffer: Buffer, position: int, end: int) -> tuple[bytes, int]:
    need(position, 16, end)
    return bytes(buffer[position : position + 16]), position + 16


def skip_tagged_fields(buffer: Buffer, position: int, end: int) -> int:
    if position < end and not buffer[position]:
        return position + 1
    return tagged_fields(buffer, position, end)[1]


def tagged_fields(
    buffer: Buffer, position: int, end: int
) -> tuple[list[tuple[int, int, int]], int]:
    """(tag, start, stop) of each field, and the position after them. Tags ascend (KIP-482)."""
    count, position = unsigned_varint(buffer, position, end)
    if count > limits.TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields")
    fields = []
    previous = -1
    for _ in range(count):
        tag, position = unsigned_varint(buffer, position, end)
        if tag <= previous:
            raise ProtocolError(f"tag {tag} after tag {previous}")
        previous = tag
        size, position = unsigned_varint(buffer, position, end)
        need(position, size, end)
        fields.append((tag, position, position + size))
        position += size
    return fields, position


def write_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_topic_flexible(
    out: bytearray, name: bytes | None, topic_id: bytes | None, has_topic_id: bool
) -> None:
    if has_topic_id:
        assert topic_id is not None and len(topic_id) == 16
        out += topic_id
    else:
        assert name is not None
        write_unsigned_varint(out, len(name) + 1)
        out += name


def _truncated(text: str) -> bytes:
    """Truncate an error message, which may quote a peer, to the maximum size of a string."""
    encoded = text.encode()
    if len(encoded) <= limits.STRING_BYTES_MAX:
        return encoded
    return encoded[: limits.STRING_BYTES_MAX].decode(errors="ignore").encode()


def write_compact_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
    else:
        encoded = _truncated(text)
        write_unsigned_varint(out, len(encoded) + 1)
        out += encoded


def write_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
    else:
        encoded = _truncated(text)
        out += INT16.pack(len(encoded)) + encoded


def write_node_endpoints(out: bytearray, node_endpoints: Sequence[NodeEndpoint]) -> None:
    """The last tagged fields of a response: endpoints with tag 0, or none."""
    if not node_endpoints:
        out.append(0)
        return
    field = bytearray()
    write_unsigned_varint(field, len(node_endpoints) + 1)
    for node_id, host, port, rack in node_endpoints:
        field += INT32.pack(node_id)
        write_compact_nullable_string(field, host)
        field += INT32.pack(port)
        write_compact_nullable_string(field, rack)
        field.append(0)
    out += b"\x01\x00"
    write_unsigned_varint(out, len(field))
    out += field
