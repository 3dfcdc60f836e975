"""Lookups by time: for any log, in steps of one header, the result equals a scan of every record.
In each pause the log may lose its start, and its older segments may be closed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import given, settings, strategies as st

from mqd.log.disk import lookup
from mqd.log.disk.lookup import FoundRecord, Lookup
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol import record_scan
from mqd.protocol.batch import iterate_batches
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records
from tests.log.support import NOW, Harness


class Written(NamedTuple):
    """One batch of a log."""

    times: list[int]
    codec: Codec
    value: bytes


batches = st.builds(
    Written,
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.sampled_from((Codec.NONE, Codec.GZIP, Codec.ZSTD)),
    st.sampled_from((b"", b"x" * 150)),
)


def records_of(log: PartitionLog) -> list[list[Record]]:
    """The records of each batch."""
    found = []
    for segment in log.segments:
        data = (log.path / f"{segment.base_offset:020d}.log").read_bytes()[: segment.size]
        found += [
            list(iterate_records(data, position))
            for position, _size, _header in iterate_batches(data)
        ]
    return found


def first_since(log: PartitionLog, timestamp: int, limit: int) -> FoundRecord | None:
    """The reference implementation."""
    for records in records_of(log):
        for record in records:
            if log.log_start_offset <= record.offset < limit and record.timestamp >= timestamp:
                return FoundRecord(record.offset, record.timestamp, 0)
    return None


def youngest(log: PartitionLog, limit: int) -> FoundRecord | None:
    """The reference implementation. `limit` lies between two batches."""
    all_batches = [
        records
        for records in records_of(log)
        if records[-1].offset >= log.log_start_offset and records[-1].offset < limit
    ]
    return first_since(
        log,
        max((record.timestamp for records in all_batches for record in records), default=1 << 62),
        limit,
    )


def finished(log: PartitionLog, work: Lookup) -> tuple[FoundRecord | None, int]:
    """The result and the number of pauses; in each pause all older segments are closed."""
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1
        assert pauses < 1000
        for segment in log.segments[:-1]:
            segment.file = segment.index = segment.time_index = None


async def filled(
    directory: Path, written: list[Written], interval: int, segment_bytes: int
) -> tuple[Harness, PartitionLog]:
    harness = Harness(directory)
    await harness.service.start()
    log = harness.open(LogConfig(index_interval_bytes=interval, segment_bytes=segment_bytes))
    for one in written:
        rows = [Record(0, NOW + time, b"k", one.value, ()) for time in one.times]
        harness.write(log, build_batch(rows, codec=one.codec))
    return harness, log


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "HEADERS_AT_ONCE", 1)
    monkeypatch.setattr(record_scan, "KEYS_AT_ONCE", 1)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(batches, min_size=1, max_size=12),
    st.sampled_from((0, 200, 4096)),
    st.sampled_from((1000, 1 << 20)),
    st.data(),
)
def test_sliced_lookups_equal_a_scan_of_every_record(
    written: list[Written], interval: int, segment_bytes: int, data: st.DataObject
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            harness, log = await filled(Path(directory), written, interval, segment_bytes)
            borders = [records[0].offset for records in records_of(log)] + [log.log_end_offset]
            start = data.draw(st.integers(0, log.log_end_offset))
            if start:
                harness.service.delete_records(log, start)
            for limit in borders:
                assert finished(log, harness.service.record_with_max_timestamp(log, limit))[
                    0
                ] == youngest(log, limit), limit
                for timestamp in range(NOW - 1, NOW + 14):
                    found, _pauses = finished(
                        log, harness.service.offset_for_timestamp(log, timestamp, limit)
                    )
                    assert found == first_since(log, timestamp, limit), (timestamp, limit)
            harness.kill()

    trio.run(run)


@pytest.mark.parametrize("largest", [False, True])
async def test_segments_removed_in_a_pause_are_not_opened(tmp_path: Path, largest: bool) -> None:
    times = [7, 3, 3, 3, 3, 2, 5, 5, 4, 9]
    harness, log = await filled(
        tmp_path, [Written([time], Codec.NONE, b"x" * 150) for time in times], 0, 500
    )
    harness.service.delete_records(log, 1)
    service = harness.service
    work = (
        service.record_with_max_timestamp(log, 9)
        if largest
        else service.offset_for_timestamp(log, NOW + 4, 9)
    )
    next(work)
    service.delete_records(log, 7)
    await service.retain()
    assert log.segments[0].base_offset == 6
    assert finished(log, work)[0] == FoundRecord(7, NOW + 5, 0)
    assert log.failure is None
    harness.kill()


async def test_a_log_of_many_headers_is_walked_in_steps(tmp_path: Path) -> None:
    """The youngest batch is beyond the limit, and no batch of its age follows."""
    written = [Written([5 if number == 1 else 1], Codec.NONE, b"") for number in range(200)] + [
        Written([9], Codec.NONE, b"")
    ]
    harness, log = await filled(tmp_path, written, 1 << 30, 1 << 20)
    found, pauses = finished(log, harness.service.record_with_max_timestamp(log, 200))
    assert found == FoundRecord(1, NOW + 5, 0)
    assert pauses > 100
    harness.kill()
