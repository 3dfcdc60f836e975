"""One simulated world. `run` creates it; simulated parts get it from `current_world`."""

from __future__ import annotations

import functools
import logging
import os
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

import trio

from mqd.io.tls_contexts import session_tickets
from mqd.testing.scheduler import (
    STARTS_AT,
    Steps,
    Trace,
    VirtualClock,
    current_node,
    seeded_scheduler,
)

ArgumentsT = TypeVarTuple("ArgumentsT")
ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")

LOG_LINES_KEPT = 400
LOG_ECHO_VARIABLE = "MQD_TESTING_LOG"
"""An environment variable with a logging level. Lines of this level and above are kept, and written
to standard error at once.
"""

_world: ContextVar[World | None] = ContextVar("mqd_testing_world", default=None)


class World:
    """The time, the random sources and the trace of one run."""

    def __init__(self, seed: int, log_level: str | int) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.steps = Steps(self.clock)
        self.failure: BaseException | None = None
        self.logs = _Logs(self, log_level)
        self.scope = trio.CancelScope()
        self.clock.failed = self.fail

    @property
    def trace(self) -> Trace:
        return self.clock.trace

    @property
    def seconds(self) -> float:
        """Virtual seconds since the run began."""
        return self.clock.now - STARTS_AT

    def random(self, purpose: str) -> random.Random:
        """The random source for one purpose, independent of the others."""
        return random.Random(f"{self.seed}/{purpose}")

    def fail(self, error: BaseException) -> None:
        """End the run with this exception. Only the first one counts."""
        if self.failure is None:
            self.failure = error
            self.trace.add("-", f"failed {type(error).__name__}")
            self.scope.cancel()


def current_world() -> World:
    """The world of this run. Raises RuntimeError outside `mqd.testing.run`."""
    world = _world.get()
    if world is None:
        raise RuntimeError(
            "there is no simulated world here: call this inside of an async function that "
            "`mqd.testing.run` runs, "
            "or of a test decorated with `mqd.testing.simulated`"
        )
    return world


def run(
    async_fn: Callable[[*ArgumentsT], Awaitable[ResultT]],
    *args: *ArgumentsT,
    seed: int = 0,
    log_level: str | int = "WARNING",
) -> ResultT:
    """Run `await async_fn(*args)` in a new world: with virtual time, and every random choice from
    `seed`. Returns its result. An exception gets a note with the seed, the virtual time and the
    last log lines of the nodes (`log_level` and above). The same seed gives the same run, on any
    machine. Trio works as usual. Real sockets, threads and files work, but are not simulated.
    """
    world = World(seed, os.environ.get(LOG_ECHO_VARIABLE, log_level))

    async def main() -> ResultT:
        _world.set(world)
        session_tickets.set(0)
        with world.scope:
            return await async_fn(*args)
        assert world.failure is not None
        raise world.failure

    try:
        with seeded_scheduler(seed), world.logs.captured():
            return trio.run(main, clock=world.clock, instruments=[world.steps])
    except Exception as error:
        failure = error if world.failure is None else world.failure
        failure.add_note(
            f"in the simulated world of seed {seed}, at {world.seconds:.6f} s, trace "
            f"{world.trace.digest}"
        )
        failure.add_note(f"again: {_replay_command(async_fn, seed)}")
        if world.logs.lines:
            failure.add_note("the last lines of its nodes:\n" + "\n".join(world.logs.lines))
        raise failure from None


def _replay_command(async_fn: Callable[..., Any], seed: int) -> str:
    """The command that repeats this run."""
    test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    return (
        f"python -m pytest '{test}'"
        if test
        else f"mqd.testing.run({getattr(async_fn, '__name__', 'async_fn')}, seed={seed})"
    )


def simulated(
    *, seed: int = 0, log_level: str | int = "WARNING"
) -> Callable[[Callable[ParametersT, Awaitable[ResultT]]], Callable[ParametersT, ResultT]]:
    """A decorator for async tests: each call runs in a new world. pytest passes fixtures as
    usual.
    """

    def decorate(
        async_fn: Callable[ParametersT, Awaitable[ResultT]],
    ) -> Callable[ParametersT, ResultT]:
        @functools.wraps(async_fn)
        def call(*args: ParametersT.args, **keywords: ParametersT.kwargs) -> ResultT:
            return run(
                functools.partial(async_fn, *args, **keywords), seed=seed, log_level=log_level
            )

        return call

    return decorate


class _Logs(logging.Handler):
    """Keeps the last log lines of the nodes, each with its virtual time and node."""

    def __init__(self, world: World, level: str | int) -> None:
        super().__init__(level)
        self._world = world
        self._echo = LOG_ECHO_VARIABLE in os.environ
        self.lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        node = current_node.get()
        who = "-" if node is None else node.node_id
        line = (
            f"{self._world.seconds:.6f} {who} {record.levelname} {record.name} "
            f"{record.getMessage()}"
        )
        if record.exc_info and record.exc_info[1] is not None:
            line += f" ({record.exc_info[1]!r})"
        self.lines.append(line)
        if self._echo:
            print(line, file=sys.stderr)

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Inside the block, only this object gets the lines of mqd's loggers."""
        logger = logging.getLogger("mqd")
        before: Any = logger.handlers[:], logger.level, logger.propagate
        logger.handlers[:], logger.propagate = [self], False
        logger.setLevel(self.level)
        try:
            yield
        finally:
            logger.handlers[:], logger.propagate = before[0], before[2]
            logger.setLevel(before[1])
