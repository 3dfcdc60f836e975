"""The number of TLS records that OpenSSL gets at a time."""

from __future__ import annotations

import random

from mqd.io.tls_records import TlsRecords


def record(size: int) -> bytes:
    return bytes([23, 3, 3]) + size.to_bytes(2) + bytes(size)


def test_no_byte_is_lost_whatever_the_split() -> None:
    rng = random.Random(1)
    sizes = [rng.choice((0, 1, 22, 300, 16_000)) for _ in range(500)]
    sent = b"".join(map(record, sizes))
    records, taken, count = TlsRecords(), bytearray(), 0
    position = 0
    while position < len(sent) or records.waiting:
        data = records.waiting
        if not data:
            data = sent[position : position + rng.randrange(1, 40_000)]
            position += len(data)
        start, begun = records.take(memoryview(data), 3)
        assert begun <= 3 and (begun == 3 or not records.waiting)
        taken += start
        count += begun
    assert taken == sent and count == len(sizes)


def test_a_record_that_has_begun_is_given_whole() -> None:
    records = TlsRecords()
    data = record(10) * 5
    assert records.take(data[:7], 1) == (data[:7], 1)
    assert records.take(data[7:], 1) == (data[7:30], 1)
    assert records.waiting == data[30:]
