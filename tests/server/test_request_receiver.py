"""The receiving half of a connection with a scripted socket: framing at every split, when requests
wait, and the memory of frames.
"""

from __future__ import annotations

import time
from struct import pack

import pytest
from hypothesis import given, strategies as st

from mqd.io.net import READABLE
from mqd.limits import IN_FLIGHT_REQUESTS_MAX, MIB
from mqd.server.connection import Connection
from mqd.server.other_protocols import other_protocol
from mqd.server.receive_buffers import Buffer
from tests.server.scripted import ScriptedOwner, frame

TRIES = 3
FRAME_SECONDS_MAX = 0.02


def in_pieces(stream: bytes) -> list[bytes]:
    return [stream[start : start + MIB] for start in range(0, len(stream), MIB)]


REQUESTS = [b"request-%d" % i + b"x" * size for i, size in enumerate((0, 1, 5000, 0, 200_000, 3))]


@given(
    st.lists(st.integers(min_value=1, max_value=300_000), max_size=12),
    st.integers(min_value=1, max_value=5000),
)
def test_frames_survive_every_split(cuts: list[int], first: int) -> None:
    owner = ScriptedOwner()
    stream = b"".join(map(frame, REQUESTS))
    position = 0
    for size in [first, *cuts, len(stream)]:
        if position < len(stream):
            owner.sock.incoming.append(stream[position : position + size])
            position += size
    owner.run()
    assert owner.requests == REQUESTS
    assert bytes(owner.sock.sent) == b"".join(REQUESTS)
    owner.connection.frames.drop_spare()
    assert owner.requests_pool.bytes == 0


def test_one_byte_at_a_time() -> None:
    owner = ScriptedOwner()
    stream = frame(b"12345678") + frame(b"abcdefghij")
    owner.sock.incoming = [bytes((byte,)) for byte in stream]
    owner.run()
    assert owner.requests == [b"12345678", b"abcdefghij"]


