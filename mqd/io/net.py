"""Seam 4 of 4: the network. Non-blocking sockets, one epoll for the server, and awaitable streams
for clients.

Two interfaces for two kinds of callers:

- `Network.connect` gives an awaitable `Stream`: for code that opens connections (clients, Raft,
  followers).
- `Network.listen` and `Network.poller` serve accepted sockets without a task for each: the poller
  reports all ready sockets, and the server handles them in one turn. To wake a Trio task for each
  request costs a factor of two at sixteen connections. One epoll that Trio awaits does not
  (bench/produce_fetch.py, "small requests").

A simulated network implements the same Protocols in memory. Every call may raise OSError.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from mqd.io.disk import File

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
PEER_CLOSED = select.EPOLLRDHUP
"""The peer sends no more: it has closed the connection, or its direction of it."""
HANG_UP = select.EPOLLHUP | select.EPOLLERR
"""Always reported: the connection is closed in both directions."""

_ACCEPT_LATER = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Temporary overload: accept again after a pause. Every other error of accept is raised."""
_ACCEPT_LATER_SECONDS = 0.1
_ACCEPTED_IN_A_ROW = 64
_COPIED_BYTES_MAX = 1 << 18
"""Bytes of a file in memory for one call of send."""
"""Connections accepted before other tasks run. On a busy server each turn of the loop is long, so
clients would otherwise wait long for their accept.
"""
_NO_IPV6 = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""The kernel has IPv6, and the machine has no address of it."""
_ACCEPT_AGAIN = frozenset({errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.EINTR})
"""The peer closed the connection before the accept: accept the next one."""


class Stream(Protocol):
    """One connection whose owner awaits its calls."""

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes; returns the number of bytes received into `view`, 0 at the end of the
        stream.
        """
        ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None: ...


