"""What was taken out of the logs and is to leave the disk: retired files and deleted partitions,
each when its delay is over.

Renamed things only: whatever is still here when the process ends is found by the next start.
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


class Removals:
    """`earlier` is called when something new is due."""

    __slots__ = ("_clock", "_disk", "_due", "_earlier")

    def __init__(self, disk: Disk, clock: Clock, earlier: Callable[[], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._earlier = earlier
        self._due: list[tuple[float, Path]] = []
        """(when, what); in no order."""

    def add(self, path: Path, delay_ms: int) -> None:
        self.add_all([path], delay_ms)

    def add_all(self, paths: Iterable[Path], delay_ms: int) -> None:
        for path in paths:
            self._due.append((self._clock.monotonic() + delay_ms / 1000, path))
            self._earlier()

    def deadlines(self) -> list[float]:
        return [due for due, _ in self._due]

    async def remove(self, now: float) -> None:
        """Everything that is due at `now` (monotonic seconds)."""
        for due, path in [removal for removal in self._due if removal[0] <= now]:
            self._due.remove((due, path))
            await self._remove(path)

    async def _remove(self, path: Path) -> None:
        """Elsewhere than on the loop: unlinking large files takes its time."""
        remove = self._disk.remove_tree if is_deleted_directory(path.name) else self._disk.remove
        try:
            await self._disk.offload(remove, path)
        except OSError as error:
            logger.warning("cannot remove path=%s reason=%s", path, error)
            if error.errno in PASSING_ERRNOS:
                self.add(path, LogConfig().file_delete_delay_ms)
