"""A cluster of shipping nodes inside one simulated world: started, killed, paused, cut off,
and asked by clients.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from mqd import daemon
from mqd.client.cluster import ClusterClient, connect
from mqd.client.peer import PeerConnection, start_peer
from mqd.config import NodeConfig, StartError, StartOptions
from mqd.errors import StorageError
from mqd.io.entropy import RandomEntropy
from mqd.peers import Peers, parse_peers
from mqd.testing.disk import Inode, MemoryDisk, ProcessDisk
from mqd.testing.network import Fabric, Host, HostNetwork
from mqd.testing.process import Process
from mqd.testing.scheduler import STARTS_AT, Trace, VirtualClock, current_node
from mqd.testing.world import World, current_world

CLIENT_PORT = 9092
PEER_PORT = 9093
READY_SECONDS = 60.0
"""Virtual seconds in which a node must serve after it was started, and in which the tasks
of a dead one must end.
"""
_WALL_MS_AT_START = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
_START_SPREAD_SECONDS = 0.05
_DATA = Path("/data")

Place = int | str
"""On the network: the id of a node, or the name of a client ("c1")."""


class NodeClock:
    """A node's Clock (io/clock.py): the world's time, and a wall clock that may be wrong.

    With a price, time passes while the node's code runs: between two readings of the clock, which
    fair turns and slices take after each piece of work. The world's time stands still meanwhile, so
    the node is `ahead` of it, and must wait before it runs again.
    """

    def __init__(self, clock: VirtualClock, chance: random.Random | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self.skew_seconds = 0.0
        self.price_seconds = 0.0
        """The longest time that passes between two readings; mostly it is far less."""
        self._ahead_at = 0.0
        """The time that the last reading gave."""
        self._readings = 0
        """How often it was read since the last `charge`."""

    def monotonic(self) -> float:
        if not self.price_seconds:
            return self._clock.now
        assert self._chance is not None
        self._readings += 1
        self._ahead_at = (
            max(self._ahead_at, self._clock.now) + self.price_seconds * self._chance.random() ** 3
        )
        return self._ahead_at

    def charge(self, requests: int) -> None:
        """The node has served so many requests since the last call. Each takes time, also if the
        node did not read the clock after it."""
        for _ in range(requests - self._readings):
            self.monotonic()
        self._readings = 0

    @property
    def ahead(self) -> float:
        """Seconds of work that the world's time does not yet show."""
        return max(self._ahead_at - self._clock.now, 0.0)

    def wall_ms(self) -> int:
        return _WALL_MS_AT_START + int((self._clock.now - STARTS_AT + self.skew_seconds) * 1000)


