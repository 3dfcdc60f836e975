"""Chooses the log directory of a new partition: the online one with the fewest logs. A core."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mqd.errors import StorageError
from mqd.log.log_directory import LogDirectory
from mqd.log.partition_log import PartitionLog


class LogDirPlacement:
    """The number of logs of each online directory. It is kept between calls, because thousands of
    partitions are created one after the other.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Path, int] | None = None
        """None: count the logs again."""

    def choose(
        self, directories: Iterable[LogDirectory], logs: Iterable[PartitionLog], fixed: Path | None
    ) -> Path:
        """The directory for a new log: `fixed`, if it is not None. Raises StorageError if that one,
        or every one, is offline.
        """
        if self._counts is None:
            self._counts = {
                directory.path: 0 for directory in directories if directory.failed is None
            }
            for log in logs:
                if log.directory in self._counts:
                    self._counts[log.directory] += 1
        if not self._counts:
            raise StorageError("no log directory is online")
        if fixed is None:
            return min(self._counts, key=self._counts.__getitem__)
        if fixed not in self._counts:
            raise StorageError(f"log directory {fixed} is offline")
        return fixed

    def on_created(self, directory: Path) -> None:
        """A log was created in the chosen directory."""
        assert self._counts is not None
        self._counts[directory] += 1

    def recount(self) -> None:
        """A log was deleted, or a directory went offline."""
        self._counts = None
