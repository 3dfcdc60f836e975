"""How many records a second does one core turn into Arrow columns, and back?

    python -m bench.columns [--records 400000] [--seconds 1.0] [--rows-max 32768] [--json FILE]

Values have 100 bytes (or 92 to 108), keys 12. Each line is one shape: records in a batch, codec,
headers. Time is the CPU time of this thread, with the CRC, the best of several runs. Arrow uses one
thread. `walk` is `mqd.protocol.batch.iterate_records` on the same bytes: the record-by-record
reader that columns replace. Decoding runs with each available way to find records. Encoding
includes murmur2 of every key, sixteen partitions, and the CRC of every batch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqd.client import columns
from mqd.protocol.batch import HEADER_BYTES, iterate_batches, validate
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import iterate_records

STAMP_MS = 1_790_000_000_000
PARTITIONS = 16
FETCH_BYTES = 8 << 20
HEADERS_TYPE = columns.schema(["headers"]).field(0).type


class Shape(NamedTuple):
    """The form of the records of a run."""

    name: str
    batch_bytes: int
    mixed: bool = False
    """Whether the sizes of values and keys vary, and a tenth of the keys is null."""
    headers: bool = False
    codec: Codec = Codec.NONE


SHAPES = (
    Shape("equal sizes", 16 << 10),
    Shape("equal sizes", 64 << 10),
    Shape("equal sizes", 1 << 20),
    Shape("mixed sizes", 16 << 10, mixed=True),
    Shape("mixed sizes", 64 << 10, mixed=True),
    Shape("mixed sizes", 1 << 20, mixed=True),
    Shape("one header", 64 << 10, mixed=True, headers=True),
    Shape("lz4", 64 << 10, mixed=True, codec=Codec.LZ4),
    Shape("zstd", 64 << 10, mixed=True, codec=Codec.ZSTD),
)


class Rows(NamedTuple):
    """The Arrow columns that a sink receives."""

    keys: pa.Array
    values: pa.Array
    stamps: pa.Array
    headers: pa.Array | None


def rows_of(shape: Shape, count: int) -> Rows:
    dice = random.Random(1)
    pool = bytes(dice.randrange(97, 123) for _ in range(4096))
    keys: list[bytes | None] = []
    values = []
    for _ in range(count):
        size = 100 + (dice.randrange(-8, 9) if shape.mixed else 0)
        begin = dice.randrange(0, 3900)
        values.append(pool[begin : begin + size])
        if shape.mixed and dice.random() < 0.1:
            keys.append(None)
        else:
            number = dice.randrange(10**8)
            keys.append(b"key-%d" % number if shape.mixed else b"key-%08d" % number)
    headers = None
    if shape.headers:
        one = [{"key": "trace-id", "value": b"0123456789abcdef"}]
        headers = pa.array([one] * count, HEADERS_TYPE)
    stamps = pa.array(STAMP_MS + np.arange(count) // 20)
    return Rows(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), stamps, headers)


def responses_of(shape: Shape, rows: Rows) -> list[bytes]:
    """Responses to fetches of 8 MiB: batches of one partition, with their offsets."""
    batches = columns.encode(
        rows.keys,
        rows.values,
        np.zeros(len(rows.values), np.int32),
        timestamps_ms=rows.stamps,
        headers=rows.headers,
        codec=shape.codec,
        batch_bytes=shape.batch_bytes,
    )
    responses, data, offset = [], bytearray(), 0
    for batch in batches:
        batch.data[:8] = offset.to_bytes(8, "big")
        offset += batch.records
        batch.finish(1, 0, 0, transactional=False)
        if len(data) + len(batch.data) > FETCH_BYTES:
            responses.append(bytes(data))
            data.clear()
        data += batch.data
    return [*responses, bytes(data)]


def best_of(seconds: float, run: Callable[[], int]) -> float:
    """Records per second of CPU time: the best of at least three runs."""
    best, started_at, runs = 0.0, time.process_time(), 0
    while runs < 3 or time.process_time() - started_at < seconds:
        start = time.process_time()
        count = run()
        best = max(best, count / (time.process_time() - start))
        runs += 1
    return best


def decode_rate(seconds: float, responses: list[bytes], **options: Any) -> float:
    def run() -> int:
        return sum(
            batch.num_rows
            for data in responses
            for batch in columns.decode(data, "bench", 0, **options)
        )

    return best_of(seconds, run)


def walk_rate(responses: list[bytes]) -> float:
    def run() -> int:
        count = 0
        for position, size, header in iterate_batches(responses[0]):
            validate(responses[0], position, end=position + size)
            count += sum(1 for _ in iterate_records(responses[0], position, header=header))
            if count > 40_000:
                break
        return count

    return best_of(0.0, run)


def encode_rate(seconds: float, shape: Shape, rows: Rows, rows_max: int) -> float:
    count = len(rows.values)

    def run() -> int:
        for first in range(0, count, rows_max):
            keys = rows.keys.slice(first, rows_max)
            partitions = columns.partition_for_keys(keys, PARTITIONS)
            partitions[partitions < 0] = 5
            for batch in columns.encode(
                keys,
                rows.values.slice(first, rows_max),
                partitions,
                timestamps_ms=rows.stamps.slice(first, rows_max),
                headers=None if rows.headers is None else rows.headers.slice(first, rows_max),
                codec=shape.codec,
                batch_bytes=shape.batch_bytes,
            ):
                batch.finish(1, 0, 0, transactional=False)
        return count

    return best_of(seconds, run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time per figure")
    parser.add_argument("--rows-max", type=int, default=32_768, help="rows of an Arrow batch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    print("Millions of records per second and core; batches in bytes and records")
    titles = ("batch", "records", "decode", "headers", "encode", "walk", "ratio")
    print(f"{'shape':12}" + "".join(f"{title:>9}" for title in titles))
    lines = []
    for shape in SHAPES:
        rows = rows_of(shape, options.records)
        responses = responses_of(shape, rows)
        size, per_batch = next(
            (size - HEADER_BYTES, header.records_count)
            for _, size, header in iterate_batches(responses[0])
        )
        line: dict[str, Any] = {
            "shape": shape.name,
            "batch_bytes": size,
            "records_per_batch": per_batch,
            "decode": decode_rate(options.seconds, responses, rows_max=options.rows_max),
            "decode_all": decode_rate(
                options.seconds, responses, rows_max=options.rows_max, columns=columns.COLUMNS
            ),
            "encode": encode_rate(options.seconds, shape, rows, options.rows_max),
            "walk": walk_rate(responses),
        }
        lines.append(line)
        rates = (f"{line[name] / 1e6:9.3f}" for name in ("decode", "decode_all", "encode", "walk"))
        ratio = line["decode"] / line["walk"]
        print(f"{shape.name:12}{size:9}{per_batch:9}{''.join(rates)}{ratio:9.1f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
