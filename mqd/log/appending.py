"""Appends to a log: checks a batch, assigns its offsets and queues it. A core, and the hot path.

A leader's batch is judged by the 61 bytes of its header and its CRC. Its records are not decoded,
with two exceptions: keys, for a compacted topic (record_inspection.py), and another codec than the
topic's (recompression.py). A follower queues its leader's batches unchanged.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import SEGMENTS_UNSYNCED_MAX, TRANSACTIONAL_PRODUCER_IDS_FROM
from mqd.log.admission import (
    COMPRESSED_RECORDS_BYTES,
    RECORD_BYTES_MIN,
    refuse_content,
    refuse_shape,
)
from mqd.log.partition_log import PartitionLog, Queued
from mqd.log.producers import replay_marker
from mqd.protocol.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_TIMESTAMP_POSITION,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    crc_of,
    write_crc,
)
from mqd.protocol.files import RELATIVE_OFFSET_MAX
from mqd.types import NO_TIMESTAMP, Offset

_BASE_LENGTH_EPOCH = Struct(">qii")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__
"""A NamedTuple's own constructor is a Python function: 0.2 us more for each batch."""
_ODD_ATTRIBUTES = 0xFFFF & ~CODEC_MASK


class Appended(NamedTuple):
    """The result for one batch. For a duplicate, the offsets of the first copy."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    """-1 unless the topic stamps its records."""
    duplicate: bool


def plan_append(
    log: PartitionLog,
    view: memoryview,
    *,
    leader_epoch: int,
    now_ms: int,
    client: bool = True,
) -> Appended:
    """Write offset and leader epoch into the one batch in `view`, and queue it. `view` must not
    change until it is written.

    Raises MqError with Kafka's code, and changes nothing, for a batch that is refused: see
    admission.py. A batch that was appended before (idempotence) is not appended again. `client`
    is false for batches of the broker itself.
    """
    size = len(view)
    if size < HEADER_BYTES:
        reason = f"{size} bytes are less than the header of a batch"
        raise MqError(ErrorCode.INVALID_RECORD, reason)
    (given_offset, length, _, magic, crc, attributes, last_offset_delta, base_timestamp,
     max_timestamp, producer_id, producer_epoch, base_sequence,
     records_count) = _unpack_header(view, 0)  # fmt: skip
    config = log.config
    if attributes & CODEC_MASK:
        records_bytes = COMPRESSED_RECORDS_BYTES
    else:
        records_bytes = size - HEADER_BYTES
    if (
        length + 12 != size
        or magic != 2
        or given_offset
        or records_count != last_offset_delta + 1
        or records_count < 1
        or records_count * RECORD_BYTES_MIN > records_bytes
        or size > config.max_message_bytes
    ):
        refuse_shape(view, config, client)
    if crc_of(view, 0, size) != crc:
        raise MqError(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C of the batch is wrong")
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if (
        attributes & _ODD_ATTRIBUTES
        or attributes & CODEC_MASK > 4
        or not earliest <= max_timestamp <= latest
        or not earliest <= base_timestamp <= latest
        or size > config.segment_bytes
        or "compact" in config.cleanup_policy
    ):
        refuse_content(view, config, log.inspection, now_ms, client)
    if producer_id >= 0:
        producers = log.producers
        if not client:
            if not attributes & CONTROL_MASK:
                producers.check_coordinator_batch(producer_id, producer_epoch)
        elif base_sequence < 0:
            reason = f"producer {producer_id} sent no sequence number"
            raise MqError(ErrorCode.INVALID_RECORD, reason)
        else:
            transactional = attributes & TRANSACTIONAL_MASK
            if producer_id >= TRANSACTIONAL_PRODUCER_IDS_FROM and not transactional:
                # Otherwise anyone with the id could raise its epoch, and so fence its owner.
                raise MqError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {producer_id} belongs to a transactional id, and the batch is in no "
                    "transaction",
                )
            if transactional or producers.open:
                seen = producers.check_with_transactions(
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    last_offset_delta,
                    bool(transactional),
                )
            else:
                seen = producers.check(
                    producer_id, producer_epoch, base_sequence, last_offset_delta
                )
            if seen is not None:
                stamps = config.message_timestamp_type == "LogAppendTime"
                return Appended(seen[0], seen[1], seen[2] if stamps else NO_TIMESTAMP, True)

    # The batch is accepted. Only `_plan_roll` can still fail, before it changes anything.
    base_offset = log.log_end_offset
    last_offset = base_offset + last_offset_delta
    log_append_time = NO_TIMESTAMP
    if config.message_timestamp_type == "LogAppendTime":
        log_append_time = max_timestamp = now_ms
        _ATTRIBUTES.pack_into(view, ATTRIBUTES_POSITION, attributes | TIMESTAMP_TYPE_MASK)
        _TIMESTAMP.pack_into(view, MAX_TIMESTAMP_POSITION, now_ms)
        write_crc(view)
    elif attributes & TIMESTAMP_TYPE_MASK:
        # A producer must not set it. The records keep their own timestamps.
        attributes &= ~TIMESTAMP_TYPE_MASK
        _ATTRIBUTES.pack_into(view, ATTRIBUTES_POSITION, attributes)
        write_crc(view)
    # Each batch starts where the one before it ends (I3), in the order of arrival (I6).
    _BASE_LENGTH_EPOCH.pack_into(view, 0, base_offset, length, leader_epoch)
    tail = log.tail
    roll = log.roll
    segment_size = roll.size
    if segment_size and (
        segment_size + size > roll.at_bytes
        or last_offset > roll.at_offset
        or max_timestamp > roll.at_timestamp
    ):
        tail = _plan_roll(log, base_offset)
        segment_size = 0
    elif tail is None:
        log.tail = tail = Queued(base_offset, None)
        log.queue.append(tail)
    if not segment_size:
        roll.at_timestamp = roll.timestamp_limit(max_timestamp, config)
    roll.size = segment_size + size
    tail.views.append(view)
    tail.batches.append((last_offset, size, max_timestamp))
    log.log_end_offset = last_offset + 1
    if leader_epoch != log.epochs.latest:
        log.epochs.assign(leader_epoch, base_offset)
    if producer_id >= 0:
        if attributes & CONTROL_MASK:
            _replay_marker(log, tail, view, last_offset)
        else:
            producers.replay(
                producer_id,
                producer_epoch,
                base_sequence,
                base_offset,
                last_offset_delta,
                max_timestamp,
                attributes,
            )
    return _new_tuple(Appended, (base_offset, last_offset, log_append_time, False))


def plan_append_as_follower(
    log: PartitionLog, view: memoryview, *, leader_epoch: int, batches_max: int
) -> int:
    """Queue the leader's batches at the start of `view`, unchanged. `view` must not change until
    they are written. Returns how many of its bytes were taken.

    Offsets, epochs and producers become the leader's, with its gaps, if the topic is or was
    compacted. Not taken: batches after the first `batches_max`, an incomplete batch, and batches of
    an epoch above `leader_epoch`, which the caller does not know yet. Raises for the first batch,
    and changes nothing. CORRUPT_MESSAGE: it is damaged or does not continue this log.
    KAFKA_STORAGE_ERROR: it cannot be appended now.
    """
    position, end = 0, len(view)
    epochs, tail, roll, begun = log.epochs, log.tail, log.roll, 0
    for _ in range(batches_max):
        if position + HEADER_BYTES > end:
            break
        (base_offset, length, epoch, magic, crc, attributes, last_offset_delta, _, max_timestamp,
         producer_id, producer_epoch, base_sequence,
         _) = _unpack_header(view, position)  # fmt: skip
        size = length + LOG_OVERHEAD_BYTES
        stop = position + size
        if stop > end and magic == MAGIC and size >= HEADER_BYTES:
            break
        damage = (
            f"length {length}, magic {magic}, last offset delta {last_offset_delta}"
            if magic != MAGIC or size < HEADER_BYTES or last_offset_delta < 0
            else "its CRC-32C is wrong"
            if crc_of(view, position, stop) != crc
            else f"it begins at offset {base_offset}"
            if base_offset < log.log_end_offset
            else ""
        )
        if not damage and epoch > leader_epoch:
            break
        if not damage and epoch < epochs.latest:
            # Remove the epochs in which this node led and appended nothing.
            epochs.truncate_from_end(log.log_end_offset)
            if epoch < epochs.latest:
                damage = f"its leader epoch is {epoch}, after {epochs.latest}"
        if damage:
            if position:
                break  # the batches before it are good
            raise MqError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{log.topic_partition} ends at {log.log_end_offset}; the next batch: {damage}",
            )
        last_offset = base_offset + last_offset_delta
        segment_size = roll.size
        if last_offset > roll.at_offset or (
            segment_size
            and (segment_size + size > roll.at_bytes or max_timestamp > roll.at_timestamp)
        ):
            if tail is not None and position > begun:
                tail.views.append(view[begun:position])
                begun = position
            # The segment begins at the log end, so that there is no gap between segments, unless
            # the gap is wider than a segment.
            first_offset = max(log.log_end_offset, last_offset - RELATIVE_OFFSET_MAX)
            try:
                tail = _plan_roll(log, first_offset)
            except MqError:
                if position:
                    break
                raise
            segment_size = 0
        elif tail is None:
            log.tail = tail = Queued(base_offset, None)
            log.queue.append(tail)
        if not segment_size:
            roll.at_timestamp = roll.timestamp_limit(max_timestamp, log.config)
        roll.size = segment_size + size
        tail.batches.append((last_offset, size, max_timestamp))
        if base_offset > log.log_end_offset and log.cleaned_to is None:
            log.cleaned_to = log.log_start_offset
        if epoch > epochs.latest:
            # After a gap, the epoch may have begun earlier. An older replica must not keep what it
            # has in the gap.
            epochs.assign(epoch, log.log_end_offset)
        log.log_end_offset = last_offset + 1
        if producer_id >= 0:
            if attributes & CONTROL_MASK:
                _replay_marker(log, tail, view[position:stop], last_offset)
            else:
                log.producers.replay(
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    base_offset,
                    last_offset_delta,
                    max_timestamp,
                    attributes,
                )
        position = stop
    if tail is not None and position > begun:
        tail.views.append(view[begun:position])
    return position


def _replay_marker(log: PartitionLog, queued: Queued, view: memoryview, offset: Offset) -> None:
    aborted = replay_marker(log.producers, view, offset)
    # This forgets transactions that ended below the high watermark. A fetch may not do it for long.
    log.producers.first_unstable_offset(log.checkpointed_high_watermark)
    if aborted is not None:
        queued.aborted.append(aborted)


def _plan_roll(log: PartitionLog, base_offset: Offset) -> Queued:
    """Plan a new segment. Raises MqError KAFKA_STORAGE_ERROR, and nothing has changed."""
    durability = log.durability
    partition = log.topic_partition
    if not durability.may_roll:
        waits = "recovery point" if durability.recovery_point_is_too_high else "truncation"
        reason = f"the {waits} of {partition} waits to be on disk: retry later"
        raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    first_unsynced = log.segment_index(durability.end_offset)
    unsynced = len(log.segments) - first_unsynced + len(log.queue)
    if unsynced > SEGMENTS_UNSYNCED_MAX:
        reason = f"{unsynced} segments of {partition} wait to be synced: retry later"
        raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    tail = log.tail = Queued(base_offset, log.producers.freeze())
    log.queue.append(tail)
    log.roll.begin(base_offset, log.config)
    return tail