@pytest.mark.parametrize("size", [0, 7, -1, -(2**31), 2**31 - 1, (1 << 20) + 1])
def test_an_impossible_frame_size_closes_the_connection_at_once(
    size: int,
) -> None:
    owner = ScriptedOwner()
    owner.sock.incoming = [pack(">i", size) + b"12345678"]
    owner.run()
    assert owner.sock.closed
    assert owner.requests_pool.bytes == 0


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "reason=an HTTP request: this port speaks the Kafka protocol",
        ),
        (b"POST /topics HTTP/1.1\r\n\r\n", "reason=an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "reason=an HTTP request"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "reason=a TLS handshake: this port speaks the Kafka protocol without TLS",
        ),
        (b"\xff\xff\xff\xff????", "reason=a frame of -1 bytes"),
    ],
)
def test_a_client_of_another_protocol_gets_a_log_line_that_names_it(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ScriptedOwner()
    owner.sock.incoming = [sent]
    owner.run()
    assert owner.sock.closed
    (line,) = caplog.messages
    assert line.startswith("closing a connection") and reason in line


def test_a_declared_length_alone_costs_no_memory() -> None:
    owner = ScriptedOwner()
    owner.sock.incoming = [pack(">i", 1 << 20) + b"only a few bytes"]
    owner.run()
    assert 0 < owner.requests_pool.bytes <= 64 * 1024


def test_requests_behind_a_barrier_wait_and_continue() -> None:
    owner = ScriptedOwner(echo=False)
    owner.connection.barrier = True
    owner.sock.incoming = [frame(b"request1") + frame(b"request2")]
    owner.run()
    assert owner.requests == []
    owner.connection.barrier = False
    owner.connection.resume()
    owner.run()
    assert owner.requests == [b"request1", b"request2"]


def test_a_request_that_must_wait_is_handled_after_the_response_before_it() -> None:
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    owner.refuse_next = True
    owner.sock.incoming = [frame(b"request2")]
    owner.run()
    assert owner.requests == [b"request1"]
    owner.refuse_next = False
    owner.slots[0].complete([b"one"])
    owner.run()
    assert owner.requests == [b"request1", b"request2"]


def test_in_flight_requests_are_bounded() -> None:
    owner = ScriptedOwner(echo=False)
    many = IN_FLIGHT_REQUESTS_MAX + 50
    owner.sock.incoming = [b"".join(frame(b"request%04d" % i) for i in range(many))]
    owner.run()
    assert len(owner.requests) == IN_FLIGHT_REQUESTS_MAX
    for slot in owner.slots:
        slot.complete([b"."])
    owner.run()
    assert len(owner.requests) == many


def test_a_late_frame_is_detected_but_held_requests_are_not_late() -> None:
    owner = ScriptedOwner()
    owner.sock.incoming = [frame(b"12345678")[:9]]
    owner.run()
    assert owner.connection.frames.is_late(31.0, 30.0)
    held = ScriptedOwner()
    held.connection.barrier = True
    held.sock.incoming = [frame(b"12345678")]
    held.run()
    assert not held.connection.frames.is_late(31.0, 30.0)


def test_a_frame_keeps_its_buffer_until_the_turn_ends() -> None:
    owner = ScriptedOwner()
    seen: list[memoryview] = []
    buffers: list[int] = []

    def dispatch(
        connection: Connection, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        seen.append(view[start:end])
        buffers.append(id(buffer))
        connection.slot().complete([b"."])
        return True

    owner.dispatch = dispatch  # type: ignore[method-assign]  # replaced by the test
    bodies = [bytes([number]) * 500_000 for number in range(4)]
    for body in bodies:
        owner.sock.incoming.append(frame(body))
    while len(seen) < 2:  # two frames in one turn: readable repeatedly, without an end of the turn
        owner.connection.on_ready(READABLE)
    assert [bytes(view) for view in seen] == bodies[:2]
    owner.run()
    assert len(seen) == 4
    assert buffers[2] in buffers[:2] or buffers[3] == buffers[2]
    owner.connection.frames.drop_spare()
    assert owner.requests_pool.bytes == 0


@pytest.mark.slow
def test_no_step_takes_long_for_a_large_frame() -> None:
    """Zeroing a buffer of 64 MiB, and copying the received bytes, take 40 ms."""
    body = bytes(range(256)) * (90 * 4096)
    tried = []
    for _ in range(TRIES):
        owner = ScriptedOwner(echo=False)
        owner.connection.frames.frame_bytes_max = len(body)
        owner.sock.incoming = in_pieces(frame(body))
        longest = 0.0
        while len(owner.sock.incoming) > 1:  # with the last one, the test copies the request
            began = time.thread_time()
            owner.connection.on_ready(READABLE)
            longest = max(longest, time.thread_time() - began)
        tried.append(longest)
        owner.run()
        assert owner.requests == [body]
        owner.connection.frames.drop_spare()
        assert owner.requests_pool.bytes == 0
    assert min(tried) < FRAME_SECONDS_MAX, tried


def test_a_large_frame_whose_buffer_is_in_use_elsewhere_grows_by_a_copy() -> None:
    owner = ScriptedOwner()
    body = bytes(range(256)) * (40 * 4096)
    owner.connection.frames.frame_bytes_max = len(body)
    pieces = in_pieces(frame(body))
    owner.sock.incoming = pieces[:10]
    while owner.sock.incoming:
        owner.connection.on_ready(READABLE)
    seen = owner.connection.frames.view[:MIB]
    owner.sock.incoming = pieces[10:]
    owner.run()
    assert owner.requests == [body] and seen == frame(body)[:MIB]
    owner.connection.frames.drop_spare()
    assert owner.requests_pool.bytes == 0


def test_a_tls_handshake_on_the_peer_listener_names_the_key_of_nodes() -> None:
    start = int.from_bytes(b"\x16\x03\x01\x02")
    assert other_protocol(start, is_of_nodes=True) == (
        "a TLS handshake: a node connects with TLS, set peer.ssl=preferred or required on this node"
    )
