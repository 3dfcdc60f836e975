"""The records that are copied into dead letters, a few at a time."""

from __future__ import annotations

import pytest

from mqd.limits import HEADERS_READ_MAX
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record
from mqd.share import partition_letters
from mqd.share.partition_letters import _records_of


def batch(offset: int, *records: Record) -> bytes:
    return bytes(build_batch(records, base_offset=offset))


def values(data: bytes, *wanted: int) -> dict[int, bytes | None]:
    found = _records_of(lambda start, size: data[start : start + size], 0, len(data), wanted)
    return {offset: record and record.value for offset, record in found.items()}


def test_records_are_read_until_they_have_the_bytes_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_letters, "_LETTERS_BYTES_MAX", 90)
    data = batch(0, *(Record(0, 0, None, b"%d" % at * 10) for at in range(5)))
    data += batch(5, Record(0, 0, None, b"last"))
    assert values(data, 0, 4) == {0: b"0" * 10, 4: b"4" * 10}
    assert values(data, 1, 2, 3, 4, 5) == {1: b"1" * 10, 2: b"2" * 10, 3: b"3" * 10}
    assert values(data, 5, 7) == {5: b"last", 7: None}


def test_a_batch_that_cannot_be_read_has_no_copies() -> None:
    headers = [("", b"")] * (HEADERS_READ_MAX + 1)
    data = batch(0, Record(0, 0, None, b"v", headers)) + batch(1, Record(0, 0, None, b"w"))
    assert values(data, 0, 1) == {0: None, 1: b"w"}
