"""Virtual time, the order of everything, and the trace: what makes one seed one history
(I29).

Time stands still while code runs, but for a small price a task step, and jumps to the next event
when every task waits. Events are of two kinds: Trio's own deadlines, and those of this module's
queue (bytes that arrive, disks that are done). Trio's batches of runnable tasks are ordered by the
age of the tasks and then shuffled with the seed.

This is the one file that knows Trio's private names: `_run._r` and
`_run._ALLOW_DETERMINISTIC_SCHEDULING` (Trio keeps them for hypothesis-trio),
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
"""What the virtual clock shows when a run begins, in seconds."""
STEP_SECONDS: float = 5e-6
"""What one step of a task costs in virtual time: a task that never waits cannot stop the clock."""
TAIL_LINES = 2_000

current_node: ContextVar[Any] = ContextVar("current_node", default=None)
"""The process of the node (process.py) whose task runs; None for a task of the test itself."""


class NothingLeft(Exception):
    """Every task waits, and nothing will ever happen: the program under test waits for
    something that cannot come.
    """


class Timer:
    """One future event, unless `cancel` removes it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Trace:
    """What happened, as lines of `time node what`: a running checksum of all of them, and the last
    ones.

    Steps of tasks go into the checksum only; `write_to`, a list or anything else with `append`,
    gets every line.
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
        """The whole history in a few letters: two runs with the same one went the same way."""
        return f"{self.count}-{self.checksum:08x}"


class VirtualClock(trio.abc.Clock):
    """Trio's clock for one run, and the queue of events."""

    def __init__(self) -> None:
        self.now = STARTS_AT
        self.trace = Trace(self)
        self.jumps = 0
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called with an exception of an event; the owner ends the run with it."""
        self.events: list[tuple[float, int, Timer]] = []
        """A heap: when, in which order, what."""
        self._numbers = count()
        self._runner: Any = None
        self._is_stuck = False

    # -- Trio calls

    def start_clock(self) -> None:
        runner: Any = trio_run.GLOBAL_RUN_CONTEXT.runner
        self._runner = runner
        runner.io_manager = _SeldomPolled(runner.io_manager, runner.entry_queue)
        runner.instruments = _FewInstruments(runner.instruments)

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called when no task can run: advance to the next event."""
        runner = self._runner
        queue = runner.entry_queue
        if queue.queue or queue.idempotent_queue:
            return 0.0  # called for by run_sync_soon: its task runs in the next pass
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
        """Have `call` called at `time`. It must not wait; it may wake tasks."""
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
        """No task of this node runs from its next step on, until `release`.

        A node may be held for several reasons; each needs its own `release`.
        """
        queue = self._gated_queue()
        queue.reasons[node] += 1
        if queue.reasons[node] == 1:
            waiting = list(queue)
            queue.clear()
            for task in waiting:
                queue.append(task)

    def release(self, node: Any) -> None:
        """One reason less to hold this node. Quiet when there is none."""
        queue = self._gated_queue()
        if queue.reasons[node] > 1:
            queue.reasons[node] -= 1
            return
        del queue.reasons[node]
        for task in queue.held.pop(node, ()):
            queue.append(task)

    def _gated_queue(self) -> _GatedQueue:
        """Trio's queue, replaced when it is needed first: it costs a little."""
        runner = self._runner
        if not isinstance(runner.runq, _GatedQueue):
            runner.runq = _GatedQueue(runner.runq)
        queue: _GatedQueue = runner.runq
        return queue


class _SeldomPolled:
    """Trio's manager of real sockets, which polls the kernel in each pass of the loop. A simulation
    has no real sockets as a rule. So this polls only in every 64th pass, when a thread has called
    `run_sync_soon`, and when the loop would sleep.
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
    """Trio's instruments as they are at the beginning. Trio looks up missing ones several times a
    step, which costs little here.
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
    """Trio's queue of runnable tasks, without those of nodes that are held: paused, or busy."""

    def __init__(self, tasks: Iterable[Any] = ()) -> None:
        super().__init__(tasks)
        self.reasons: Counter[Any] = Counter()
        """Node -> for how many reasons it is held."""
        self.held: dict[Any, list[Any]] = {}

    def append(self, task: Any) -> None:
        if self.reasons:
            node = task.context.get(current_node)
            if node is not None and node in self.reasons:
                self.held.setdefault(node, []).append(task)
                return
        super().append(task)


class Steps(trio.abc.Instrument):
    """Counts each step of a task, lets it cost time, and calls the observers for steps of nodes."""

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
    """Trio's order of runnable tasks comes from `seed` inside of the block."""
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # final in Trio
    trio_run._r = _Chance(f"{seed}/scheduler")
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = before  # type: ignore[misc]  # final in Trio
