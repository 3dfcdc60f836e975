"""A fast codec for records of committed offsets. A shard writes one for each partition of each
commit, and reads all of them when it is loaded.

Property tests hold it equal to the schemas. It knows only the usual records: keys of kind 1, values
of version 4 with metadata of fewer than 127 bytes. For all others it returns None, and
record_codec.py uses the schemas.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final
from uuid import UUID

from mqd.limits import STRING_BYTES_MAX
from mqd.types import ZERO_UUID

_KEY_HEAD: Final = Struct(">hh")
_LENGTH: Final = Struct(">h")
_PARTITION: Final = Struct(">i")
_VALUE_HEAD: Final = Struct(">hqiB")
_TIMESTAMP: Final = Struct(">q")
_KIND = 1
_VERSION = 4
_COMPACT_MAX = 127
"""The longest length, with 1 added, that takes one byte."""
_NO_TAGS = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"
_KEY_BYTES_MIN = 10
_VALUE_BYTES_MIN = 24
_WITH_TOPIC_ID = 19


def encode_key(group: str, topic: str, partition: int) -> bytes:
    """The key of one partition of a group."""
    group_bytes, topic_bytes = group.encode(), topic.encode()
    assert len(group_bytes) <= STRING_BYTES_MAX and len(topic_bytes) <= STRING_BYTES_MAX
    return b"".join(
        (
            _KEY_HEAD.pack(_KIND, len(group_bytes)),
            group_bytes,
            _LENGTH.pack(len(topic_bytes)),
            topic_bytes,
            _PARTITION.pack(partition),
        )
    )


def decode_key(key: bytes) -> tuple[str, str, int] | None:
    """(group, topic, partition)."""
    size = len(key)
    if size < _KEY_BYTES_MIN:
        return None
    kind, group_size = _KEY_HEAD.unpack_from(key)
    topic_start = 6 + group_size
    if kind != _KIND or group_size < 0 or topic_start + 4 > size:
        return None
    (topic_size,) = _LENGTH.unpack_from(key, topic_start - 2)
    if topic_start + topic_size + 4 != size:
        return None
    try:
        return (
            str(key[4 : topic_start - 2], "utf-8"),
            str(key[topic_start:-4], "utf-8"),
            _PARTITION.unpack_from(key, size - 4)[0],
        )
    except UnicodeDecodeError:
        return None


def encode_value(
    offset: int, leader_epoch: int, metadata: str, commit_timestamp: int, topic_id: UUID
) -> bytes | None:
    """A value of version 4."""
    metadata_bytes = metadata.encode()
    if len(metadata_bytes) >= _COMPACT_MAX:
        return None
    head = _VALUE_HEAD.pack(_VERSION, offset, leader_epoch, len(metadata_bytes) + 1)
    tags = _NO_TAGS if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id.bytes
    return head + metadata_bytes + _TIMESTAMP.pack(commit_timestamp) + tags


def decode_value(value: bytes) -> tuple[int, int, str, int, UUID] | None:
    """(offset, leader epoch, metadata, commit timestamp, topic id)."""
    if len(value) < _VALUE_BYTES_MIN:
        return None
    version, offset, leader_epoch, length = _VALUE_HEAD.unpack_from(value)
    if version != _VERSION or not 0 < length <= _COMPACT_MAX:
        return None
    end = _VALUE_HEAD.size + length - 1
    tags = value[end + 8 :]
    if tags == _NO_TAGS:
        topic_id = ZERO_UUID
    elif len(tags) == _WITH_TOPIC_ID and tags[:3] == _TOPIC_ID_TAG:
        topic_id = _topic_id(bytes(tags[3:]))
    else:
        return None
    try:
        metadata = str(value[_VALUE_HEAD.size : end], "utf-8") if length > 1 else ""
    except UnicodeDecodeError:
        return None
    return offset, leader_epoch, metadata, _TIMESTAMP.unpack_from(value, end)[0], topic_id


@lru_cache(maxsize=1_000)
def _topic_id(sixteen: bytes) -> UUID:
    """One object for all offsets of a topic."""
    return UUID(bytes=sixteen)
