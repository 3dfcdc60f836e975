"""Virtual time, the order of all events, and the trace: the same seed gives the same history (I29).

While code runs, time does not pass, except for a small price of each task step. If every task
waits, time jumps to the next event. There are two kinds of events: Trio's own deadlines, and those
of this module's queue (bytes that arrive, disk calls that end). Each batch of runnable Trio tasks
is sorted by the age of the tasks, then shuffled with the seed. Only this file uses Trio's private
names: `_run._r` and `_run._ALLOW_DETERMINISTIC_SCHEDULING` (Trio keeps them for hypothesis-trio),
`GLOBAL_RUN_CONTEXT.runner` and its `runq`, `entry_queue`, `waiting_for_idle`, `io_manager` and
`instruments`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any
from zlib import crc32

import trio
from trio._core import _run as trio_run

STARTS_AT: float = 1_000.0
"""The virtual time at the start of a run, in seconds."""
STEP_SECONDS: float = 5e-6
"""The virtual time of one task step, so that a task that never waits cannot stop the clock."""
TAIL_LINES = 2_000

current_node: ContextVar[Any] = ContextVar("current_node", default=None)
"""The process of the node (process.py) whose task runs; None for a task of the test itself."""


class NothingLeft(Exception):
    """Every task waits, and no event will follow: the program under test waits for an event that
    cannot happen.
    """


class Timer:
    """One future event, unless `cancel` removes it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Trace:
    """The events of a run, as lines of `time node event`: a running checksum of all lines, and the
    last lines. Task steps are only in the checksum. `write_to`, an object with `append`, gets every
    line.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.count = 0
        self.checksum = 0
        self.write_to: Any = None

    def add(self, node: object, what: str) -> None:
        line = f"{self._clock.now - STARTS_AT:.6f} {node} {what}"
        self.checksum = crc32(line.encode(), self.checksum)
        self.count += 1
        self.lines.append(line)
        if self.write_to is not None:
            self.write_to.append(line)

    @property
    def digest(self) -> str:
        """A checksum of the whole history: two runs with the same digest had the same events."""
        return f"{self.count}-{self.checksum:08x}"


class VirtualClock(trio.abc.Clock):
    """Trio's clock for one run, and the queue of events."""

    def __init__(self) -> None:
        self.now = STARTS_AT
        self.trace = Trace(self)
        self.jumps = 0
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called with the exception of an event, with which the owner ends the run."""
        self.events: list[tuple[float, int, Timer]] = []
        """A heap of (time, sequence number, event)."""
        self._numbers = count()
        self._runner: Any = None
        self._is_stuck = False

    # -- for Trio

    def start_clock(self) -> None:
        runner: Any = trio_run.GLOBAL_RUN_CONTEXT.runner
        self._runner = runner
        runner.io_manager = _SeldomPolled(runner.io_manager, runner.entry_queue)
        runner.instruments = _FewInstruments(runner.instruments)

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """No task can run: advance to the next event."""
        runner = self._runner
        queue = runner.entry_queue
        if queue.queue or queue.idempotent_queue:
            return 0.0  # run_sync_soon was called: its task runs in the next pass
        if runner.waiting_for_idle:
            return 1.0  # wait_all_tasks_blocked comes first
        events, queue = self.events, runner.runq
        while not queue:
            while events and events[0][2].call is None:
                heappop(events)
            at = min(events[0][0] if events else float("inf"), deadline)
            if at == float("inf"):
                return self._nothing_left()
            if at > self.now:
                self.now = at
                self.jumps += 1
            self.run_due()
            if at == deadline or runner.runq is not queue:
                break
        return 0.0

    def _nothing_left(self) -> float:
        if self._is_stuck:
            raise NothingLeft(
                "the run was ended, but a shielded task still waits for what cannot come"
            )
        self._is_stuck = True
        self.failed(NothingLeft("every task waits, and nothing will ever happen"))
        return 0.0

    # -- events

    def at(self, time: float, call: Callable[[], object]) -> Timer:
        """Call `call` at `time`. It must not wait, but may wake tasks."""
        timer = Timer(call)
        heappush(self.events, (time, next(self._numbers), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self.at(self.now + seconds, call)

    def run_due(self) -> None:
        events = self.events
        while events and events[0][0] <= self.now:
            call = heappop(events)[2].call
            if call is not None:
                try:
                    call()
                except BaseException as error:
                    self.failed(error)

    # -- pausing

    def hold(self, node: Any) -> None:
        """Run no further step of this node's tasks until `release`. A node may be held for several
        reasons; each one needs its own `release`.
        """
        queue = self._gated_queue()
        queue.reasons[node] += 1
        if queue.reasons[node] == 1:
            waiting = list(queue)
            queue.clear()
            for task in waiting:
                queue.append(task)

    def release(self, node: Any) -> None:
        """Remove one reason to hold this node. No effect if there is none."""
        queue = self._gated_queue()
        if queue.reasons[node] > 1:
            queue.reasons[node] -= 1
            return
        del queue.reasons[node]
        for task in queue.held.pop(node, ()):
            queue.append(task)

    def _gated_queue(self) -> _GatedQueue:
        """Replace Trio's queue at the first use: the new one costs some time."""
        runner = self._runner
        if not isinstance(runner.runq, _GatedQueue):
            runner.runq = _GatedQueue(runner.runq)
        queue: _GatedQueue = runner.runq
        return queue


