"""Files that a node reads again while it runs: when they change, and after SIGHUP."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import trio

CHECK_SECONDS = 2.0
"""A changed file is read after this time at most."""
_CHECKS_A_DAY = int(86_400 / CHECK_SECONDS)

Fingerprint = tuple[tuple[int, int, int] | None, ...]


def fingerprint(files: Iterable[Path]) -> Fingerprint:
    """It changes with the files. None stands for a file that cannot be found."""
    found: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


class WatchedFile(Protocol):
    """Something that is read from files."""

    def check(self, *, is_forced: bool) -> None:
        """Read the files if they have changed, or anyway. Logs errors."""
        ...

    def warn(self, now: datetime) -> None:
        """Log what an operator should change. Called at the start and once a day."""
        ...


class WatchedFiles:
    """All of them."""

    def __init__(self) -> None:
        self.sources: list[WatchedFile] = []
        self._wanted = trio.Event()

    def reload(self) -> bool:
        """Read all of them soon. Returns False if there are none."""
        self._wanted.set()
        return bool(self.sources)

    async def run(self) -> None:
        """Watch the files until cancelled."""
        if not self.sources:
            return
        checks = 0
        while True:
            if checks % _CHECKS_A_DAY == 0:
                for source in self.sources:
                    source.warn(datetime.now(UTC))
            checks += 1
            with trio.move_on_after(CHECK_SECONDS):
                await self._wanted.wait()
            is_forced = self._wanted.is_set()
            if is_forced:
                self._wanted = trio.Event()
            for source in self.sources:
                source.check(is_forced=is_forced)
