"""The connection itself: ApiVersions in every version, order of responses, and what closes a
connection.
"""

from __future__ import annotations

import struct

import pytest

from .batches import batch
from .conftest import Broker
from .wire import Closed, Wire, encode, fetch_fields, produce_fields

API_VERSIONS = 18
TELEMETRY = {71, 72}


@pytest.mark.parametrize("version", range(5))
def test_api_versions(wire: Wire, version: int) -> None:
    answer = wire.ask(
        "ApiVersions", version, client_software_name="wire", client_software_version="1.0"
    )
    assert answer.error_code == 0
    ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert len(ranges) == len(answer.api_keys), "a key appears once"
    assert all(0 <= low <= high for low, high in ranges.values())
    assert ranges[0][0] == 0, "librdkafka disables compression unless Produce is advertised from 0"
    assert ranges[0][1] >= 13
    assert ranges[3][0] == 0
    assert ranges[API_VERSIONS][0] == 0 and ranges[API_VERSIONS][1] >= 4
    assert not TELEMETRY & set(ranges), "no receiver of telemetry: librdkafka would start pushing"
    if 11 in ranges:
        assert ranges[11][0] == 0, "librdkafka before 2.11 ties SASL and groups to JoinGroup 0"
    if version < 4:
        assert all(feature.min_version > 0 for feature in answer.supported_features), (
            "a zero minimum breaks clients below v4"
        )


def test_unknown_api_versions_version_gets_a_response_of_version_0(wire: Wire) -> None:
    wire.send_frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"\0")
    frame = wire.frame()
    correlation_id, error, count, key, low, high = struct.unpack(">ihihhh", frame)
    assert (correlation_id, error, count, key, low) == (7, 35, 1, API_VERSIONS, 0)
    assert 4 <= high < 99
    assert wire.ask("ApiVersions", 0).error_code == 0, "the connection stays open"


def test_api_versions_response_header_is_always_version_0(wire: Wire) -> None:
    wire.send_frame(
        encode(
            "ApiVersions",
            3,
            correlation_id=9,
            client_software_name="wire",
            client_software_version="1",
        )
    )
    frame = wire.frame()
    assert struct.unpack_from(">ih", frame) == (9, 0), (
        "the error code directly follows the correlation id: no tagged fields between"
    )


def test_api_versions_with_an_invalid_software_name(wire: Wire) -> None:
    wire.send_frame(
        encode(
            "ApiVersions",
            3,
            correlation_id=5,
            client_software_name="not fit!",
            client_software_version="1",
        )
    )
    assert struct.unpack_from(">ih", wire.frame()) == (5, 42)
    assert (
        wire.ask(
            "ApiVersions", 3, client_software_name="fit", client_software_version="1"
        ).error_code
        == 0
    )


def test_null_client_id(wire: Wire) -> None:
    wire.send_frame(encode("ApiVersions", 0, correlation_id=3, client_id=None))
    assert struct.unpack_from(">ih", wire.frame()) == (3, 0)


def test_pipelined_requests_get_responses_in_order(wire: Wire, topic: str) -> None:
    """Also fast ones behind slow ones: the parked fetch in the middle delays the later ones."""
    tickets = [wire.post("Produce", 9, **produce_fields(topic, batch(b"a"))) for _ in range(20)]
    tickets.append(wire.post("Fetch", 12, **fetch_fields({topic: {0: 20}}, max_wait_ms=100)))
    tickets.append(wire.post("ApiVersions", 0))
    tickets += [wire.post("Produce", 9, **produce_fields(topic, batch(b"b"))) for _ in range(20)]
    answers = [wire.answer(ticket) for ticket in tickets]
    offsets = [
        row.base_offset
        for a in answers
        if hasattr(a, "responses")
        for r in a.responses
        for row in getattr(r, "partition_responses", [])
    ]
    assert offsets == list(range(40))


def test_two_frames_in_one_segment_and_one_frame_in_many(wire: Wire) -> None:
    one = encode("ApiVersions", 0, correlation_id=1)
    framed = struct.pack(">i", len(one)) + one
    wire.send(framed + framed)
    assert wire.frame() == wire.frame()
    for byte in framed:
        wire.send(bytes([byte]))
    assert struct.unpack_from(">ih", wire.frame()) == (1, 0)


def test_a_response_still_arrives_after_the_client_shut_down_its_sending_side(wire: Wire) -> None:
    """Kafka drops the connection, maybe with the response; a response that arrives must be
    complete.
    """
    import socket

    ticket = wire.post("ApiVersions", 0)
    wire.socket.shutdown(socket.SHUT_WR)
    try:
        assert wire.answer(ticket).error_code == 0
    except Closed:
        return
    assert wire.closed()


CLOSING = {
    "unknown api": struct.pack(">hhihB", 999, 0, 1, -1, 0),
    "negative api": struct.pack(">hhihB", -1, 0, 1, -1, 0),
    "unknown version of produce": struct.pack(">hhihB", 0, 99, 1, -1, 0),
    "negative version": struct.pack(">hhihB", 3, -1, 1, -1, 0),
    "half a header": b"\0\x03\0",
    "client id longer than the frame": struct.pack(">hhih", 3, 1, 1, 1000) + b"x",
    "client id length -2": struct.pack(">hhih", 3, 1, 1, -2),
    "array of a billion": struct.pack(">hhihi", 3, 1, 1, -1, 1_000_000_000),
    "array of 2^31-1": struct.pack(">hhihi", 3, 1, 1, -1, 0x7FFFFFFF),
    "compact array of 2^32-2": struct.pack(">hhihB", 3, 12, 1, -1, 0) + b"\xff\xff\xff\xff\x0f",
    "string longer than the frame": struct.pack(">hhihih", 3, 1, 1, -1, 1, 500) + b"abc",
    "array -1 where null is not allowed": struct.pack(">hhihhihii", 19, 2, 1, -1, 0, 0, 0, 0, 0)[
        :10
    ]
    + struct.pack(">i", -1)
    + b"\0\0\0\0\0",
    "billion tagged fields": struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\x0f",
    "varint that never ends": struct.pack(">hhihB", 3, 12, 1, -1, 0) + b"\xff" * 12,
}


@pytest.mark.parametrize("frame", CLOSING.values(), ids=CLOSING)
def test_undecodable_frames_close_the_connection(wire: Wire, broker: Broker, frame: bytes) -> None:
    wire.send_frame(frame)
    assert wire.closed()
    with Wire(broker.host, broker.port) as other:
        assert other.ask("ApiVersions", 0).error_code == 0


STREAMS = {
    "length 0": struct.pack(">i", 0),
    "length -1": struct.pack(">i", -1),
    "length 2^31-1": struct.pack(">i", 0x7FFFFFFF),
    "above socket.request.max.bytes": struct.pack(">i", 104_857_601),
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("data", STREAMS.values(), ids=STREAMS)
def test_invalid_frames_close_the_connection(wire: Wire, broker: Broker, data: bytes) -> None:
    wire.send(data)
    assert wire.closed()
    with Wire(broker.host, broker.port) as other:
        assert other.ask("ApiVersions", 0).error_code == 0
