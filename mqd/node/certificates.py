"""Reads certificates again while the node runs: when their files change, and after SIGHUP.

A new certificate is for new connections: those that are open keep theirs. If a file is invalid, the
old certificate stays, and the log has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import trio

from mqd.config import StartError

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""A changed file is read after this time at most."""

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class CertificateSource:
    """The certificates of one listener."""

    def __init__(self, name: str, files: tuple[str, ...], load: Callable[[], None]) -> None:
        """`load()`: reads the files, and raises StartError without a change."""
        self.name = name
        self._files = tuple(map(Path, files))
        self._load = load
        self._seen = self._fingerprint()

    def check(self, *, is_forced: bool) -> None:
        """Read the files if they have changed, or anyway."""
        seen = self._fingerprint()
        if seen == self._seen and not is_forced:
            return
        self._seen = seen
        try:
            self._load()
        except StartError as error:
            logger.error(
                "certificate not loaded, the old one stays listener=%s reason=%s", self.name, error
            )
        else:
            logger.info("certificate loaded listener=%s", self.name)

    def _fingerprint(self) -> _Fingerprint:
        found: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)


class Certificates:
    """Those of all listeners."""

    def __init__(self) -> None:
        self.sources: list[CertificateSource] = []
        self._wanted = trio.Event()

    def reload(self) -> bool:
        """Read all of them soon. Returns False if there are none."""
        self._wanted.set()
        return bool(self.sources)

    async def run(self) -> None:
        """Watch the files until cancelled."""
        if not self.sources:
            return
        while True:
            with trio.move_on_after(CHECK_SECONDS):
                await self._wanted.wait()
            is_forced = self._wanted.is_set()
            if is_forced:
                self._wanted = trio.Event()
            for source in self.sources:
                source.check(is_forced=is_forced)
