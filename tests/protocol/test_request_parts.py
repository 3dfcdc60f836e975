"""Requests in pieces: the same bytes as in one, and no copy of a large blob."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.protocol.apis import by_key
from mqd.protocol.request_parts import LARGE_BYTES, encode_request_parts

PRODUCE = 0
SIZES = (LARGE_BYTES, 10, LARGE_BYTES + 1, LARGE_BYTES - 1, 0, 20)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_the_same_bytes_without_copies(version: int) -> None:
    api = by_key(PRODUCE)
    assert api is not None
    blobs = [memoryview(bytes([number]) * size) for number, size in enumerate(SIZES)]
    rows = [{"index": index, "records": blob} for index, blob in enumerate(blobs)]
    body = {
        "transactional_id": "writer",
        "acks": -1,
        "timeout_ms": 1_000,
        "topic_data": [
            {"name": "a", "topic_id": UUID(int=1), "partition_data": rows[:3]},
            {"name": "b", "topic_id": UUID(int=2), "partition_data": rows[3:]},
        ],
    }
    pieces = encode_request_parts(api, version, body)
    whole = api.encode_request(version, body)
    assert b"".join(pieces.parts) == whole
    assert pieces.size == len(whole)
    large = [part for part in pieces.parts if isinstance(part, memoryview)]
    assert [id(part) for part in large] == [id(blobs[0]), id(blobs[2])]
    assert len(pieces.parts) == 5  # small blobs are joined
