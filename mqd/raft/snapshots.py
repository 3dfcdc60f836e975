"""Snapshots on their way: how one is built and loaded, and how far one has come on its way to a follower."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mqd.raft.journal import Source

T = TypeVar("T")
Work = Generator[None, None, T]
"""Work of some milliseconds a step, which returns a T."""

Build = Callable[[Iterator[bytes], Callable[[bytes], None]], None]
"""(pieces, done): joins the pieces of a snapshot, wherever it likes, and calls `done` with them;
never during a flush.
"""


def build_at_once(pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
    """Within the turn, for a node without an event loop."""
    done(b"".join(pieces))


Load = Callable[[Work[Any], Callable[[Any], None]], None]
"""(work, done): makes the steps, wherever it likes, and calls `done` with what they return; never during a flush."""


def load_at_once(work: Work[Any], done: Callable[[Any], None]) -> None:
    """Within the turn, for a node without an event loop."""
    done(all_steps(work))


def all_steps(work: Work[T]) -> T:
    """What the work returns, at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass(slots=True)
class Sending:
    """A snapshot on its way to one follower: one chunk in flight."""

    index: int
    term: int
    source: Source
    acknowledged: int
    sent_at: float
