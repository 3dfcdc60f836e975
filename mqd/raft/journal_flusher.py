"""The journal's flush off the event loop, repeated while the disk has no space.

A full disk with a used reserve is no failure. No message of the turn was sent, so the other nodes
see a slow disk.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mqd.errors import StorageError
from mqd.io.clock import Clock
from mqd.raft.journal import Journal

logger = logging.getLogger(__name__)

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call in a worker thread. A simulation on virtual time runs it directly."""

SPACE_RETRY_SECONDS = 1.0
"""Pause between two attempts to write to a full disk."""
SPACE_LOG_SECONDS = 30.0


class JournalFlusher:
    def __init__(self, blocking: InThread, clock: Clock) -> None:
        self._blocking = blocking
        self._clock = clock
        self._stop_wanted = trio.Event()
        self.full: str | None = None
        """The error for proposals while the disk has no space for the journal."""

    def stop(self) -> None:
        """Stop the retries while the disk has no space."""
        self._stop_wanted.set()

    async def flush(self, journal: Journal) -> bool:
        """Flush the journal. False if `stop` was called first, and not all data is on disk. Raises
        StorageError.
        """
        logged_at = -math.inf
        while True:
            try:
                await self._blocking(journal.flush)
                if self.full is not None:
                    logger.info("metadata writes resume reason='the disk has space again'")
                self.full = None
                return True
            except StorageError as error:
                if not error.out_of_space:
                    raise
                self.full = (
                    f"the disk of the metadata is full: {error}; free some space, and it continues"
                )
                if self._stop_wanted.is_set():
                    logger.warning("metadata writes ended before the stop reason=%s", self.full)
                    return False
                if self._clock.monotonic() - logged_at >= SPACE_LOG_SECONDS:
                    logged_at = self._clock.monotonic()
                    logger.error("metadata writes are blocked reason=%s", self.full)
            with trio.move_on_after(SPACE_RETRY_SECONDS):
                await self._stop_wanted.wait()
