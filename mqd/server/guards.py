"""Verification guards (verification.py) of all partitions of a node: batches wait here for the
transaction coordinator.

A guard stays after a refusal although no batch waits: the client retries the batch, and no later
batch may begin the transaction before it. A client that is refused repeatedly, each time with
another producer id, leaves one guard each time. The node keeps only the newest guards. A producer
whose guard was evicted may get OUT_OF_ORDER_SEQUENCE_NUMBER, and restarts its transaction.
"""

from __future__ import annotations

from mqd.limits import GUARDS_KEPT_MAX
from mqd.log.producers import Producers
from mqd.log.transaction_guard import Guard


class Guards:
    """Invariant: a guard is in `_waits` or in `_kept`, never in both."""

    def __init__(self) -> None:
        self._waits: dict[Guard, int] = {}
        """The number of requests that wait for each guard."""
        self._kept: dict[Guard, tuple[Producers, int]] = {}
        """Guards without a waiting request, least recently used first. Some are outdated."""

    def take(self, guard: Guard) -> None:
        """Another request waits for this guard."""
        self._kept.pop(guard, None)
        self._waits[guard] = self._waits.get(guard, 0) + 1

    def leave(self, guard: Guard, producers: Producers, producer_id: int) -> None:
        """One request less."""
        waiting = self._waits.pop(guard) - 1
        if waiting:
            self._waits[guard] = waiting
        elif producers.guards.get(producer_id) is guard:
            self._kept[guard] = producers, producer_id
            if len(self._kept) > GUARDS_KEPT_MAX:
                oldest = next(iter(self._kept))
                producers, producer_id = self._kept.pop(oldest)
                if producers.guards.get(producer_id) is oldest:
                    del producers.guards[producer_id]
