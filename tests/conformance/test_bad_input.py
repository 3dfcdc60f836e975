"""Peers that send false data, stall, flood and disconnect: each affects at most its own connection
and bounded memory.

Marked `mqd_only` where Apache Kafka behaves worse (memory by declared length, no response at all)
or accepts what mqd closes.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.node import Node

from .batches import Batch, batch, compress, record, records
from .conftest import Broker
from .wire import (
    Closed,
    Wire,
    create_topic,
    encode,
    fetch_fields,
    fetch_one,
    list_offsets,
    produce,
    produce_fields,
    until,
)

MIB = 1024 * 1024
GROWTH_BYTES_MAX = 48 * MIB
"""How much the whole process may grow in one of these tests: arenas and allocator slack, not the
declared lengths.
"""
CORRUPT_MESSAGE, INVALID_RECORD = 2, 87


@pytest.fixture(autouse=True)
def bounded_and_alive(broker: Broker) -> Iterator[None]:
    """After each test the broker responds to a new client; mqd has not grown, nor kept
    descriptors.
    """
    node = broker.node
    before = (node.resident_bytes(), node.descriptor_count()) if node else (0, 0)
    yield
    with Wire(broker.host, broker.port) as other:
        assert other.ask("ApiVersions", 0).error_code == 0
    if node:
        assert node.resident_bytes() - before[0] < GROWTH_BYTES_MAX
        until(lambda: node.descriptor_count() <= before[1] + 40, "descriptors to be given back")
        assert "Traceback" not in node.stderr()


# -- records


def test_timestamps_at_the_ends_of_int64(wire: Wire, topic: str) -> None:
    for stamp in (2**63 - 1, -(2**63)):
        row = produce(wire, topic, Batch(first_timestamp_ms=stamp, max_timestamp_ms=stamp).encode())
        assert row.error_code in (0, 32)
    assert produce(wire, topic, batch(b"good")).error_code == 0


def test_invalid_codec_streams(wire: Wire, new_name: Callable[[], str]) -> None:
    """The keys of a compacted topic must be inspected, so the stream must be read."""
    topic = create_topic(wire, new_name(), configs={"cleanup.policy": "compact"})
    for codec in range(1, 5):
        for payload in (b"not compressed at all", compress(codec, b"x" * 1000)[:-7], b""):
            row = produce(
                wire,
                topic,
                Batch(records=[record(b"v", key=b"k")], codec=codec, payload=payload).encode(),
            )
            assert row.error_code != 0, (codec, payload)
    assert produce(wire, topic, Batch(codec=7, payload=b"?").encode()).error_code != 0, (
        "no such codec"
    )
    deadline = time.monotonic() + 10
    while (
        row := produce(wire, topic, Batch(records=[record(b"v", key=b"k")]).encode())
    ).error_code == 56:
        # too many records were inspected within one millisecond: a retriable error
        assert time.monotonic() < deadline
    assert row.base_offset == 0


@pytest.mark.mqd_only
def test_bombs(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    """A gigabyte in a megabyte.

    Kafka decompresses all of it; mqd stops at a limit, and does not decompress where it need not.
    """
    compacted = create_topic(wire, new_name(), configs={"cleanup.policy": "compact"})
    head = record(b"v", key=b"k")
    for codec in (1, 3, 4):
        bomb = Batch(
            records=[head], codec=codec, payload=compress(codec, head + bytes(400 * MIB)), count=1
        ).encode()
        if len(bomb) > 1_000_000:
            continue
        assert produce(wire, compacted, bomb).error_code != 0
        produce(wire, topic, bomb)
        for stamp in (-3, 0, 2**62):
            list_offsets(wire, topic, stamp)


@pytest.mark.mqd_only
def test_null_records_get_a_response(wire: Wire, topic: str) -> None:
    """Kafka lets the client wait forever."""
    assert produce(wire, topic, None).error_code == INVALID_RECORD
    assert produce(wire, topic, batch(b"a")).base_offset == 0


@pytest.mark.parametrize("size", range(0, 80, 7))
def test_batches_cut_short_anywhere(wire: Wire, topic: str, size: int) -> None:
    assert produce(wire, topic, batch(b"abcdefghij" * 3)[:size]).error_code in (
        CORRUPT_MESSAGE,
        INVALID_RECORD,
    )


# -- headers and frames


TOLERATED_BY_KAFKA = {
    "client id that is not UTF-8": struct.pack(">hhih", 18, 0, 1, 4) + b"\xff\xfe\xfd\xfc",
    "tags out of order": struct.pack(">hhih", 3, 12, 1, -1)
    + b"\x02\x05\x00\x01\x00"
    + b"\x01\x01\x00\x00",
    "the same tag twice": struct.pack(">hhih", 3, 12, 1, -1)
    + b"\x02\x05\x00\x05\x00"
    + b"\x01\x01\x00\x00",
}


@pytest.mark.mqd_only
@pytest.mark.parametrize("frame", TOLERATED_BY_KAFKA.values(), ids=TOLERATED_BY_KAFKA)
def test_malformed_requests_close_the_connection(wire: Wire, frame: bytes) -> None:
    """Kafka is lenient with these.

    A peer that writes them is out of step, and so is all later data.
    """
    wire.send_frame(frame)
    assert wire.closed()


def test_bytes_behind_a_request_are_ignored(wire: Wire) -> None:
    """librdkafka 2.16 sends three when it lists all topics (Metadata v13)."""
    wire.send_frame(encode("ApiVersions", 0) + b"garbage")
    assert not wire.closed()


def test_a_frame_split_at_every_byte(broker: Broker) -> None:
    body = encode("ApiVersions", 3, client_software_name="conformance", client_software_version="1")
    framed = struct.pack(">i", len(body)) + body
    with Wire(broker.host, broker.port) as connection:
        answers = set()
        for cut in range(1, len(framed)):
            connection.send(framed[:cut])
            connection.send(framed[cut:])
            answers.add(connection.frame())
    assert len(answers) == 1


def test_many_empty_arrays(wire: Wire) -> None:
    """A thousand topics without partitions: a response or a close, and soon."""
    rows = [{"name": f"t{i}", "partition_data": []} for i in range(1000)]
    try:
        wire.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=1000, topic_data=rows)
    except Closed:
        return


@pytest.mark.mqd_only
def test_a_declared_length_reserves_nothing(broker: Broker) -> None:
    """Kafka reserves 100 MB of its heap for each of these before the first byte of the body
    arrives.
    """
    assert broker.node is not None
    before = broker.node.resident_bytes()
    connections = [Wire(broker.host, broker.port) for _ in range(20)]
    try:
        for connection in connections:
            connection.send(struct.pack(">i", 100 * MIB) + struct.pack(">hhih", 0, 9, 1, -1))
        with Wire(broker.host, broker.port) as other:
            assert other.ask("ApiVersions", 0).error_code == 0
        assert broker.node.resident_bytes() - before < GROWTH_BYTES_MAX
    finally:
        for connection in connections:
            connection.socket.close()


@pytest.mark.slow
@pytest.mark.mqd_only
@pytest.mark.timeout(120)
def test_endless_frames_close_the_connection(broker: Broker) -> None:
    """Silence in the middle of a frame, and one byte a second: both end after
    limits.FRAME_RECEIVE_TIMEOUT_MS. Kafka waits.
    """
    with (
        Wire(broker.host, broker.port, 60) as silent,
        Wire(broker.host, broker.port, 60) as slow,
        Wire(broker.host, broker.port, 60) as idle,
    ):
        silent.send(struct.pack(">i", 100) + b"\0\x12")
        slow.send(struct.pack(">i", 1000))
        slow.socket.settimeout(1)
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            try:
                slow.send(b"\0")
                if slow.socket.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the slow one is still connected")
        assert silent.closed()
        assert idle.ask("ApiVersions", 0).error_code == 0, "between frames there is more time"


# -- floods


def test_ten_thousand_requests_before_the_first_response_is_read(broker: Broker) -> None:
    with Wire(broker.host, broker.port, 60) as connection:
        body = encode("ApiVersions", 0, correlation_id=0)
        flood = b"".join(
            struct.pack(">i", len(body)) + body[:4] + struct.pack(">i", i) + body[8:]
            for i in range(10_000)
        )
        connection.socket.setblocking(False)
        sent, received = 0, bytearray()
        deadline = time.monotonic() + 50
        answered = 0
        while answered < 10_000:
            assert time.monotonic() < deadline
            if sent < len(flood):
                try:
                    sent += connection.socket.send(flood[sent:])
                    continue
                except BlockingIOError:
                    pass
            try:
                part = connection.socket.recv(1 << 20)
                assert part, "closed"
                received += part
            except BlockingIOError:
                time.sleep(0.001)
            while len(received) >= 8:
                size, correlation_id = struct.unpack_from(">ii", received)
                if len(received) < 4 + size:
                    break
                assert correlation_id == answered
                del received[: 4 + size]
                answered += 1


def test_a_client_that_stops_reading(broker: Broker, wire: Wire, topic: str) -> None:
    """Two hundred responses of a megabyte requested at once: they wait in files, not in memory."""
    for i in range(8):
        produce(wire, topic, batch(bytes([i]) * 900_000))
    fields = fetch_fields({topic: {0: 0}}, partition_max_bytes=1_000_000)
    with Wire(broker.host, broker.port, 60) as slow:
        tickets = [slow.post("Fetch", 12, **fields) for _ in range(200)]
        for _ in range(10):
            assert fetch_one(wire, topic, 7).error_code == 0, "other clients are served meanwhile"
        if broker.node:
            assert broker.node.resident_bytes() < 250 * MIB
        sizes = {len(slow.answer(ticket).responses[0].partitions[0].records) for ticket in tickets}
    assert len(sizes) == 1


def test_connections_reset_in_the_middle_of_a_response(
    broker: Broker, wire: Wire, topic: str
) -> None:
    for i in range(5):
        produce(wire, topic, batch(bytes([i]) * 900_000))
    for _ in range(50):
        connection = Wire(broker.host, broker.port)
        connection.post(
            "Fetch", 12, **fetch_fields({topic: {0: 0}}, partition_max_bytes=10_000_000)
        )
        connection.socket.recv(1000)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.close()


def test_connections_closed_with_requests_parked_and_unread(
    broker: Broker, wire: Wire, topic: str
) -> None:
    for _ in range(50):
        connection = Wire(broker.host, broker.port)
        connection.post("Produce", 9, **produce_fields(topic, batch(b"x")))
        connection.post("Fetch", 12, **fetch_fields({topic: {0: 10_000}}, max_wait_ms=60_000))
        connection.socket.close()
    until(lambda: list_offsets(wire, topic, -1).offset == 50, "what they produced")


@pytest.mark.mqd_only
def test_more_connections_than_allowed(tmp_path: Path) -> None:
    """Existing ones are served, new ones are refused, and closed ones make room.

    (Kafka's default has no limit.)
    """
    node = Node(tmp_path, ("max.connections=20",))
    node.start()
    connections: list[Wire] = []
    try:
        for _ in range(20):
            connection = Wire("127.0.0.1", node.port)
            assert connection.ask("ApiVersions", 0).error_code == 0
            connections.append(connection)
        with (
            Wire("127.0.0.1", node.port) as refused,
            pytest.raises((Closed, ConnectionError, TimeoutError)),
        ):
            refused.socket.settimeout(2)
            refused.ask("ApiVersions", 0)
        assert all(connection.ask("ApiVersions", 0).error_code == 0 for connection in connections)
        connections.pop().socket.close()

        def served() -> bool:
            try:
                with Wire("127.0.0.1", node.port, 2) as another:
                    return bool(another.ask("ApiVersions", 0).error_code == 0)
            except (Closed, ConnectionError, TimeoutError):
                return False

        until(served, "room for another")
    finally:
        for connection in connections:
            connection.socket.close()
        node.stop()


def test_records_in_wrong_order_affect_no_others(wire: Wire, topic: str) -> None:
    """Offset deltas 0, 5, 2: Kafka stores them; a broker that stores them must serve and find later
    records.
    """
    odd = Batch(
        records=[record(b"a"), record(b"b", offset_delta=5), record(b"c", offset_delta=2)]
    ).encode()
    produce(wire, topic, odd)
    end = list_offsets(wire, topic, -1).offset
    assert produce(wire, topic, Batch(records=records(b"d")).encode()).base_offset == end
    assert fetch_one(wire, topic, 0).error_code == 0
