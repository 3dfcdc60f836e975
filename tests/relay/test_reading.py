"""Records of a delay partition by their offset."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.relay import reading
from mqd.relay.delay_records import size_of
from mqd.relay.reading import RecordLookup, decoded, picked
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
    found, skipped = picked(data, aborted, offsets)
    assert found == [visible[one] for one in offsets if one in visible]
    assert not skipped


def test_a_damaged_batch_hides_only_its_records() -> None:
    data, aborted = log_bytes()
    found, skipped = picked(data[:100] + b"\xff" + data[101:], aborted, [3, 43])
    assert [record.offset for record in found] == [43] and skipped == 1


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

    def counted(parts: Any) -> Any:
        reads.append(len(parts))
        return read_parts(parts)

    monkeypatch.setattr(reading, "_read_parts", counted)
    partition: Any = SimpleNamespace(log=log, last_stable_offset=log.written_end_offset)
    lookup = RecordLookup(harness.service, harness.disk, partition)
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
