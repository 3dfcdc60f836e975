"""The records of `__transaction_state` are Kafka's: each of these bytes was written by the
serializer of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.shard import CoordinatorRecord
from mqd.coordinator.txn.records import decode, encode, tombstone, value_version
from mqd.coordinator.txn.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Transaction,
    TransactionState,
)
from mqd.types import TopicPartition

ONE = (TopicPartition("a", 3),)

WRITTEN = [
    (
        Transaction(4000, 0, 60_000, EMPTY, (), 1700000000123, -1, previous_producer_id=4000),
        1,
        "00010000000000000fa000000000ea6000000000018bcfe5687bffffffffffffffff0100080000000000"
        "000fa0",
    ),
    (
        Transaction(4000, 0, 60_000, EMPTY, (), 1700000000123, -1),
        0,
        "00000000000000000fa000000000ea6000ffffffff0000018bcfe5687bffffffffffffffff",
    ),
    (
        Transaction(4000, 5, 60_000, ONGOING, ONE, 1700000000300, 1700000000200),
        0,
        "00000000000000000fa000050000ea60010000000100016100000001000000030000018bcfe5692c0000"
        "018bcfe568c8",
    ),
    (
        Transaction(
            4000, 32767, 900_000, PREPARE_COMMIT, ONE, 1700000000300, 1700000000200, 4000, 5000, 2
        ),
        1,
        (
            "00010000000000000fa07fff000dbba0020202610200000003000000018bcfe5692c0000018bcfe568c8"
            "0300080000000000000fa00108000000000000138802020002"
        ),
    ),
    (
        Transaction(4000, 9, 900_000, PREPARE_ABORT, ONE, 1700000000300, 1700000000200, 3000),
        1,
        "00010000000000000fa00009000dbba0030202610200000003000000018bcfe5692c0000018bcfe568c8"
        "0100080000000000000bb8",
    ),
    (
        Transaction(
            5000,
            0,
            900_000,
            COMPLETE_COMMIT,
            (),
            1700000000400,
            1700000000200,
            4000,
            client_version=2,
        ),
        1,
        "000100000000000013880000000dbba004010000018bcfe569900000018bcfe568c80200080000000000"
        "000fa002020002",
    ),
    (
        Transaction(5000, 3, 900_000, COMPLETE_ABORT, (), 1700000000400, 1700000000200),
        0,
        "000000000000000013880003000dbba005000000000000018bcfe569900000018bcfe568c8",
    ),
]


@pytest.mark.parametrize(("transaction", "version", "value"), WRITTEN)
def test_values_are_those_of_apache_kafka(
    transaction: Transaction, version: int, value: str
) -> None:
    record = encode("t", transaction, version=version)
    assert record.key.hex() == "0000000174"
    assert record.value is not None and record.value.hex() == value
    assert decode(record) == ("t", transaction)


def test_keys_are_those_of_apache_kafka() -> None:
    record = tombstone("плата-1")
    assert record == CoordinatorRecord(bytes.fromhex("0000000cd0bfd0bbd0b0d182d0b02d31"), None)
    assert decode(record) == ("плата-1", None)


def test_several_topics_in_any_order_are_read() -> None:
    value = (
        "00010000000000000fa000050000ea600103076f726465727303000000070000000000135f5f636f6e73"
        "756d65725f6f666673657473"
        "0200000031000000018bcfe5692c0000018bcfe568c80200080000000000000fa002020002"
    )
    decoded = decode(CoordinatorRecord(bytes.fromhex("0000000174"), bytes.fromhex(value)))
    assert decoded[1] is not None
    assert decoded[1].partitions == (("__consumer_offsets", 49), ("orders", 0), ("orders", 7))
    assert decoded[1] == Transaction(
        4000,
        5,
        60_000,
        ONGOING,
        decoded[1].partitions,
        1700000000300,
        1700000000200,
        4000,
        client_version=2,
    )


def test_kinds_and_versions_of_later_kafka_cannot_be_decoded() -> None:
    key = encode("t", WRITTEN[0][0], version=1).key
    with pytest.raises(RecordFormatError, match="kind 1 is unknown"):
        decode(CoordinatorRecord(b"\x00\x01" + key[2:], b"\x00\x00"))
    with pytest.raises(RecordFormatError, match="version 2 of the value is unknown"):
        decode(CoordinatorRecord(key, b"\x00\x02whatever"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", ""),
        ("00", "0000"),
        ("0000000174", "0001"),
        ("0000000174", ""),
        ("00000005", None),
        ("0000000174", WRITTEN[0][2][:-1]),
    ],
)
def test_truncated_records_are_errors(key: str, value: str | None) -> None:
    with pytest.raises(RecordFormatError):
        decode(
            CoordinatorRecord(
                bytes.fromhex(key),
                bytes.fromhex(value[: len(value) // 2 * 2]) if value is not None else None,
            )
        )


def test_an_unknown_state_is_an_error() -> None:
    record = encode("t", WRITTEN[2][0], version=0)
    assert record.value is not None
    position = 2 + 8 + 2 + 4
    with pytest.raises(RecordFormatError):
        decode(
            CoordinatorRecord(
                record.key, record.value[:position] + b"\x09" + record.value[position + 1 :]
            )
        )


@given(
    version=st.sampled_from([0, 1]),
    producer_id=st.integers(0, 2**62),
    epoch=st.integers(0, 32767),
    state=st.sampled_from([one for one in TransactionState if one < 6]),
    partitions=st.sets(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 9)).map(
            lambda one: TopicPartition(*one)
        )
    ),
    previous=st.integers(-1, 9),
    following=st.integers(-1, 9),
    client_version=st.sampled_from([0, 2]),
)
def test_written_records_are_read_back(
    version: int,
    producer_id: int,
    epoch: int,
    state: TransactionState,
    partitions: set[TopicPartition],
    previous: int,
    following: int,
    client_version: int,
) -> None:
    held = () if state is EMPTY else tuple(sorted(partitions))
    transaction = Transaction(
        producer_id, epoch, 1000, state, held, 5, 4, previous, following, client_version
    )
    read = decode(encode("id", transaction, version=version))
    if version or following != -1 or client_version:
        assert read == ("id", transaction)
    else:
        assert read == ("id", replace(transaction, previous_producer_id=-1))


def test_the_version_follows_the_feature() -> None:
    assert [value_version(level) for level in (0, 1, 2)] == [0, 1, 1]
