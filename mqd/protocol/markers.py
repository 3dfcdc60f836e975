"""Markers: the control batches that end a producer's transaction in a partition (KIP-98).

One record each. Key: version 0 and type (0 abort, 1 commit), int16 both. Value: version 0 (int16),
coordinator epoch (int32).

A seal has the same shape, and another type. It does not end the transaction: a prepared transaction
(KIP-939) accepts no more records of its epoch. Clients skip control batches; Apache Kafka's clients
ignore unknown types.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mqd.errors import MqError
from mqd.limits import KIB
from mqd.protocol.batch import Buffer
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import iterate_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1
_SEAL = 939
_BYTES_MAX = 64 * KIB
"""Decompressed. A marker is not compressed, and has some 20 bytes."""


class EndMarker(NamedTuple):
    """The content of a marker.

    `coordinator_epoch`: the leader epoch of the coordinator's partition of __transaction_state.
    """

    committed: bool
    coordinator_epoch: int


def build_end_marker(
    producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_ms: int
) -> bytearray:
    """The sealed batch of a marker."""
    return _control_batch(
        producer_id,
        producer_epoch,
        _COMMIT if marker.committed else _ABORT,
        marker.coordinator_epoch,
        timestamp_ms,
    )


def build_transaction_seal(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """The batch after which a partition rejects all epochs of the producer below this one, while
    its transaction stays open.
    """
    return _control_batch(producer_id, producer_epoch, _SEAL, coordinator_epoch, timestamp_ms)


def _control_batch(
    producer_id: int, producer_epoch: int, kind: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    return build_batch(
        [(_KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch))],
        timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_end_marker(view: Buffer, position: int = 0) -> EndMarker | None:
    """The content of the control batch at `position`; None if it ends no transaction, or is
    unknown.
    """
    kind, epoch = _parse(view, position)
    return EndMarker(kind == _COMMIT, epoch) if kind in (_ABORT, _COMMIT) else None


def is_transaction_seal(view: Buffer, position: int = 0) -> bool:
    """Whether the control batch at `position` is a seal."""
    return _parse(view, position)[0] == _SEAL


def _parse(view: Buffer, position: int) -> tuple[int, int]:
    """Type and coordinator epoch; -1 for a missing value."""
    try:
        record = next(iter(iterate_records(view, position, limit=_BYTES_MAX)), None)
    except MqError:
        return -1, -1
    if record is None or record.key is None or len(record.key) < _KEY.size:
        return -1, -1
    epoch = (
        _VALUE.unpack_from(record.value)[1]
        if record.value is not None and len(record.value) >= _VALUE.size
        else -1
    )
    return _KEY.unpack_from(record.key)[1], epoch
