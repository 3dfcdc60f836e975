"""One process's side of simulated connections: Stream, Socket and Poller of mqd/io/net.py."""

from __future__ import annotations

import errno
from typing import Any

import trio

from mqd.io.disk import File
from mqd.io.net import HANG_UP, PEER_CLOSED, READABLE, WRITABLE, Ready
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
    """A Socket (io/net.py) over one endpoint."""

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
    """A Poller (io/net.py) that checks only sockets that have changed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._watched: dict[MemorySocket, tuple[Ready, int]] = {}
        self._maybe: dict[MemorySocket, None] = {}
        self._waiting: trio.Event | None = None

    def watch(self, sock: Any, ready: Ready, events: int) -> None:
        self._watched[sock] = (ready, events | HANG_UP)
        sock.poller = self
        self.changed(sock)

    def forget(self, sock: Any) -> None:
        if self._watched.pop(sock, None) is not None:
            self._maybe.pop(sock, None)
            sock.poller = None

    def changed(self, sock: MemorySocket) -> None:
        if sock.ready() & self._watched[sock][1]:
            self._maybe[sock] = None
            if self._waiting is not None:
                self._waiting.set()
                self._waiting = None

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        found = []
        for sock in list(self._maybe):
            ready, events = self._watched[sock]
            now = sock.ready() & events
            if now:
                found.append((ready, now))
            else:
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
        self._maybe.clear()