class SimulatedNode:
    """One machine of the cluster, and the node that runs on it, or does not."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.id = node_id
        self.disk = MemoryDisk(
            node_id, cluster.world.clock, cluster.world.random(f"disk-{node_id}")
        )
        self.clock = NodeClock(cluster.world.clock, cluster.world.random(f"cpu-{node_id}"))
        self.host: Host = cluster.fabric.host(str(node_id), f"10.0.0.{node_id}")
        self.options: dict[str, str] = {}
        """Options of this node alone; they count from its next start on."""
        self.failure: BaseException | None = None
        """Why its last process ended by itself."""
        self.starts = 0
        self.daemon: Any = None
        """The live parts (`daemon.Daemon`) of its process; None while there is none."""
        self._cluster = cluster
        self._charged: tuple[Any, int] = None, 0
        """The server whose requests were charged last, and how many."""
        self._process: Process | None = None
        self._scope = trio.CancelScope()
        self._ready = trio.Event()
        self._gone = trio.Event()
        self._gone.set()

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.id} {'running' if self.running else 'down'}>"

    @property
    def process(self) -> Process | None:
        """Its newest process, dead or alive."""
        return self._process

    @property
    def running(self) -> bool:
        """Whether it has a process: it may be starting still, or be paused."""
        return self._process is not None and self._process.alive

    @property
    def ready(self) -> bool:
        """Whether it serves clients."""
        return self.running and self._ready.is_set()

    def charge_requests(self) -> None:
        """Have the requests take time that the node has served since the last call."""
        server = self.daemon.server if self.daemon is not None else None
        served = server.dispatcher.requests if server is not None else 0
        before = self._charged[1] if self._charged[0] is server else 0
        self._charged = server, served
        self.clock.charge(served - before)

    # -- life

    async def start(self, *, wait: bool = True) -> None:
        """Start a process on its disk, as it is; returns when it serves. RuntimeError when it does
        not.

        Powers the machine on when it was cut off. Quiet when the node runs already.
        """
        if not self.running:
            with trio.move_on_after(READY_SECONDS) as late:
                await self._gone.wait()
            if late.cancelled_caught:
                raise RuntimeError(
                    f"node {self.id} was killed {READY_SECONDS:g} s ago, and some of its "
                    "tasks still do not end"
                )
            self._begin()
        if wait:
            await self.wait_ready()

    def _begin(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        self.starts += 1
        process = self._process = Process(self.id, f"node {self.id}", world.clock)
        self._scope = trio.CancelScope()
        self._ready, self._gone = trio.Event(), trio.Event()
        self.failure = None
        cluster.fabric.power_on(self.host)
        world.trace.add(self.id, "start")
        seams = daemon.Seams(
            clock=self.clock,
            entropy=RandomEntropy(world.random(f"node-{self.id}-{self.starts}")),
            disk=ProcessDisk(self.disk, process),
            network=HostNetwork(cluster.fabric, self.host, process),
            announce=lambda _line: self._announced(process),
            signals=(),
            owns_process=False,
        )
        options = StartOptions(cluster.peers, self.id, _DATA, cluster.config(self.id))
        cluster.nursery.start_soon(
            self._live, process, options, seams, self._scope, self._gone, name=f"node {self.id}"
        )

    def _announced(self, process: Process) -> None:
        if process.alive:
            self._cluster.world.trace.add(self.id, "ready")
            self._ready.set()

    async def _live(
        self,
        process: Process,
        options: StartOptions,
        seams: daemon.Seams,
        scope: trio.CancelScope,
        gone: trio.Event,
    ) -> None:
        current_node.set(process)
        failure: BaseException | None = None
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    self.daemon = await nursery.start(daemon.main, options, seams)
        except BaseException as error:
            cancelled, failure = _split(error)
            if cancelled is not None:
                raise cancelled from None
        finally:
            self._after(process, failure)
            gone.set()

    def _after(self, process: Process, failure: BaseException | None) -> None:
        """The process has ended, by itself or because it was killed."""
        self.daemon = None
        if not process.alive:
            return  # what its last tasks raised meanwhile nobody would have heard
        process.end()
        self._cluster.fabric.process_ended(self.host)
        self.failure = failure
        world = self._cluster.world
        world.trace.add(
            self.id, "stopped" if failure is None else f"failed {type(failure).__name__}"
        )
        if failure is not None and not _is_of_disk(failure):
            world.fail(failure)

    async def wait_ready(self) -> None:
        """Wait until it serves. RuntimeError when it ends first, or after 60 s."""
        with trio.move_on_after(READY_SECONDS):
            async with trio.open_nursery() as nursery:
                for event in (self._ready, self._gone):
                    nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        if not self.ready:
            raise RuntimeError(
                f"node {self.id} does not serve: {self.failure or 'it is still starting'}"
            ) from self.failure

    async def wait_gone(self) -> None:
        """Wait until no task of its process is left."""
        await self._gone.wait()

    async def stop(self) -> None:
        """A clean stop, as SIGTERM asks for; returns when the process has ended."""
        if self.running and self.daemon is not None:
            self._cluster.world.trace.add(self.id, "stop")
            self.daemon.stop.set()
        await self._gone.wait()

    def kill(self) -> None:
        """The process ends at once, as by SIGKILL: what it wrote stays, its connections are
        closed by the system.
        """
        self._die("kill")
        self._cluster.fabric.process_ended(self.host)

    def power_cut(self) -> None:
        """The machine ends at once: of what was not synced chance decides what is left, and
        nobody hears from it any more.
        """
        self._die("power cut")
        self._cluster.fabric.power_cut(self.host)
        self.disk.power_cut()

    def kill_in_write(self, after: int = 0) -> None:
        """Kill it in the middle of a change of its disk: of the one after the next `after` ones."""
        self.disk.cut_in_write(after, self.kill)

    def power_cut_in_write(self, after: int = 0) -> None:
        """As `kill_in_write`, with the whole machine."""
        self.disk.cut_in_write(after, self.power_cut)

    def _die(self, how: str) -> None:
        self.disk.disarm()
        process = self._process
        if process is None or not process.alive:
            return
        self._cluster.world.trace.add(self.id, how)
        process.end()
        self._cluster.resume(process)
        self._scope.cancel()

    # -- disturbances

    def pause(self, seconds: float) -> None:
        """None of its tasks runs for so long, as after SIGSTOP; its system still takes what
        arrives.
        """
        if self.running:
            assert self._process is not None
            self._cluster.world.trace.add(self.id, f"pause {seconds:.6f}")
            self._cluster.pause(self._process, seconds)

    def resume(self) -> None:
        """End a pause early. Quiet when there is none."""
        if self._process is not None:
            self._cluster.resume(self._process)

    def skew(self, seconds: float) -> None:
        """Its wall clock is wrong by so much from now on, ahead or (negative) behind.

        Its monotonic clock goes on evenly.
        """
        self._cluster.world.trace.add(self.id, f"skew {seconds:.6f}")
        self.clock.skew_seconds = seconds


class ClusterNetwork:
    """What a test does to the links between nodes (by id) and clients (by name: "c1", "c2"
    in the order of their making).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fabric = cluster.fabric
        self._random = cluster.world.random("partitions")

    def _host(self, place: Place) -> Host:
        return self._cluster.hosts[place]

    def partition(self, *groups: Collection[Place], breaks: bool | None = None) -> None:
        """Nothing passes between the groups, until `heal`. Places that no group names reach
        everybody.

        What is under way is held, and connections live on silently; or (`breaks`) they are reset at
        once, as some routers do. By default chance decides which.
        """
        self._cluster.world.trace.add(
            "-", f"partition {' | '.join(' '.join(map(str, _ordered(group))) for group in groups)}"
        )
        breaks = self._random.random() < 0.3 if breaks is None else breaks
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                for a in _ordered(group):
                    for b in _ordered(other):
                        self._fabric.hold(self._host(a), self._host(b))
                        self._fabric.hold(self._host(b), self._host(a))
                        if breaks:
                            self._fabric.break_connections(self._host(a), self._host(b))

    def isolate(self, node_id: Place, *, breaks: bool | None = None) -> None:
        """Cut one node off from all other nodes; clients still reach it."""
        self.partition(
            [node_id], [other for other in self._cluster.nodes if other != node_id], breaks=breaks
        )

    def stall(self, source: Place, target: Place) -> None:
        """Nothing from `source` arrives at `target`; the other way is open. `heal` ends it."""
        self._cluster.world.trace.add("-", f"stall {source} {target}")
        self._fabric.hold(self._host(source), self._host(target))

    def slow(self, source: Place, target: Place, seconds: float) -> None:
        """Everything takes so many seconds longer, both ways; 0.0 or `heal` ends it."""
        self._cluster.world.trace.add("-", f"slow {source} {target} {seconds:.6f}")
        for one, other in ((source, target), (target, source)):
            self._fabric.link(self._host(one), self._host(other)).delay = seconds

    def break_connections(self, source: Place, target: Place) -> int:
        """Reset every connection between the two; returns how many there were."""
        self._cluster.world.trace.add("-", f"break {source} {target}")
        return self._fabric.break_connections(self._host(source), self._host(target))

    def heal(self) -> None:
        """Every link is open and quick again; what was held arrives soon."""
        self._cluster.world.trace.add("-", "heal")
        self._fabric.heal()


