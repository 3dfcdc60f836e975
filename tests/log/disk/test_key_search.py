"""Lookups by key: for any log, with filters or without, in steps of any size, the result equals a
plain scan. The log may be truncated, compacted, and lose its start and its open files meanwhile.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings, strategies as st

from mqd.errors import ErrorCode, MqError
from mqd.limits import HEADERS_READ_MAX
from mqd.log.disk import key_chunk, key_search
from mqd.log.disk.key_filter_build import filter_path
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol import key_scan
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from tests.log.compacting import Writer, roll, sync_and_commit
from tests.log.key_lookups import find, finish, scanned
from tests.log.support import NOW, Harness, InlineDisk

INDEXED = LogConfig(
    segment_bytes=900,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
    mqd_key_index=True,
)
COMPACT = LogConfig(
    segment_bytes=900,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact", "delete"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    file_delete_delay_ms=0,
    mqd_key_index=True,
)


async def indexed(harness: Harness, log: PartitionLog) -> None:
    """Build all filters that are missing."""
    await sync_and_commit(harness, log)
    while await harness.service.key_indexer.build_one():
        pass


def check(harness: Harness, log: PartitionLog, key: bytes, chance: random.Random) -> None:
    """Both directions, both isolation levels, with small bounds and any time range."""
    since = NOW + chance.choice((-1, 0, 5, 20))
    until = NOW + chance.choice((1, 10, 60, 1 << 40))
    records_max, bytes_max = chance.choice((1, 2, 1000)), chance.choice((1, 250, 1 << 20))
    scanned_bytes_max = chance.choice((1, 500, 1 << 30))
    for read_committed in (False, True):
        limit = (
            log.last_stable_offset(log.checkpointed_high_watermark)
            if read_committed
            else log.written_end_offset
        )
        expected = scanned(
            harness, log, key, since=since, until=until, read_committed=read_committed
        )
        for newest_first in (False, True):
            found = find(
                harness,
                log,
                key,
                newest_first=newest_first,
                since=since,
                until=until,
                limit=limit,
                read_committed=read_committed,
                records_max=records_max,
                bytes_max=bytes_max,
                scanned_bytes_max=scanned_bytes_max,
            )
            assert found.records == (expected[::-1] if newest_first else expected)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "CHUNK_BYTES", 200)
    monkeypatch.setattr(key_search, "_FIRST_PART_BYTES", 100)
    monkeypatch.setattr(key_chunk, "CHUNK_BYTES", 200)
    monkeypatch.setattr(key_chunk, "HEADERS_AT_ONCE", 2)
    monkeypatch.setattr(key_search, "HEADERS_AT_ONCE", 1)
    monkeypatch.setattr(key_scan, "RECORDS_AT_ONCE", 1)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32), compacts=st.booleans(), count=st.integers(1, 40))
def test_the_result_equals_a_plain_scan(seed: int, compacts: bool, count: int) -> None:
    async def scenario(directory: Path) -> None:
        chance = random.Random(seed)
        harness = Harness(directory, disk=InlineDisk())
        await harness.service.start()
        log = harness.open(COMPACT if compacts else INDEXED)
        writer = Writer(harness, log, chance)
        for _ in range(count):
            writer.write()
            happens = chance.random()
            if happens < 0.1:
                await indexed(harness, log)
            elif happens < 0.15:
                await sync_and_commit(harness, log)
                await harness.service.compactor.clean_one()
            elif happens < 0.2 and log.log_end_offset > log.log_start_offset and not writer.open:
                at = chance.randrange(log.log_start_offset, log.log_end_offset)
                harness.service.truncate_to(log, at)
                await sync_and_commit(harness, log)
                await harness.service.checkpoint_recovery_points()
                writer.sequences.clear()
                writer.producers += 3  # the others may have lost their batches
            elif happens < 0.25:
                offset = chance.randrange(log.log_start_offset, log.written_end_offset + 1)
                harness.service.delete_records(log, offset)
        if chance.random() < 0.5:
            writer.end_all()
        if chance.random() < 0.7:
            await indexed(harness, log)
        else:
            await sync_and_commit(harness, log)
        for key in (b"k0", b"k1", b"", b"absent"):
            check(harness, log, key, chance)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(scenario, Path(directory))


def records(*keys: bytes, value: bytes = b"v" * 60) -> bytearray:
    return build_batch([Record(at, NOW + at, key, value) for at, key in enumerate(keys)])


async def filled(harness: Harness, segments: int = 6, codec: Codec = Codec.NONE) -> PartitionLog:
    """Segment `n` has the keys `n-0` to `n-5`, and all segments have filters but the last one."""
    await harness.service.start()
    log = harness.open(LogConfig(index_interval_bytes=100, mqd_key_index=True))
    for number in range(segments):
        for at in range(6):
            rows = [Record(0, NOW + number, b"%d-%d" % (number, at), b"v" * 60)]
            harness.write(log, build_batch(rows, codec=codec))
        roll(harness, log)
    await indexed(harness, log)
    return log


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, disk=InlineDisk())


async def test_a_lookup_reads_the_segments_that_may_have_the_key(harness: Harness) -> None:
    log = await filled(harness)
    found = find(harness, log, b"3-2")
    assert [record.offset for record in found.records] == [20]
    assert (found.segments_read, found.segments_filtered, found.segments_unindexed) == (1, 6, 0)
    assert find(harness, log, b"absent").scanned_bytes == 0


async def test_only_the_newest_records_of_a_large_batch_are_decoded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.service.start()
    log = harness.open(LogConfig())
    harness.write(log, records(*[b"k"] * 500))
    await sync_and_commit(harness, log)
    decoded: list[int] = []

    def counted(data: bytes, place: key_scan.Place, headers_max: int) -> Record:
        decoded.append(place[1])
        return key_scan.record_at(data, place, headers_max)

    monkeypatch.setattr(key_search, "record_at", counted)
    for records_max, bytes_max in ((3, 1 << 20), (1000, 400)):
        decoded.clear()
        found = find(
            harness,
            log,
            b"k",
            newest_first=True,
            since=NOW + 490,
            records_max=records_max,
            bytes_max=bytes_max,
        )
        assert [record.offset for record in found.records] == [*range(499, 489, -1)]
        assert len(decoded) <= 2 * len(found.records)


@pytest.mark.parametrize("newest_first", (False, True))
async def test_a_record_with_too_many_headers_is_an_error(
    harness: Harness, newest_first: bool
) -> None:
    await harness.service.start()
    log = harness.open(LogConfig())
    headers = [("", b"")] * (HEADERS_READ_MAX + 1)
    harness.write(log, build_batch([Record(0, NOW, b"k", b"v", headers)]))
    await sync_and_commit(harness, log)
    with pytest.raises(MqError, match="10001 headers") as refused:
        find(harness, log, b"k", newest_first=newest_first)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_without_filters_everything_is_read(harness: Harness) -> None:
    log = await filled(harness)
    for segment in log.segments:
        filter_path(log.path, segment.base_offset).unlink(missing_ok=True)
    found = find(harness, log, b"3-2")
    assert [record.offset for record in found.records] == [20]
    assert (found.segments_read, found.segments_unindexed) == (6, 6)
    assert found.scanned_bytes == log.size_bytes
    # they are missed, and built again
    assert harness.service.key_indexer.damaged == 6
    await indexed(harness, log)
    assert find(harness, log, b"3-2").segments_read == 1


@pytest.mark.parametrize("offset", (0, 5, 40, 60, 100, -1))
async def test_a_damaged_filter_is_not_used_and_built_again(harness: Harness, offset: int) -> None:
    log = await filled(harness)
    damaged = log.segments[3]
    path = filter_path(log.path, damaged.base_offset)
    data = bytearray(path.read_bytes())
    if offset < 0:
        data = bytearray(bytes(len(data)))
    else:
        data[offset] ^= 0x10
    path.write_bytes(data)
    assert [record.offset for record in find(harness, log, b"3-2").records] == [20]
    await indexed(harness, log)
    assert find(harness, log, b"3-2").segments_unindexed == 0


async def test_a_flipped_bit_anywhere_in_the_rows_loses_no_record(harness: Harness) -> None:
    log = await filled(harness)
    path = filter_path(log.path, log.segments[3].base_offset)
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 50)):
        data = bytearray(whole)
        data[position] ^= 0xFF
        path.write_bytes(data)
        assert [record.offset for record in find(harness, log, b"3-2").records] == [20]


async def test_a_filter_of_another_segment_is_not_used(harness: Harness) -> None:
    log = await filled(harness)
    source, target = (filter_path(log.path, log.segments[at].base_offset) for at in (1, 3))
    target.write_bytes(source.read_bytes())
    assert [record.offset for record in find(harness, log, b"3-2").records] == [20]


async def test_a_truncated_segment_loses_its_filter(harness: Harness) -> None:
    log = await filled(harness)
    segment = log.segments[3]
    harness.service.truncate_to(log, segment.base_offset + 3)
    assert log.active is segment
    assert not filter_path(log.path, segment.base_offset).exists()
    # The same sizes and offsets, with other keys.
    for at in range(3, 6):
        rows = [Record(0, NOW + 3, b"n-%d" % at, b"v" * 60)]
        harness.write(log, build_batch(rows))
    roll(harness, log)
    await indexed(harness, log)
    assert [record.offset for record in find(harness, log, b"n-4").records] == [22]
    assert find(harness, log, b"3-4").records == []


async def test_a_filter_of_before_a_truncation_is_never_used(harness: Harness) -> None:
    """A power cut may bring the file back."""
    log = await filled(harness)
    segment = log.segments[3]
    path = filter_path(log.path, segment.base_offset)
    old = path.read_bytes()
    harness.service.truncate_to(log, segment.base_offset + 3)
    for at in range(3, 6):
        harness.write(log, build_batch([Record(0, NOW + 3, b"n-%d" % at, b"v" * 60)]))
    roll(harness, log)
    path.write_bytes(old)
    assert [record.offset for record in find(harness, log, b"n-4").records] == [22]


async def test_a_restart_uses_the_filters_that_are_there(harness: Harness) -> None:
    log = await filled(harness)
    await harness.service.close()
    await harness.restart()
    log = harness.open(log.config)
    await indexed(harness, log)
    assert harness.service.key_indexer.built == 0
    assert find(harness, log, b"3-2").segments_read == 1


async def test_a_topic_without_the_option_gets_no_filters(harness: Harness) -> None:
    await harness.service.start()
    log = harness.open(LogConfig())
    harness.write(log, records(b"a"))
    roll(harness, log)
    await indexed(harness, log)
    assert not filter_path(log.path, 0).exists()
    assert [record.key for record in find(harness, log, b"a").records] == [b"a"]


async def test_filters_go_with_their_segments(harness: Harness) -> None:
    log = await filled(harness)
    harness.service.delete_records(log, 20)
    await harness.service.retain()
    names = harness.disk.list(log.path)
    assert sorted(int(name[:20]) for name in names if name.endswith(".keyfilter")) == [18, 24, 30]


async def test_a_batch_that_cannot_be_read_is_an_error(harness: Harness) -> None:
    log = await filled(harness, 3)
    path = log.path / f"{6:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1  # the last batch of the segment, offset 11
    path.write_bytes(data)
    # The filter knows that the section of offset 11 has no such key.
    assert [record.offset for record in find(harness, log, b"2-0").records] == [12]
    for newest_first in (False, True):
        with pytest.raises(MqError) as raised:
            find(harness, log, b"1-5", newest_first=newest_first)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert "offset 11" in raised.value.message


async def test_a_batch_that_expands_too_much_is_an_error(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_chunk, "INSPECTED_BYTES_LARGEST", 1000)
    await harness.service.start()
    log = harness.open(LogConfig())
    rows = [Record(0, NOW, b"large", b"v" * 5000)]
    harness.write(log, records(b"a"), build_batch(rows, codec=Codec.GZIP), records(b"a"))
    with pytest.raises(MqError) as raised:
        find(harness, log, b"absent")
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    # The newer record is found first.
    assert [one.offset for one in find(harness, log, b"a", limit=1).records] == [0]


async def test_the_log_may_change_in_each_pause(harness: Harness) -> None:
    log = await filled(harness, codec=Codec.ZSTD)

    def in_pause() -> None:
        for segment in log.segments[:-1]:
            segment.file = segment.index = segment.time_index = None
        if log.log_start_offset < 18:
            harness.service.delete_records(log, log.log_start_offset + 1)

    found = find(harness, log, b"4-1", in_pause=in_pause, records_max=1)
    assert [record.offset for record in found.records] == [25]
    assert find(harness, log, b"4-1", newest_first=True, in_pause=in_pause).records


async def test_a_large_record_is_returned_alone(harness: Harness) -> None:
    await harness.service.start()
    log = harness.open(LogConfig())
    harness.write(log, *(records(b"k", value=b"x" * 5000) for _ in range(3)))
    for newest_first in (False, True):
        found = find(harness, log, b"k", bytes_max=100, newest_first=newest_first)
        assert len(found.records) == 3
        assert found.requests >= 3


async def test_a_lookup_down_ends_after_one_batch_when_its_time_is_used_up(
    harness: Harness,
) -> None:
    await harness.service.start()
    log = harness.open(LogConfig(index_interval_bytes=1))
    for _ in range(4):
        harness.write(log, records(*[b"k"] * 3))
    await sync_and_commit(harness, log)
    query = key_search.KeyQuery(b"k", 12, 12, 0, 1 << 60, True, 1000, 1 << 20, 1 << 30)
    result, work = harness.service.key_lookups.find(
        log, query, read_committed=False, is_over=lambda: True
    )
    finish(work)
    assert [one.record.offset for one in result.records] == [11, 10, 9]
    assert not result.is_complete
