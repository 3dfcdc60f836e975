"""Links between the nodes of a cluster on one machine: TCP proxies that partition the nodes, but
not their clients.

Each node has its own peers file, which contains the ports of proxies in place of the other nodes'
peer ports. There is one proxy for each ordered pair of nodes. A cut link loses no byte and closes
no connection: bytes wait until the link heals, as on a network that drops packets. The proxy of an
ended node refuses connections, as its port would, because nodes react to refused connections.

`Links` runs the proxies in a separate process (`python -m chaos.links`), which reads one command
from each line and replies "ok".
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import trio

from .node import LOOPBACK, NodeFailed, free_port

ROOT = Path(__file__).resolve().parent.parent
CHUNK_BYTES = 256 * 1024


class Links:
    """The proxies, for the fault injector."""

    def __init__(self) -> None:
        self._nodes: set[int] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.links"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )

    def add(self, source: int, target: int, port: int) -> int:
        """A link from one node to another's port; returns the port that the source must use
        instead.
        """
        listening = free_port()
        self._nodes |= {source, target}
        self._command("link", source, target, listening, port)
        return listening

    def cut(self, one: int, other: int) -> None:
        """Hold all bytes between two nodes, in both directions."""
        self._command("cut", one, other)

    def isolate(self, nodes: Iterable[int]) -> None:
        """Partition each of these nodes from all others."""
        for one in nodes:
            for other in self._nodes - {one}:
                self.cut(one, other)

    def heal(self) -> None:
        """Heal all links."""
        self._command("heal")

    def down(self, node: int) -> None:
        """The process of that node has ended: refuse connections to it."""
        self._command("down", node)

    def up(self, node: int) -> None:
        """The process of that node is being started."""
        self._command("up", node)

    def close(self) -> None:
        """End the proxies."""
        self._process.kill()
        self._process.communicate()

    def _command(self, *words: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != b"ok\n":
            raise NodeFailed(f"the proxies between the nodes ended at {words}")


class _Link:
    """One proxy."""

    def __init__(self, source: int, target: int, listening: int, port: int) -> None:
        self.ends = frozenset((source, target))
        self.target = target
        self.listening = listening
        self.port = port
        self.open = trio.Event()
        self.open.set()
        self._listeners: list[trio.SocketListener] = []
        self._scope: trio.CancelScope | None = None

    async def listen(self, nursery: trio.Nursery) -> None:
        """Accept connections from now on."""
        if self._scope is None:
            self._scope = await nursery.start(self._accept, nursery)

    def refuse(self) -> None:
        """Accept no more connections. Open connections end by themselves."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
            for listener in self._listeners:
                listener.socket.close()

    async def _accept(
        self, nursery: trio.Nursery, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        self._listeners = await trio.open_tcp_listeners(self.listening, host=LOOPBACK)
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await trio.serve_listeners(self._connect, self._listeners, handler_nursery=nursery)

    async def _connect(self, near: trio.SocketStream) -> None:
        await self.open.wait()
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with (
                near,
                await trio.open_tcp_stream(LOOPBACK, self.port) as far,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._pump, near, far, nursery.cancel_scope)
                nursery.start_soon(self._pump, far, near, nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(CHUNK_BYTES):
                await self.open.wait()
                await sink.send_all(data)
        await self.open.wait()
        both.cancel()


async def _serve() -> None:
    links: list[_Link] = []
    lines = trio.lowlevel.FdStream(sys.stdin.fileno())
    buffer = b""
    async with trio.open_nursery() as nursery:
        while data := await lines.receive_some(4096):
            buffer += data
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                await _execute(line.decode().split(), links, nursery)
                sys.stdout.write("ok\n")
                sys.stdout.flush()
        nursery.cancel_scope.cancel()


async def _execute(words: list[str], links: list[_Link], nursery: trio.Nursery) -> None:
    command, *numbers = words[0], *map(int, words[1:])
    match command:
        case "link":
            links.append(_Link(*numbers))
            await links[-1].listen(nursery)
        case "cut":
            for link in links:
                if link.ends == frozenset(numbers) and link.open.is_set():
                    link.open = trio.Event()
        case "heal":
            for link in links:
                link.open.set()
        case "down":
            for link in links:
                if link.target == numbers[0]:
                    link.refuse()
        case "up":
            for link in links:
                if link.target == numbers[0]:
                    await link.listen(nursery)
        case _:
            raise ValueError(command)


if __name__ == "__main__":
    trio.run(_serve)
