"""Subscriptions and assignments that members of a classic group exchange through the coordinator,
in the format of Kafka's clients.

The bytes inside JoinGroup (`metadata`) and SyncGroup (`assignment`) of groups whose protocol type
is "consumer": a version, then a message that is never flexible. A reader treats a newer version as
the newest known one, because new fields are always at the end.

v1  the partitions that a member owns, for cooperative assignors (KIP-429)
v2  the generation in which it got them (KIP-792)
v3  its rack (KIP-881)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, NamedTuple

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.primitives import Cursor
from mqd.protocol.schema import BYTES, INT32, STRING, Buffer, Message, array, field, message
from mqd.types import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3
_VERSION = struct.Struct(">h")
_NUMBER = struct.Struct(">i")
_SIZE = struct.Struct(">h")
_SIZE_MAX: Final = 2**15 - 1
TOPICS_AT: Final = _VERSION.size
"""Position of the topics in a subscription."""

_PARTITIONS = (field("topic", STRING), field("partitions", array(INT32)))
_FIELDS_AFTER_TOPICS = (
    field("user_data", BYTES, default=None),
    field("owned_partitions", array(*_PARTITIONS), since=1),
    field("generation_id", INT32, since=2, default=-1),
    field("rack_id", STRING, since=3, default=None),
)
SUBSCRIPTION = message(field("topics", array(STRING)), *_FIELDS_AFTER_TOPICS)
_AFTER_TOPICS = message(*_FIELDS_AFTER_TOPICS)
ASSIGNMENT = message(
    field("assigned_partitions", array(*_PARTITIONS)),
    field("user_data", BYTES, default=None),
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one member, and its owned partitions. `owned` exists from version 1 on,
    `generation` (-1: unknown) from version 2 on.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Encode a subscription. Topics and partitions are sorted."""
    body = {
        "topics": sorted(subscription.topics),
        "user_data": subscription.user_data,
        "owned_partitions": _rows(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack,
    }
    return _encode(SUBSCRIPTION, version, body)


@dataclass(slots=True)
class Elements:
    """The number of array elements (topics and partitions) that decoders may still read."""

    left: int = limits.REQUEST_ELEMENTS_MAX


def decode_subscription(data: Buffer, elements: Elements | None = None) -> Subscription:
    """Decode a subscription. Raises ProtocolError, also if it has more `elements`."""
    elements = elements or Elements()
    data = bytes(data)
    names, position = read_topics(data, names_max=elements.left)
    elements.left -= len(names)
    try:
        topics = tuple(map(bytes.decode, names))
    except UnicodeDecodeError as error:
        raise ProtocolError(f"no topic: {error}") from None
    read = _decode(_AFTER_TOPICS, data, elements, position)
    user_data = None if read.user_data is None else bytes(read.user_data)
    return Subscription(
        topics,
        _partitions(read.owned_partitions),
        read.generation_id,
        read.rack_id,
        user_data,
    )


def read_topics(
    data: bytes, *, names_max: int = limits.REQUEST_ELEMENTS_MAX, size_max: int = _SIZE_MAX
) -> tuple[list[bytes], int]:
    """The topics of a subscription, which come first in every version, and the position after
    them. Read without construct, because there may be many; names above `size_max` bytes are left
    out. Raises ProtocolError, also above `names_max`.
    """
    names: list[bytes] = []
    number = topics_count(data)
    if number > names_max:
        raise ProtocolError(f"{number} topics; at most {names_max} are taken")
    position, end = TOPICS_AT + _NUMBER.size, len(data)
    try:
        for _ in range(number):
            size = data[position] << 8 | data[position + 1]
            position += _SIZE.size
            if size <= size_max:
                names.append(data[position : position + size])
            position += size
            if position > end or size > _SIZE_MAX:
                raise ProtocolError(f"a topic of {size} bytes ends at {position} of {end}")
    except IndexError:
        raise ProtocolError(f"no subscription: it ends at {end} of {position + 2}") from None
    return names, position


def topics_count(data: bytes) -> int:
    """How many topics a subscription begins with, in constant time. Raises ProtocolError."""
    if len(data) < TOPICS_AT + _NUMBER.size:
        raise ProtocolError(f"{len(data)} bytes are too few for a subscription")
    number: int = _NUMBER.unpack_from(data, TOPICS_AT)[0]
    if number < 0:
        raise ProtocolError(f"{number} topics")
    return number


def encode_assignment(
    partitions: Iterable[TopicPartition],
    version: int = VERSION_MAX,
    *,
    user_data: bytes | None = None,
) -> bytes:
    """Encode an assignment."""
    return _encode(
        ASSIGNMENT, version, {"assigned_partitions": _rows(partitions), "user_data": user_data}
    )


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """Decode an assignment; empty bytes are an empty assignment. Raises ProtocolError."""
    return decode_whole_assignment(data).partitions


class WholeAssignment(NamedTuple):
    """The assignment of one member."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""
    """Data of a custom assignor."""


def decode_whole_assignment(data: Buffer, elements: Elements | None = None) -> WholeAssignment:
    """As `decode_assignment`. Raises ProtocolError also if it has more `elements`."""
    if not len(data):
        return WholeAssignment()
    read = _decode(ASSIGNMENT, data, elements)
    return WholeAssignment(_partitions(read.assigned_partitions), bytes(read.user_data or b""))


def version_of(data: Buffer) -> int:
    """The version of a subscription or an assignment, limited to the known versions. 0 for bytes
    without a version.
    """
    version: int = _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else 0
    return min(max(version, 0), VERSION_MAX)


def _rows(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()]


def _partitions(rows: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, index) for row in rows for index in row.partitions)


def _encode(declared: Message, version: int, body: Mapping[str, Any]) -> bytes:
    assert 0 <= version <= VERSION_MAX
    stream = BytesIO()
    stream.write(_VERSION.pack(version))
    declared.at(version, flexible=False)._build(body, stream, None, "")
    return stream.getvalue()


def _decode(
    declared: Message, data: Buffer, elements: Elements | None = None, position: int = TOPICS_AT
) -> Any:
    """The fields of `declared`, which begin at `position`."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are too few for a version")
    version = min(_VERSION.unpack_from(data)[0], VERSION_MAX)
    if version < 0:
        raise ProtocolError(f"version {version}")
    elements = elements or Elements()
    stream = Cursor(data, position, elements.left)
    found = declared.at(version, flexible=False)._parse(stream, None, "")
    elements.left = stream.elements_left
    return found
