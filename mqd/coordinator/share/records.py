"""Encodes and decodes the records of `__share_group_state`, byte for byte as Apache Kafka does. The
time of availability of a delayed record is a tagged field, which Kafka's tools skip.

    0  ShareSnapshot   the whole state of a share partition; without a value, it is deleted
    1  ShareUpdate     what has changed since the snapshot before it

Both have the same key: group, topic id, partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mqd.coordinator.record_format import RecordFormat, RecordFormatError, decode_record
from mqd.coordinator.shard import CoordinatorRecord
from mqd.protocol.apis.read_share_group_state import STATE_BATCHES
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.protocol.schema import INT32, INT64, STRING, UUID, Field, field, message
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch, RecordState
from mqd.types import Offset

UNKNOWN_COUNT: Final = -1


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    snapshot_epoch: int
    """Grows with each snapshot of the share partition."""
    state_epoch: int
    """Grows when the state begins anew, such as by a change of the start offset by an operator."""
    leader_epoch: int
    """The epoch of the partition's leader that wrote last."""
    start_offset: Offset
    """-1: not known yet."""
    delivery_complete_count: int
    create_timestamp: int
    """Wall time in milliseconds."""
    write_timestamp: int
    state_batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """A start offset of -1 is as before."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: Offset
    delivery_complete_count: int
    state_batches: tuple[Batch, ...]


_KEY: Final = message(field("group_id", STRING), field("topic_id", UUID), field("partition", INT32))


def _value(*fields: Field, timestamps: bool) -> Any:
    return message(
        *fields,
        field("leader_epoch", INT32),
        field("start_offset", INT64),
        field("delivery_complete_count", INT32, tag=0, default=UNKNOWN_COUNT),
        *(
            (field("create_timestamp", INT64), field("write_timestamp", INT64))
            if timestamps
            else ()
        ),
        field("state_batches", STATE_BATCHES),
    )


_SNAPSHOT: Final = RecordFormat(
    kind=0,
    key=_KEY,
    value=_value(field("snapshot_epoch", INT32), field("state_epoch", INT32), timestamps=True),
)
_UPDATE: Final = RecordFormat(
    kind=1, key=_KEY, value=_value(field("snapshot_epoch", INT32), timestamps=False)
)
_FORMATS: Final = {one.kind: one for one in (_SNAPSHOT, _UPDATE)}


def encode(key: ShareKey, value: ShareSnapshot | ShareUpdate) -> CoordinatorRecord:
    """As the schema says. Batches are packed by hand: a snapshot has up to 10,500 of them, which
    take 5 ms, and 40 ms by the schema.
    """
    fields = {name: getattr(value, name) for name in type(value).__slots__}
    fields["state_batches"] = ()
    found, position = (
        (_SNAPSHOT, _SNAPSHOT_BATCHES)
        if isinstance(value, ShareSnapshot)
        else (_UPDATE, _UPDATE_BATCHES)
    )
    record = found.encode(key._asdict(), fields, 0)
    empty = record.value
    assert empty is not None
    assert empty[position] == 1, "the array of batches is elsewhere"
    rows = b"".join(map(_packed, value.state_batches))
    count = pack_unsigned_varint(len(value.state_batches) + 1)  # compact
    return CoordinatorRecord(record.key, empty[:position] + count + rows + empty[position + 1 :])


_SNAPSHOT_BATCHES: Final = 2 + 4 + 4 + 4 + 8 + 8 + 8
_UPDATE_BATCHES: Final = 2 + 4 + 4 + 8
"""Where the array of batches begins: all fields before it have a fixed size."""
_ROW: Final = struct.Struct(">qqbhB")
"""First and last offset, state, count, and no tagged field."""
_DELAYED_ROW: Final = struct.Struct(">qqbhBHBq")
"""The same with one: tag 10,000 as a varint, size, time."""
_TIME_TAG: Final = 0x904E


def _packed(batch: Batch) -> bytes:
    first, last, state, count, time_ms = batch
    if time_ms:
        return _DELAYED_ROW.pack(first, last, state, count, 1, _TIME_TAG, 8, time_ms)
    return _ROW.pack(first, last, state, count, 0)


def tombstone(key: ShareKey) -> CoordinatorRecord:
    """The record that deletes a share partition."""
    return CoordinatorRecord(_SNAPSHOT.encode_key(key._asdict()), None)


def decode(
    record: CoordinatorRecord,
) -> tuple[ShareKey, ShareSnapshot | ShareUpdate | None]:
    """The share partition, and its new state, its changes, or None if it is deleted.

    RecordFormatError for an unknown kind, version or state, and for other bytes that cannot be
    decoded.
    """
    found, fields, value = decode_record(_FORMATS, record)
    key = ShareKey(fields.group_id, fields.topic_id, fields.partition)
    if value is None:
        return key, None
    try:
        batches = batches_of(value.state_batches)
    except ValueError as error:
        raise RecordFormatError(f"share partition {key}: {error}") from None
    if found is _UPDATE:
        return key, ShareUpdate(
            value.snapshot_epoch,
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            batches,
        )
    return key, ShareSnapshot(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        value.create_timestamp,
        value.write_timestamp,
        batches,
    )


def batch_row(batch: Batch) -> dict[str, int]:
    """The row of a request or a record."""
    return {
        "first_offset": batch.first_offset,
        "last_offset": batch.last_offset,
        "delivery_state": int(batch.state),
        "delivery_count": batch.delivery_count,
        "time_ms": batch.time_ms,
    }


def batches_of(rows: Iterable[Any]) -> tuple[Batch, ...]:
    """The batches in rows of a request or a record. Raises ValueError for an unknown state."""
    return tuple(
        Batch(
            row.first_offset,
            row.last_offset,
            RecordState(row.delivery_state),
            row.delivery_count,
            row.time_ms,
        )
        for row in rows
    )
