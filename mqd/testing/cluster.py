"""A cluster of production nodes inside one simulated world, and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import start_peer
from mqd.client.security import Security
from mqd.io.entropy import RandomEntropy
from mqd.io.memory_files import in_memory
from mqd.peers import Peers, parse_peers
from mqd.security.client_listeners import SecurityProtocol
from mqd.testing.cluster_network import ClusterNetwork, Place
from mqd.testing.disk import MemoryDisk
from mqd.testing.fabric import Fabric, Host
from mqd.testing.inodes import Inode
from mqd.testing.network import HostNetwork
from mqd.testing.node import Pauses, SharedParts, SimulatedNode
from mqd.testing.node_clock import NodeClock
from mqd.testing.process import Process
from mqd.testing.scheduler import Trace
from mqd.testing.security import client_security, node_options
from mqd.testing.world import World, current_world

CLIENT_PORT = 9092
PEER_PORT = 9093
_START_SPREAD_SECONDS = 0.05


class Cluster:
    """Nodes 1 to `nodes`, then `observers` (nodes that do not vote), each on its own machine, for
    the duration of an `async with` block.

    Use it inside `mqd.testing.run`. When the block begins, all nodes are started and serve.
    `options`: those of `mqd start -o`, for all nodes. `racks`: the rack of each node. The end of
    the block deletes all data.
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
        security: str = "PLAINTEXT",
    ) -> None:
        """`seed`: the seed of the run. Tests may pass it to show it. `security`: the protocol of
        the client listeners (SSL, SASL_PLAINTEXT or SASL_SSL), which clients use by default. With
        TLS, the nodes use mutual TLS, too.
        """
        self.world: World = current_world()
        if seed is not None and seed != self.world.seed:
            raise ValueError(
                f"the world has seed {self.world.seed}, not {seed}: give the seed to "
                "mqd.testing.run"
            )
        self.options = dict(options or {})
        self.fabric = Fabric(self.world.clock, self.world.random("network"))
        self.peers = _peers(nodes, observers, racks or {})
        pauses = Pauses(self.world.clock)
        self._shared = SharedParts(self.world, self.fabric, self.peers, self.options, pauses)
        self.nodes = {node_id: SimulatedNode(self._shared, node_id) for node_id in self.peers.nodes}
        protocol = SecurityProtocol[security]
        for node in self.peers.nodes.values():
            self.nodes[node.id].options = node_options(
                protocol, CLIENT_PORT, self.peers.cluster_id, node.id, node.host
            )
        self.client_security = client_security(protocol)
        """The security of clients without their own; None: PLAINTEXT."""
        self.clock = NodeClock(self.world.clock)
        """The clock of clients (mqd/io/clock.py): virtual time, and a correct wall clock."""
        self.hosts: dict[Place, Host] = {node.id: node.host for node in self.nodes.values()}
        self.network = ClusterNetwork(self.world, self.fabric, self.hosts, self.nodes.keys())
        self.nursery: trio.Nursery
        self._start = start
        self._clients = 0
        self._busy: dict[Process, None] = {}
        self.longest_busy_seconds = 0.0
        """The longest time for which one step blocked the event loop of a node."""

    # -- start and end of the block

    async def __aenter__(self) -> Cluster:
        self._manager = trio.open_nursery()
        self.nursery = self._shared.nursery = await self._manager.__aenter__()
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
        """Start every node that is down, all at about the same time, and wait until all serve."""
        chance = self.world.random("starts")
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                await trio.sleep(chance.random() * _START_SPREAD_SECONDS)
                nursery.start_soon(node.start)

    # -- state

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
        """The bytes of a file on a node's disk, or of a log in memory, as its processes see them.
        Do not change them. Empty if the file does not exist.
        """
        if in_memory(path):
            daemon = self.daemon(node_id)
            files = None if daemon is None else daemon.logs._disk
            return files.read_bytes(path) if files is not None and files.exists(path) else b""
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
        """The addresses of all nodes, as in bootstrap.servers."""
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
        self,
        name: str | None = None,
        *,
        request_timeout_s: float = 30.0,
        wait_s: float = 30.0,
        security: Security | None = None,
    ) -> AsyncIterator[ClusterClient]:
        """A client of all nodes (mqd.client), on its own machine, for the duration of a block."""
        network = self.client_network(name)
        entropy = RandomEntropy(self.world.random(f"client-{network.host.name}-{self._clients}"))
        async with connect(
            self.bootstrap,
            network=network,
            entropy=entropy,
            clock=self.clock,
            request_timeout_s=request_timeout_s,
            wait_s=wait_s,
            security=self.client_security if security is None else security,
        ) as client:
            yield client

    async def client(
        self,
        name: str | None = None,
        *,
        request_timeout_s: float = 30.0,
        wait_s: float = 30.0,
        security: Security | None = None,
    ) -> ClusterClient:
        """As `open_client`, until the cluster's block ends."""

        async def live(task_status: trio.TaskStatus[ClusterClient]) -> None:
            async with self.open_client(
                name, request_timeout_s=request_timeout_s, wait_s=wait_s, security=security
            ) as client:
                task_status.started(client)
                await trio.sleep_forever()

        client: ClusterClient = await self.nursery.start(live)
        return client

    async def connect(
        self, node_id: int, *, peer: bool = False, name: str | None = None, timeout_s: float = 10.0
    ) -> PeerConnection:
        """A raw connection to the client listener of one node (`peer`: to the listener for nodes),
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

    # -- internal

    def price_work(self, seconds: float) -> None:
        """Give the code of nodes a price: up to this many seconds between two readings of the clock
        (`NodeClock`), and for each request.
        """
        for node in self.nodes.values():
            node.clock.price_seconds = seconds
        if seconds:
            self.on_event(self._charge)

    def _charge(self, node_id: int) -> None:
        """After a step that took time, hold the tasks of the node until this time has passed."""
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
        # other tasks of the node ran meanwhile
        if process.alive and process is node.process and (seconds := node.clock.ahead) > 0.0:
            self.world.clock.after(seconds, lambda: self._idle_again(node, process))
            return
        del self._busy[process]
        self.world.clock.release(process)


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
