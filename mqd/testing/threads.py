"""Work in a thread. The seed determines at which disk calls it pauses, while the event loop runs.

The work has a real thread, because its stack must survive the pause. But either the loop or one
work runs, never both, so the seed determines the order of all steps. As under
`trio.to_thread.run_sync`, a value that the work has read before a pause may be outdated after it.
Calls that need the loop's thread fail in this thread, as they would there.
"""

from __future__ import annotations

import random
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextvars import Context, copy_context
from threading import Thread
from typing import Any, Generic, TypeVar

ResultT = TypeVar("ResultT")

PAUSES_MAX = 4
_PAUSE_LIKELIHOOD = 0.4
"""The probability that the work pauses before a disk call, if it has pauses left."""


class Work(Generic[ResultT]):
    """One call in a thread. Call `resume` until `ended`, then `result`."""

    __slots__ = (
        "_chance",
        "_context",
        "_error",
        "_function",
        "_request",
        "_result",
        "_thread",
        "ended",
        "pauses",
    )

    def __init__(self, function: Callable[[], ResultT], chance: random.Random) -> None:
        self.ended = False
        self.pauses = chance.randrange(1, PAUSES_MAX + 1)
        """The number of remaining pauses."""
        self._function = function
        self._chance = chance
        self._context: Context = copy_context()
        self._result: ResultT | None = None
        self._error: BaseException | None = None
        self._request: Callable[[], object] | None = None
        self._thread = _idle.pop() if _idle else _WorkThread()
        self._thread.work = self

    # -- for the loop

    def resume(self) -> None:
        """Run until the next pause, or until the end."""
        global _running
        assert _running is None
        while True:
            _running = self
            try:
                self._thread.go.release()
                self._thread.back.acquire()
            except BaseException:  # a test has timed out: do not use the thread again
                self.ended = True
                raise
            finally:
                _running = None
            if self.ended:
                _idle.append(self._thread)
                return
            if self._request is None:
                return
            request, self._request = self._request, None
            request()

    def finish(self) -> None:
        """Run until the end, without a pause."""
        self.pauses = 0
        while not self.ended:
            self.resume()

    def result(self) -> ResultT:
        """The result of the call. Raises its exception."""
        assert self.ended
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, as there is no error

    # -- for the thread

    def run(self) -> None:
        try:
            self._result = self._context.run(self._function)
        except BaseException as error:
            self._error = error
        self.ended = True

    def step(self) -> None:
        if self.pauses and self._chance.random() < _PAUSE_LIKELIHOOD:
            self.pauses -= 1
            self._wait()

    def call_in_loop(self, request: Callable[[], object]) -> None:
        self._request = request
        self._wait()

    def _wait(self) -> None:
        self._thread.back.release()
        self._thread.go.acquire()


class _WorkThread:
    """A thread that runs one `Work` at a time. It is idle between them, and ends with the
    program.
    """

    __slots__ = ("back", "go", "work")

    def __init__(self) -> None:
        self.go, self.back = _taken(), _taken()
        self.work: Work[Any] | None = None
        Thread(target=self._live, name="mqd-testing-work", daemon=True).start()

    def _live(self) -> None:
        while True:
            self.go.acquire()
            work, self.work = self.work, None
            assert work is not None
            work.run()
            del work
            self.back.release()


def _taken() -> LockType:
    lock = allocate_lock()
    lock.acquire()
    return lock


_idle: list[_WorkThread] = []
_running: Work[Any] | None = None
"""The running work; None while the loop runs."""


def step() -> None:
    """Call this at each disk call: if a work runs, the loop may run first."""
    if _running is not None:
        _running.step()


def call_in_loop(request: Callable[[], object]) -> None:
    """Run this call in the loop's thread, and wait for its end."""
    if _running is not None:
        _running.call_in_loop(request)
    else:
        request()
