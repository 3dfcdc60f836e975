"""One simulated machine and its node: start, stop, kill, power cut, pause."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from mqd import daemon
from mqd.config import NodeConfig, StartError, StartOptions
from mqd.errors import StorageError
from mqd.io.entropy import RandomEntropy
from mqd.peers import Peers
from mqd.testing.disk import MemoryDisk
from mqd.testing.fabric import Fabric, Host
from mqd.testing.network import HostNetwork
from mqd.testing.node_clock import NodeClock
from mqd.testing.process import Process
from mqd.testing.process_disk import ProcessDisk
from mqd.testing.scheduler import VirtualClock, current_node
from mqd.testing.world import World

READY_SECONDS = 60.0
"""The virtual seconds within which a started node must serve, and all tasks of an ended process
must end.
"""
DATA = Path("/data")
"""The data directory of each node, on its own disk."""


class Pauses:
    """The processes that are paused, as after SIGSTOP."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._paused: dict[Process, None] = {}

    def pause(self, process: Process, seconds: float) -> None:
        if process not in self._paused:
            self._paused[process] = None
            self._clock.hold(process)
        self._clock.after(seconds, lambda: self.resume(process))

    def resume(self, process: Process) -> None:
        """Resume the process. No effect if it is not paused."""
        if process in self._paused:
            del self._paused[process]
            self._clock.release(process)


@dataclass(eq=False)
class SharedParts:
    """The objects that the nodes of one cluster share."""

    world: World
    fabric: Fabric
    peers: Peers
    options: dict[str, str]
    """Options of all nodes."""
    pauses: Pauses
    nursery: trio.Nursery = field(init=False)
    """The nursery of the cluster's block, in which the nodes' processes run."""


