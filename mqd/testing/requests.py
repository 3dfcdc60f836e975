"""Requests as bytes, for clients that send invalid requests (hostile.py, tests/hostile)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from mqd.protocol import apis
from mqd.protocol.schema import Api, decode_response_header, encode_request_header

CORRELATION_ID = 7


def api_of(name: str) -> Api:
    api = apis.by_name(name)
    assert api is not None, name
    return api


def frame(name: str, version: int, body: Mapping[str, Any]) -> bytes:
    """A request with its length and header."""
    api = api_of(name)
    encoded = encode_request_header(api, version, CORRELATION_ID, "hostile") + api.encode_request(
        version, body
    )
    return struct.pack(">i", len(encoded)) + encoded


def decoded(name: str, version: int, response: bytes) -> Any:
    """A response, without its length prefix."""
    api = api_of(name)
    _, position = decode_response_header(api, version, response)
    return api.decode_response(version, response, position)


def fetch_body(topic: str, partitions: list[int], **options: Any) -> dict[str, Any]:
    """The body of a fetch that does not wait."""
    rows = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1000} for index in partitions
    ]
    topics = [{"topic": topic, "partitions": rows}] if topic else []
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 10_000,
        "session_epoch": -1,
        **options,
        "topics": topics,
    }
