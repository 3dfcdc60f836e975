"""Tasks of clients that wait for one another, in turns by address."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class TurnsByAddress:
    """One task at a time. The addresses with waiting tasks take turns. So a client waits for one
    task of each other address, however many connections these have. Tasks of an address keep their
    order.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[trio.Event]] = {}
        """The address that is next comes first."""

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts until the end of the block."""
        if self._is_taken:
            await self._wait(address)
        self._is_taken = True
        try:
            yield
        finally:
            self._begin_next()

    async def _wait(self, address: str) -> None:
        begun = trio.Event()
        self._waiting.setdefault(address, deque()).append(begun)
        try:
            await begun.wait()
        except trio.Cancelled:
            if begun.is_set():
                self._begin_next()
            else:
                self._forget(address, begun)
            raise

    def _forget(self, address: str, begun: trio.Event) -> None:
        self._waiting[address].remove(begun)
        if not self._waiting[address]:
            del self._waiting[address]

    def _begin_next(self) -> None:
        if not self._waiting:
            self._is_taken = False
            return
        address = next(iter(self._waiting))
        tasks = self._waiting.pop(address)
        tasks.popleft().set()
        if tasks:
            self._waiting[address] = tasks
