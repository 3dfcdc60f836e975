"""The simulated Network of mqd/io/net.py: one process connects and listens through its host."""

from __future__ import annotations

import errno
import math
import os
from collections import deque

import trio

from mqd.testing.fabric import Endpoint, Fabric, Host
from mqd.testing.process import Process
from mqd.testing.sockets import MemoryPoller, MemorySocket, MemoryStream

_SYN_AFTER = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0)
"""The seconds after which TCP sends a lost SYN again; the intervals double."""
_NO_ROUTE_SECONDS = 3.06
"""The seconds after which a network may report that a host is unreachable (Linux: after three ARP
requests).
"""


class MemoryListener:
    """A Listener (io/net.py)."""

    def __init__(self, host: Host, port: int, process: Process) -> None:
        self.port = port
        self.host = host
        self.is_open = True
        self.process = process
        self._backlog: deque[Endpoint] = deque()
        self._arrived = trio.Event()
        host.listeners[port] = self

    def arrived(self, endpoint: Endpoint) -> None:
        self._backlog.append(endpoint)
        self._arrived.set()

    async def accept(self) -> MemorySocket:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self.process.check()
            if not self.is_open:
                raise OSError(errno.EBADF, "the listener was closed")
            if self._backlog:
                return MemorySocket(self._backlog.popleft(), self.process)
            self._arrived = trio.Event()
            await self._arrived.wait()

    def end(self) -> None:
        """Reset the connections that are not yet accepted."""
        self.is_open = False
        if self.host.listeners.get(self.port) is self:
            del self.host.listeners[self.port]
        while self._backlog:
            endpoint = self._backlog.popleft()
            endpoint.inbox += b"\0"  # a reset, as after unread bytes
            endpoint.close()
        self._arrived.set()

    def close(self) -> None:
        if self.process.alive and self.is_open:
            self.end()


class HostNetwork:
    """A Network (io/net.py): what one process sees of it."""

    def __init__(self, fabric: Fabric, host: Host, process: Process) -> None:
        self.fabric = fabric
        self.host = host
        self.process = process

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> MemoryStream:
        self.process.check()
        fabric, clock = self.fabric, self.fabric.clock
        target = fabric.hosts.get(host)
        if target is None:
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EHOSTUNREACH, f"no host has the address {host}")
        began = clock.now
        there, back = fabric.link(self.host, target), fabric.link(target, self.host)
        silent_for = math.inf if fabric.random.random() < 0.5 else _NO_ROUTE_SECONDS
        for tried_after in _SYN_AFTER:
            left = began + timeout - clock.now
            wait = tried_after - (clock.now - began)
            if wait >= left or tried_after > silent_for:
                break
            await self._pause(max(wait, 0.0) + fabric.delay(there))
            if not target.powered or there.held:
                continue
            refused = port not in target.listeners
            await self._pause(fabric.delay(back))
            if back.held:
                continue
            listener = target.listeners.get(port)
            if refused or listener is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            mine, theirs = (
                Endpoint(fabric, self.host, target, self.host.port()),
                Endpoint(fabric, target, self.host, port),
            )
            mine.peer_end, theirs.peer_end = theirs, mine
            listener.arrived(theirs)
            fabric.trace.add(mine.name, f"connected to {host}:{port}")
            return MemoryStream(mine, self.process)
        if target.powered or silent_for == math.inf or clock.now - began + timeout < silent_for:
            await self._pause(max(0.0, began + timeout - clock.now))
            raise TimeoutError(
                errno.ETIMEDOUT, f"no response from {host}:{port} within {timeout:g} s"
            )
        await self._pause(max(0.0, began + min(silent_for, timeout) - clock.now))
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    async def _pause(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.process.check()

    async def listen(self, host: str, port: int) -> MemoryListener:
        self.process.check()
        await trio.lowlevel.checkpoint()
        if host and self.fabric.hosts.get(host) is not self.host:  # empty: all addresses
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port in self.host.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return MemoryListener(self.host, port, self.process)

    def poller(self) -> MemoryPoller:
        return MemoryPoller(self.process)
