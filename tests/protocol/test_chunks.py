"""Large messages are encoded into chunks, and large values are not copied."""

from __future__ import annotations

from mqd.limits import KIB
from mqd.protocol.chunks import Chunks


def test_chunks_are_in_order_and_large_values_are_not_copied() -> None:
    chunks = Chunks()
    large = bytes(range(256)) * 64
    written: list[bytes | memoryview] = [
        b"a" * 10,
        large,
        b"b" * KIB,
        memoryview(large),
        *[b"c" * KIB] * 200,
        b"d",
    ]
    for data in written:
        chunks.write(data)
    taken = chunks.take()
    assert b"".join(taken) == b"".join(written) and chunks.size == len(b"".join(written))
    assert taken[1] is large
    assert all(len(chunk) <= 65 * KIB for chunk in taken)