class SimulatedNode:
    """One machine of the cluster with its node, which runs or is down."""

    def __init__(self, shared: SharedParts, node_id: int) -> None:
        self.id = node_id
        world = shared.world
        self.disk = MemoryDisk(node_id, world.clock, world.random(f"disk-{node_id}"))
        self.clock = NodeClock(world.clock, world.random(f"cpu-{node_id}"))
        self.host: Host = shared.fabric.host(str(node_id), f"10.0.0.{node_id}")
        self.options: dict[str, str] = {}
        """Options of this node only, from its next start on."""
        self.failure: BaseException | None = None
        """The exception that ended its last process; None if it was killed."""
        self.starts = 0
        self.daemon: Any = None
        """The live parts (`daemon.Daemon`) of its process; None without a process."""
        self._shared = shared
        self._charged: tuple[Any, int] = None, 0
        """The server whose requests were last charged, and their number."""
        self._process: Process | None = None
        self._scope = trio.CancelScope()
        self._ready = trio.Event()
        self._gone = trio.Event()
        self._gone.set()

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.id} {'running' if self.running else 'down'}>"

    @property
    def process(self) -> Process | None:
        """Its newest process, which may have ended."""
        return self._process

    @property
    def running(self) -> bool:
        """Whether it has a process; this may be starting or paused."""
        return self._process is not None and self._process.alive

    @property
    def ready(self) -> bool:
        """Whether it serves clients."""
        return self.running and self._ready.is_set()

    def charge_requests(self) -> None:
        """Charge the time of the requests that the node has served since the last call."""
        server = self.daemon.server if self.daemon is not None else None
        served = server.dispatcher.requests if server is not None else 0
        before = self._charged[1] if self._charged[0] is server else 0
        self._charged = server, served
        self.clock.charge(served - before)

    # -- start and stop

    async def start(self, *, wait: bool = True) -> None:
        """Start a process on the current contents of its disk, and wait until it serves. Raises
        RuntimeError if it does not.

        Powers the machine on if it was off. No effect if the node already runs.
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
        shared, world = self._shared, self._shared.world
        self.starts += 1
        process = self._process = Process(self.id, f"node {self.id}", world.clock)
        self._scope = trio.CancelScope()
        self._ready, self._gone = trio.Event(), trio.Event()
        self.failure = None
        shared.fabric.power_on(self.host)
        world.trace.add(self.id, "start")
        seams = daemon.Seams(
            clock=self.clock,
            entropy=RandomEntropy(world.random(f"node-{self.id}-{self.starts}")),
            disk=ProcessDisk(self.disk, process),
            network=HostNetwork(shared.fabric, self.host, process),
            announce=lambda _line: self._announced(process),
            owns_process=False,
        )
        options = StartOptions(shared.peers, self.id, DATA, self._config())
        shared.nursery.start_soon(
            self._live, process, options, seams, self._scope, self._gone, name=f"node {self.id}"
        )

    def _config(self) -> NodeConfig:
        options = {**self._shared.options, **self.options}
        return NodeConfig.load(None, {}, options).of_node(self._shared.peers, self.id)

    def _announced(self, process: Process) -> None:
        if process.alive:
            self._shared.world.trace.add(self.id, "ready")
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
        """Clean up after the end of a process, by itself or by a kill."""
        self.daemon = None
        if not process.alive:
            return  # a killed process reports no errors of its last tasks
        process.end()
        self._shared.fabric.process_ended(self.host)
        self.failure = failure
        world = self._shared.world
        world.trace.add(
            self.id, "stopped" if failure is None else f"failed {type(failure).__name__}"
        )
        if failure is not None and not _is_of_disk(failure):
            world.fail(failure)

    async def wait_ready(self) -> None:
        """Wait until it serves. Raises RuntimeError if it ends before, or after 60 s."""
        with trio.move_on_after(READY_SECONDS):
            async with trio.open_nursery() as nursery:
                for event in (self._ready, self._gone):
                    nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        if not self.ready:
            raise RuntimeError(
                f"node {self.id} does not serve: {self.failure or 'it is still starting'}"
            ) from self.failure

    async def wait_gone(self) -> None:
        """Wait until all tasks of its process have ended."""
        await self._gone.wait()

    async def stop(self) -> None:
        """Stop it cleanly, as by SIGTERM, and wait until the process has ended."""
        if self.running and self.daemon is not None:
            self._shared.world.trace.add(self.id, "stop")
            self.daemon.stop.set()
        await self._gone.wait()

    def kill(self) -> None:
        """End the process at once, as by SIGKILL. Its writes stay, and the operating system closes
        its connections.
        """
        self._die("kill")
        self._shared.fabric.process_ended(self.host)

    def power_cut(self) -> None:
        """The machine stops at once and sends nothing more. A random part of the unsynced bytes
        stays.
        """
        self._die("power cut")
        self._shared.fabric.power_cut(self.host)
        self.disk.power_cut()

    def kill_in_write(self, after: int = 0) -> None:
        """Kill it in the middle of a change of its disk: the first one after `after` others."""
        self.disk.cut_in_write(after, self.kill)

    def power_cut_in_write(self, after: int = 0) -> None:
        """As `kill_in_write`, with a power cut of the machine."""
        self.disk.cut_in_write(after, self.power_cut)

    def _die(self, how: str) -> None:
        self.disk.disarm()
        process = self._process
        if process is None or not process.alive:
            return
        self._shared.world.trace.add(self.id, how)
        process.end()
        self._shared.pauses.resume(process)
        self._scope.cancel()

    # -- pauses and clocks

    def pause(self, seconds: float) -> None:
        """Run none of its tasks for this time, as after SIGSTOP. The operating system still
        receives bytes.
        """
        if self.running:
            assert self._process is not None
            self._shared.world.trace.add(self.id, f"pause {seconds:.6f}")
            self._shared.pauses.pause(self._process, seconds)

    def resume(self) -> None:
        """End a pause early. No effect without a pause."""
        if self._process is not None:
            self._shared.pauses.resume(self._process)

    def skew(self, seconds: float) -> None:
        """Set the error of its wall clock: ahead, or behind if negative. Its monotonic clock stays
        correct.
        """
        self._shared.world.trace.add(self.id, f"skew {seconds:.6f}")
        self.clock.skew(seconds)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """The cancellations in an exception, and the rest of it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)
    return (error, None) if isinstance(error, trio.Cancelled) else (None, error)


def _is_of_disk(error: BaseException) -> bool:
    """Whether this error comes from a disk fault or a refused start, and not from a bug of the
    node.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_disk, error.exceptions))
    return isinstance(error, (StartError, StorageError))
