"""A server of one connection with a scripted socket, for tests of the connection's two halves."""

from __future__ import annotations

from struct import pack
from typing import Any

from mqd.io.net import READABLE, WRITABLE, Poller, Ready, Socket
from mqd.limits import RECEIVE_ARENA_BYTES
from mqd.server.connection import Connection, Slot
from mqd.server.connection_owner import Dispatcher, Memory
from mqd.server.memory import RequestPool, ResponsePool
from mqd.server.receive_buffers import Arena, Buffer


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
