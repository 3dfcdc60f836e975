"""What may be appended, and the log's state afterwards. No service, no disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from struct import pack_into
from typing import Any

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    RECORDS_COMPRESSED_MAX,
    SEGMENTS_UNSYNCED_MAX,
    TRANSACTIONAL_PRODUCER_IDS_FROM,
)
from mqd.log.appending import Appended, plan_append
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import parse_header, validate, write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from tests.log.support import NOW, PARTITION, TOPIC_ID, batch


def new_log(**options: Any) -> PartitionLog:
    return PartitionLog(PARTITION, TOPIC_ID, Path("d"), LogConfig(**options), [Segment(0, NOW)])


def plan(
    log: PartitionLog,
    data: bytes | bytearray,
    *,
    epoch: int = 3,
    client: bool = True,
    now_ms: int = NOW,
) -> Appended:
    return plan_append(
        log, memoryview(bytearray(data)), leader_epoch=epoch, now_ms=now_ms, client=client
    )


def refusal(log: PartitionLog, data: bytes | bytearray, **given: Any) -> ErrorCode:
    before = (log.log_end_offset, len(log.queue), len(log.producers))
    with pytest.raises(MqError) as caught:
        plan(log, data, **given)
    assert caught.value.message
    assert (log.log_end_offset, len(log.queue), len(log.producers)) == before, (
        "a refusal changes nothing"
    )
    return caught.value.code


def patched(
    data: bytearray, form: str, position: int, value: int, *, crc_is_valid: bool = True
) -> bytearray:
    pack_into(form, data, position, value)
    if crc_is_valid:
        write_crc(data)
    return data


def test_offsets_and_epoch_are_patched_in_and_the_crc_still_holds() -> None:
    log = new_log()
    view = memoryview(batch(b"a", b"b"))
    assert plan_append(log, view, leader_epoch=3, now_ms=NOW) == (0, 1, -1, False)
    second = memoryview(batch(b"c"))
    assert plan_append(log, second, leader_epoch=4, now_ms=NOW) == (2, 2, -1, False)
    header = validate(second)
    assert (header.base_offset, header.partition_leader_epoch) == (2, 4)
    assert (
        log.log_start_offset,
        log.durability.end_offset,
        log.written_end_offset,
        log.log_end_offset,
    ) == (0, 0, 0, 3)
    assert log.epochs.entries() == [(3, 0), (4, 2)]
    assert [list(queued.views) for queued in log.queue] == [[view, second]]


def test_malformed_batches_are_refused_with_kafka_s_codes() -> None:
    log = new_log()
    whole = batch(b"value")
    assert refusal(log, b"") is ErrorCode.INVALID_RECORD
    assert refusal(log, whole[:60]) is ErrorCode.INVALID_RECORD
    assert refusal(log, whole[:-1]) is ErrorCode.INVALID_RECORD
    assert refusal(log, whole + whole) is ErrorCode.INVALID_RECORD
    assert refusal(log, whole + b"\0") is ErrorCode.INVALID_RECORD
    for magic, code in (
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
    ):
        assert refusal(log, patched(batch(), ">b", 16, magic, crc_is_valid=False)) is code
    for length in (48, 0, -1, -(2**31)):
        assert (
            refusal(log, patched(batch(), ">i", 8, length, crc_is_valid=False))
            is ErrorCode.CORRUPT_MESSAGE
        )
    assert (
        refusal(log, patched(batch(), ">i", 8, 2**31 - 1, crc_is_valid=False))
        is ErrorCode.INVALID_RECORD
    )
    assert (
        refusal(log, patched(batch(), ">q", 0, 1, crc_is_valid=False)) is ErrorCode.INVALID_RECORD
    )
    flipped = batch(b"value")
    flipped[-1] ^= 1
    assert refusal(log, flipped) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    "count, last_delta",
    [
        (-1, 0),
        (0, 0),
        (2, 0),
        (1, 1),
        (0, -1),
        (1, -1),
        (2, -1),
        (1, -2),
        (-1, -2),
        (1, -(2**31)),
        (2**31 - 1, 0),
    ],
)
def test_counts_and_offsets_must_agree(count: int, last_delta: int) -> None:
    data = patched(patched(batch(), ">i", 57, count), ">i", 23, last_delta)
    assert refusal(new_log(), data) is ErrorCode.INVALID_RECORD


def test_sizes() -> None:
    data = batch(b"x" * 500)
    assert refusal(new_log(max_message_bytes=len(data) - 1), data) is ErrorCode.MESSAGE_TOO_LARGE
    assert not plan(new_log(max_message_bytes=len(data)), data).duplicate
    assert not plan(new_log(max_message_bytes=len(data) - 1), data, client=False).duplicate, (
        "batches that the broker writes are not limited"
    )
    assert refusal(new_log(segment_bytes=len(data) - 1), data) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_batches_that_clients_may_not_write_are_refused() -> None:
    assert refusal(new_log(), batch(control=True)) is ErrorCode.INVALID_RECORD
    assert (
        refusal(new_log(), batch(transactional=True, producer_id=1, sequence=0))
        is ErrorCode.INVALID_TXN_STATE
    )
    assert refusal(new_log(), batch(producer_id=1, sequence=-1)) is ErrorCode.INVALID_RECORD
    foreign = batch(producer_id=TRANSACTIONAL_PRODUCER_IDS_FROM, epoch=32_000, sequence=0)
    assert refusal(new_log(), foreign) is ErrorCode.INVALID_TXN_STATE, "it would fence its owner"
    assert refusal(new_log(), patched(batch(), ">h", 21, 5)) is ErrorCode.CORRUPT_MESSAGE
    assert plan(new_log(), batch(control=True, producer_id=1), client=False).base_offset == 0


def test_keys_are_required_where_the_topic_is_compacted() -> None:
    compacted = frozenset({"compact"})
    assert (
        refusal(new_log(cleanup_policy=compacted), batch(keyed=False)) is ErrorCode.INVALID_RECORD
    )
    assert (
        refusal(new_log(cleanup_policy=compacted), batch(keyed=False, codec=Codec.ZSTD))
        is ErrorCode.INVALID_RECORD
    )
    assert plan(new_log(cleanup_policy=compacted), batch()).base_offset == 0
    assert plan(new_log(), batch(keyed=False)).base_offset == 0


def test_timestamps_outside_the_allowed_range_are_refused() -> None:
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 10}
    for timestamp in (NOW - 1000, NOW + 10, -1):
        assert plan(new_log(**limits), batch(timestamp=timestamp)).base_offset == 0
    for timestamp in (NOW - 1001, NOW + 11, 2**62):
        assert refusal(new_log(**limits), batch(timestamp=timestamp)) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(new_log(), batch(timestamp=NOW + 3_600_001)) is ErrorCode.INVALID_TIMESTAMP
    for base in (2**63 - 1, NOW + 3_600_001):
        assert refusal(new_log(), patched(batch(), ">q", 27, base)) is ErrorCode.INVALID_TIMESTAMP
    assert plan(new_log(), batch(timestamp=0)).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_with_refused_timestamps_are_named(codec: Codec) -> None:
    log = new_log()
    late = NOW + 3_600_001
    records = [Record(0, stamp, b"k", b"v") for stamp in (NOW, late, NOW, *[late] * 20)]
    with pytest.raises(MqError) as caught:
        plan_append(log, memoryview(build_batch(records, codec=codec)), leader_epoch=0, now_ms=NOW)
    assert caught.value.message == "One or more records have been rejected due to invalid timestamp"
    assert [index for index, _ in caught.value.record_errors] == [1, *range(3, 12)], "the first ten"
    assert caught.value.record_errors[0][1].startswith(
        f"Timestamp {late} of message with offset 1 is out of range. The timestamp"
    )


def test_refused_timestamps_are_not_searched_in_expensive_batches() -> None:
    log = new_log()
    noise = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(10_000))
    large = build_batch([Record(0, NOW + 3_600_001, None, noise)], codec=Codec.GZIP)
    small = build_batch([Record(0, NOW + 3_600_001, None, b"v")], codec=Codec.GZIP)
    damaged = memoryview(bytearray(small))
    damaged[61] ^= 0xFF
    write_crc(damaged)
    for data in (large, damaged):
        with pytest.raises(MqError) as caught:
            plan_append(log, memoryview(bytearray(data)), leader_epoch=0, now_ms=NOW)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP and not caught.value.record_errors
        assert f"they go from {NOW + 3_600_001} to" in caught.value.message


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_client_s_log_append_time_flag(codec: Codec) -> None:
    """Ignored where records keep their own timestamps, which they do then; refused where the broker
    stamps them, like Apache Kafka.
    """
    data = patched(batch(b"a", b"b", timestamp=NOW - 5, codec=codec), ">h", 21, 8 | codec)
    view = memoryview(bytearray(data))
    assert plan_append(new_log(), view, leader_epoch=0, now_ms=NOW).log_append_time_ms == -1
    header = validate(view)
    assert (
        not header.is_log_append_time and header.codec == codec and header.max_timestamp == NOW - 5
    )
    with pytest.raises(MqError) as caught:
        plan_append(
            new_log(message_timestamp_type="LogAppendTime"),
            memoryview(bytearray(data)),
            leader_epoch=0,
            now_ms=NOW,
        )
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP and [
        index for index, _ in caught.value.record_errors
    ] == [0, 1]
    assert (
        refusal(new_log(), patched(patched(data, ">q", 35, -1), ">h", 21, 8 | codec))
        is ErrorCode.INVALID_TIMESTAMP
    )
    assert (
        refusal(new_log(), patched(patched(data, ">q", 35, NOW + 3_600_001), ">h", 21, 8 | codec))
        is ErrorCode.INVALID_TIMESTAMP
    )


def test_log_append_time_is_stamped_under_a_new_crc() -> None:
    log = new_log(message_timestamp_type="LogAppendTime")
    view = memoryview(batch(b"a", timestamp=5, codec=Codec.GZIP))
    assert plan_append(log, view, leader_epoch=0, now_ms=NOW).log_append_time_ms == NOW
    header = validate(view)
    assert header.is_log_append_time and header.max_timestamp == NOW and header.codec == Codec.GZIP


def test_a_duplicate_is_acknowledged_and_not_appended() -> None:
    log = new_log()
    first = plan(log, batch(b"a", b"b", producer_id=9, sequence=0))
    again = plan(log, batch(b"a", b"b", producer_id=9, sequence=0))
    assert again == (first.base_offset, first.last_offset, -1, True)
    assert log.log_end_offset == 2 and sum(len(queued.views) for queued in log.queue) == 1
    assert refusal(log, batch(producer_id=9, sequence=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_segments_that_one_turn_begins_are_bounded() -> None:
    log = new_log(segment_bytes=len(batch()))
    for _ in range(SEGMENTS_UNSYNCED_MAX):
        plan(log, batch())
    assert refusal(log, batch()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(log.queue) == SEGMENTS_UNSYNCED_MAX and ErrorCode.KAFKA_STORAGE_ERROR.retriable


def bases(log: PartitionLog) -> list[tuple[int, bool]]:
    return [(queued.base_offset, queued.new_segment is not None) for queued in log.queue]


def test_rolls_by_size_within_one_turn() -> None:
    data = batch(b"x" * 100)
    log = new_log(segment_bytes=2 * len(data))
    for _ in range(5):
        plan(log, data)
    assert bases(log) == [(0, False), (2, True), (4, True)]


def test_rolls_by_the_timestamps_of_batches() -> None:
    log = new_log(segment_ms=1000)
    for timestamp in (NOW, NOW + 1000, NOW + 1001, NOW + 2001, NOW + 2002):
        plan(log, batch(timestamp=timestamp), now_ms=NOW)
    assert bases(log) == [(0, False), (2, True), (4, True)]


def test_rolls_before_a_relative_offset_overflows() -> None:
    most = RECORDS_COMPRESSED_MAX

    def many(count: int) -> bytearray:
        return patched(patched(batch(codec=Codec.GZIP), ">i", 57, count), ">i", 23, count - 1)

    log = new_log()
    whole, rest = divmod(2**31 - 1, most)
    for _ in range(whole):
        plan(log, many(most))
    plan(log, many(rest))
    assert log.log_end_offset == 2**31 - 1
    plan(log, batch())
    plan(log, batch())
    assert bases(log) == [(0, False), (2**31, True)]
    assert log.queue[0].batches[-1][0] == 2**31 - 1


@pytest.mark.parametrize(
    "codec, count, code",
    [
        (Codec.NONE, 3, ErrorCode.INVALID_RECORD),
        (Codec.GZIP, RECORDS_COMPRESSED_MAX + 1, ErrorCode.MESSAGE_TOO_LARGE),
        (Codec.NONE, 0, ErrorCode.INVALID_RECORD),
        (Codec.NONE, -1, ErrorCode.INVALID_RECORD),
    ],
)
def test_impossible_record_counts_are_refused(codec: Codec, count: int, code: ErrorCode) -> None:
    assert (
        refusal(
            new_log(), patched(patched(batch(codec=codec), ">i", 57, count), ">i", 23, count - 1)
        )
        is code
    )


@pytest.mark.parametrize("index_bytes, expected", [(24, [0, 2, 4]), (36, [0, 3]), (1000, [0])])
def test_rolls_when_an_index_is_full(index_bytes: int, expected: list[int]) -> None:
    log = new_log(segment_index_bytes=index_bytes, index_interval_bytes=0)
    for _ in range(5):
        plan(log, batch(timestamp=NOW + log.log_end_offset))
        for queued in log.queue:
            if queued.new_segment is not None:
                log.on_rolled(Segment(queued.base_offset, NOW))
            log.on_written(queued)
        log.on_queue_written()
    assert [segment.base_offset for segment in log.segments] == expected


def test_the_snapshot_of_a_roll_excludes_later_batches() -> None:
    data = batch(b"x" * 100, producer_id=5, sequence=0)
    log = new_log(segment_bytes=len(data))
    plan(log, data)
    plan(log, batch(b"x" * 100, producer_id=5, sequence=1))
    snapshot = log.queue[1].new_segment
    assert snapshot is not None and [
        (one.last_sequence, one.last_offset) for one in snapshot.rows()
    ] == [(0, 0)]


def test_dropping_the_queue_restores_the_offsets() -> None:
    log = new_log()
    plan(log, batch(b"a", b"b"))
    log.forget_queue()
    assert log.log_end_offset == 0 and plan(log, batch()).base_offset == 0


def test_options_by_their_dotted_names() -> None:
    config = LogConfig.from_options(
        {
            "segment.bytes": 5,
            "cleanup.policy": "compact, delete",
            "flush.messages": 1,
            "min.insync.replicas": 2,
            "retention.ms": -1,
        }
    )
    assert (config.segment_bytes, config.cleanup_policy, config.flush_before_ack) == (
        5,
        frozenset({"compact", "delete"}),
        True,
    )
    assert LogConfig.from_options({}) == LogConfig()
    assert LogConfig.from_options({"cleanup.policy": ["compact"]}).cleanup_policy == {"compact"}


def test_headers_of_queued_batches_are_dense() -> None:
    log = new_log()
    for count in (1, 3, 2):
        plan(log, batch(*[b"x"] * count))
    spans = [
        (parse_header(view).base_offset, parse_header(view).next_offset)
        for queued in log.queue
        for view in queued.views
    ]
    assert spans == [(0, 1), (1, 4), (4, 6)]
