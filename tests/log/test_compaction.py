"""What remains of a batch, and of a log that is written at random, inside and outside transactions,
while it is cleaned repeatedly.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mqd.limits import INSPECTED_BYTES_LARGEST
from mqd.log.compaction import BatchRewriter, CleanedTransactions, OffsetMapBuilder, group_segments
from mqd.log.disk.producer_snapshots import replay_batch
from mqd.log.log_config import LogConfig
from mqd.log.offset_map import OffsetMap
from mqd.log.producers import Producers
from mqd.log.segment import Segment
from mqd.protocol.batch import BatchHeader, parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.files import AbortedTransaction
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.protocol.record_reader import Record, check_records, iterate_records
from mqd.protocol.records import delete_horizon
from mqd.types import NO_OFFSET
from tests.log.compacting import Writer, committed_table, roll, sync_and_commit
from tests.log.support import NOW, Harness

DAY_MS = 86_400_000


@pytest.mark.parametrize("slots", [2, 32_767, 32_768, 100_000])
def test_a_key_map_has_the_requested_slots(slots: int) -> None:
    keys = OffsetMap(slots, load_factor=1.0)
    assert (
        sum(
            len(column) * column.itemsize
            for column in (keys._first_words, keys._second_words, keys._offsets)
        )
        == keys.size_bytes
    )
    assert keys.count_max == slots - 1 and keys.get(b"x") == -1


def test_a_key_map_is_a_dictionary_of_fixed_size() -> None:
    chance, keys, expected = random.Random(1), OffsetMap(1001), {}
    for offset in range(5000):
        key = b"%d" % chance.randrange(880)
        assert keys.put(key, offset)
        expected[key] = offset
    assert {key: keys.get(key) for key in expected} == expected and keys.get(
        b"unknown"
    ) == NO_OFFSET
    assert keys.count == len(expected) and keys.size_bytes == 1001 * 24
    full = OffsetMap(10, 0.5)
    assert [full.put(b"%d" % number, number) for number in range(7)] == [True] * 5 + [False] * 2
    assert full.put(b"3", 9) and full.get(b"3") == 9 and full.get(b"5") == NO_OFFSET


def batch_of(
    *rows: tuple[int, bytes | None, bytes | None],
    base: int = 0,
    codec: Codec = Codec.NONE,
    **more: Any,
) -> bytearray:
    """Records (offset, key, value), with times that rise and fall."""
    records = [
        Record(offset, NOW + offset * 7 % 5, key, value, (("h", b"x"),))
        for offset, key, value in rows
    ]
    return build_batch(records, base_offset=base, keep_offsets=True, codec=codec, **more)


def transactional(
    *rows: tuple[int, bytes | None, bytes | None], producer: int = 1, codec: Codec = Codec.NONE
) -> bytearray:
    records = [Record(offset, NOW, key, value) for offset, key, value in rows]
    return build_batch(
        records,
        base_offset=rows[0][0],
        keep_offsets=True,
        codec=codec,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, *, committed: bool, producer: int = 1) -> bytearray:
    data = build_end_marker(producer, 0, EndMarker(committed, 3), NOW)
    data[:8] = offset.to_bytes(8, "big")
    return data


class Cleaning:
    """One pass over batches. All of them are dirty unless `from_offset` gives the first dirty
    offset.
    """

    def __init__(
        self,
        *batches: bytearray,
        aborted: list[AbortedTransaction] | None = None,
        now_ms: int = NOW,
        from_offset: int = 0,
        last: dict[int, tuple[int, int]] | None = None,
        keep_last: bool = False,
    ) -> None:
        keys = OffsetMap(100)
        indexing = OffsetMapBuilder(
            keys, CleanedTransactions(aborted or [], from_offset), from_offset
        )
        for batch in batches:
            header = parse_header(batch)
            if header.next_offset > from_offset:
                assert indexing.add(header, memoryview(batch))
        self.rewriting = BatchRewriter(
            keys,
            indexing.end_offset,
            CleanedTransactions(aborted or [], 0),
            last or {},
            delete_retention_ms=DAY_MS,
            now_ms=now_ms,
        )
        self.left = []
        for batch in batches:
            keep = keep_last and batch is batches[-1]
            left = self.rewriting.rewrite(parse_header(batch), memoryview(batch), keep=keep)
            if left is not None:
                check_records(left, compacted=True)
                self.left.append(bytearray(left))

    @property
    def headers(self) -> list[BatchHeader]:
        return [parse_header(batch) for batch in self.left]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.left for record in iterate_records(batch)]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_header_when_records_are_removed(codec: Codec) -> None:
    more = {"producer_id": 4, "producer_epoch": 2, "base_sequence": 17, "partition_leader_epoch": 6}
    first = batch_of(
        (10, b"a", b"1"),
        (11, b"b", b"1" * 200),
        (12, b"c", b"1"),
        (13, b"a", b"2"),
        base=10,
        codec=codec,
        **more,
    )
    second = batch_of((14, b"c", b"2"), base=14, codec=codec)
    cleaned = Cleaning(first, second)
    before, after = parse_header(first), cleaned.headers[0]
    for name in (
        "base_offset",
        "last_offset",
        "partition_leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
    ):
        assert getattr(before, name) == getattr(after, name), name
    assert cleaned.records == [
        *[record for record in iterate_records(first) if record.offset in (11, 13)],
        *iterate_records(second),
    ]
    assert after.max_timestamp == max(
        record.timestamp for record in cleaned.records if record.offset < 14
    )
    assert cleaned.left[1] == second, "a batch that keeps all records is unchanged"


def test_an_empty_batch_stays_for_its_producer_or_the_segment_end() -> None:
    first = batch_of(
        (0, b"a", b"1"),
        (1, b"a", b"2"),
        producer_id=4,
        producer_epoch=2,
        base_sequence=17,
        codec=Codec.LZ4,
    )
    second = batch_of((2, b"a", b"3"), base=2)
    assert [header.base_offset for header in Cleaning(first, second).headers] == [2]
    [empty, _] = Cleaning(first, second, last={4: (1, 2)}).headers
    assert (
        empty.records_count,
        empty.base_offset,
        empty.last_offset,
        empty.base_sequence,
        empty.codec,
    ) == (0, 0, 1, 17, 0)
    assert [
        header.records_count
        for header in Cleaning(second, batch_of((3, b"a", b"4"), base=3), keep_last=True).headers
    ] == [1]
    aborted = [AbortedTransaction(1, 0, 1, 2)]
    assert [
        header.base_offset
        for header in Cleaning(
            transactional((0, b"a", b"1")), aborted=aborted, keep_last=True
        ).headers
    ] == [0]


def test_a_tombstone_gets_its_horizon_and_is_removed_after_it() -> None:
    data = [
        batch_of((0, b"a", b"1"), (1, b"b", b"1")),
        batch_of((2, b"a", None), (3, b"c", b"1"), base=2),
    ]
    once = Cleaning(*data)
    assert [record.offset for record in once.records] == [1, 2, 3]
    assert [delete_horizon(header) for header in once.headers] == [None, NOW + DAY_MS]
    assert once.records[1:] == list(iterate_records(data[1])), "the times of records do not change"
    for now_ms, offsets in ((NOW + DAY_MS - 1, [1, 2, 3]), (NOW + DAY_MS, [1, 3])):
        again = Cleaning(*once.left, now_ms=now_ms, from_offset=4)
        assert [record.offset for record in again.records] == offsets
        assert delete_horizon(again.headers[-1]) == NOW + DAY_MS, "it is set once"


def test_a_batch_that_expands_too_much_stays_whole() -> None:
    """And no tombstone after it is removed: the batch may have an older record of its key."""
    size = INSPECTED_BYTES_LARGEST
    data = [
        batch_of((0, b"c", b"1"), (1, b"b", b"1")),
        batch_of((2, b"a", bytes(size)), base=2, codec=Codec.ZSTD),
        batch_of((3, b"b", b"2"), (4, b"a", None), base=3),
    ]
    once = Cleaning(*data)
    assert once.left[1] == data[1]
    again = Cleaning(*once.left, now_ms=NOW + DAY_MS, from_offset=5)
    assert again.left[1] == data[1]
    assert [record.offset for record in again.records] == [0, 2, 3, 4]


def test_an_abort_marker_is_removed_after_its_records() -> None:
    aborted = [AbortedTransaction(1, 1, 3, 1)]
    data = [
        batch_of((0, b"a", b"old")),
        transactional((1, b"a", b"never"), (2, b"b", b"never")),
        marker(3, committed=False),
    ]
    once = Cleaning(*data, aborted=aborted)
    assert [header.base_offset for header in once.headers] == [0, 3]
    assert once.records[0].value == b"old", "an aborted record replaces no other record"
    assert once.rewriting.transactions.aborted_with_batches == aborted, (
        "a batch of it was read: later readers are informed"
    )
    assert delete_horizon(once.headers[1]) is None
    twice = Cleaning(*once.left, from_offset=4)
    assert [delete_horizon(header) for header in twice.headers] == [
        None,
        NOW + DAY_MS,
    ] and twice.rewriting.transactions.aborted_with_batches == []
    assert [
        header.base_offset
        for header in Cleaning(*twice.left, from_offset=4, now_ms=NOW + DAY_MS - 1).headers
    ] == [0, 3]
    gone = Cleaning(*twice.left, from_offset=4, now_ms=NOW + DAY_MS)
    assert [header.base_offset for header in gone.headers] == [0]
    fencing = Cleaning(*twice.left, from_offset=4, now_ms=NOW + DAY_MS, last={1: (NO_OFFSET, 0)})
    assert [(header.base_offset, header.records_count) for header in fencing.headers] == [
        (0, 1),
        (3, 1),
    ], "it holds the producer's epoch"
    producers = Producers()
    for batch_left in fencing.left:
        replay_batch(producers, parse_header(batch_left), memoryview(batch_left))
    assert [(entry.producer_id, entry.producer_epoch) for entry in producers.entries()] == [(1, 0)]


def test_a_commit_marker_stays_as_long_as_its_records() -> None:
    data = [
        transactional((0, b"a", b"1"), (1, b"b", b"1")),
        marker(2, committed=True),
        batch_of((3, b"a", b"2"), base=3),
    ]
    once = Cleaning(*data)
    assert [header.base_offset for header in once.headers] == [0, 2, 3]
    assert Cleaning(*once.left, from_offset=4, now_ms=NOW + 9 * DAY_MS).left == once.left
    over = Cleaning(*once.left, batch_of((4, b"b", b"2"), base=4))
    assert [header.base_offset for header in over.headers] == [2, 3, 4] and delete_horizon(
        over.headers[0]
    ) is None, "a batch was read"
    assert delete_horizon(Cleaning(*over.left, from_offset=5).headers[0]) == NOW + DAY_MS


def segments(*rows: tuple[int, int, int]) -> list[Segment]:
    made = []
    for base, end, size in rows:
        segment = Segment(base, 0)
        segment.size, segment.next_offset = size, end
        made.append(segment)
    return made


def test_groups_of_segments() -> None:
    config = LogConfig(segment_bytes=100)
    one = segments(
        (0, 5, 60),
        (5, 9, 40),
        (9, 10, 1),
        (10, 20, 120),
        (20, 30, 10),
        (30, 2**31 + 19, 10),
        (2**31 + 19, 2**31 + 21, 10),
    )
    bases = [[segment.base_offset for segment in group] for group in group_segments(one, config)]
    assert bases == [[0, 5], [9], [10], [20, 30], [2**31 + 19]]
    assert (
        len(
            group_segments(
                segments((0, 5, 40), (5, 9, 40)), replace(config, segment_index_bytes=11)
            )
        )
        == 2
    )


def test_a_group_has_a_bounded_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqd.log.compaction.SEGMENTS_RETIRED_AT_ONCE", 3)
    one = segments(*((number, number + 1, 1) for number in range(8)))
    groups = group_segments(one, LogConfig(segment_bytes=1000))
    assert [len(group) for group in groups] == [3, 3, 2]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_a_cleaned_log_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    import trio

    trio.run(written_and_cleaned, tmp_path_factory.mktemp("log"), seed, data)


async def written_and_cleaned(home: Path, seed: int, data: st.DataObject) -> None:
    harness = Harness(home)
    await harness.service.start()
    config = LogConfig(
        segment_bytes=data.draw(st.integers(250, 1500), "segment.bytes"),
        cleanup_policy=frozenset({"compact"}),
        index_interval_bytes=100,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=data.draw(st.integers(0, 300), "delete.retention.ms"),
    )
    log = harness.open(config)
    writer = Writer(harness, log, random.Random(seed), keys=data.draw(st.integers(1, 12), "keys"))
    for _ in range(data.draw(st.integers(1, 6), "rounds")):
        for _ in range(data.draw(st.integers(1, 25), "batches")):
            writer.write()
        if data.draw(st.booleans(), "all transactions end"):
            writer.end_all()
        if data.draw(st.booleans(), "a new segment"):
            roll(harness, log)
        await sync_and_commit(harness, log)
        harness.clock.now_ms += data.draw(st.integers(0, 200), "ms")
        producers = list(log.producers.entries())
        while await harness.service.compactor.clean_one():
            pass
        assert not harness.service.compactor.uncleanable
        if not writer.open:
            assert committed_table(harness, log) == writer.dictionary
        if data.draw(st.booleans(), "restart"):
            await harness.restart()
            writer.log = log = harness.open(config)
            assert {row[0]: row[:5] for row in log.producers.entries()} == {
                row[0]: row[:5] for row in producers
            }
    writer.end_all()
    await sync_and_commit(harness, log)
    assert committed_table(harness, log) == writer.dictionary
    harness.kill()
