"""The server: accepts connections on two listeners and runs the turns in which their requests are
answered.

A turn takes up everything that is ready - frames of many connections, each within its bound - then
writes what they appended, and sends what can be answered, each connection's answers with one call.
Nothing in a turn waits.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from mqd.errors import ProtocolError
from mqd.io.memory import memory_bytes
from mqd.io.net import Listener, Network, Ready, Socket
from mqd.limits import (
    FRAME_RECEIVE_TIMEOUT_MS,
    PEER_ANSWERS_BYTES_MAX,
    PEER_CONNECTIONS_MAX,
    PEER_FRAMES_BYTES_MAX,
    RECEIVE_ARENA_BYTES,
    SLICE_SECONDS_MAX,
    STRANGER_SECONDS_MAX,
    STRANGER_SECONDS_MIN,
    TURN_SECONDS_MAX,
)
from mqd.peers import is_loopback
from mqd.server.addresses import Addresses
from mqd.server.connection import RESUME, Connection
from mqd.server.context import CLIENT, PEER, Node
from mqd.server.dispatch import Dispatcher
from mqd.server.memory import BUDGET_BYTES_MIN, DEFAULT_PART, Answers, FramePool, Shares
from mqd.server.receive_buffers import Arena
from mqd.server.strangers import Full, Strangers

logger = logging.getLogger(__name__)

_TURNS_BEFORE_OTHERS = 8
_SECONDS_BEFORE_OTHERS = 0.01
"""Turns in a row while sockets stay ready, and how old the first of them may be, before the node's
other tasks get the loop. What those tasks answer (heartbeats, commits) takes several rounds: a
producer that floods the node must not cost a group its members.
"""
_SWEEP_SECONDS = 1.0
_SPARE_SECONDS = 2.0
"""How long a quiet connection keeps the buffer of a large frame for the next one."""
_MEMORY_RETRY_SECONDS = 0.05
_CROWD_TOLD_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    requests: int
    turns: int
    frame_bytes: int
    refused_connections: int
    evicted_connections: int
    """Connections that were closed because they held too much memory, took none of their answers,
    or gave their place to another."""
    stalled_connections: int
    """Those of them that took no byte of their answers for `connections.max.write.stall.ms`."""
    memory_waits: int
    """How often a connection had to wait for memory before its request was read on."""
    bugs: int
    """Connections that were closed because of an unexpected exception."""


class Server:
    """Every connection of one node."""

    def __init__(self, node: Node, network: Network) -> None:
        self._node = node
        self._network = network
        self._nursery: trio.Nursery | None = None
        self.poller = network.poller()
        self.arena = Arena(RECEIVE_ARENA_BYTES)
        self.request_bytes_max = node.config.integer("socket.request.max.bytes")
        self.now = node.clock.monotonic()
        self.now_ms = node.clock.wall_ms()
        self.dispatcher = Dispatcher(node, self._spawn)
        self._connections: dict[Connection, None] = {}
        self._addresses: Addresses[Connection] = Addresses()
        """Of clients."""
        self._by_kind: Counter[str] = Counter()
        others = (peer.host for peer in node.peers.nodes.values() if peer.id != node.node_id)
        self._strangers: Strangers[Connection] = Strangers(others)
        self._crowd_told_at = -math.inf
        self._connections_max = node.config.integer("max.connections")
        self._connections_per_address_max = node.config.integer("max.connections.per.ip")
        self._dirty: list[Connection] = []
        budget = node.config["memory.budget.bytes"]
        shares = Shares.of(
            budget
            if isinstance(budget, int)
            else max(memory_bytes() // DEFAULT_PART, BUDGET_BYTES_MIN)
        )
        self._pools = {CLIENT: FramePool(shares.frames), PEER: FramePool(PEER_FRAMES_BYTES_MAX)}
        self._answers = {CLIENT: Answers(shares.answers), PEER: Answers(PEER_ANSWERS_BYTES_MAX)}
        self._memory_wanted = trio.Event()
        self._stall_seconds = node.config.integer("connections.max.write.stall.ms") / 1000
        self._evicted = self._stalled = self._memory_waits = 0
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
        self._extra_turn_wanted = trio.Event()
        self.turns = 0
        self._refused = 0

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self._connections),
            requests=self.dispatcher.requests,
            turns=self.turns,
            frame_bytes=self.frame_bytes,
            refused_connections=self._refused,
            evicted_connections=self._evicted,
            stalled_connections=self._stalled,
            memory_waits=self._memory_waits,
            bugs=self.dispatcher.bugs,
        )

    def _spawn(self, function: Callable[..., object], *args: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)  # type: ignore[arg-type]

    # -- turns -------------------------------------------------------------------------------------

    async def run(
        self,
        listeners: list[tuple[Listener, str]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve `(listener, kind)`, and those that `listen` adds, until cancelled; then
        every connection is closed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for listener, kind in listeners:
                    self.listen(listener, kind)
                nursery.start_soon(self._sweep)
                nursery.start_soon(self._share_memory)
                nursery.start_soon(self._extra_turns)
                task_status.started()
                await self._serve()
        finally:
            for connection in list(self._connections):
                connection.close()
            self.poller.close()

    def listen(self, listener: Listener, kind: str) -> None:
        """Accept connections from now on. The listener stays its owner's."""
        self._spawn(self._accept, listener, kind)

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

        Where connections compete, the one that has used the least time goes first, so one that
        sends little waits for one slice at most: start-time fair queuing (Goyal, Vin and Cheng,
        1996). A connection that was idle starts at the current virtual time. Connections that are
        not served stay ready, or held back, for the next turn.

        A slice counts for SLICE_SECONDS_MAX at most. If it takes longer, the machine may have run
        other processes, and each millisecond too much costs a slice of every other connection.
        """
        self._begin_turn()
        if self._held_back or self._was_cut:
            ready += [(connection, RESUME) for connection in self._held_back]
            self._held_back = []
            ready.sort(key=lambda pair: pair[0].used)
        clock, arena = self._node.clock.monotonic, self.arena
        now = self.now
        ends_at = now + TURN_SECONDS_MAX
        self._was_cut = False
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
            connection.used += min(after - now, SLICE_SECONDS_MAX)
            now = after
        self._slice_ends_at = now + SLICE_SECONDS_MAX
        self._end_turn()
        self._in_turn = False
        if self._held_back:
            self._extra_turn_wanted.set()

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

    async def _extra_turns(self) -> None:
        """Turns between those of `_serve`: for answers that came late, and for connections
        that let others go first.
        """
        while True:
            await self._extra_turn_wanted.wait()
            self._extra_turn_wanted = trio.Event()
            self._turn(self.poller.ready_nowait() if self._held_back else [])

    # -- connections -------------------------------------------------------------------------------

    async def _accept(self, listener: Listener, kind: str) -> None:
        while True:
            sock = await listener.accept()
            try:
                refusal = (
                    await self._peer_refusal(sock) if kind == PEER else self._client_refusal(sock)
                )
            except BaseException:
                sock.close()
                raise
            self.now = self._node.clock.monotonic()
            if refusal is not None:
                self._refused += 1
                logger.warning("refusing a connection peer=%s reason=%s", sock.peer, refusal)
                sock.close()
                continue
            self._by_kind[kind] += 1
            connection = Connection(self, sock, kind, self.now)
            self._connections[connection] = None
            if kind == PEER:
                self._strangers.add(connection, _address(sock))
            else:
                self._addresses.add(connection, _address(sock))

    async def _peer_refusal(self, sock: Socket) -> str | None:
        """Why the peer listener has no place for this connection; the oldest of its pool
        makes room where it can.
        """
        address = _address(sock)
        while True:
            try:
                oldest = self._strangers.place_taken_by(address)
            except Full as full:
                return str(full)
            if oldest is None:
                return None
            now = self._node.clock.monotonic()
            if self._strangers.may_go(oldest, now):
                self._refused += 1
                self._warn_of_crowd(now, oldest)
                oldest.close()
            elif self._strangers.is_known(address):
                await trio.sleep(STRANGER_SECONDS_MIN / 10)
            else:
                return "too many connections have not completed the introduction"

    def _warn_of_crowd(self, now: float, oldest: Connection) -> None:
        if now - self._crowd_told_at >= _CROWD_TOLD_EVERY_SECONDS:
            self._crowd_told_at = now
            logger.warning(
                "%d connections to the peer listener have not completed the introduction: "
                "closing the oldest; allow only the nodes of the"
                " cluster to reach this port peer=%s",
                len(self._strangers),
                oldest.peer,
            )

    def introduced(self, connection: Connection) -> None:
        """A stranger has become a node of the cluster.

        Raises ProtocolError where there are too many connections of nodes.
        """
        if self._by_kind[PEER] - len(self._strangers) >= PEER_CONNECTIONS_MAX:
            raise ProtocolError(f"{PEER_CONNECTIONS_MAX} connections of other nodes are open")
        self._strangers.introduced(connection, _address(connection.sock))

    def _client_refusal(self, sock: Socket) -> str | None:
        """Why there is no place for this client; the address with the most makes room if it can."""
        address = _address(sock)
        of_address = self._addresses[address]
        if of_address >= self._connections_per_address_max and not is_loopback(address):
            return "max.connections.per.ip allows no more from this address"
        of_kind = self._by_kind[CLIENT]
        if of_kind < self._connections_max:
            return None
        idle = self._addresses.place_for(address)
        if idle is None:
            return f"{of_kind} connections are open and max.connections allows no more"
        self._evicted += 1
        logger.warning(
            "closing a connection peer=%s reason=max.connections is reached, its address has "
            "the most"
            " connections (%d), and this one is idle the longest: its place goes to %s",
            idle.peer,
            self._addresses[_address(idle.sock)],
            sock.peer,
        )
        idle.close()
        return None

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._strangers.discard(connection)
        self._by_kind[connection.listener] -= 1
        if connection.listener == CLIENT:
            self._addresses.discard(_address(connection.sock))

    @property
    def slice_is_over(self) -> bool:
        return self._node.clock.monotonic() > self._slice_ends_at

    def resume_later(self, connection: Connection) -> None:
        self._held_back.append(connection)
        self._extra_turn_wanted.set()

    def pool(self, listener: str) -> FramePool:
        return self._pools[listener]

    def answers(self, listener: str) -> Answers:
        return self._answers[listener]

    @property
    def frame_bytes(self) -> int:
        """Memory of the unfinished frames of all connections."""
        return sum(pool.bytes for pool in self._pools.values())

    def memory_wanted(self, connection: Connection, size: int, frame_bytes: int) -> None:
        self._memory_waits += 1
        connection.pool.wait(connection, size, frame_bytes, self.now)
        for other in self._connections:  # each buffer takes milliseconds to free
            if connection.pool.fits(size):
                break
            other.drop_spare()
        self._memory_wanted.set()

    async def _share_memory(self) -> None:
        """Let connections read again when there is memory for them; close others where
        there is none.
        """
        while True:
            if not any(pool.is_wanted for pool in self._pools.values()):
                await self._memory_wanted.wait()
                self._memory_wanted = trio.Event()
            await trio.sleep(_MEMORY_RETRY_SECONDS)
            now = self._node.clock.monotonic()
            for kind, pool in self._pools.items():
                pool.grant(now)
                victim = pool.to_evict(
                    [one for one in self._connections if one.listener == kind], now
                )
                if victim is not None:
                    assert isinstance(victim, Connection)
                    held, state = victim.held_bytes, "incomplete"
                    if victim.task_bytes > held:
                        held, state = victim.task_bytes, "unanswered"
                    self._evict(
                        victim, f"other connections need the {held} bytes of its {state} request"
                    )
                    pool.grant(now)

    def _evict(self, connection: Connection, reason: str) -> None:
        self._evicted += 1
        logger.warning(
            "closing a connection peer=%s listener=%s reason=%s",
            connection.peer,
            connection.listener,
            reason,
        )
        connection.close()

    def _bound_answers(self, now: float) -> None:
        """Close connections that do not take their answers: those that stall, and the
        greediest while all together hold too much.
        """
        for connection in list(self._connections):
            if connection.is_sending and now - connection.sent_at > self._stall_seconds:
                self._stalled += 1
                self._evict(
                    connection, f"it has read no response bytes for {self._stall_seconds:g} s"
                )
        for kind, answers in self._answers.items():
            while answers.is_over:
                greediest = max(
                    (one for one in self._connections if one.listener == kind),
                    key=lambda one: one.unsent_bytes,
                )
                self._evict(
                    greediest,
                    f"{greediest.unsent_bytes} bytes of unsent answers exceed the memory for "
                    "all connections",
                )

    async def _sweep(self) -> None:
        """Close connections that are idle for too long, never finish a frame, or do not
        take their answers.
        """
        idle_ms = self._node.config.integer("connections.max.idle.ms")
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else math.inf
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            now = self._node.clock.monotonic()
            self._bound_answers(now)
            for connection in list(self._connections):
                if connection.frame_is_late(now, FRAME_RECEIVE_TIMEOUT_MS / 1000):
                    logger.warning(
                        "closing a connection peer=%s reason=a request was not complete in time",
                        connection.peer,
                    )
                    connection.close()
                elif connection.is_stranger and now - connection.since > STRANGER_SECONDS_MAX:
                    logger.debug(
                        "closing a connection peer=%s reason=no introduction in time",
                        connection.peer,
                    )
                    connection.close()
                elif now - connection.last_active > _SPARE_SECONDS:
                    connection.drop_spare()
                if (
                    now - connection.last_active > idle_seconds
                    and not connection.answering
                    and connection.open
                ):
                    logger.debug("closing an idle connection peer=%s", connection.peer)
                    connection.close()


def _address(sock: Socket) -> str:
    return sock.peer.rpartition(":")[0]
