"""Which log directory the next partition goes to: the one that is online and holds the fewest.

A core.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mqd.errors import StorageError
from mqd.log.disk.directory import LogDirectory
from mqd.log.partition_log import PartitionLog


class Homes:
    """Counts are made once and kept: thousands of partitions are made one after the other."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Path, int] | None = None

    def choose(
        self, directories: Iterable[LogDirectory], logs: Iterable[PartitionLog], wanted: Path | None
    ) -> Path:
        """The directory for a new log, `wanted` where one is.

        StorageError when that one, or every one, is offline.
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
        if wanted is None:
            return min(self._counts, key=self._counts.__getitem__)
        if wanted not in self._counts:
            raise StorageError(f"log directory {wanted} is offline")
        return wanted

    def added(self, home: Path) -> None:
        assert self._counts is not None
        self._counts[home] += 1

    def changed(self) -> None:
        """A log or a directory is gone."""
        self._counts = None