class _SeldomPolled:
    """Trio's manager of real sockets, which polls the kernel in each pass of the loop. A simulation
    usually has no real sockets. So this polls only in every 64th pass, if a thread has called
    `run_sync_soon`, and if the loop would sleep.
    """

    def __init__(self, manager: Any, entry_queue: Any) -> None:
        self._manager = manager
        self._entry_queue = entry_queue
        self._passes = 0
        self.process_events = manager.process_events

    def get_events(self, timeout: float) -> Any:
        self._passes += 1
        if (
            timeout > 0
            or not self._passes & 63
            or self._entry_queue.queue
            or self._entry_queue.idempotent_queue
        ):
            return self._manager.get_events(timeout)
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _FewInstruments(dict[str, Any]):
    """Trio's instruments at the start of the run. Trio looks up missing ones several times in each
    step, which is cheap here.
    """

    def __init__(self, instruments: Any) -> None:
        super().__init__(
            {
                name: [getattr(one, name) for one in found]
                for name, found in instruments.data.items()
                if name != "_all"
            }
        )

    def call(self, name: str, *args: Any) -> None:
        for call in self[name]:
            call(*args)

    def add_instrument(self, instrument: trio.abc.Instrument) -> None:
        raise RuntimeError("a simulated world takes no more instruments: see `Cluster.on_event`")


class _Chance(random.Random):
    """Trio shuffles in each pass of its loop, mostly one task."""

    def shuffle(self, x: Any) -> None:
        for last in range(len(x) - 1, 0, -1):
            other = int(self.random() * (last + 1))
            x[last], x[other] = x[other], x[last]


class _GatedQueue(deque[Any]):
    """Trio's queue of runnable tasks, without those of held (paused or busy) nodes."""

    def __init__(self, tasks: Iterable[Any] = ()) -> None:
        super().__init__(tasks)
        self.reasons: Counter[Any] = Counter()
        """Node -> the number of reasons to hold it."""
        self.held: dict[Any, list[Any]] = {}

    def append(self, task: Any) -> None:
        if self.reasons:
            node = task.context.get(current_node)
            if node is not None and node in self.reasons:
                self.held.setdefault(node, []).append(task)
                return
        super().append(task)


class Steps(trio.abc.Instrument):
    """Counts each task step, adds its virtual time, and calls the observers for steps of nodes."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.steps = 0
        self.observers: list[Callable[[int], object]] = []

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        clock = self._clock
        trace = clock.trace
        trace.checksum = crc32(task.name.encode(), trace.checksum)
        if self.observers:
            node = task.context.get(current_node)
            if node is not None:
                try:
                    for observer in self.observers:
                        observer(node.node_id)
                except BaseException as error:
                    self.observers = []
                    clock.failed(error)
        clock.now += STEP_SECONDS
        events = clock.events
        if events and events[0][0] <= clock.now:
            clock.run_due()


@contextmanager
def seeded_scheduler(seed: object) -> Iterator[None]:
    """Inside the block, `seed` determines Trio's order of runnable tasks."""
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # final in Trio
    trio_run._r = _Chance(f"{seed}/scheduler")
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = before  # type: ignore[misc]  # final in Trio
