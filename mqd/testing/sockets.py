"""One process's side of simulated connections: Stream, Socket and Poller of mqd/io/net.py."""

from __future__ import annotations

import errno
from typing import Any

import trio

from mqd.io.disk import File
from mqd.io.net import HANG_UP, PEER_CLOSED, READABLE, WRITABLE, LayeredSocket, Ready
from mqd.testing.fabric import End, Endpoint
from mqd.testing.process import Process


class MemoryStream:
    """A Stream (io/net.py) over one endpoint. One task may receive while another sends."""

    __slots__ = ("_endpoint", "_process", "_reader", "_writer")

    def __init__(self, endpoint: Endpoint, process: Process) -> None:
        self._endpoint = endpoint
        self._process = process
        self._reader: trio.Event | None = None
        self._writer: trio.Event | None = None
        endpoint.on_change = self._wake

    async def receive_into(self, view: memoryview) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._check()
            try:
                return self._endpoint.receive_into(view)
            except BlockingIOError:
                self._reader = trio.Event()
                await self._reader.wait()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        view = memoryview(data)
        while view:
            self._check()
            try:
                view = view[self._endpoint.send(view) :]
            except BlockingIOError:
                self._writer = trio.Event()
                await self._writer.wait()

    def _check(self) -> None:
        self._process.check()
        if not self._endpoint.is_open:
            raise OSError(errno.EBADF, "the connection was closed on this side")

    def _wake(self) -> None:
        endpoint = self._endpoint
        if self._reader is not None and (endpoint.readable() or not endpoint.is_open):
            self._reader.set()
            self._reader = None
        if self._writer is not None and (
            endpoint.room() > 0 or endpoint.end is End.RESET or not endpoint.is_open
        ):
            self._writer.set()
            self._writer = None

    def close(self) -> None:
        if not self._process.alive:
            return
        self._endpoint.close()
        self._wake()


class MemorySocket:
    """A TcpSocket (io/net.py) over one endpoint."""

    __slots__ = ("endpoint", "peer", "poller", "process")

    def __init__(self, endpoint: Endpoint, process: Process) -> None:
        self.endpoint = endpoint
        self.process = process
        self.peer = endpoint.peer_end.name
        self.poller: MemoryPoller | None = None
        endpoint.on_change = self._changed

    def _changed(self) -> None:
        if self.poller is not None:
            self.poller.changed(self)

    @property
    def has_unread(self) -> bool:
        return bool(self.endpoint.inbox)

    def receive_into(self, view: memoryview) -> int:
        self.process.check()
        return self.endpoint.receive_into(view)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self.process.check()
        return self.endpoint.send(data)

    def send_more(self, data: bytes | bytearray | memoryview) -> int:
        return self.send(data)

    def send_file(self, file: File, position: int, size: int) -> int:
        self.process.check()
        room = self.endpoint.room()
        if room <= 0 and self.endpoint.end is not End.RESET:
            raise BlockingIOError(errno.EAGAIN, "the other side reads too slowly")
        data = file.read_at(position, min(size, max(room, 1)))
        if not data:
            raise OSError(errno.EIO, f"{file.path} ends before position {position + size}")
        return self.endpoint.send(data)

    def peek(self) -> bytes:
        self.process.check()
        if not self.endpoint.readable():
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        return bytes(self.endpoint.inbox[:1])

    def fileno(self) -> int:
        return -1

    def ready(self) -> int:
        endpoint = self.endpoint
        if endpoint.end is End.RESET:
            return HANG_UP | PEER_CLOSED | READABLE | WRITABLE
        return (
            (READABLE if endpoint.readable() else 0)
            | (WRITABLE if endpoint.room() > 0 else 0)
            | (PEER_CLOSED if endpoint.end is End.CLOSED else 0)
        )

    def close(self) -> None:
        if self.process.alive:
            self.endpoint.close()


class MemoryPoller:
    """A Poller (io/net.py) that checks only sockets that have changed.

    It also sends the unsent bytes of a `LayeredSocket`, and reports those that it holds.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._watched: dict[MemorySocket, tuple[Ready, int]] = {}
        self._layers: dict[MemorySocket, LayeredSocket] = {}
        self._maybe: dict[MemorySocket, None] = {}
        self._waiting: trio.Event | None = None

    def watch(self, sock: Any, ready: Ready, events: int) -> None:
        inner = _inner(sock)
        if isinstance(sock, LayeredSocket):
            self._layers[inner] = sock
            sock.watched(self, events)
        self._watched[inner] = (ready, events | HANG_UP)
        inner.poller = self
        self.changed(inner)

    def forget(self, sock: Any) -> None:
        inner = _inner(sock)
        if self._watched.pop(inner, None) is not None:
            self._maybe.pop(inner, None)
            inner.poller = None
        if (layer := self._layers.pop(inner, None)) is not None:
            layer.watched(None, 0)

    def layered_changed(self, sock: LayeredSocket) -> None:
        inner = _inner(sock)
        if inner in self._watched:
            self.changed(inner)

    def changed(self, sock: MemorySocket) -> None:
        if self._events(sock):
            self._maybe[sock] = None
            if self._waiting is not None:
                self._waiting.set()
                self._waiting = None

    def _events(self, sock: MemorySocket) -> int:
        """The events to handle: those of the owner, and WRITABLE for the bytes of a layer."""
        now, events = sock.ready(), self._watched[sock][1]
        if (layer := self._layers.get(sock)) is not None:
            now |= READABLE if layer.is_holding else 0
            events |= WRITABLE if layer.has_unsent else 0
        return now & events

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        found = []
        for sock in list(self._maybe):
            ready, events = self._watched[sock]
            now = self._events(sock)
            layer = self._layers.get(sock)
            if layer is not None and layer.has_unsent and now & WRITABLE:
                try:
                    layer.flush()
                except OSError:
                    now |= HANG_UP
            now &= events
            if now:
                found.append((ready, now))
            elif not self._events(sock):
                del self._maybe[sock]
        return found

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._process.check()
        if self._maybe and self.ready_nowait():
            await trio.lowlevel.checkpoint()
            return
        self._waiting = trio.Event()
        await self._waiting.wait()

    def close(self) -> None:
        self._watched.clear()
        self._layers.clear()
        self._maybe.clear()


def _inner(sock: Any) -> MemorySocket:
    """The socket itself, or that below a layer."""
    inner = sock.inner if isinstance(sock, LayeredSocket) else sock
    assert isinstance(inner, MemorySocket)
    return inner
