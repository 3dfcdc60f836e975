"""Snapshots on their way: how one is built, and how far one has come on its way to a follower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Build = Callable[[Iterator[bytes], Callable[[bytes], None]], None]
"""(pieces, done): joins the pieces of a snapshot, wherever it likes, and calls `done` with them;
never during a flush.
"""


def build_at_once(pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
    """Within the turn, for a node without an event loop."""
    done(b"".join(pieces))


@dataclass(slots=True)
class Sending:
    """A snapshot on its way to one follower: one chunk in flight."""

    index: int
    term: int
    data: bytes
    acknowledged: int
    sent_at: float
