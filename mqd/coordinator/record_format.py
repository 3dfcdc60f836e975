"""The format that records of both internal topics share: a prefix of two bytes, then the fields.

In a key the prefix is the kind of the record; in a value it is the version of the fields.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.primitives import Cursor
from mqd.protocol.schema import Message

_PREFIX: Final = Struct(">h")


class RecordFormatError(Exception):
    """Bytes of an internal topic that are no record of any version known here. A shard that loads
    its log skips such a record."""


def prefix_of(data: bytes) -> int:
    """The two bytes at the front. ProtocolError where they are missing."""
    if len(data) < _PREFIX.size:
        raise ProtocolError("two bytes of version are missing")
    prefix: int = _PREFIX.unpack_from(data)[0]
    return prefix


def encode_fields(
    declared: Message, value: Any, *, prefix: int, version: int = 0, flexible: bool = False
) -> bytes:
    """The fields of the mapping `value`, as `version` has them, behind two bytes of `prefix`."""
    body: bytes = declared.at(version, flexible=flexible).build(value)
    return _PREFIX.pack(prefix) + body


def decode_fields(
    declared: Message, data: bytes, *, version: int = 0, flexible: bool = False
) -> Any:
    """The fields behind the prefix, a mapping. ProtocolError for bytes that do not have them."""
    cursor = Cursor(data, _PREFIX.size, limits.RESPONSE_ELEMENTS_MAX)
    return declared.at(version, flexible=flexible)._parse(cursor, None, "")
