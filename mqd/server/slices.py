"""Large requests, handled in slices: between two slices all other connections have a turn.

A slice ends after `SLICE_ROWS`, or after `TASK_SLICE_SECONDS_MAX` where the rows of a client are
slower than most. Such rows have names of 4 KiB, or resources with thousands of ACLs.

A handler returns a coroutine for a request of thousands of rows. It delays only later requests of
the same connection; its response is encoded in slices too. A handler may also be a generator that
yields the number of rows since the last yield and returns the response. For a small request
dispatch.py runs it in one step, for a large one in slices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

import trio

from mqd.limits import TASK_SLICE_SECONDS_MAX
from mqd.protocol.slices import WHOLE_SLICE
from mqd.server.batch_work import BatchWork, ReadWork

SLICE_ROWS = WHOLE_SLICE
"""Rows of one slice (1 to 3 ms). A request with more rows gets a task."""

KEY_CHARS_A_ROW = 30
"""Hashing this many characters of a name costs as much as one row."""

Row = TypeVar("Row")
Result = TypeVar("Result")


_one_at_a_time: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("slices")
"""One slice per pass of the event loop, in the order of the requests. Many large requests delay
others no longer than one does.
"""


between_slices: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar(
    "between_slices", default=None
)
"""What the work of this task waits for between two slices, besides its turn (places.py)."""


def _lock() -> trio.Lock:
    try:
        return _one_at_a_time.get()
    except LookupError:
        lock = trio.Lock()
        _one_at_a_time.set(lock)
        return lock


async def _taken() -> trio.Lock:
    """The right to run a slice: at once if no other task has it."""
    lock = _lock()
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()
    return lock


def _leave(lock: trio.Lock) -> None:
    """Give the right back, unless this task was cancelled while it waited for its next slice."""
    if lock.statistics().owner is trio.lowlevel.current_task():
        lock.release()


@asynccontextmanager
async def one_slice() -> AsyncIterator[None]:
    """The right to run one slice, when its turn has come; nothing waits within it."""
    lock = _lock()
    await lock.acquire()
    try:
        yield
    finally:
        lock.release()


async def others_first() -> None:
    """Wait until it is this task's turn to run a slice."""
    async with one_slice():
        pass


class _Slice:
    """One slice of work, and how much of it is done."""

    __slots__ = ("_ends_at", "_weight")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._weight = 0
        self._ends_at = trio.current_time() + TASK_SLICE_SECONDS_MAX

    def is_over(self, weight: int) -> bool:
        """Count more rows. Returns whether others should have a turn."""
        self._weight += weight
        return self._weight >= SLICE_ROWS or trio.current_time() >= self._ends_at


class Pace:
    """For a loop that awaits: `await pace.row()` lets others go first after each
    `SLICE_ROWS` rows.
    """

    def __init__(self) -> None:
        self._slice = _Slice()

    async def row(self, weight: int = 1) -> None:
        if self._slice.is_over(weight):
            wait = between_slices.get()
            if wait is not None:
                await wait()
            await others_first()
            self._slice.begin()


async def listed_in_slices(
    rows: Iterable[Row], weigh: Callable[[Row], int] = lambda row: 1
) -> list[Row]:
    """`rows` as a list, built in slices of `SLICE_ROWS` by weight. Their source may change between
    two slices.
    """

    def listed() -> Generator[int, None, list[Row]]:
        made = []
        for row in rows:
            made.append(row)
            yield weigh(row)
        return made

    return await finished_in_slices(listed())


async def finished_in_slices(work: Generator[int, None, Result]) -> Result:
    """Run a generator in slices and return its result. It yields the rows done since its last
    yield.
    """
    lock = await _taken()
    try:
        one = _Slice()
        while True:
            try:
                rows = next(work)
            except StopIteration as end:
                result: Result = end.value
                return result
            if one.is_over(rows):
                lock.release()
                wait = between_slices.get()
                if wait is not None:
                    await wait()
                await lock.acquire()
                one.begin()
    finally:
        _leave(lock)


DecompressingSlices = Generator[int | ReadWork, None, Result]
"""As the generators above, or it yields work for a worker thread, such as a decompression."""


def first_slice(work: DecompressingSlices[Result]) -> tuple[Result] | ReadWork | None:
    """Run one slice at once. Returns the result, or the thread work that it waits for."""
    one = _Slice()
    try:
        while True:
            step = next(work)
            if not isinstance(step, int):
                return step
            if one.is_over(step):
                return None
    except StopIteration as end:
        return (end.value,)


async def finished_with_decompression(
    work: DecompressingSlices[Result],
    batch_work: BatchWork,
    client: str,
    is_wanted: Callable[[], bool],
    first: ReadWork | None = None,
) -> Result:
    """As `finished_in_slices`, and decompresses in the worker thread. `client`: its address and
    port. `first`: the decompression that the work waits for. The work stops early if `is_wanted`
    returns False.
    """
    read = first
    while True:
        if read is None:
            finished = await finished_in_slices(_part(work, None))
        else:
            wait = between_slices.get()
            if wait is not None:
                await wait()
            async with batch_work.done(read, client, is_wanted):
                # others may hold all places, and wait until this batch is read
                token = between_slices.set(None)
                try:
                    finished = await finished_in_slices(_part(work, read))
                finally:
                    between_slices.reset(token)
        if isinstance(finished, tuple):
            return finished[0]
        read = finished


def _part(
    work: DecompressingSlices[Result], read: ReadWork | None
) -> Generator[int, None, tuple[Result] | ReadWork | None]:
    """The work until its end, until the next decompression, or until the batch is `read`."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            return (end.value,)
        if not isinstance(step, int):
            return step
        if read is not None and read.is_released:
            return None
        yield step


async def finished_soon(work: Generator[int, None, Result]) -> Result:
    """As `finished_in_slices`, but the first slice runs at once, before waiting tasks: most work
    fits into it.
    """
    finished = first_slice(work)
    if isinstance(finished, tuple):
        return finished[0]
    await others_first()
    return await finished_in_slices(work)
