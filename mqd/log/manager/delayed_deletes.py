"""Removes retired files and deleted partitions from the disk, each after its delay.

They were renamed before. The next start removes what is left when the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import PASSING_ERRNOS
from mqd.log.log_config import LogConfig
from mqd.protocol.files import is_deleted_directory

if TYPE_CHECKING:
    from mqd.io.clock import Clock
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)


class DelayedDeletes:
    """`on_added` is called for each new path."""

    __slots__ = ("_clock", "_disk", "_due", "_on_added")

    def __init__(self, disk: Disk, clock: Clock, on_added: Callable[[], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._on_added = on_added
        self._due: list[tuple[float, Path]] = []
        """(deadline in monotonic seconds, path), in no order."""

    def add(self, path: Path, delay_ms: int) -> None:
        self.add_all([path], delay_ms)

    def add_all(self, paths: Iterable[Path], delay_ms: int) -> None:
        for path in paths:
            self._due.append((self._clock.monotonic() + delay_ms / 1000, path))
            self._on_added()

    def deadlines(self) -> list[float]:
        return [due for due, _ in self._due]

    async def remove_due(self, now: float) -> None:
        """Remove everything that is due at `now` (monotonic seconds)."""
        for due, path in [(due, path) for due, path in self._due if due <= now]:
            self._due.remove((due, path))
            await self._remove(path)

    async def _remove(self, path: Path) -> None:
        """Remove one path, in a worker thread, because the removal of a large file takes long."""
        remove = self._disk.remove_tree if is_deleted_directory(path.name) else self._disk.remove
        try:
            await self._disk.offload(remove, path)
        except OSError as error:
            logger.warning("cannot remove path=%s reason=%s", path, error)
            if error.errno in PASSING_ERRNOS:
                self.add(path, LogConfig().file_delete_delay_ms)
