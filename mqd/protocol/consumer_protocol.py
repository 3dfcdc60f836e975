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
from typing import Any, Final

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

_PARTITIONS = (field("topic", STRING), field("partitions", array(INT32)))
SUBSCRIPTION = message(
    field("topics", array(STRING)),
    field("user_data", BYTES, default=None),
    field("owned_partitions", array(*_PARTITIONS), since=1),
    field("generation_id", INT32, since=2, default=-1),
    field("rack_id", STRING, since=3, default=None),
)
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


def decode_subscription(data: Buffer) -> Subscription:
    """Decode a subscription. Raises ProtocolError."""
    read = _decode(SUBSCRIPTION, data)
    user_data = None if read.user_data is None else bytes(read.user_data)
    return Subscription(
        tuple(read.topics),
        _partitions(read.owned_partitions),
        read.generation_id,
        read.rack_id,
        user_data,
    )


def decode_subscribed_topics(data: bytes) -> list[str]:
    """Only the topics, which come first in every version. Decoded without construct, because there
    may be many topics. Raises ProtocolError.
    """
    topics = []
    try:
        (number,) = _NUMBER.unpack_from(data, _VERSION.size)
        if number > limits.REQUEST_ELEMENTS_MAX:
            raise ProtocolError(f"{number} topics; at most {limits.REQUEST_ELEMENTS_MAX} are taken")
        position = _VERSION.size + _NUMBER.size
        for _ in range(number):
            (size,) = _SIZE.unpack_from(data, position)
            position += _SIZE.size + size
            if size < 0 or position > len(data):
                raise ProtocolError(f"a topic of {size} bytes ends at {position} of {len(data)}")
            topics.append(data[position - size : position].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"no subscription: {error}") from None
    return topics


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
    return _partitions(_decode(ASSIGNMENT, data).assigned_partitions) if len(data) else ()


def assignment_user_data(data: Buffer) -> bytes:
    """The user data of a custom assignor in an assignment, or nothing. Raises ProtocolError."""
    return bytes(_decode(ASSIGNMENT, data).user_data or b"") if len(data) else b""


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


def _decode(declared: Message, data: Buffer) -> Any:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are too few for a version")
    version = min(_VERSION.unpack_from(data)[0], VERSION_MAX)
    if version < 0:
        raise ProtocolError(f"version {version}")
    stream = Cursor(data, _VERSION.size, limits.REQUEST_ELEMENTS_MAX)
    return declared.at(version, flexible=False)._parse(stream, None, "")
