"""A fair lock for client work: addresses take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class AddressFairLock:
    """One task holds the lock. The addresses with waiting tasks get it in turn. So a client waits
    for one task of each other address, however many connections these have. Tasks of an address
    keep their order.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: dict[str, deque[trio.Event]] = {}
        """The address that is next comes first."""

    @asynccontextmanager
    async def held(self, address: str) -> AsyncIterator[None]:
        """Wait for the lock, and hold it until the end of the block."""
        if self._is_held:
            await self._wait(address)
        self._is_held = True
        try:
            yield
        finally:
            self._release()

    async def _wait(self, address: str) -> None:
        granted = trio.Event()
        self._waiting.setdefault(address, deque()).append(granted)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self._release()
            else:
                self._forget(address, granted)
            raise

    def _forget(self, address: str, granted: trio.Event) -> None:
        self._waiting[address].remove(granted)
        if not self._waiting[address]:
            del self._waiting[address]

    def _release(self) -> None:
        if not self._waiting:
            self._is_held = False
            return
        address = next(iter(self._waiting))
        tasks = self._waiting.pop(address)
        tasks.popleft().set()
        if tasks:
            self._waiting[address] = tasks
