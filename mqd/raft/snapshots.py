"""How a snapshot of the machine is built and loaded, and when a node takes its own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mqd.raft.journal import Journal

from mqd import limits

T = TypeVar("T")
Work = Generator[None, None, T]
"""A generator that works for some milliseconds in each step, and returns a T."""

Build = Callable[[Iterator[bytes], Callable[[bytes], None]], None]
"""(pieces, done): joins the pieces of a snapshot in any thread, and calls `done` with the result;
never during a flush.
"""


def build_at_once(pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
    """Build within the turn, for a node without an event loop."""
    done(b"".join(pieces))


Load = Callable[[Work[Any], Callable[[Any], None]], None]
"""(work, done): runs the steps in any thread, and calls `done` with their result; never during a
flush.
"""


def load_at_once(work: Work[Any], done: Callable[[Any], None]) -> None:
    """Load within the turn, for a node without an event loop."""
    done(all_steps(work))


def all_steps(work: Work[T]) -> T:
    """Run all steps; returns the result of the work."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass(frozen=True, slots=True)
class Compaction:
    """When the journal is truncated after a snapshot of the metadata."""

    entries_max: int = limits.RAFT_JOURNAL_ENTRIES_MAX
    """A snapshot is due after this many applied entries since the last one."""
    bytes_max: int = limits.RAFT_JOURNAL_BYTES_MAX
    """A snapshot is also due after this many bytes of such entries."""
    entries_kept: int = limits.RAFT_JOURNAL_ENTRIES_KEPT
    """Entries kept before a snapshot: a follower that lacks no more than these needs no
    snapshot.
    """


class OwnSnapshots:
    """Takes snapshots of this node's machine, and compacts its journal with them."""

    def __init__(self, journal: Journal, compaction: Compaction, build: Build) -> None:
        self._journal = journal
        self._compaction = compaction
        self._build = build
        self._building = False
        self._not_before = 0
        """Take no snapshot before this entry is applied, because the disk had no space for one."""
        self._applied_bytes = 0
        """Bytes of the commands applied since the last snapshot."""
        self.taken = 0

    def on_applied(self, command: bytes) -> None:
        self._applied_bytes += len(command)

    def on_installed(self) -> None:
        """A leader's snapshot has replaced the log."""
        self._applied_bytes = 0

    def is_due(self, applied_index: int) -> bool:
        due = self._compaction
        entries = applied_index - self._journal.snapshot_index
        if entries < due.entries_max and self._applied_bytes < due.bytes_max:
            return False
        return not self._building and applied_index >= self._not_before

    def take(
        self, applied_index: int, pieces: Iterator[bytes], now_applied: Callable[[], int]
    ) -> None:
        """`pieces`: the state after entry `applied_index`. `now_applied()`: the same index when the
        snapshot is built."""
        self._building = True
        done = partial(self._on_built, applied_index, self._applied_bytes, now_applied)
        self._build(pieces, done)

    def _on_built(
        self, index: int, applied_bytes: int, now_applied: Callable[[], int], state: bytes
    ) -> None:
        """`state`: after entry `index`, when `applied_bytes` bytes had been applied. Later entries
        stay in the log.
        """
        self._building = False
        if index <= self._journal.snapshot_index:
            return  # a leader's snapshot was installed first
        entries_kept = self._compaction.entries_kept
        if not self._journal.has_room_for(len(state)):
            self._not_before = (
                now_applied() + entries_kept
            )  # let the log grow before the next attempt
            return
        self._journal.compact(index, state, entries_kept=entries_kept)
        self.taken += 1
        self._applied_bytes -= applied_bytes
