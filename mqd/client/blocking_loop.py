"""A background thread that runs Trio, and blocking calls into it.

Each call hands a coroutine function to the loop and waits for the result. An async context manager
is entered and left in one task of the loop. Calls may come from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import trio

from mqd.client.errors import ClientClosed

ResultT = TypeVar("ResultT")
OpenedT = TypeVar("OpenedT")
FaceT = TypeVar("FaceT")
P = ParamSpec("P")


class BackgroundLoop:
    """The background thread and its Trio run."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="mqd-client", daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._open: list[OpenBlock[Any]] = []
        """Blocks that were entered and not left, the latest last."""
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._started.set()
            await trio.sleep_forever()

    def call(self, function: Callable[..., Awaitable[ResultT]], *args: Any) -> ResultT:
        """Run `function` in the loop and wait for its result. Raises ClientClosed."""
        try:
            if self._token is not None:
                return trio.from_thread.run(function, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            pass
        raise ClientClosed from self._failure

    @contextmanager
    def entered(
        self, manager: AbstractAsyncContextManager[OpenedT], *, last: bool = False
    ) -> Iterator[OpenedT]:
        """The async context manager as a blocking one.

        With `last`, every block that is still open is left first: a second Ctrl-C may have skipped
        its end.
        """
        block = OpenBlock(manager)
        reason: BaseException | None = None
        try:
            yield self.call(self._enter, block)
        except BaseException as error:
            reason = error
            raise
        finally:
            self.call(self._leave, block, reason, last)

    async def _enter(self, block: OpenBlock[OpenedT]) -> OpenedT:
        assert self._nursery is not None
        self._open.append(block)
        self._nursery.start_soon(self._run_block, block)
        await block.entered.wait()
        if block.failure is not None:
            raise block.failure
        if block.opened is None:
            raise Leaving
        return block.opened

    async def _run_block(self, block: OpenBlock[Any]) -> None:
        try:
            await block.run()
        finally:
            self._open.remove(block)

    async def _leave(self, block: OpenBlock[Any], reason: BaseException | None, last: bool) -> None:
        for other in [each for each in reversed(self._open) if last and each is not block]:
            await other.leave(reason or Leaving())
        await block.leave(reason)

    def close(self) -> None:
        """Cancel every task and wait for the thread to end."""
        if self._token is not None and self._nursery is not None:
            try:
                trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
            except trio.RunFinishedError:
                pass
        self._token = None
        self._thread.join()


class OpenBlock(Generic[OpenedT]):
    """One async context manager, held open by a task of the loop."""

    def __init__(self, manager: AbstractAsyncContextManager[OpenedT]) -> None:
        self._manager = manager
        self.entered = trio.Event()
        self.opened: OpenedT | None = None
        self.failure: BaseException | None = None
        self._leave = trio.Event()
        self._left = trio.Event()
        self._entering = trio.CancelScope()
        self._reason: BaseException | None = None

    async def run(self) -> None:
        try:
            with self._entering:
                async with self._manager as opened:
                    self.opened = opened
                    self.entered.set()
                    await self._leave.wait()
                    if self._reason is not None:
                        raise Leaving
        except Leaving:
            pass
        except Exception as error:
            self.failure = error
        finally:
            self.entered.set()
            self._left.set()

    async def leave(self, reason: BaseException | None) -> None:
        """End the block; `reason` is the exception of the user's block, if there is one.

        Raises the manager's exception, also an earlier one: it may be the cause of `reason`.
        """
        crashed = self.opened is not None and self._left.is_set() and not self._leave.is_set()
        if not self._leave.is_set():
            self._reason = reason
        self._leave.set()
        if not self.entered.is_set():
            self._entering.cancel()
        await self._left.wait()
        if self.failure is not None and (reason is None or crashed):
            raise self.failure from self.failure.__cause__ or reason


class Leaving(Exception):
    """Leaves the wrapped block in place of the user's exception: the block ends without a flush."""


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[ResultT]],
) -> Callable[Concatenate[Any, P], ResultT]:
    """The same method, blocking, of an object with the async one in `_wrapped` and a `_loop`."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        async def in_loop() -> ResultT:
            return await method(self._wrapped, *args, **kwargs)

        result: ResultT = self._loop.call(in_loop)
        return result

    call.__name__ = method.__name__
    call.__doc__ = method.__doc__
    return call


def opens(
    opener: Callable[Concatenate[Any, P], AbstractAsyncContextManager[OpenedT]],
    face: Callable[[BackgroundLoop, OpenedT], FaceT],
) -> Callable[Concatenate[Any, P], AbstractContextManager[FaceT]]:
    """The same context manager, blocking, as a method of an object with `_wrapped` and `_loop`. The
    block receives a `face` of what was opened."""

    @contextmanager
    def enter(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[FaceT]:
        with self._loop.entered(opener(self._wrapped, *args, **kwargs)) as opened:
            yield face(self._loop, opened)

    enter.__name__ = opener.__name__
    enter.__doc__ = opener.__doc__
    return enter


def as_coroutine(function: Callable[..., ResultT]) -> Callable[..., Awaitable[ResultT]]:
    """A function that does not wait, to be called in the loop."""

    async def call(*args: Any) -> ResultT:
        return function(*args)

    return call
