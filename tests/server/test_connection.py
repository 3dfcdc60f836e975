"""The connection core with a scripted socket: framing at every split, order of responses, bounds,
and the end.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqd.errors import ProtocolError
from mqd.io.disk import FileRange, OsDisk
from mqd.io.net import HANG_UP, READABLE, WRITABLE, Poller, Ready, Socket
from mqd.limits import IN_FLIGHT_REQUESTS_MAX, MIB, RECEIVE_ARENA_BYTES, SENDFILE_BYTES_MIN
from mqd.server.connection import Connection, Slot
from mqd.server.connection_owner import Dispatcher, Memory
from mqd.server.memory import RequestPool, ResponsePool
from mqd.server.other_protocols import other_protocol
from mqd.server.receive_buffers import Arena, Buffer

TRIES = 3
FRAME_SECONDS_MAX = 0.02


class ScriptedSocket:
    """Returns `incoming`, a piece a call; accepts `room` bytes a call."""

    peer = "test:1"

    def __init__(self) -> None:
        self.incoming: list[bytes] = []
        self.sent = bytearray()
        self.room = 1 << 30
        self.closed = False

    @property
    def has_unread(self) -> bool:
        return bool(self.incoming)

    def receive_into(self, view: memoryview) -> int:
        if not self.incoming:
            raise BlockingIOError
        piece = self.incoming[0]
        taken = min(len(piece), len(view))
        view[:taken] = piece[:taken]
        if taken == len(piece):
            self.incoming.pop(0)
        else:
            self.incoming[0] = piece[taken:]
        return taken

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if not self.room:
            raise BlockingIOError
        taken = min(len(data), self.room)
        self.room -= taken
        self.sent += data[:taken]
        return taken

    send_more = send

    def send_file(self, file: Any, position: int, size: int) -> int:
        data = file.read_at(position, min(size, self.room))
        return self.send(data)

    def close(self) -> None:
        self.closed = True


class ScriptedPoller:
    def __init__(self) -> None:
        self.watched: dict[int, int] = {}

    def watch(self, sock: Socket, ready: Ready, events: int) -> None:
        self.watched[id(sock)] = events

    def forget(self, sock: Socket) -> None:
        del self.watched[id(sock)]

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        raise AssertionError("a test says who is ready")

    async def wait_ready(self) -> None:
        raise AssertionError("a test says who is ready")

    def close(self) -> None: ...


class ScriptedOwner:
    """A server of one connection. It stores every request, and responds unless a test does."""

    request_bytes_max = 1 << 20

    def __init__(self, *, echo: bool = True) -> None:
        self.arena = Arena(RECEIVE_ARENA_BYTES)
        self.scripted = ScriptedPoller()
        self.poller: Poller = self.scripted
        self.dispatcher: Dispatcher[Connection] = self
        self.now = 0.0
        self.now_ms = 0
        self.turns = 0
        self.requests_pool, self.unsent = RequestPool(256 << 20), ResponsePool(256 << 20)
        self.echo = echo
        self.refuse_next = False
        self.requests: list[bytes] = []
        self.slots: list[Slot] = []
        self.dirty_connections: list[Connection] = []
        self.waiting: list[Connection] = []
        self.muted: list[Connection] = []
        self.sock = ScriptedSocket()
        self.connection = Connection(self, self.sock, "client", 0.0)

    def authenticated(self, connection: Connection) -> None: ...

    def unmute_later(self, connection: Connection) -> None:
        self.muted.append(connection)

    def bug(self, connection: Connection, api: str) -> None:
        raise AssertionError(f"an exception in {api}")

    def dispatch(
        self, connection: Connection, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        if self.refuse_next:
            return False
        self.requests.append(bytes(view[start:end]))
        slot = connection.slot()
        self.slots.append(slot)
        if self.echo:
            slot.complete([self.requests[-1]])
        return True

    def dirty(self, connection: Connection) -> None:
        self.dirty_connections.append(connection)

    @property
    def memory(self) -> Memory[Connection]:
        return self

    def request_pool(self, listener: str) -> RequestPool:
        return self.requests_pool

    def response_pool(self, listener: str) -> ResponsePool:
        return self.unsent

    def want(self, connection: Connection, size: int, frame_bytes: int, now: float) -> None:
        self.waiting.append(connection)

    async def response_room(self, connection: Connection) -> None:
        raise AssertionError("nothing here is encoded in slices")

    slice_is_over = False

    def resume_later(self, connection: Connection) -> None:
        raise AssertionError("nothing here takes long")

    def closed(self, connection: Connection) -> None: ...

    def turn(self) -> None:
        """A turn of the server: all ready connections, then the end of the turn."""
        events = self.scripted.watched.get(id(self.sock), 0)
        if self.sock.incoming and events & READABLE:
            self.connection.on_ready(READABLE)
        if events & WRITABLE:
            self.connection.on_ready(WRITABLE)
        while self.dirty_connections:
            dirty, self.dirty_connections = self.dirty_connections, []
            for connection in dirty:
                connection.flush()
        self.arena.position = 0
        self.turns += 1

    def run(self) -> None:
        for _ in range(10_000):
            before = (
                len(self.sock.incoming),
                sum(map(len, self.sock.incoming)),
                len(self.sock.sent),
            )
            self.turn()
            if before == (
                len(self.sock.incoming),
                sum(map(len, self.sock.incoming)),
                len(self.sock.sent),
            ):
                return
        raise AssertionError("does not come to rest")


def frame(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


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


def test_responses_are_sent_in_the_order_of_the_requests() -> None:
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1") + frame(b"request2") + frame(b"request3")]
    owner.run()
    owner.slots[2].complete([b"three"])
    owner.slots[1].complete([b"two"])
    owner.run()
    assert not owner.sock.sent
    owner.slots[0].complete([b"one"])
    owner.run()
    assert bytes(owner.sock.sent) == b"onetwothree"


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


def test_a_slow_reader_gets_everything_and_is_not_read_meanwhile(tmp_path: Path) -> None:
    file = OsDisk().open(tmp_path / "file", create=True)
    content = bytes(range(256)) * 1024
    file.append([content])
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    small = FileRange(file, 100, 1000)
    large = FileRange(file, 5, SENDFILE_BYTES_MIN + 1)
    owner.slots[0].complete([b"head", small, b"middle", large, b"tail"])
    expected = (
        b"head" + content[100:1100] + b"middle" + content[5 : 5 + SENDFILE_BYTES_MIN + 1] + b"tail"
    )
    for room in (0, 1, 3, 1000, 7, 60_000, 1, 10_000):
        owner.sock.room = room
        owner.turn()
    owner.sock.room = 1 << 30
    owner.run()
    assert bytes(owner.sock.sent) == expected
    file.close()


def test_a_file_shorter_than_announced_closes_the_connection(tmp_path: Path) -> None:
    file = OsDisk().open(tmp_path / "file", create=True)
    file.append([b"short"])
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    owner.slots[0].complete([b"head", FileRange(file, 0, 100)])
    owner.run()
    assert owner.sock.closed
    file.close()


def test_half_closed_after_a_request_gets_the_response_then_closes() -> None:
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1"), b""]
    owner.run()
    owner.turn()
    assert not owner.sock.closed
    owner.slots[0].complete([b"response"])
    owner.run()
    assert bytes(owner.sock.sent) == b"response"
    assert owner.sock.closed


def test_a_hang_up_closes_a_connection_that_is_not_read() -> None:
    owner = ScriptedOwner(echo=False)
    owner.connection.barrier = True
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    owner.connection.on_ready(HANG_UP)
    assert owner.sock.closed
    assert owner.requests_pool.bytes == 0


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


def test_a_protocol_error_in_a_request_closes_this_connection() -> None:
    owner = ScriptedOwner()

    def refuse(*_: object) -> bool:
        raise ProtocolError("no such thing")

    owner.dispatch = refuse  # type: ignore[method-assign, assignment]  # replaced by the test
    owner.sock.incoming = [frame(b"12345678")]
    owner.run()
    assert owner.sock.closed


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


def test_after_the_end_of_the_stream_nothing_more_is_received() -> None:
    """After a process died, its successor under the same node id need not wait for that."""
    owner = ScriptedOwner(echo=False)
    owner.now = 5.0
    owner.sock.incoming.append(b"\0\0\0\x08" + bytes(8))
    owner.connection.on_ready(READABLE)
    assert owner.connection.received_at == 5.0
    owner.sock.incoming.append(b"")
    owner.connection.on_ready(READABLE)
    assert owner.connection.open and owner.connection.received_at == -math.inf


def test_a_tls_handshake_on_the_peer_listener_names_the_key_of_nodes() -> None:
    start = int.from_bytes(b"\x16\x03\x01\x02")
    assert other_protocol(start, is_of_nodes=True) == (
        "a TLS handshake: a node connects with TLS, set peer.ssl=preferred or required on this node"
    )
