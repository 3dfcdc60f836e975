"""Shared by the tests of lookups by key: runs a search without threads, and the plain scan that its
result must equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mqd.log.disk.key_search import KeyQuery, KeySearchSlices
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import INT64_MAX, INT64_MIN, Record, iterate_records
from tests.log.compacting import committed_records
from tests.log.support import Harness


class Found(NamedTuple):
    """All records of a lookup, and what its requests read."""

    records: list[Record]
    requests: int
    scanned_bytes: int
    segments_read: int
    segments_filtered: int
    segments_unindexed: int


def finish(work: KeySearchSlices, in_pause: Callable[[], None] = lambda: None) -> None:
    """Do the work of one request, and read its chunks without a thread."""
    for step in work:
        if not isinstance(step, int):
            for _ in step.slices:
                pass
        in_pause()


def find(
    harness: Harness,
    log: PartitionLog,
    key: bytes,
    *,
    newest_first: bool = False,
    since: int = INT64_MIN,
    until: int = INT64_MAX,
    limit: int | None = None,
    read_committed: bool = False,
    records_max: int = 1000,
    bytes_max: int = 1 << 20,
    scanned_bytes_max: int = 1 << 30,
    in_pause: Callable[[], None] = lambda: None,
) -> Found:
    """Search to the end, in as many requests as the bounds need. `in_pause` runs in each pause."""
    limit = log.written_end_offset if limit is None else limit
    query = KeyQuery(
        key,
        limit if newest_first else log.log_start_offset,
        limit,
        since,
        until,
        newest_first,
        records_max,
        bytes_max,
        scanned_bytes_max,
    )
    records: list[Record] = []
    totals = [0, 0, 0, 0]
    for request in range(1, 10_000):
        result, work = harness.service.key_lookups.find(
            log, query, read_committed=read_committed, is_over=lambda: False
        )
        finish(work, in_pause)
        assert len(result.records) <= records_max
        records += [one.record for one in result.records]
        for at, count in enumerate(
            (
                result.scanned_bytes,
                result.segments_read,
                result.segments_filtered,
                result.segments_unindexed,
            )
        ):
            totals[at] += count
        if result.is_complete:
            return Found(records, request, *totals)
        assert result.next_offset != query.offset or result.records, "no progress"
        query = replace(query, offset=result.next_offset)
    raise AssertionError("the search does not end")


def scanned(
    harness: Harness,
    log: PartitionLog,
    key: bytes,
    *,
    since: int = INT64_MIN,
    until: int = INT64_MAX,
    read_committed: bool = False,
) -> list[Record]:
    """The plain scan, oldest first."""
    if read_committed:
        every = committed_records(harness, log)
    else:
        every = []
        for segment in log.segments:
            path = log.path / f"{segment.base_offset:020d}.log"
            data = harness.disk.read_bytes(path)[: segment.size]
            for position, _size, header in iterate_batches(data):
                if not header.is_control:
                    every += iterate_records(data, position, header=header)
    return [
        record
        for record in every
        if record.key == key
        and since <= record.timestamp < until
        and record.offset >= log.log_start_offset
    ]