class Cluster:
    """Nodes 1 to `nodes`, then `observers` (nodes that do not vote), on machines of their own, for
    the length of an `async with` block.

    Only inside of `mqd.testing.run`. All nodes are started when the block begins, and serve.
    `options` are those of `mqd start -o`, for all of them; `racks` names the racks, node by node.
    What the nodes hold is gone when the block ends.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        observers: int = 0,
        options: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        start: bool = True,
        seed: int | None = None,
    ) -> None:
        """`seed` must be that of the run, which decides everything; it may be given to say so."""
        self.world: World = current_world()
        if seed is not None and seed != self.world.seed:
            raise ValueError(
                f"the world has seed {self.world.seed}, not {seed}: give the seed to "
                "mqd.testing.run"
            )
        self.options = dict(options or {})
        self.fabric = Fabric(self.world.clock, self.world.random("network"))
        self.peers = _peers(nodes, observers, racks or {})
        self.nodes = {node_id: SimulatedNode(self, node_id) for node_id in self.peers.nodes}
        self.clock = NodeClock(self.world.clock)
        """The clients' (mqd/io/clock.py): virtual time, and a wall clock that is right."""
        self.hosts: dict[Place, Host] = {node.id: node.host for node in self.nodes.values()}
        self.network = ClusterNetwork(self)
        self.nursery: trio.Nursery
        self._start = start
        self._clients = 0
        self._paused: dict[Process, None] = {}
        self._busy: dict[Process, None] = {}
        self.longest_busy_seconds = 0.0
        """For how long the event loop of a node was busy with one step, at most."""

    # -- the block

    async def __aenter__(self) -> Cluster:
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        if self._start:
            try:
                await self.start()
            except BaseException as error:
                await self.__aexit__(type(error), error, None)
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in self.nodes.values():
            node.kill()
        self.nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    async def start(self) -> None:
        """Start every node that is down, at about the same time, and wait until all of them
        serve.
        """
        chance = self.world.random("starts")
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                await trio.sleep(chance.random() * _START_SPREAD_SECONDS)
                nursery.start_soon(node.start)

    # -- looking

    @property
    def trace(self) -> Trace:
        return self.world.trace

    @property
    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self.world.seconds

    def daemon(self, node_id: int) -> Any:
        """The live parts of a node (`mqd.daemon.Daemon`), for probes; None while it is down."""
        return self.nodes[node_id].daemon if self.nodes[node_id].running else None

    def contents(self, node_id: int, path: Path) -> bytes | bytearray:
        """The bytes of a file on a node's disk as its processes see them, not to be
        changed; empty when there is no such file.
        """
        found = self.nodes[node_id].disk.find(path)
        return found.data if isinstance(found, Inode) else b""

    def disk(self, node_id: int) -> MemoryDisk:
        return self.nodes[node_id].disk

    def on_event(self, callback: Callable[[int], object]) -> None:
        """Call this with the node's id after each step of a task of a node.

        An exception that it raises ends the run.
        """
        self.world.steps.observers.append(callback)

    # -- clients

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, as clients take them."""
        return ",".join(f"{node.host}:{node.port}" for node in self.peers.nodes.values())

    def client_network(self, name: str | None = None) -> HostNetwork:
        """A Network (mqd/io/net.py) on a machine of its own: "c1", "c2" and so on, unless
        `name` is given.
        """
        self._clients += 1
        name = f"c{self._clients}" if name is None else name
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = self.fabric.host(
                name, f"10.0.{1 + self._clients // 250}.{self._clients % 250 + 1}"
            )
        return HostNetwork(self.fabric, host, Process(0, name, self.world.clock))

    @asynccontextmanager
    async def open_client(
        self, name: str | None = None, *, request_timeout_s: float = 30.0, wait_s: float = 30.0
    ) -> AsyncIterator[ClusterClient]:
        """A client of all nodes (mqd.client) for the length of a block, on a machine of its own."""
        network = self.client_network(name)
        entropy = RandomEntropy(self.world.random(f"client-{network.host.name}-{self._clients}"))
        async with connect(
            self.bootstrap,
            network=network,
            entropy=entropy,
            clock=self.clock,
            request_timeout_s=request_timeout_s,
            wait_s=wait_s,
        ) as client:
            yield client

    async def client(
        self, name: str | None = None, *, request_timeout_s: float = 30.0, wait_s: float = 30.0
    ) -> ClusterClient:
        """As `open_client`, until the cluster's block ends."""

        async def live(task_status: trio.TaskStatus[ClusterClient]) -> None:
            async with self.open_client(
                name, request_timeout_s=request_timeout_s, wait_s=wait_s
            ) as client:
                task_status.started(client)
                await trio.sleep_forever()

        client: ClusterClient = await self.nursery.start(live)
        return client

    async def connect(
        self, node_id: int, *, peer: bool = False, name: str | None = None, timeout_s: float = 10.0
    ) -> PeerConnection:
        """A raw connection to one node's client listener (`peer`: to the one for nodes),
        until the block ends.
        """
        node = self.peers.nodes[node_id]
        port = node.peer_port if peer else node.port
        return await start_peer(
            self.nursery,
            self.client_network(name),
            node.host,
            port,
            timeout_s=timeout_s,
            negotiate=not peer,
        )

    # -- inside

    def config(self, node_id: int) -> NodeConfig:
        return NodeConfig.load(None, {}, {**self.options, **self.nodes[node_id].options}).of_node(
            self.peers, node_id
        )

    def pause(self, process: Process, seconds: float) -> None:
        if process not in self._paused:
            self._paused[process] = None
            self.world.clock.hold(process)
        self.world.clock.after(seconds, lambda: self.resume(process))

    def resume(self, process: Process) -> None:
        if process in self._paused:
            del self._paused[process]
            self.world.clock.release(process)

    def price_work(self, seconds: float) -> None:
        """From now on the code of nodes takes time: up to so many seconds between two
        readings of the clock (`NodeClock`), and for each request.
        """
        for node in self.nodes.values():
            node.clock.price_seconds = seconds
        if seconds:
            self.on_event(self._charge)

    def _charge(self, node_id: int) -> None:
        """After a step of a node that took time: nothing else of it runs before that has passed."""
        node = self.nodes[node_id]
        node.charge_requests()
        process, seconds = node.process, node.clock.ahead
        if seconds <= 0.0 or process is None or process in self._busy:
            return
        self._busy[process] = None
        self.longest_busy_seconds = max(self.longest_busy_seconds, seconds)
        self.world.clock.hold(process)
        self.world.clock.after(seconds, lambda: self._idle_again(node, process))

    def _idle_again(self, node: SimulatedNode, process: Process) -> None:
        # others of its tasks ran meanwhile
        if process.alive and process is node.process and (seconds := node.clock.ahead) > 0.0:
            self.world.clock.after(seconds, lambda: self._idle_again(node, process))
            return
        del self._busy[process]
        self.world.clock.release(process)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _ordered(places: Collection[Place]) -> list[Place]:
    return sorted(places, key=str)


def _peers(nodes: int, observers: int, racks: Mapping[int, str]) -> Peers:
    lines = ['cluster_id = "simulated"', 'cluster_secret = "what only simulated nodes know"']
    for node_id in range(1, nodes + observers + 1):
        lines += [
            "[[node]]",
            f"id = {node_id}",
            f'host = "10.0.0.{node_id}"',
            f"port = {CLIENT_PORT}",
            f"peer_port = {PEER_PORT}",
        ]
        lines.append(f"voter = {'true' if node_id <= nodes else 'false'}")
        if node_id in racks:
            lines.append(f'rack = "{racks[node_id]}"')
    return parse_peers("\n".join(lines), Path("peers.toml"))


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """The cancellations in an exception, and the rest of it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)
    return (error, None) if isinstance(error, trio.Cancelled) else (None, error)


def _is_of_disk(error: BaseException) -> bool:
    """Whether a node ends with this when its disk fails or its start is refused: faults of
    the world, not of the node.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_disk, error.exceptions))
    return isinstance(error, (StartError, StorageError))