class Socket(Protocol):
    """One accepted connection that never waits: a call raises BlockingIOError instead, and the
    poller reports when to retry.
    """

    @property
    def peer(self) -> str: ...

    @property
    def receive_into(self) -> Callable[[memoryview], int]:
        """(view) -> bytes received, 0 at the end of the stream.

        An attribute, so that a call costs no more than the system call.
        """
        ...

    @property
    def send(self) -> Callable[[bytes | bytearray | memoryview], int]:
        """(data) -> bytes sent, fewer if the peer reads too slowly."""
        ...

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that `receive_into` has not returned."""
        ...

    def send_more(self, data: bytes | bytearray | memoryview) -> int:
        """The same as `send`, and the kernel expects more of the response (MSG_MORE)."""
        ...

    def send_file(self, file: File, position: int, size: int) -> int:
        """Send bytes of the file without a copy in Python; returns their number."""
        ...

    def close(self) -> None: ...


class Listener(Protocol):
    """A bound address that accepts connections."""

    port: int

    async def accept(self) -> Socket: ...

    def close(self) -> None: ...


class Ready(Protocol):
    """The object that the poller calls when a socket is ready (server/connection.py)."""

    used: float
    """Seconds of the event loop that this connection has used, for fairness."""

    def on_ready(self, events: int) -> None: ...


class Poller(Protocol):
    """Reports the sockets that are ready, many in one call."""

    def watch(self, sock: Socket, ready: Ready, events: int) -> None:
        """Call `ready` when one of `events` (READABLE, WRITABLE, PEER_CLOSED) occurs. 0 pauses it.
        Replaces an earlier watch.
        """
        ...

    def forget(self, sock: Socket) -> None: ...

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        """(owner, events) of all sockets that are ready: the watched events, and HANG_UP."""
        ...

    async def wait_ready(self) -> None:
        """Return when `ready_nowait` may return sockets."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """Creates connections and listeners."""

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> Stream:
        """Raises OSError if nothing listens there, also after `timeout` seconds."""
        ...

    async def listen(self, host: str, port: int) -> Listener:
        """An empty host means all addresses of the machine."""
        ...

    def poller(self) -> Poller: ...


class OsStream:
    """A Stream of the operating system. One task may receive while another sends."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    async def receive_into(self, view: memoryview) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                return self._socket.recv_into(view)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)

    async def _wait(self, wait: Callable[[socket.socket], object]) -> None:
        try:
            await wait(self._socket)  # type: ignore[misc]
        except trio.ClosedResourceError:
            raise OSError(errno.EBADF, "the connection was closed on this side") from None

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class OsSocket:
    """A Socket of the operating system."""

    __slots__ = ("_descriptor", "_socket", "peer", "receive_into", "send")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket = sock
        self._descriptor = sock.fileno()
        self.peer = peer
        self.receive_into: Callable[[memoryview], int] = sock.recv_into
        self.send: Callable[[bytes | bytearray | memoryview], int] = sock.send

    @property
    def has_unread(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def send_more(self, data: bytes | bytearray | memoryview) -> int:
        return self._socket.send(data, socket.MSG_MORE)

    def send_file(self, file: File, position: int, size: int) -> int:
        descriptor = file.fileno()
        if descriptor >= 0:
            sent = os.sendfile(self._descriptor, descriptor, position, size)
        else:  # a file in memory; empty if it was removed
            data = file.read_at(position, min(size, _COPIED_BYTES_MAX))
            sent = self._socket.send(data) if data else 0
        if sent == 0:  # the file is shorter than the response needs
            raise OSError(errno.EIO, f"{file.path} ends before position {position + size}")
        return sent

    def peek(self) -> bytes:
        """The next byte, which stays unread; empty at the end of the stream. Raises
        BlockingIOError.
        """
        return self._socket.recv(1, socket.MSG_PEEK)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._descriptor


class TcpSocket(Socket, Protocol):
    """A Socket that another layer can use."""

    def peek(self) -> bytes:
        """The next byte, which stays unread; empty at the end of the stream. Raises
        BlockingIOError.
        """
        ...

    def fileno(self) -> int:
        """-1 if the socket is simulated."""
        ...


class LayeredPoller(Protocol):
    """A Poller that serves a `LayeredSocket`."""

    def layered_changed(self, sock: LayeredSocket) -> None:
        """Called by the socket: see `LayeredSocket.report`."""
        ...


class LayeredSocket(Socket):
    """A Socket above a `TcpSocket`. It may hold bytes that the poller cannot see."""

    __slots__ = ("_poller", "events", "inner", "is_holding")

    def __init__(self, inner: TcpSocket) -> None:
        self.inner = inner
        self._poller: LayeredPoller | None = None
        self.events = 0
        """What its owner watches."""
        self.is_holding = False
        """Whether bytes have arrived that `receive_into` has not returned, and that the kernel
        does not report.
        """

    def watched(self, poller: LayeredPoller | None, events: int) -> None:
        self._poller, self.events = poller, events

    def report(self) -> None:
        """`is_holding` or `has_unsent` may have changed."""
        if self._poller is not None:
            self._poller.layered_changed(self)

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Whether bytes wait in this layer until the kernel takes them."""

    @abstractmethod
    def flush(self) -> None:
        """Send them. Raises OSError."""

    @abstractmethod
    def fileno(self) -> int: ...


def _without_mapping(address: str) -> str:
    """`10.0.0.1` for `::ffff:10.0.0.1`, an IPv4 address on a listener of IPv6: ACLs, limits and
    logs know the former, as in Java.
    """
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address


class OsListener:
    """A Listener of the operating system."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._in_a_row = 0
        self.port: int = sock.getsockname()[1]

    async def accept(self) -> OsSocket:
        self._in_a_row += 1
        if self._in_a_row % _ACCEPTED_IN_A_ROW:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()  # other tasks run, also while more connections wait
        while True:
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            except OSError as error:
                if error.errno in _ACCEPT_LATER:
                    await trio.sleep(_ACCEPT_LATER_SECONDS)
                elif error.errno not in _ACCEPT_AGAIN:
                    raise
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return OsSocket(accepted, f"{_without_mapping(address[0])}:{address[1]}")

    def close(self) -> None:
        self._socket.close()


class EpollPoller:
    """A Poller on one epoll descriptor, which Trio awaits like a socket.

    It also reports sockets that hold bytes themselves (`LayeredSocket`). An eventfd keeps the epoll
    descriptor readable while one of them does.
    """

    _EVENTS_MAX = 512

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._layered: dict[int, LayeredSocket] = {}
        self._holding: dict[int, LayeredSocket] = {}
        """The sockets of `_layered` that hold bytes, and that are watched for them."""
        self._flushing: set[int] = set()
        """The sockets of `_layered` whose unsent bytes this poller sends."""
        self._wake = -1
        """The eventfd, from the first `LayeredSocket` on."""

    def watch(self, sock: Socket, ready: Ready, events: int) -> None:
        assert isinstance(sock, OsSocket | LayeredSocket)
        descriptor = sock.fileno()
        is_new = descriptor not in self._ready
        self._ready[descriptor] = ready
        if isinstance(sock, LayeredSocket):
            sock.watched(self, events)
            self._layered[descriptor] = sock
            if descriptor in self._flushing:
                events |= WRITABLE
        if is_new:
            self._epoll.register(descriptor, events)
        else:
            self._epoll.modify(descriptor, events)
        if isinstance(sock, LayeredSocket):
            self.layered_changed(sock)

    def forget(self, sock: Socket) -> None:
        assert isinstance(sock, OsSocket | LayeredSocket)
        descriptor = sock.fileno()
        if self._ready.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        if self._layered.pop(descriptor, None) is not None:
            assert isinstance(sock, LayeredSocket)
            sock.watched(None, 0)
            self._flushing.discard(descriptor)
            self._hold(descriptor, None)

    def layered_changed(self, sock: LayeredSocket) -> None:
        descriptor = sock.fileno()
        holds = sock.is_holding and sock.events & READABLE
        if holds or descriptor in self._holding:
            self._hold(descriptor, sock if holds else None)
        if sock.has_unsent != (descriptor in self._flushing):
            if sock.has_unsent:
                self._flushing.add(descriptor)
                self._epoll.modify(descriptor, sock.events | WRITABLE)
            else:
                self._flushing.discard(descriptor)
                self._epoll.modify(descriptor, sock.events)

    def _hold(self, descriptor: int, sock: LayeredSocket | None) -> None:
        was_empty = not self._holding
        if sock is None:
            self._holding.pop(descriptor, None)
        else:
            self._holding[descriptor] = sock
        if was_empty and self._holding:
            if self._wake < 0:
                self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._epoll.register(self._wake, READABLE)
            os.eventfd_write(self._wake, 1)
        elif not was_empty and not self._holding:
            os.eventfd_read(self._wake)

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        ready = self._ready
        found = self._epoll.poll(0, self._EVENTS_MAX)
        if not self._layered:
            return [(ready[descriptor], events) for descriptor, events in found]
        return self._with_layered(found)

    def _with_layered(self, found: list[tuple[int, int]]) -> list[tuple[Ready, int]]:
        ready, layered = self._ready, self._layered
        all_events = dict(found)
        all_events.pop(self._wake, None)
        for descriptor in self._holding:
            all_events[descriptor] = all_events.get(descriptor, 0) | READABLE
        result = []
        for descriptor, events in all_events.items():
            if events & WRITABLE and descriptor in self._flushing:
                try:
                    layered[descriptor].flush()
                except OSError:
                    events |= HANG_UP
                if not events & ~WRITABLE and not layered[descriptor].events & WRITABLE:
                    continue
            result.append((ready[descriptor], events))
        return result

    async def wait_ready(self) -> None:
        await trio.lowlevel.wait_readable(self._epoll.fileno())

    def close(self) -> None:
        self._epoll.close()
        if self._wake >= 0:
            os.close(self._wake)


class OsNetwork:
    """The Network of the operating system: TCP, IPv4 and IPv6."""

    def __init__(self, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> None:
        """-1 means the default size of the kernel for a socket buffer."""
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> OsStream:
        failure: OSError = TimeoutError(
            errno.ETIMEDOUT, f"no response from {host}:{port} within {timeout:g} s"
        )
        with trio.move_on_after(timeout):
            for family, kind, protocol, _, address in await trio.socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            ):
                sock = trio.socket.socket(family, kind, protocol)
                try:
                    await sock.connect(address)
                except OSError as error:
                    sock.close()
                    failure = error
                    continue
                except BaseException:
                    sock.close()
                    raise
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain = socket.socket(fileno=sock.detach())
                plain.setblocking(False)
                return OsStream(plain)
        raise failure

    async def listen(self, host: str, port: int) -> OsListener:
        if host:
            return await self._listen_on(host, port)
        if socket.has_dualstack_ipv6():
            try:
                return await self._listen_on("::", port)
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
        return await self._listen_on("0.0.0.0", port)

    async def _listen_on(self, host: str, port: int) -> OsListener:
        addresses = await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if host == "::":  # IPv4, too, as in Java
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            with suppress(OSError):
                if self._send_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
                if self._receive_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
            sock.bind(address)
            sock.listen(1024)
        except BaseException:
            sock.close()
            raise
        return OsListener(sock)

    def poller(self) -> EpollPoller:
        return EpollPoller()
