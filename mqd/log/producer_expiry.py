"""Removes producers from the memory of a log, in slices. A core.

The caller iterates, and may pause between two slices. The producers may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from mqd.limits import PRODUCERS_PER_SLICE
from mqd.types import NO_OFFSET

if TYPE_CHECKING:
    from mqd.log.producers import Producers


def expire(producers: Producers, now_ms: int, idle_ms_max: int) -> Iterator[None]:
    """Remove idle producers without an open transaction, and guards without a waiting batch.

    Idle by the clock of this node: an active producer may send records with old timestamps.
    """
    states = producers.states
    for place, producer_id in enumerate(list(states), 1):
        if place % PRODUCERS_PER_SLICE == 0:
            yield
        producer = states.get(producer_id)
        if producer is None:
            continue
        last_offset = producer.last_offset
        if producer.idle_last_offset != last_offset:
            producer.idle_last_offset, producer.idle_since_ms = last_offset, now_ms
        elif (
            now_ms - producer.idle_since_ms > idle_ms_max
            and producer.current_txn_first_offset == NO_OFFSET
        ):
            del states[producer_id]
    for producer_id, guard in list(producers.guards.items()):
        if now_ms - guard.since_ms > idle_ms_max:
            del producers.guards[producer_id]


def forget_oldest(producers: Producers, keep: int) -> Iterator[None]:
    """Remove the least recently used producers until `keep` are left. Producers in a transaction
    stay.
    """
    states = producers.states
    most = max(0, len(states) - keep)
    oldest_ids = list(islice(states, most))
    oldest = list(islice(states.values(), most))
    oldest_ids.reverse()
    oldest.reverse()
    for place in range(1, most + 1):
        # Popped, so that each state is freed here, and not all of them at the end.
        producer_id, producer = oldest_ids.pop(), oldest.pop()
        if place % PRODUCERS_PER_SLICE == 0:
            yield
        if states.get(producer_id) is producer and producer.current_txn_first_offset == NO_OFFSET:
            del states[producer_id]
