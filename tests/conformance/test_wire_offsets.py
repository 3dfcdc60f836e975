"""ListOffsets by timestamp and special value, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .batches import CODECS, NOW_MS, batch
from .wire import Wire, create_topic, fetch_one, list_offsets, produce

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION, INVALID_REQUEST = (
    0,
    1,
    3,
    35,
    42,
)
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def found(row: Any) -> tuple[int, int, int]:
    """(error code, timestamp, offset)."""
    return row.error_code, row.timestamp, row.offset


def delete_records(
    wire: Wire, topic: str, offset: int, *, version: int = 2, partition: int = 0
) -> tuple[int, int]:
    """(error code, low watermark)."""
    rows = [{"partition_index": partition, "offset": offset}]
    answer = wire.ask(
        "DeleteRecords", version, topics=[{"name": topic, "partitions": rows}], timeout_ms=10_000
    )
    ((row,),) = [response.partitions for response in answer.topics]
    return row.error_code, row.low_watermark


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version(wire: Wire, topic: str, version: int) -> None:
    produce(wire, topic, batch(b"a", b"b", timestamps_ms=[NOW_MS, NOW_MS + 10]))
    assert found(list_offsets(wire, topic, LATEST, version=version)) == (NONE, -1, 2)
    assert found(list_offsets(wire, topic, EARLIEST, version=version)) == (NONE, -1, 0)
    row = list_offsets(wire, topic, NOW_MS + 1, version=version)
    assert found(row) == (NONE, NOW_MS + 10, 1)
    if version >= 4:
        assert row.leader_epoch == 0


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("special", SINCE)
def test_special_timestamps_need_their_version(
    wire: Wire, topic: str, special: int, version: int
) -> None:
    assert (
        list_offsets(wire, topic, special, version=version).error_code == UNSUPPORTED_VERSION
    ) == (version < SINCE[special])


def test_unknown_special_timestamps(wire: Wire, topic: str) -> None:
    assert list_offsets(wire, topic, -7, version=11).error_code == UNSUPPORTED_VERSION


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_max_timestamp_names_the_record_not_the_batch(wire: Wire, topic: str, codec: int) -> None:
    assert found(list_offsets(wire, topic, MAX_TIMESTAMP)) == (NONE, -1, -1), (
        "of an empty partition"
    )
    produce(
        wire,
        topic,
        batch(
            b"a",
            b"b",
            b"c",
            b"d",
            timestamps_ms=[NOW_MS, NOW_MS + 90, NOW_MS + 50, NOW_MS + 90],
            codec=codec,
        ),
    )
    produce(wire, topic, batch(b"e", b"f", timestamps_ms=[NOW_MS + 10, NOW_MS + 20], codec=codec))
    assert found(list_offsets(wire, topic, MAX_TIMESTAMP)) == (NONE, NOW_MS + 90, 1)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_by_timestamp(wire: Wire, topic: str, codec: int) -> None:
    produce(
        wire,
        topic,
        batch(b"a", b"b", b"c", timestamps_ms=[NOW_MS, NOW_MS + 10, NOW_MS + 20], codec=codec),
    )
    produce(
        wire,
        topic,
        batch(b"d", b"e", b"f", timestamps_ms=[NOW_MS + 5, NOW_MS + 15, NOW_MS + 40], codec=codec),
    )
    wanted = {
        0: 0,
        NOW_MS: 0,
        NOW_MS + 1: 1,
        NOW_MS + 10: 1,
        NOW_MS + 11: 2,
        NOW_MS + 20: 2,
        NOW_MS + 21: 5,
        NOW_MS + 40: 5,
    }
    assert {stamp: list_offsets(wire, topic, stamp).offset for stamp in wanted} == wanted
    assert found(list_offsets(wire, topic, NOW_MS + 21)) == (NONE, NOW_MS + 40, 5)
    assert found(list_offsets(wire, topic, NOW_MS + 41)) == (NONE, -1, -1), (
        "later than every record"
    )
    assert found(list_offsets(wire, topic, 2**63 - 1)) == (NONE, -1, -1)


def test_empty_partition(wire: Wire, topic: str) -> None:
    assert found(list_offsets(wire, topic, LATEST)) == (NONE, -1, 0)
    assert found(list_offsets(wire, topic, EARLIEST)) == (NONE, -1, 0)
    assert found(list_offsets(wire, topic, NOW_MS)) == (NONE, -1, -1)
    row = fetch_one(wire, topic, 0, max_wait_ms=0)
    assert (row.error_code, row.high_watermark, row.records or b"") == (NONE, 0, b""), (
        "the end of an empty partition is not an error"
    )


def test_epochs_and_names(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert list_offsets(wire, topic, LATEST, leader_epoch=0).error_code == NONE
    assert list_offsets(wire, topic, LATEST, leader_epoch=5).error_code == UNKNOWN_LEADER_EPOCH
    assert list_offsets(wire, topic, LATEST, partition=3).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert list_offsets(wire, new_name(), LATEST).error_code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 12))
def test_a_partition_named_twice_has_one_row(
    wire: Wire, version: int, new_name: Callable[[], str]
) -> None:
    topic, unknown = create_topic(wire, new_name(), partitions=2), new_name()

    def ask(*named: tuple[str, list[tuple[int, int]]]) -> dict[str, list[tuple[int, int]]]:
        """The rows of each topic, (partition, error code), in the order of partitions; a topic has
        one list of rows.
        """
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": p, "timestamp": t, "current_leader_epoch": -1}
                    for p, t in rows
                ],
            }
            for name, rows in named
        ]
        answer = wire.ask("ListOffsets", version, replica_id=-1, topics=topics, timeout_ms=10_000)
        assert len({row.name for row in answer.topics}) == len(answer.topics)
        return {
            row.name: sorted((one.partition_index, one.error_code) for one in row.partitions)
            for row in answer.topics
        }

    assert ask((topic, [(0, LATEST), (0, LATEST)])) == {topic: [(0, INVALID_REQUEST)]}
    assert ask((topic, [(0, LATEST), (1, LATEST), (0, EARLIEST), (0, NOW_MS)])) == {
        topic: [(0, INVALID_REQUEST), (1, NONE)]
    }
    assert ask(
        (topic, [(1, LATEST)]),
        (unknown, [(0, LATEST), (0, LATEST)]),
        (topic, [(1, LATEST), (0, LATEST)]),
    ) == {
        topic: [(0, NONE), (1, INVALID_REQUEST)],
        unknown: [(0, INVALID_REQUEST)],
    }
    assert ask((topic, [(0, LATEST)]), (topic, [(1, LATEST)])) == {topic: [(0, NONE), (1, NONE)]}


@pytest.mark.parametrize("version", range(3))
def test_delete_records(wire: Wire, topic: str, version: int, new_name: Callable[[], str]) -> None:
    for _ in range(3):
        produce(
            wire, topic, batch(b"a", b"b", b"c", timestamps_ms=[NOW_MS, NOW_MS + 1, NOW_MS + 2])
        )
    assert delete_records(wire, topic, 4, version=version) == (NONE, 4)
    assert found(list_offsets(wire, topic, EARLIEST)) == (NONE, -1, 4)
    assert found(list_offsets(wire, topic, EARLIEST_LOCAL, version=8)) == (NONE, -1, 4)
    assert fetch_one(wire, topic, 3).error_code == OFFSET_OUT_OF_RANGE
    row = fetch_one(wire, topic, 4)
    assert (row.error_code, row.log_start_offset, row.high_watermark) == (NONE, 4, 9)
    assert produce(wire, topic, batch(b"d")).log_start_offset == 4
    assert delete_records(wire, topic, 2, version=version) == (NONE, 4), "never decreases"
    assert delete_records(wire, topic, 11, version=version) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete_records(wire, topic, -1, version=version) == (NONE, 10), (
        "-1 is the high watermark"
    )
    assert found(list_offsets(wire, topic, EARLIEST)) == (NONE, -1, 10)
    assert delete_records(wire, topic, -2, version=version)[0] == OFFSET_OUT_OF_RANGE
    assert delete_records(wire, new_name(), 0, version=version)[0] == UNKNOWN_TOPIC_OR_PARTITION
    assert (
        delete_records(wire, topic, 0, version=version, partition=4)[0]
        == UNKNOWN_TOPIC_OR_PARTITION
    )
    assert produce(wire, topic, batch(b"e")).base_offset == 10, "offsets are not reused"


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(wire: Wire, topic: str, version: int) -> None:
    produce(wire, topic, batch(b"a", b"b"))

    def ask(epoch: int, *, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
        rows = [{"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}]
        answer = wire.ask(
            "OffsetForLeaderEpoch",
            version,
            replica_id=-1,
            topics=[{"topic": topic, "partitions": rows}],
        )
        ((row,),) = [response.partitions for response in answer.topics]
        return row.error_code, row.leader_epoch, row.end_offset

    assert ask(0) == (NONE, 0, 2)
    assert ask(0, current=0) == (NONE, 0, 2)
    assert ask(7) == (NONE, -1, -1), "an epoch that never existed"
    assert ask(0, current=7)[0] == UNKNOWN_LEADER_EPOCH
    assert ask(0, partition=7)[0] == UNKNOWN_TOPIC_OR_PARTITION
