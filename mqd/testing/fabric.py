"""A network in memory: hosts, links with delays and faults, and connections that behave like TCP.

Bytes arrive in order on each connection, in pieces of any size, each piece after the link's delay.
A held link keeps its pieces until it heals, like TCP with its retransmissions. Buffers are bounded:
a slow reader blocks the other side. A connection ends if a side closes it, if the process of a side
ends, if a link breaks it, or in a power cut. A host without power sends nothing.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from mqd.testing.scheduler import Trace, VirtualClock

BUFFER_BYTES = 256 * 1024
"""The maximum number of bytes of one direction of a connection that are sent and not yet read."""
DELAY_SECONDS = (50e-6, 400e-6)
"""The delay of a piece in one direction of a link without faults: random for each piece."""
HICCUP = (0.002, 0.02)
"""(The share of pieces that are late, the maximum of their additional seconds.)"""
_SPLIT = 0.03
_RETRANSMIT_SECONDS = (0.005, 0.4)
"""Delay between the healing of a link and the arrival of the pieces on it."""


class End(Enum):
    """The end of one direction of a connection."""

    OPEN = 0
    CLOSED = 1
    """The other side has closed: bytes that it sent can still be read."""
    RESET = 2


@dataclass(slots=True)
class Link:
    """One direction between two hosts."""

    held: bool = False
    """Whether nothing arrives until the link heals."""
    delay: float = 0.0
    """Additional seconds of delay."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """The deliveries that wait while the link is held, in order."""


class Listener(Protocol):
    """A port of a host on which a process accepts connections."""

    is_open: bool

    def arrived(self, endpoint: Endpoint) -> None:
        """A new connection waits to be accepted."""
        ...

    def end(self) -> None:
        """The process has ended: reset connections that are not yet accepted."""
        ...


class Host:
    """A machine on the network."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.listeners: dict[int, Listener] = {}
        self.ends: dict[Endpoint, None] = {}
        self.unreceived: dict[Endpoint, None] = {}
        """Endpoints of other hosts that sent bytes while this host had no power."""
        self.next_port = 40_000

    def port(self) -> int:
        self.next_port += 1
        return self.next_port


class Fabric:
    """All hosts and links of one world."""

    def __init__(self, clock: VirtualClock, source: random.Random) -> None:
        self.clock = clock
        self.random = source
        self.hosts: dict[str, Host] = {}
        self._links: dict[tuple[Host, Host], Link] = {}
        self.delay_seconds = DELAY_SECONDS
        self.bytes_delivered = 0

    @property
    def trace(self) -> Trace:
        return self.clock.trace

    def host(self, name: str, address: str) -> Host:
        made = self.hosts[address] = Host(name, address)
        return made

    def link(self, source: Host, target: Host) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    # -- faults of links

    def hold(self, source: Host, target: Host) -> None:
        """Nothing from `source` arrives at `target` until `release`."""
        self.link(source, target).held = True

    def release(self, source: Host, target: Host) -> None:
        link = self.link(source, target)
        if not link.held:
            return
        link.held = False
        waiting, link.waiting = link.waiting, []
        if waiting:
            self.clock.after(
                self.random.uniform(*_RETRANSMIT_SECONDS), lambda: self._again(link, waiting)
            )

    def heal(self) -> None:
        """Open all links, without additional delay."""
        for (source, target), link in self._links.items():
            link.delay = 0.0
            self.release(source, target)

    def _again(self, link: Link, waiting: list[Callable[[], None]]) -> None:
        if link.held:
            link.waiting[:0] = waiting
            return
        for arrive in waiting:
            arrive()

    def break_connections(self, one: Host, other: Host) -> int:
        """Reset every connection between the two on both sides; returns their number."""
        broken = [end for end in one.ends if end.remote is other]
        for end in broken:
            end.peer_end.reset()
            end.reset()
        return len(broken)

    # -- faults of hosts

    def process_ended(self, host: Host) -> None:
        """The operating system closes the connections of the process. Sent bytes still arrive."""
        for listener in list(host.listeners.values()):
            listener.end()
        for end in list(host.ends):
            end.end_of_process()

    def power_cut(self, host: Host) -> None:
        """The host becomes silent: its peers get no reset."""
        host.powered = False
        for listener in host.listeners.values():
            listener.is_open = False
        host.listeners.clear()
        for end in host.ends:
            end.forget()
        host.ends.clear()

    def power_on(self, host: Host) -> None:
        """The host has lost all connections: peers that send to it get a reset."""
        host.powered = True
        for end in host.unreceived:
            self.clock.after(self.random.uniform(*_RETRANSMIT_SECONDS), end.refused)
        host.unreceived.clear()

    # -- the delivery of one piece

    def delay(self, link: Link) -> float:
        source = self.random
        late = source.random() * HICCUP[1] if source.random() < HICCUP[0] else 0.0
        low, high = self.delay_seconds
        return low + (high - low) * source.random() + link.delay + late


