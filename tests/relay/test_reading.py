"""Records of a delay partition by their offset."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.relay import reading
from mqd.relay.delay_records import size_of
from mqd.relay.reading import Chunk, RecordLookup, decoded, picked, read_chunk
from mqd.relay.sharing import Shared
from tests.log.support import Harness, InlineDisk, batch

ABORT_MARKER = b"\x00\x00\x00\x00"


def log_bytes() -> tuple[bytes, list[tuple[int, int]]]:
    """Batches with offsets 0 to 99, two of an aborted transaction; and this one, as (first offset,
    producer id)."""
    parts = [
        batch(*[b"%d" % number for number in range(40)]),  # 0 to 39
        batch(b"40", b"41", codec=Codec.ZSTD),
        batch(b"42", producer_id=7, sequence=0, transactional=True),
        batch(b"43"),
        batch(b"44", b"45", producer_id=7, sequence=1, transactional=True),
        abort_marker(),  # 46
        batch(b"47", producer_id=7, sequence=0, transactional=True),
        batch(*[b"%d" % number for number in range(48, 100)]),
    ]
    offset, data = 0, b""
    for part in parts:
        part[:8] = offset.to_bytes(8, "big")
        offset += int.from_bytes(part[57:61], "big")
        data += bytes(part)
    return data, [(42, 7)]


def abort_marker() -> bytearray:
    return build_batch(
        [(ABORT_MARKER, b"\x00" * 6)], control=True, transactional=True, producer_id=7
    )


@pytest.mark.parametrize(
    "offsets", [[0], [39], [0, 1, 39], [41], [42], [42, 43, 46, 47], [50, 99], [*range(100)], []]
)
def test_picked_records_are_those_that_are_visible(offsets: list[int]) -> None:
    data, aborted = log_bytes()
    visible = {record.offset: record for record in decoded(data, aborted, 0, 100).records}
    assert sorted(visible) == [*range(42), 43, *range(47, 100)]
    found = picked(data, aborted, offsets)
    assert found.records == {one: visible.get(one) for one in offsets}
    assert not found.skipped


def test_a_damaged_batch_hides_only_its_records() -> None:
    data, aborted = log_bytes()
    found = picked(data[:100] + b"\xff" + data[101:], aborted, [3, 43])
    assert found.records[3] is None and found.records[43] is not None and found.skipped == 1


async def test_many_records_are_prepared_with_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path, disk=InlineDisk())
    await harness.service.start()
    log = harness.open()
    harness.write(log, *[batch(*[b"v" * 50] * 200) for _ in range(10)])
    log.log_start_offset = 10
    reads: list[int] = []
    read_parts = reading._read_parts

    def counted(parts: Any, *bounds: Any) -> Any:
        reads.append(len(parts))
        return read_parts(parts, *bounds)

    monkeypatch.setattr(reading, "_read_parts", counted)
    partition: Any = SimpleNamespace(log=log, last_stable_offset=log.written_end_offset)
    lookup = RecordLookup(harness.service, harness.disk, Shared(), partition)
    offsets = [1990, 3, 250, 1400, 251, 252, 1700, 999]
    await lookup.prepare(offsets, 1 << 20)
    assert reads == [4], "one call in a thread; records from 250 to 999 are read together"
    found = [await lookup.get(offset) for offset in offsets]
    assert [None if one is None else one.offset for one in found] == [1990, None, *offsets[2:]]
    assert len(reads) == 1
    other = await lookup.get(777)
    assert other is not None and other.offset == 777 and len(reads) == 2

    first = found[0]
    assert first is not None
    monkeypatch.setattr(reading, "_PARTS_MAX", 1)
    await lookup.prepare(offsets, size_of(first))
    assert len(reads) == 3, "the rest is read when it is needed"
    assert await lookup.get(1700) == found[6]
    harness.kill()


def numbered(count: int) -> bytearray:
    return build_batch([(b"%d" % one, b"v") for one in range(count)], codec=Codec.ZSTD)


def compressed(*values: bytes) -> bytearray:
    return build_batch([(b"k", value) for value in values], codec=Codec.ZSTD)


async def lookup_of(tmp_path: Path, *batches: bytearray) -> tuple[Harness, Any, RecordLookup]:
    harness = Harness(tmp_path, disk=InlineDisk())
    await harness.service.start()
    log = harness.open()
    harness.write(log, *batches)
    partition: Any = SimpleNamespace(log=log, last_stable_offset=log.written_end_offset)
    return harness, partition, RecordLookup(harness.service, harness.disk, Shared(), partition)


async def all_chunks(harness: Harness, partition: Any) -> list[Chunk]:
    chunks: list[Chunk] = []
    offset, end = 0, partition.last_stable_offset
    while offset < end:
        chunk = await read_chunk(harness.service, harness.disk, Shared(), partition, offset, end)
        assert chunk.next_offset > offset
        chunks.append(chunk)
        offset = chunk.next_offset
    return chunks


async def test_a_chunk_is_small_whatever_batches_expand_to(tmp_path: Path) -> None:
    many = numbered(20_000)
    wide = compressed(b"a", bytes(600_000), b"b")
    harness, partition, _ = await lookup_of(
        tmp_path, batch(b"x"), many, wide, *[compressed(bytes(500_000)) for _ in range(4)]
    )
    chunks = await all_chunks(harness, partition)
    records = [record for chunk in chunks for record in chunk.records]
    assert [record.offset for record in records] == [*range(20_008)]
    assert records[5].key == b"4" and records[20_001].value is not None
    for chunk in chunks:
        assert len(chunk.records) <= 8_192
        assert sum(map(size_of, chunk.records)) <= 1.1 * 2**20
    harness.kill()


async def test_batches_beyond_the_bounds_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RELAY_BATCH_BYTES_MAX", 2**20)
    headers = [("", b"")] * 1_001
    many_headers = build_batch([Record(0, 0, b"k", b"v", headers)], codec=Codec.ZSTD)
    harness, partition, lookup = await lookup_of(
        tmp_path, compressed(bytes(2**20)), many_headers, batch(b"x")
    )
    chunks = await all_chunks(harness, partition)
    assert [record.offset for chunk in chunks for record in chunk.records] == [2]
    assert sum(chunk.skipped for chunk in chunks) == 2
    await lookup.prepare([0, 1, 2], 1 << 20)
    found = [await lookup.get(offset) for offset in range(3)]
    assert found[:2] == [None, None] and found[2] is not None
    harness.kill()


async def test_records_of_large_batches_are_looked_up(tmp_path: Path) -> None:
    harness, _, lookup = await lookup_of(
        tmp_path, numbered(10_000), compressed(b"a", bytes(600_000), b"b"), batch(b"x")
    )
    offsets = [9_999, 3, 10_003, 10_002, 10_001]
    await lookup.prepare(offsets, 1 << 20)
    assert all(map(lookup.is_prepared, offsets))
    found = [await lookup.get(offset) for offset in offsets]
    assert [one and one.value for one in found] == [b"v", b"v", b"x", b"b", b""]
    assert [lookup.is_large(offset) for offset in offsets] == [False] * 4 + [True]
    whole = await lookup.whole(10_001)
    assert whole is not None and whole.codec is Codec.ZSTD
    assert whole.record.offset == 10_001 and whole.record.value == bytes(600_000)
    lookup.forget()
    assert await lookup.get(10_001) == found[4] and lookup.is_large(10_001)
    harness.kill()
