"""The format that records of both internal topics share: a prefix of two bytes, then the fields.

In a key the prefix is the kind of the record; in a value it is the version of the fields. A value
replaces the one before. A record without a value (a tombstone) deletes its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeVar

from mqd import limits
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ProtocolError
from mqd.protocol.primitives import Cursor
from mqd.protocol.schema import Message

_PREFIX: Final = Struct(">h")


class RecordFormatError(Exception):
    """Bytes of an internal topic that are not a record of any kind and version known here. A shard
    that loads its log skips such a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """One kind of record: the fields of its key, and of each version of its value."""

    kind: int
    """The prefix of the key."""
    key: Message
    value: Message
    version_max: int = 0
    flexible_from: int = 0
    """Versions from this one on have tagged fields."""

    def encode(self, key: Any, value: Any, version: int) -> CoordinatorRecord:
        return CoordinatorRecord(
            self.encode_key(key),
            _PREFIX.pack(version) + self._value_at(version).build(value),
        )

    def encode_key(self, key: Any) -> bytes:
        fields: bytes = self.key.at(0, flexible=False).build(key)
        return _PREFIX.pack(self.kind) + fields

    def decode(self, record: CoordinatorRecord) -> tuple[Any, Any]:
        """The fields of the key, and those of the value or None. Raises ProtocolError for bytes
        that do not have them, or a version that is not known."""
        key = _decode(self.key.at(0, flexible=False), record.key)
        if record.value is None:
            return key, None
        version = _prefix_of(record.value)
        if not 0 <= version <= self.version_max:
            raise ProtocolError(f"version {version} of the value is unknown")
        return key, _decode(self._value_at(version), record.value)

    def _value_at(self, version: int) -> Any:
        return self.value.at(version, flexible=version >= self.flexible_from)


FormatT = TypeVar("FormatT", bound=RecordFormat)


def decode_record(
    formats: Mapping[int, FormatT], record: CoordinatorRecord
) -> tuple[FormatT, Any, Any]:
    """The format of the record, by kind, and its fields as `RecordFormat.decode` returns them.

    RecordFormatError for an unknown kind or version, and for bytes that do not have the fields.
    """
    try:
        kind = _prefix_of(record.key)
        found = formats.get(kind)
        if found is None:
            raise ProtocolError(f"kind {kind} is unknown")
        return (found, *found.decode(record))
    except ProtocolError as error:
        raise RecordFormatError(f"key {record.key.hex()}: {error}") from None


def _prefix_of(data: bytes) -> int:
    if len(data) < _PREFIX.size:
        raise ProtocolError("two bytes of version are missing")
    prefix: int = _PREFIX.unpack_from(data)[0]
    return prefix


def _decode(fields: Any, data: bytes) -> Any:
    return fields._parse(Cursor(data, _PREFIX.size, limits.RESPONSE_ELEMENTS_MAX), None, "")
