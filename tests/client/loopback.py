"""The model broker of fake.py behind a real loopback port, in its own thread: for the blocking
client and for mqctl.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from tests.client.fake import FakeCluster

T = TypeVar("T")


class _Stream:
    """A trio stream with the interface that FakeBroker.serve needs."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.closed = False

    async def receive_into(self, view: memoryview) -> int:
        try:
            data = await self._stream.receive_some(len(view))
        except trio.TrioInternalError:
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError("broken") from error
        view[: len(data)] = data
        return len(data)

    async def send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError("broken") from error

    def close(self) -> None:
        self.closed = True


class Loopback:
    """A FakeCluster of one node on 127.0.0.1."""

    def __init__(self) -> None:
        self.cluster: FakeCluster
        self.port = 0
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def inside(self, function: Callable[[], T]) -> T:
        """Run a function in the broker's thread."""
        return trio.from_thread.run_sync(function, trio_token=self._token)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            with self._scope:
                self.cluster = FakeCluster(nursery)
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                self.port = listeners[0].socket.getsockname()[1]
                self.cluster.addresses[1] = ("127.0.0.1", self.port)
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()
                await trio.serve_listeners(self._serve, listeners)
            nursery.cancel_scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            await self.cluster.one.serve(_Stream(stream))  # type: ignore[arg-type]  # the same calls


@contextmanager
def loopback() -> Iterator[Loopback]:
    """A served cluster for the length of a block."""
    served = Loopback()
    served._thread.start()
    assert served._ready.wait(10)
    try:
        yield served
    finally:
        served.inside(served._scope.cancel)
        served._thread.join(10)
        assert not served._thread.is_alive()
