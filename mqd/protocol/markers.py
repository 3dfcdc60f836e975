"""Markers: the control batches that end a producer's transaction in a partition (KIP-98).

One record each. Key: version 0 and type (0 abort, 1 commit), int16 both. Value: version 0 (int16), coordinator epoch (int32).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mqd.errors import MqError
from mqd.protocol.batch import Buffer, build_batch, iterate_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1


class EndMarker(NamedTuple):
    """What a marker says. `coordinator_epoch`: the leader epoch of the coordinator's partition of __transaction_state."""

    committed: bool
    coordinator_epoch: int


def build_end_marker(producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_ms: int) -> bytearray:
    """The batch, sealed."""
    key = _KEY.pack(0, _COMMIT if marker.committed else _ABORT)
    return build_batch(
        [(key, _VALUE.pack(0, marker.coordinator_epoch))],
        timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_end_marker(view: Buffer, position: int = 0) -> EndMarker | None:
    """What the control batch at `position` says; None where it ends no transaction, or cannot be understood."""
    try:
        record = next(iter(iterate_records(view, position)), None)
    except MqError:
        return None
    if record is None or record.key is None or len(record.key) < _KEY.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    epoch = _VALUE.unpack_from(record.value)[1] if record.value is not None and len(record.value) >= _VALUE.size else -1
    return EndMarker(kind == _COMMIT, epoch)
