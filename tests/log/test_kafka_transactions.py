"""A partition with transactions that Apache Kafka 4.3.1 wrote: eight that were committed,
and one between them that was aborted.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqd.log.transaction_index import TransactionIndex
from mqd.protocol.batch import LEADER_EPOCH_POSITION, MAGIC_POSITION, iterate_batches
from mqd.protocol.files import (
    AbortedTransaction,
    FileFormatError,
    decode_txn_index,
    decode_txn_index_columns,
    encode_txn_index,
)
from mqd.protocol.markers import build_end_marker, parse_end_marker
from mqd.types import TopicPartition
from tests.log.support import Harness

KAFKA = Path(__file__).parent / "kafka-4.3.1-transactions"
NAME = f"{0:020d}"
PARTITION = TopicPartition("c", 0)


def test_the_transaction_index_is_kafkas() -> None:
    data = (KAFKA / f"{NAME}.txnindex").read_bytes()
    entries = decode_txn_index(data)
    assert entries == [AbortedTransaction(0, 20, 23, 24)]
    assert encode_txn_index(entries) == data
    index = TransactionIndex()
    index.extend(entries)
    assert index.encode() == data


def test_markers_are_kafkas_to_the_byte() -> None:
    data = (KAFKA / f"{NAME}.log").read_bytes()
    outcomes = []
    for position, size, header in iterate_batches(data):
        if header.is_control:
            marker = parse_end_marker(data, position)
            assert marker is not None
            outcomes.append(marker.committed)
            mine = build_end_marker(
                header.producer_id, header.producer_epoch, marker, header.base_timestamp
            )
            theirs = data[position : position + size]
            assert mine[8:LEADER_EPOCH_POSITION] == theirs[8:LEADER_EPOCH_POSITION]
            assert mine[MAGIC_POSITION:] == theirs[MAGIC_POSITION:], (
                "offset and leader epoch are the log's"
            )
    assert outcomes == [True] * 5 + [False] + [True] * 3


async def test_recovery_finds_the_transactions_that_kafka_recorded(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "c-0")
    (tmp_path / "c-0" / f"{NAME}.txnindex").unlink()
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.service.logs[PARTITION]
    assert (
        not log.producers.open and log.last_stable_offset(log.log_end_offset) == log.log_end_offset
    )
    assert harness.service.reader.aborted(log, 0, log.log_end_offset) == [
        AbortedTransaction(0, 20, 23, 24)
    ]
    assert (tmp_path / "c-0" / f"{NAME}.txnindex").read_bytes() == (
        KAFKA / f"{NAME}.txnindex"
    ).read_bytes()
    await harness.service.close()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_transaction_index_is_decoded_by_column(count: int) -> None:
    entries = [
        AbortedTransaction(2**62 + one, 2**40 + one, 2**41 + one, 2**63 - 9 + one)
        for one in range(count)
    ]
    data = encode_txn_index(entries)
    assert decode_txn_index(data) == entries
    assert [column.tolist() for column in decode_txn_index_columns(data)] == [
        [entry[field] for entry in entries] for field in range(4)
    ]
    index = TransactionIndex.load(data, 2**41, 2**42)
    assert list(index) == entries
    assert index.encode() == data
    index.extend([AbortedTransaction(1, 2, 2**41 + count, 2**63 - 1)])
    assert len(index) == count + 1 and len(TransactionIndex()) == 0


@pytest.mark.parametrize(
    "entries, message",
    [
        ([(1, -1, 3, 4)], "ascend"),
        ([(1, 3, 3, 4)], "ascend"),
        ([(1, 1, 3, 4), (2, 2, 3, 4)], "ascend"),
        ([(1, 1, 30, 4)], "outside of offsets 0 to 9"),
    ],
)
def test_a_damaged_transaction_index_is_found(
    entries: list[tuple[int, int, int, int]], message: str
) -> None:
    data = encode_txn_index(map(AbortedTransaction._make, entries))
    with pytest.raises(FileFormatError, match=message):
        TransactionIndex.load(data, 0, 9)
    with pytest.raises(FileFormatError, match="version 7"):
        TransactionIndex.load(b"\0\7" + data[2:], 0, 9)
    with pytest.raises(FileFormatError, match="whole number"):
        TransactionIndex.load(data[1:], 0, 9)