class Endpoint:
    """One side of a connection, in the operating system of its host."""

    __slots__ = (
        "_due",
        "_in_flight",
        "end",
        "fabric",
        "host",
        "inbox",
        "is_open",
        "label",
        "link",
        "name",
        "on_change",
        "peer_end",
        "port",
        "remote",
    )

    def __init__(self, fabric: Fabric, host: Host, remote: Host, port: int) -> None:
        self.fabric = fabric
        self.host = host
        self.remote = remote
        self.port = port
        self.name = f"{host.address}:{port}"
        self.peer_end: Endpoint = self
        self.link = fabric.link(host, remote)
        self.inbox = bytearray()
        self.end = End.OPEN
        """The state of the direction from which this side reads."""
        self.is_open = True
        """False if this side has closed, or its host has lost the connection."""
        self.on_change: Callable[[], None] | None = None
        """Called if the endpoint can be read or written, or has ended."""
        self._in_flight = 0
        """The number of sent bytes that have not arrived."""
        self._due = 0.0
        host.ends[self] = None

    # -- the owner's calls

    def readable(self) -> bool:
        return bool(self.inbox) or self.end is not End.OPEN

    def room(self) -> int:
        return BUFFER_BYTES - self._in_flight - len(self.peer_end.inbox)

    def receive_into(self, view: memoryview) -> int:
        inbox = self.inbox
        taken = min(len(inbox), len(view))
        if taken:
            was_full = self.peer_end.room() <= 0
            view[:taken] = inbox[:taken]
            del inbox[:taken]
            if was_full:
                self.fabric.clock.after(self.fabric.delay(self.link), self.peer_end.changed)
            return taken
        if self.end is End.RESET:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        if self.end is End.CLOSED or not len(view):
            return 0
        raise BlockingIOError(errno.EAGAIN, "nothing to read")

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if not self.is_open:
            raise OSError(errno.EBADF, "the connection was closed on this side")
        if self.end is End.RESET:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        room = self.room()
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the other side reads too slowly")
        piece = bytes(memoryview(data)[:room])
        size = len(piece)
        self._in_flight += size
        chance = self.fabric.random.random
        if size > 1 and chance() < _SPLIT:
            cut = 1 + int(chance() * (size - 1))
            self._dispatch(piece[:cut])
            self._dispatch(piece[cut:])
        else:
            self._dispatch(piece)
        return size

    def close(self) -> None:
        """End both directions. With unread bytes it is a reset, as in Linux."""
        if not self.is_open:
            return
        self.is_open = False
        self.on_change = None
        self.host.ends.pop(self, None)
        if self.end is not End.RESET:
            self._dispatch(None, End.RESET if self.inbox else End.CLOSED)
        self.inbox.clear()

    # -- faults

    def end_of_process(self) -> None:
        self.close()

    def forget(self) -> None:
        """The host lost power."""
        self.is_open = False
        self.on_change = None
        self.inbox.clear()

    def reset(self) -> None:
        self.host.ends.pop(self, None)
        if self.end is not End.RESET:
            self.end = End.RESET
            self.changed()

    def changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # -- on the way

    def _dispatch(self, piece: bytes | None, end: End = End.OPEN) -> None:
        fabric = self.fabric
        self._due = max(self._due, fabric.clock.now + fabric.delay(self.link))
        fabric.clock.at(self._due, lambda: self._arrive(piece, end))

    def _arrive(self, piece: bytes | None, end: End) -> None:
        """Deliver a piece, unless the link is held."""
        link = self.link
        if link.held:
            link.waiting.append(lambda: self._arrive(piece, end))
            return
        target = self.peer_end
        if not self.remote.powered:
            self.remote.unreceived[self] = None  # the bytes stay in the buffer
            return
        if piece is not None:
            self._in_flight -= len(piece)
        if not target.is_open:
            if piece is not None:
                self.refused()
            return
        if target.end is End.RESET:
            return
        if piece is not None:
            target.inbox += piece
            fabric = self.fabric
            fabric.bytes_delivered += len(piece)
            fabric.trace.add(target.name, f"received {len(piece)} from {self.name}")
        else:
            target.end = end
            self.fabric.trace.add(target.name, f"{end.name.lower()} by {self.name}")
            if end is End.RESET:
                target.host.ends.pop(target, None)
        target.changed()

    def refused(self) -> None:
        """The other host has lost this connection, and responds with a reset."""
        back = self.fabric.link(self.remote, self.host)
        self.fabric.clock.after(self.fabric.delay(back), lambda: self._reset_by(back))

    def _reset_by(self, back: Link) -> None:
        if back.held:
            back.waiting.append(lambda: self._reset_by(back))
        elif self.is_open:
            self.reset()
