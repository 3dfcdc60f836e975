"""`records_at` returns the records that `iterate_records` does, without decoding the others."""

from __future__ import annotations

import random

import pytest

from mqd.errors import MqError
from mqd.limits import DECOMPRESSED_BYTES_MAX
from mqd.protocol.batch import parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record, iterate_records, record_bytes
from mqd.protocol.record_scan import records_at


def made(dice: random.Random, count: int) -> list[Record]:
    return [
        Record(
            0,
            1_000 + dice.randrange(-500, 500),
            dice.choice([None, b"", b"k" * dice.choice([1, 70])]),
            dice.choice([None, b"v" * dice.choice([0, 5, 63, 64, 9_000])]),
            [("h", b"x")] * dice.randrange(3),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("log_append_time", [None, 77])
def test_the_records_of_some_offsets(log_append_time: int | None) -> None:
    dice = random.Random(1)
    for count in (1, 2, 3, 40):
        batch = build_batch(made(dice, count), base_offset=100, log_append_time=log_append_time)
        header = parse_header(batch)
        body = record_bytes(memoryview(batch), header, DECOMPRESSED_BYTES_MAX)
        everything = {record.offset: record for record in iterate_records(batch)}
        for _ in range(20):
            some = sorted(dice.sample(range(100, 100 + count), dice.randrange(count + 1)))
            assert list(records_at(body, header, some)) == [everything[one] for one in some]


def test_damaged_batches_are_errors() -> None:
    batch = build_batch(made(random.Random(2), 20), base_offset=100)
    header = parse_header(batch)
    body = record_bytes(memoryview(batch), header, DECOMPRESSED_BYTES_MAX)
    for damaged, offset in (
        (body[:5], 101),
        (body[: len(body) // 2], 119),
        (b"\x01" + body[1:], 101),  # a record of -1 bytes
        (body, 120),
    ):
        with pytest.raises(MqError):
            list(records_at(damaged, header, [offset]))
