"""Decompresses and compresses batches, for all clients of a node: one slice at a time, in a worker
thread.

A batch belongs to a class by its decompressed size: each class is for twice the size of the one
before. The next slice is for the smallest class. So a small batch waits for one slice of a large
one: a decompression takes 50 to 100 ms, any other slice 5 ms. Every fourth slice is for the batch
that has waited longest, so that large batches progress.

Within a class, the next batch is for the address that has used the least time of the thread. Of its
connections, the one that has used the least comes first (weighted fair queueing). An idle address
restarts at the virtual time: the time that each of the others could have used by then. So a client
at another address waits for a few batches, however many connections flood the node.

At most one batch per class is in progress, so all together use at most twice the largest size.
A batch whose client has closed the connection is given up before its next slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Protocol

import trio

from mqd.io.disk import Disk
from mqd.limits import KIB

_SMALLEST_CLASS = (32 * KIB).bit_length()
_OLDEST_EVERY = 4


class Work(Protocol):
    """The decompression or compression of one batch."""

    @property
    def size(self) -> int:
        """The bytes that the next slice makes, at most."""
        ...

    @property
    def slices(self) -> Iterator[None]:
        """The work: each `next` is a slice. After a change of `size` it holds nothing."""
        ...

    def give_up(self) -> None: ...


class ReadWork(Work, Protocol):
    """Work whose result is read in slices of the event loop."""

    @property
    def is_released(self) -> bool:
        """Whether the result was read, or there is none."""
        ...


class _Place:
    """One batch in the queue."""

    __slots__ = ("address", "client", "granted", "number", "size_class", "work")

    def __init__(self, work: Work, client: str, number: int) -> None:
        self.work = work
        self.client = client
        self.address = client.rpartition(":")[0]
        self.number = number
        self.size_class = 0
        self.granted = trio.Event()


class _Shares:
    """How much time of the thread each client has used: an address, or a connection."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        """Seconds, counted from the virtual time at which the client came. Without entries that
        the virtual time has passed, and that belong to no present batch.
        """
        self._virtual_time = 0.0
        self._present: Counter[str] = Counter()
        """Batches of each client that wait or run."""

    def enter(self, client: str) -> None:
        self._present[client] += 1
        self.used[client] = max(self.used.get(client, 0.0), self._virtual_time)

    def use(self, client: str, seconds: float) -> None:
        self.used[client] += seconds
        self._virtual_time += seconds / len(self._present)

    def leave(self, client: str) -> None:
        self._present[client] -= 1
        if self._present[client]:
            return
        del self._present[client]
        self.used = {
            one: seconds
            for one, seconds in self.used.items()
            if self._present and (one in self._present or seconds > self._virtual_time)
        }


class BatchWork:
    """Built once a node."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._numbers = count()
        self._waiting: dict[_Place, None] = {}
        self._begun: dict[int, _Place] = {}
        """The batch of each class that has begun: others of the class wait until it has ended."""
        self._running: _Place | None = None
        self._slices = 0
        self._of_addresses, self._of_clients = _Shares(), _Shares()

    @asynccontextmanager
    async def done(
        self, work: Work, client: str, is_wanted: Callable[[], bool]
    ) -> AsyncIterator[None]:
        """Carry out the work, or give it up when it is not wanted any more. No other batch of this
        size begins until the end of the block. `client`: its address and
        port.
        """
        place = _Place(work, client, next(self._numbers))
        self._of_addresses.enter(place.address)
        self._of_clients.enter(client)
        try:
            while True:
                if is_wanted():
                    await self._wait_for_slice(place)
                if not is_wanted():
                    work.give_up()
                    break
                self._slices += 1
                before = trio.current_time()
                is_over = await self._disk.offload(_is_over, work)
                self._count(place, trio.current_time() - before)
                if is_over:
                    break
            self._end_slice(place)
            yield
        finally:
            self._waiting.pop(place, None)
            self._end_slice(place)
            self._leave_class(place)
            self._of_addresses.leave(place.address)
            self._of_clients.leave(client)
            self._begin_next()

    async def _wait_for_slice(self, place: _Place) -> None:
        size_class = max(place.work.size.bit_length(), _SMALLEST_CLASS)
        if size_class != place.size_class:
            self._leave_class(place)
            place.size_class = size_class
        place.granted = trio.Event()
        self._waiting[place] = None
        self._end_slice(place)
        await place.granted.wait()

    def _end_slice(self, place: _Place) -> None:
        if self._running is place:
            self._running = None
        self._begin_next()

    def _leave_class(self, place: _Place) -> None:
        if self._begun.get(place.size_class) is place:
            del self._begun[place.size_class]

    def _begin_next(self) -> None:
        if self._running is not None:
            return
        ready = [
            place for place in self._waiting if self._begun.get(place.size_class, place) is place
        ]
        if not ready:
            return
        if self._slices % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            chosen = min(ready, key=lambda place: place.number)
        else:
            chosen = min(ready, key=self._order)
        del self._waiting[chosen]
        self._begun[chosen.size_class] = self._running = chosen
        chosen.granted.set()

    def _count(self, place: _Place, seconds: float) -> None:
        self._of_addresses.use(place.address, seconds)
        self._of_clients.use(place.client, seconds)

    def _order(self, place: _Place) -> tuple[int, float, float, int]:
        """The least is next."""
        return (
            place.size_class,
            self._of_addresses.used[place.address],
            self._of_clients.used[place.client],
            place.number,
        )


def _is_over(work: Work) -> bool:
    """Run one slice."""
    over = True
    for _ in work.slices:
        over = False
        break
    return over
