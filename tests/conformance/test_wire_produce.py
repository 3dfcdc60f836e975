"""Produce, each version and each error; and the idempotent producer's sequence numbers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from .batches import CODECS, CONTROL, LOG_APPEND_TIME, NOW_MS, Batch, batch, parse, record, records
from .wire import (
    Wire,
    create_topic,
    fetch_one,
    list_offsets,
    new_producer_id,
    produce,
    produce_fields,
    topic_id,
    until,
)

NONE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE = 0, 2, 3, 10
INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP, OUT_OF_ORDER, INVALID_EPOCH = 21, 32, 45, 47
UNSUPPORTED_COMPRESSION, INVALID_RECORD, UNKNOWN_TOPIC_ID = 76, 87, 100


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version(wire: Wire, topic: str, version: int) -> None:
    address = topic_id(wire, topic) if version >= 13 else topic
    for base in (0, 2):
        row = produce(wire, address, batch(b"a", b"b"), version=version)
        assert (row.error_code, row.base_offset, row.log_append_time_ms) == (NONE, base, -1)
        if version >= 5:
            assert row.log_start_offset == 0


def test_stored_batches_carry_the_assigned_offset_and_the_leader_epoch(
    wire: Wire, topic: str
) -> None:
    """Both are outside the CRC; Sarama interprets batches with a stale base offset as
    duplicates.
    """
    for _ in range(3):
        produce(wire, topic, Batch(records=records(b"a", b"b"), leader_epoch=77).encode())
    stored = parse(fetch_one(wire, topic, 0).records)
    assert [(b.base_offset, b.last_offset, b.leader_epoch) for b in stored] == [
        (0, 1, 0),
        (2, 3, 0),
        (4, 5, 0),
    ]


def test_acks_0_gets_no_response(wire: Wire, topic: str) -> None:
    wire.post("Produce", 9, **produce_fields(topic, batch(b"a"), acks=0))
    assert wire.ask("ApiVersions", 0).error_code == 0, (
        "the next response is that of the next request"
    )
    until(lambda: list_offsets(wire, topic, -1).offset == 1, "the record")


def test_acks_0_with_an_error_closes_the_connection(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    """There is no other way to make the client refresh its metadata."""
    wire.post("Produce", 9, **produce_fields(new_name(), batch(b"a"), acks=0))
    assert wire.closed()


def test_append_time_is_returned_and_stored(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = create_topic(wire, new_name(), configs={"message.timestamp.type": "LogAppendTime"})
    row = produce(wire, topic, batch(b"a", b"b"))
    assert abs(row.log_append_time_ms / 1000 - time.time()) < 60
    (stored,) = parse(fetch_one(wire, topic, 0).records)
    assert stored.attributes & LOG_APPEND_TIME
    assert stored.max_timestamp_ms == row.log_append_time_ms


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("codec", [0, 1])
def test_a_client_s_log_append_time_flag(
    wire: Wire, new_name: Callable[[], str], codec: int, version: int
) -> None:
    """Ignored where producers stamp, refused where the broker does."""
    data = Batch(
        records=records(b"a", b"b"),
        attributes=LOG_APPEND_TIME,
        codec=codec,
        max_timestamp_ms=NOW_MS + 7,
    ).encode()
    topic = create_topic(wire, new_name())
    assert (
        produce(
            wire, topic_id(wire, topic) if version >= 13 else topic, data, version=version
        ).error_code
        == NONE
    )
    (stored,) = parse(fetch_one(wire, topic, 0).records)
    assert (stored.attributes, stored.first_timestamp_ms, stored.max_timestamp_ms) == (
        codec,
        NOW_MS,
        NOW_MS + 7,
    )
    unknown = Batch(attributes=LOG_APPEND_TIME, codec=codec, max_timestamp_ms=-1).encode()
    assert produce(wire, topic, unknown).error_code == INVALID_TIMESTAMP

    stamping = create_topic(wire, new_name(), configs={"message.timestamp.type": "LogAppendTime"})
    row = produce(
        wire, topic_id(wire, stamping) if version >= 13 else stamping, data, version=version
    )
    assert row.error_code == INVALID_TIMESTAMP
    if version >= 8:
        assert [error.batch_index for error in row.record_errors] == [0, 1]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_compression_type_of_the_topic(
    wire: Wire, new_name: Callable[[], str], wanted: str, codec: int
) -> None:
    """Small and large batches; one that has the codec of the topic is stored unchanged."""
    topic = create_topic(wire, new_name(), configs={"compression.type": wanted})
    producer_id, epoch = new_producer_id(wire)
    stored_codec = (
        codec if wanted == "producer" else CODECS["none" if wanted == "uncompressed" else wanted]
    )
    sequence = 0
    for values in ([b"small"] * 3, [b"%d" % i * 40 for i in range(900)]):
        data = Batch(
            records=records(*values),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        ).encode()
        row = produce(wire, topic, data)
        assert (row.error_code, row.base_offset) == (NONE, sequence)
        (stored,) = parse(fetch_one(wire, topic, sequence).records)
        assert (stored.attributes, stored.count, stored.base_offset) == (
            stored_codec,
            len(values),
            sequence,
        )
        assert (stored.producer_id, stored.base_sequence, stored.max_timestamp_ms) == (
            producer_id,
            sequence,
            NOW_MS,
        )
        assert (stored.payload == data[61:]) == (stored_codec == codec)
        if not stored_codec:
            assert stored.payload == b"".join(records(*values))
        assert produce(wire, topic, data).base_offset == sequence, "a retry"
        sequence += len(values)
    damaged = Batch(codec=codec, crc=1).encode()
    assert produce(wire, topic, damaged).error_code == CORRUPT_MESSAGE


def test_compression_levels_of_the_topic(wire: Wire, new_name: Callable[[], str]) -> None:
    values = [b"%d" % (i * i * 7919) * 9 for i in range(2000)]
    sizes = []
    for level in ("1", "9"):
        topic = create_topic(
            wire, new_name(), configs={"compression.type": "gzip", "compression.gzip.level": level}
        )
        assert produce(wire, topic, batch(*values)).error_code == NONE
        (stored,) = parse(fetch_one(wire, topic, 0).records)
        sizes.append(len(stored.payload))
    assert sizes[0] > sizes[1]


REFUSED: dict[str, tuple[bytes, int]] = {
    "two batches": (batch(b"a") + batch(b"b"), INVALID_RECORD),
    "cut off": (batch(b"abcdef")[:-3], INVALID_RECORD),
    "empty set": (b"", INVALID_RECORD),
    "magic 0": (Batch(magic=0).encode(), INVALID_RECORD),
    "magic 1": (Batch(magic=1).encode(), INVALID_RECORD),
    "magic 3": (Batch(magic=3).encode(), CORRUPT_MESSAGE),
    "base offset 7": (Batch(base_offset=7).encode(), INVALID_RECORD),
    "control batch": (
        Batch(attributes=CONTROL, producer_id=1, producer_epoch=0, base_sequence=-1).encode(),
        INVALID_RECORD,
    ),
    "wrong CRC": (Batch(crc=0xBAD).encode(), CORRUPT_MESSAGE),
    "count too large": (Batch(count=3, last_offset_delta=2).encode(), INVALID_RECORD),
    "count 0": (Batch(records=(), last_offset_delta=0, count=0).encode(), INVALID_RECORD),
    "count -1": (Batch(count=-1).encode(), INVALID_RECORD),
    "last offset delta is not count - 1": (
        Batch(records=records(b"a", b"b"), last_offset_delta=5).encode(),
        INVALID_RECORD,
    ),
    "last offset delta -1": (Batch(last_offset_delta=-1).encode(), INVALID_RECORD),
    "last offset delta -1, two records": (
        Batch(records=records(b"a", b"b"), last_offset_delta=-1).encode(),
        INVALID_RECORD,
    ),
    "last offset delta -1, wrong CRC": (
        Batch(last_offset_delta=-1, crc=0xBAD).encode(),
        CORRUPT_MESSAGE,
    ),
    "last offset delta -2": (Batch(last_offset_delta=-2).encode(), INVALID_RECORD),
    "last offset delta -2, count -1": (
        Batch(last_offset_delta=-2, count=-1).encode(),
        INVALID_RECORD,
    ),
    "length below the header": (Batch(length=48).encode(), CORRUPT_MESSAGE),
    "length above the set": (Batch(length=5000).encode(), INVALID_RECORD),
    "too far in the future": (
        batch(b"a", timestamps_ms=[int(time.time() * 1000) + 3 * 3600_000]),
        INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_refused_batches(wire: Wire, topic: str, data: bytes, code: int) -> None:
    row = produce(wire, topic, data)
    assert (row.error_code, row.base_offset) == (code, -1)
    assert produce(wire, topic, batch(b"good")).base_offset == 0, "nothing was stored"


NOT_ONE_BATCH = (
    "two batches",
    "cut off",
    "empty set",
    "magic 0",
    "magic 1",
    "length above the set",
)
"""Refused before they reach a log."""


@pytest.mark.parametrize("version", [5, 9, 13])
def test_the_log_start_offset_of_refused_batches(wire: Wire, topic: str, version: int) -> None:
    """A log that refuses a batch returns its own start. -1 if the bytes do not reach it, or the
    error is one of these codes.
    """
    produce(wire, topic, batch(*[b"a"] * 5))
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    wire.ask("DeleteRecords", 2, topics=rows, timeout_ms=10_000)
    address = topic_id(wire, topic) if version >= 13 else topic
    for name, (data, code) in REFUSED.items():
        row = produce(wire, address, data, version=version)
        named = code not in (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE) and name not in NOT_ONE_BATCH
        assert (row.error_code, row.log_start_offset) == (code, 3 if named else -1), name
    assert produce(wire, address, batch(b"x" * 1_100_000), version=version).log_start_offset == -1
    producer = Producer(wire, topic)
    assert producer.send(0, epoch=2) == (NONE, 5)
    for sequence, epoch, code in ((7, 2, OUT_OF_ORDER), (1, 1, INVALID_EPOCH)):
        data = Batch(producer_id=producer.id, producer_epoch=epoch, base_sequence=sequence).encode()
        row = produce(wire, address, data, version=version)
        assert (row.error_code, row.log_start_offset) == (code, 3)


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_records_with_refused_timestamps_are_named(
    wire: Wire, topic: str, codec: int, version: int
) -> None:
    now = int(time.time() * 1000)
    late = now + 3 * 3600_000
    address = topic_id(wire, topic) if version >= 13 else topic
    row = produce(
        wire,
        address,
        batch(b"a", b"b", b"c", b"d", timestamps_ms=[now, late, now, late], codec=codec),
        version=version,
    )
    assert (row.error_code, row.error_message) == (
        INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
    )
    assert [error.batch_index for error in row.record_errors] == [1, 3]
    beginning = (
        f"Timestamp {late} of message with offset 1 is out of range. The timestamp "
        "should be within ["
    )
    assert row.record_errors[0].batch_index_error_message.startswith(beginning)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_invalid_acks(wire: Wire, topic: str, acks: int) -> None:
    assert produce(wire, topic, batch(b"a"), acks=acks).error_code == INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_zstd_needs_produce_7(wire: Wire, topic: str, codec: int) -> None:
    old = produce(wire, topic, batch(b"a" * 100, codec=codec), version=6)
    assert old.error_code == (UNSUPPORTED_COMPRESSION if codec == 4 else NONE)
    assert produce(wire, topic, batch(b"a" * 100, codec=codec), version=7).error_code == NONE
    for version in (4, 9, 10, 12):
        assert fetch_one(wire, topic, 0, version=version).error_code == NONE, (
            "but old fetches get it"
        )


def test_unknown_topics_and_partitions(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert produce(wire, new_name(), batch(b"a")).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert produce(wire, uuid.uuid4(), batch(b"a"), version=13).error_code == UNKNOWN_TOPIC_ID
    for partition in (1, 2**31 - 1, -1):
        assert (
            produce(wire, topic, batch(b"a"), partition=partition).error_code
            == UNKNOWN_TOPIC_OR_PARTITION
        )


def test_max_message_bytes(wire: Wire, new_name: Callable[[], str]) -> None:
    just = batch(b"x" * 1000)
    topic = create_topic(wire, new_name(), configs={"max.message.bytes": str(len(just))})
    assert produce(wire, topic, just).error_code == NONE
    assert produce(wire, topic, batch(b"x" * 1001)).error_code == MESSAGE_TOO_LARGE


def test_a_compacted_topic_requires_keys(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = create_topic(wire, new_name(), configs={"cleanup.policy": "compact"})
    keyed = Batch(records=[record(b"v", key=b"k")]).encode()
    assert produce(wire, topic, keyed).error_code == NONE
    row = produce(wire, topic, batch(b"no key"))
    assert row.error_code == INVALID_RECORD
    assert [error.batch_index for error in row.record_errors] == [0]


def test_a_refused_partition_does_not_affect_the_others(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = create_topic(wire, new_name(), partitions=2)
    fields = produce_fields(topic, batch(b"good"))
    fields["topic_data"][0]["partition_data"] += [
        {"index": 1, "records": Batch(crc=1).encode()},
        {"index": 9, "records": batch(b"a")},
    ]
    fields["topic_data"].append(
        {"name": new_name(), "partition_data": [{"index": 0, "records": batch(b"a")}]}
    )
    answer = wire.ask("Produce", 9, **fields)
    codes = {
        (response.name == topic, row.index): row.error_code
        for response in answer.responses
        for row in response.partition_responses
    }
    assert codes == {
        (True, 0): NONE,
        (True, 1): CORRUPT_MESSAGE,
        (True, 9): UNKNOWN_TOPIC_OR_PARTITION,
        (False, 0): UNKNOWN_TOPIC_OR_PARTITION,
    }


# -- idempotence


class Producer:
    """Sends batches of `count` records under a producer id."""

    def __init__(self, wire: Wire, topic: str, timestamp_ms: int = NOW_MS) -> None:
        self.wire, self.topic, self.timestamp_ms = wire, topic, timestamp_ms
        self.id, self.epoch = new_producer_id(wire)

    def send(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> tuple[int, int]:
        """(error code, base offset)."""
        data = Batch(
            first_timestamp_ms=self.timestamp_ms,
            records=records(*[b"v"] * count),
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
        ).encode()
        row = produce(self.wire, self.topic, data)
        return row.error_code, row.base_offset


@pytest.fixture
def producer(wire: Wire, topic: str) -> Producer:
    return Producer(wire, topic)


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_never_reused(wire: Wire, version: int) -> None:
    given = [new_producer_id(wire, version) for _ in range(5)]
    assert len({producer_id for producer_id, _ in given}) == 5
    assert {epoch for _, epoch in given} == {0}


def test_retries_of_the_last_five_batches_get_their_first_offsets(producer: Producer) -> None:
    for i in range(6):
        assert producer.send(i * 10, 10) == (NONE, i * 10)
    for i in range(1, 6):
        assert producer.send(i * 10, 10) == (NONE, i * 10)
    assert producer.send(0, 10)[0] == OUT_OF_ORDER, "older than the last five"
    assert list_offsets(producer.wire, producer.topic, -1).offset == 60
    assert producer.send(60, 1) == (NONE, 60)


def test_gaps_and_overlaps_are_out_of_order(producer: Producer) -> None:
    assert producer.send(0, 3) == (NONE, 0)
    for sequence, count in ((5, 1), (4, 1), (2, 1), (1, 5), (0, 2), (0, 4)):
        assert producer.send(sequence, count)[0] == OUT_OF_ORDER, (sequence, count)
    assert producer.send(3, 2) == (NONE, 3)


def test_an_unknown_producer_may_start_anywhere(producer: Producer) -> None:
    assert producer.send(5, 2) == (NONE, 0)
    assert producer.send(7, 1) == (NONE, 2)
    assert producer.send(9, 1)[0] == OUT_OF_ORDER


def test_epochs(producer: Producer) -> None:
    assert producer.send(0, 2) == (NONE, 0)
    assert producer.send(3, 1, epoch=1)[0] == OUT_OF_ORDER, "a new epoch begins at sequence 0"
    assert producer.send(0, 1, epoch=1) == (NONE, 2)
    assert producer.send(2, 1, epoch=0)[0] == INVALID_EPOCH
    assert producer.send(1, 1, epoch=1) == (NONE, 3)


def test_sequences_wrap_around(producer: Producer) -> None:
    assert producer.send(2**31 - 3, 2) == (NONE, 0)
    assert producer.send(2**31 - 1, 3) == (NONE, 2), "the last number, then 0 and 1"
    assert producer.send(2, 1) == (NONE, 5)
    assert producer.send(2**31 - 1, 3) == (NONE, 2)


def test_sequences_of_producers_are_independent(
    wire: Wire, topic: str, new_name: Callable[[], str]
) -> None:
    one, two = Producer(wire, topic), Producer(wire, topic)
    assert one.send(0, 2) == (NONE, 0)
    assert two.send(0, 2) == (NONE, 2)
    assert one.send(2) == (NONE, 4)
    elsewhere = create_topic(wire, new_name())
    one.topic = elsewhere
    assert one.send(0) == (NONE, 0), "nor does one partition another's"


def test_describe_producers(producer: Producer) -> None:
    producer.send(0, 3)
    answer = producer.wire.ask(
        "DescribeProducers", 0, topics=[{"name": producer.topic, "partition_indexes": [0, 7]}]
    )
    (topic,) = answer.topics
    rows: dict[int, Any] = {row.partition_index: row for row in topic.partitions}
    assert rows[7].error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert rows[0].error_code == NONE
    (state,) = rows[0].active_producers
    assert (
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.current_txn_start_offset,
    ) == (producer.id, 0, 2, -1)
    assert state.last_timestamp == NOW_MS
