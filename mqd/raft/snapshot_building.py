"""Builds and loads snapshots in a worker thread, some pieces at a time, with a pause after each
slice.

The machine's pieces hold the state of one moment (machine.py), so the loop applies commands while
they are built. It applies none while a snapshot is loaded. A slice holds Python's lock for some
milliseconds; the rest after it leaves the processor to the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

import trio

from mqd.io.clock import Clock
from mqd.limits import RAFT_SNAPSHOT_PIECES_PER_SLICE, RAFT_SNAPSHOT_REST_SECONDS_MAX
from mqd.raft.snapshots import Work


async def build(
    pieces: Iterator[bytes], in_thread: Callable[[Callable[[], Any]], Awaitable[Any]], clock: Clock
) -> bytes:
    """The joined pieces. Raises their exceptions."""
    built: list[bytes] = []

    def build_slice() -> bytes | None:
        before = len(built)
        built.extend(islice(pieces, RAFT_SNAPSHOT_PIECES_PER_SLICE))
        return b"".join(built) if len(built) - before < RAFT_SNAPSHOT_PIECES_PER_SLICE else None

    state: bytes = await _repeated(build_slice, in_thread, clock)
    return state


async def load(
    work: Work[Any], in_thread: Callable[[Callable[[], Any]], Awaitable[Any]], clock: Clock
) -> Any:
    """The result of the work, which is not None. Raises its exceptions."""

    def run_slice() -> Any:
        try:
            for _ in range(RAFT_SNAPSHOT_PIECES_PER_SLICE):
                next(work)
        except StopIteration as end:
            return end.value
        return None

    return await _repeated(run_slice, in_thread, clock)


async def _repeated(
    run_slice: Callable[[], Any],
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    clock: Clock,
) -> Any:
    while True:
        began = clock.monotonic()
        result = await in_thread(run_slice)
        if result is not None:
            return result
        await trio.sleep(min(clock.monotonic() - began, RAFT_SNAPSHOT_REST_SECONDS_MAX))
