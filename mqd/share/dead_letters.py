"""Dead letters of share groups (KIP-1191): which records they are of, and their content. Pure.

A record that a share group gives up is ARCHIVING until its dead letter is written, then ARCHIVED.
The letters of one transaction are listed in the progress that the transaction commits with them.
The next transaction begins after the share coordinator has stored that the records of the last one
are ARCHIVED. So a record that is ARCHIVING has a letter if and only if the last committed progress
lists it, with the time at which it became ARCHIVING (I65).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from mqd.delay_names import (
    DLQ_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_TIMESTAMP,
    DLQ_TOPIC,
    RESERVED_PREFIX,
    is_of_letter,
)
from mqd.protocol.record_reader import Record
from mqd.relay.names import shortened
from mqd.types import Offset

LETTERS_AT_ONCE: Final = 64
"""Letters of one transaction. Their list has at most 2,000 characters."""

REJECTED: Final = "Offset rejected by client."
TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."
EXPIRED: Final = "Record expired before it was acknowledged."


class Archiving(NamedTuple):
    """A record that waits for its dead letter."""

    offset: Offset
    delivery_count: int
    since_ms: int
    """When it became ARCHIVING: tells two lives of an offset apart, for example after the group was
    deleted and created again."""


class Target(NamedTuple):
    """Where the dead letters of a share partition go."""

    topic: str
    partitions: int
    """0: the topic does not exist."""
    copies: bool
    """Whether letters have key, value and headers of the record."""


class Source(NamedTuple):
    """The share partition, for the headers."""

    group_id: str
    topic: str
    partition: int


def transactional_id(group_id: str, topic_id: UUID, partition: int) -> str:
    return f"{RESERVED_PREFIX}.share.{topic_id}.{partition}.{shortened(group_id)}"


def progress_group(group_id: str) -> str:
    """The group whose committed offsets are the progress of all share partitions of a group."""
    return f"{RESERVED_PREFIX}.share.{shortened(group_id)}"


def encode_written(written: Iterable[Archiving]) -> str:
    """The metadata of a progress: offset and time of each letter of the transaction."""
    return ",".join(f"{one.offset:x}@{one.since_ms:x}" for one in written)


def decode_written(metadata: str) -> frozenset[tuple[Offset, int]]:
    """The reverse: (offset, time in ms)."""
    found = set()
    for item in metadata.split(",") if metadata else ():
        offset, _, since_ms = item.partition("@")
        found.add((int(offset, 16), int(since_ms, 16)))
    return frozenset(found)


def cause_of(one: Archiving, *, delivery_limit: int, expires_at_ms: int | None) -> str:
    """Why the group has given up a record. It is not stored, as in Kafka."""
    if expires_at_ms is not None and expires_at_ms <= one.since_ms:
        return EXPIRED
    return TOO_OFTEN if one.delivery_count >= delivery_limit else REJECTED


def letter(
    source: Source, one: Archiving, record: Record | None, *, cause: str, copies: bool, now_ms: int
) -> Record:
    """The dead letter of a record; None if the log no longer has the record."""
    headers: list[tuple[str, bytes | None]] = [
        (DLQ_TOPIC, source.topic.encode()),
        (DLQ_PARTITION, b"%d" % source.partition),
        (DLQ_OFFSET, b"%d" % one.offset),
        (DLQ_GROUP, source.group_id.encode()),
        (DLQ_COUNT, b"%d" % one.delivery_count),
        (DLQ_MESSAGE, cause.encode()),
    ]
    if record is None:
        return Record(0, now_ms, None, None, headers)
    headers.append((DLQ_TIMESTAMP, b"%d" % record.timestamp))
    if not copies:
        return Record(0, now_ms, None, None, headers)
    own: Sequence[tuple[str, bytes | None]] = [
        header for header in record.headers if not is_of_letter(header[0])
    ]
    return Record(0, now_ms, record.key, record.value, [*own, *headers])
