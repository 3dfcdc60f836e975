"""The server: accepts connections on two listeners and runs the turns that serve their requests.

A turn handles everything that is ready: frames of many connections, each within its bound. Then it
writes what they appended, and sends the complete responses, those of one connection with one call.
Nothing in a turn waits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from mqd.io.net import Listener, Network, Ready
from mqd.limits import (
    FRAME_RECEIVE_TIMEOUT_MS,
    HANDSHAKE_SECONDS_MAX,
    NEWCOMER_SECONDS,
    RECEIVE_ARENA_BYTES,
    SLICE_SECONDS_MAX,
    TURN_SECONDS_MAX,
)
from mqd.security.client_listeners import ClientListener
from mqd.security.quotas import REQUEST_PERCENTAGE
from mqd.server.charged import charged
from mqd.server.connection import RESUME, Connection
from mqd.server.connection_memory import ConnectionMemory
from mqd.server.connection_quotas import ConnectionQuotas
from mqd.server.context import CLIENT, PEER, Node
from mqd.server.dispatch import Dispatcher
from mqd.server.muted import MutedConnections
from mqd.server.receive_buffers import Arena
from mqd.server.sasl_connection import SaslConnection

logger = logging.getLogger(__name__)

_TURNS_BEFORE_OTHERS = 8
_SECONDS_BEFORE_OTHERS = 0.01
"""Turns in a row while sockets stay ready, and how old the first of them may be, before the node's
other tasks run. Their responses (heartbeats, commits) take several passes of the loop: a producer
that floods the node must not cost a group its members.
"""
_SWEEP_SECONDS = 1.0
_SPARE_SECONDS = 2.0
"""The time for which a quiet connection keeps the buffer of a large frame for the next one."""


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    requests: int
    turns: int
    request_bytes: int
    """Memory of unfinished requests."""
    refused_connections: int
    evicted_connections: int
    """Connections that were closed because they held too much memory, did not take their responses,
    or gave their place to another."""
    stalled_connections: int
    """The ones among these that took no byte of a response for `connections.max.write.stall.ms`."""
    memory_waits: int
    """The number of times that a connection waited for memory in the middle of a request."""
    failed_logins: int
    bugs: int
    """Unexpected exceptions: each closed a connection, or dropped a share partition."""


class Server:
    """Every connection of one node."""

    def __init__(self, node: Node, network: Network, memory_budget_bytes: int) -> None:
        """`memory_budget_bytes`: for requests and responses of clients (memory_plan.py)."""
        self._node = node
        self._network = network
        self._nursery: trio.Nursery | None = None
        self.poller = network.poller()
        self.arena = Arena(RECEIVE_ARENA_BYTES)
        self.request_bytes_max = node.config.integer("socket.request.max.bytes")
        self.now = node.clock.monotonic()
        self.now_ms = node.clock.wall_ms()
        self.dispatcher = Dispatcher(node, self._spawn_for)
        self._connections: dict[Connection, None] = {}
        self.memory = ConnectionMemory(
            node.config, node.clock, self._connections, memory_budget_bytes
        )
        self._quotas = ConnectionQuotas(
            node.config, node.clock, node.peers, node.node_id, node.quotas
        )
        self._dirty: list[Connection] = []
        self._muted = MutedConnections(node.clock)
        self._in_turn = False
        self._held_back: list[Connection] = []
        """Connections that used up their slice and have more requests."""
        self._slice_ends_at = math.inf
        self._was_cut = False
        """The last turn ended before all connections that were ready had a slice."""
        self._virtual_time = 0.0
        """The time used, in seconds, by the connection that was served last: where a
        connection that was idle starts.
        """
        self._newcomers: dict[Connection, None] = {}
        """Connections whose handshake or login was not complete when they last competed."""
        self._extra_turn_wanted = trio.Event()
        self.turns = 0

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self._connections),
            requests=self.dispatcher.requests,
            turns=self.turns,
            request_bytes=self.memory.request_bytes,
            refused_connections=self._quotas.refused,
            evicted_connections=self.memory.evicted + self._quotas.evicted,
            stalled_connections=self.memory.stalled,
            memory_waits=self.memory.waits,
            failed_logins=self._node.sasl.failures,
            bugs=self.dispatcher.bugs + self._node.share.partitions.bugs,
        )

    def _spawn(self, function: Callable[..., object], *args: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)  # type: ignore[arg-type]

    def _spawn_for(
        self,
        connection: Connection,
        function: Callable[..., Coroutine[Any, Any, None]],
        *args: object,
    ) -> None:
        """Start a task that works for a connection. Its time counts against the quota of the
        client, as the time of the turns does.
        """
        if REQUEST_PERCENTAGE in self._node.quotas.keys:
            used = partial(self._node.quotas.used, connection)
            self._spawn(charged, partial(function, *args), used, self._node.clock.monotonic)
        else:
            self._spawn(function, *args)

    # -- turns -------------------------------------------------------------------------------------

    async def run(
        self,
        peer_listener: Listener,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve `peer_listener`, and those that `listen` adds, until cancelled; then every
        connection is closed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._spawn(self._accept, peer_listener, PEER, None)
                nursery.start_soon(self._sweep)
                nursery.start_soon(self.memory.share)
                nursery.start_soon(self._muted.run)
                nursery.start_soon(self._extra_turns)
                task_status.started()
                await self._serve()
        finally:
            for connection in list(self._connections):
                connection.close()
            self.poller.close()

    def listen(self, listener: Listener, client_listener: ClientListener) -> None:
        """Accept connections of clients from now on. The listener stays its owner's."""
        self._spawn(self._accept, listener, CLIENT, client_listener)

    async def _serve(self) -> None:
        poller, clock = self.poller, self._node.clock.monotonic
        while True:
            await poller.wait_ready()
            ends_at = clock() + _SECONDS_BEFORE_OTHERS
            for _ in range(_TURNS_BEFORE_OTHERS):
                ready = poller.ready_nowait()
                if not ready:
                    break
                self._turn(ready)
                if clock() > ends_at:
                    break

    def _turn(self, ready: list[tuple[Ready, int]]) -> None:
        """Serve `ready`, (connection, events), and the connections that were held back, until all
        had a slice or time is up.

        Where connections compete, the one that has used the least time goes first. So one that
        sends little waits for one slice at most: start-time fair queuing (Goyal, Vin and Cheng,
        1996). A connection that was idle starts at the current virtual time, a new one a slice
        later. Connections that are not served stay ready, or held back, for the next turn.

        Handshakes and logins go last, because a flood of them is cheap for clients without a login.
        A part of each turn is reserved for them.
        """
        self._begin_turn()
        newcomers: list[tuple[Ready, int]] = []
        if self._held_back or self._was_cut:
            ready += [(connection, RESUME) for connection in self._held_back]
            self._held_back = []
            ready.sort(key=lambda pair: pair[0].used)
            if self._newcomers:
                ready, newcomers = self._split(ready)
        ends_at = self.now + TURN_SECONDS_MAX
        self._was_cut = False
        if newcomers:
            self._serve_until(ends_at - NEWCOMER_SECONDS, ready)
            self._serve_until(ends_at, newcomers)
        else:
            self._serve_until(ends_at, ready)
        self._slice_ends_at = self._node.clock.monotonic() + SLICE_SECONDS_MAX
        self._end_turn()
        self._in_turn = False
        if self._held_back:
            self._extra_turn_wanted.set()

    def _serve_until(self, ends_at: float, ready: list[tuple[Ready, int]]) -> None:
        """Give each connection a slice, until time is up.

        A slice counts for SLICE_SECONDS_MAX at most. If it takes longer, the machine may have run
        other processes, and each millisecond too much costs a slice of every other connection.
        """
        clock, arena = self._node.clock.monotonic, self.arena
        now = clock()
        quotas = self._node.quotas
        counts_time = REQUEST_PERCENTAGE in quotas.keys
        for position, (connection, events) in enumerate(ready):
            if now > ends_at:
                self._was_cut = True
                self._held_back += [
                    left  # type: ignore[misc]
                    for left, its_events in ready[position:]
                    if its_events == RESUME
                ]
                break
            if arena.full:
                self._end_turn()
                now = clock()  # this is work of the connections before
            connection.used = self._virtual_time = max(connection.used, self._virtual_time)
            # A slice for each connection in a turn (I41).
            self._slice_ends_at = now + SLICE_SECONDS_MAX
            connection.on_ready(events)
            after = clock()
            spent = after - now
            connection.used += spent if spent < SLICE_SECONDS_MAX else SLICE_SECONDS_MAX
            if counts_time:
                quotas.used(connection, spent)  # type: ignore[arg-type]  # a Connection
            now = after

    def _split(
        self, ready: list[tuple[Ready, int]]
    ) -> tuple[list[tuple[Ready, int]], list[tuple[Ready, int]]]:
        """Connections that have completed their handshake and login, and the others."""
        others, newcomers = [], []
        for pair in ready:
            connection = pair[0]
            if connection in self._newcomers:
                if connection.is_in_handshake:
                    newcomers.append(pair)
                    continue
                del self._newcomers[connection]
            others.append(pair)
        return others, newcomers

    def _begin_turn(self) -> None:
        """Update the time, and whether this node is in contact with the controller."""
        clock, replica = self._node.clock, self._node.replica
        self.now, self.now_ms = clock.monotonic(), clock.wall_ms()
        if self.now >= replica.contact_ends_at:
            replica.judge_contact(self.now)
        self._in_turn = True

    def _end_turn(self) -> None:
        """Write appended batches and send responses that are ready; repeat while this resumes
        held-back requests.
        """
        end_of_turn = self._node.replica.end_of_turn
        end_of_turn()
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()
            end_of_turn()
        self.turns += 1
        self.arena.position = 0

    def dirty(self, connection: Connection) -> None:
        """Events outside a turn (a deadline, a commit, the end of a task) start a turn as soon as
        the loop runs.
        """
        self._dirty.append(connection)
        if not self._in_turn:
            self._extra_turn_wanted.set()

    @property
    def slice_is_over(self) -> bool:
        return self._node.clock.monotonic() > self._slice_ends_at

    def resume_later(self, connection: Connection) -> None:
        self._held_back.append(connection)
        self._extra_turn_wanted.set()

    def unmute_later(self, connection: Connection) -> None:
        self._muted.add(connection)

    async def _extra_turns(self) -> None:
        """Turns between those of `_serve`: for responses that became ready outside a turn, and for
        connections that let others go first.
        """
        while True:
            await self._extra_turn_wanted.wait()
            self._extra_turn_wanted = trio.Event()
            self._turn(self.poller.ready_nowait() if self._held_back else [])

    # -- connections -------------------------------------------------------------------------------

    async def _accept(
        self, listener: Listener, kind: str, client_listener: ClientListener | None
    ) -> None:
        while True:
            sock = await listener.accept()
            if await self._quotas.admits(sock, client_listener):
                self.now = self._node.clock.monotonic()
                sasl = self._sasl_of(client_listener)
                connection = Connection(self, sock, kind, self.now, client_listener, sasl)
                connection.used = self._virtual_time + SLICE_SECONDS_MAX
                self._connections[connection] = None
                if connection.is_in_handshake:
                    self._newcomers[connection] = None
                self._quotas.add(connection)

    def _sasl_of(self, listener: ClientListener | None) -> SaslConnection | None:
        """The authentication of a new connection, if its listener demands SASL."""
        if listener is None or not listener.protocol.has_sasl:
            return None
        sasl = self._node.sasl
        return SaslConnection(sasl, sasl.listener(listener.name), self._spawn)

    def authenticated(self, connection: Connection) -> None:
        """The connection is one of a node from now on. Raises ProtocolError."""
        self._quotas.authenticated(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._newcomers.pop(connection, None)
        self._quotas.discard(connection)
        self._node.share.connection_closed(connection.peer)

    async def _sweep(self) -> None:
        """Close connections that are idle for too long, never finish a frame or the handshake, or
        do not take their responses.
        """
        idle_ms = self._node.config.integer("connections.max.idle.ms")
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else math.inf
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            now = self._node.clock.monotonic()
            self.memory.evict_slow_readers(now)
            self._muted.discard_closed()
            for connection in list(self._connections):
                is_late = connection.frames.is_late(now, FRAME_RECEIVE_TIMEOUT_MS / 1000)
                if is_late and not connection.muted_until:
                    logger.warning(
                        "closing a connection peer=%s reason='a request was not complete in time'",
                        connection.peer,
                    )
                    connection.close()
                elif connection.is_in_handshake and now - connection.since > HANDSHAKE_SECONDS_MAX:
                    logger.debug(
                        "closing a connection peer=%s reason='no handshake in time'",
                        connection.peer,
                    )
                    connection.close()
                elif now - connection.last_active > _SPARE_SECONDS:
                    connection.frames.drop_spare()
                if (
                    now - max(connection.last_active, connection.muted_until) > idle_seconds
                    and not connection.has_outstanding_responses
                    and connection.open
                ):
                    logger.debug("closing an idle connection peer=%s", connection.peer)
                    connection.close()
