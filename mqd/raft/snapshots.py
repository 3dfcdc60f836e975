"""Snapshots on their way: how one is built and loaded, and how far one has come on its way to a follower."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mqd.errors import StorageError

if TYPE_CHECKING:
    from mqd.io.disk import File

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


class Source:
    """The bytes of one snapshot, read in parts: of a file, which stays this snapshot when a newer one takes its name, or in memory."""

    __slots__ = ("_bytes", "_file", "size")

    def __init__(self, found: File | bytes) -> None:
        self._bytes = found if isinstance(found, bytes) else b""
        self._file = None if isinstance(found, bytes) else found
        self.size = len(self._bytes) if self._file is None else self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        """Raises StorageError."""
        if self._file is None:
            return self._bytes[position : position + size]
        try:
            return self._file.read_at(position, size)
        except OSError as error:
            raise StorageError(f"{self._file.path}: {error}") from error


@dataclass(slots=True)
class Sending:
    """A snapshot on its way to one follower: one chunk in flight."""

    index: int
    term: int
    source: Source
    acknowledged: int
    sent_at: float
