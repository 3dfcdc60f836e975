"""Two searches that run now and then. One aborts open transactions that took too long, the other
deletes transactional ids without use for a long time.

A search handles some transactional ids at a time, so that other requests are served in between.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from itertools import islice
from typing import Final

from mqd.coordinator.shard import (
    INTERNAL,
    NOTHING,
    CoordinatorRecord,
    CoordinatorResult,
    GroupOptions,
    Moment,
)
from mqd.coordinator.txn import ending, records
from mqd.coordinator.txn.operations import SpareProducerId
from mqd.coordinator.txn.outcomes import Outcomes
from mqd.coordinator.txn.store import TransactionStore
from mqd.coordinator.txn.transaction import AT_REST, ProducerIdWanted
from mqd.limits import TRANSACTIONS_PER_SEARCH
from mqd.types import NO_PRODUCER_ID

logger = logging.getLogger(__name__)

ABORT_INTERVAL: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRY_INTERVAL: Final = "transaction.remove.expired.transaction.cleanup.interval.ms"
_PAUSE_SECONDS: Final = 0.02
"""Between two portions of one search, also while the log refuses appends."""


class Expiration:
    """The searches of one shard. Their times are soft state."""

    def __init__(self, store: TransactionStore, options: GroupOptions, outcomes: Outcomes) -> None:
        self._store = store
        self._options = options
        self._outcomes = outcomes
        self._abort_search_at: float | None = None
        self._expiry_search_at: float | None = None

    def begin(self, now: Moment) -> None:
        self._abort_search_at = now.seconds + self._interval(ABORT_INTERVAL)
        self._expiry_search_at = now.seconds + self._interval(EXPIRY_INTERVAL)

    def next_deadline(self) -> float | None:
        wanted = []
        if self._store.open and self._abort_search_at is not None:
            wanted.append(self._abort_search_at)
        if self._store.transactions and self._expiry_search_at is not None:
            wanted.append(self._expiry_search_at)
        return min(wanted, default=None)

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        if (
            self._store.open
            and self._abort_search_at is not None
            and self._abort_search_at <= now.seconds
        ):
            return self._abort_timed_out(now)
        if (
            self._store.transactions
            and self._expiry_search_at is not None
            and self._expiry_search_at <= now.seconds
        ):
            return self._delete_unused(now)
        return NOTHING

    def timed_out(self, transactional_id: str, now: Moment) -> bool:
        seen_at = self._store.open[transactional_id]
        if seen_at is None:
            seen_at = self._store.open[transactional_id] = now.seconds
        return ending.timed_out(
            self._store.transactions[transactional_id],
            now.wall_ms,
            round((now.seconds - seen_at) * 1000),
        )

    def _abort_timed_out(self, now: Moment) -> CoordinatorResult:
        overdue = (name for name in self._store.open if self.timed_out(name, now))
        found = list(islice(overdue, TRANSACTIONS_PER_SEARCH + 1))
        self._abort_search_at = now.seconds + self._pause(found, ABORT_INTERVAL)
        written: list[CoordinatorRecord] = []
        effects: list[Hashable] = []
        for transactional_id in found[:TRANSACTIONS_PER_SEARCH]:
            current = self._store.transactions[transactional_id]
            logger.info(
                "transaction timed out transactional_id=%s producer_id=%d",
                transactional_id,
                current.producer_id,
            )
            try:
                aborted = self._outcomes.fence(current, NO_PRODUCER_ID, now)
            except ProducerIdWanted:
                effects.append(SpareProducerId(transactional_id, current.producer))
                continue
            decision = self._outcomes.decide(INTERNAL, {}, transactional_id, aborted, now)
            written.extend(decision.records)
            effects.extend(decision.effects)
        return CoordinatorResult(records=written, effects=effects)

    def _delete_unused(self, now: Moment) -> CoordinatorResult:
        """Delete ids without use for `transactional.id.expiration.ms`."""
        limit_ms = now.wall_ms - self._options.node("transactional.id.expiration.ms")
        unused = (
            name
            for name, one in self._store.transactions.items()
            if one.state in AT_REST and one.updated_ms <= limit_ms
        )
        found = list(islice(unused, TRANSACTIONS_PER_SEARCH + 1))
        self._expiry_search_at = now.seconds + self._pause(found, EXPIRY_INTERVAL)
        return CoordinatorResult(
            records=[records.tombstone(name) for name in found[:TRANSACTIONS_PER_SEARCH]]
        )

    def _pause(self, found: list[str], interval: str) -> float:
        is_complete = len(found) <= TRANSACTIONS_PER_SEARCH
        return self._interval(interval) if is_complete else _PAUSE_SECONDS

    def _interval(self, option: str) -> float:
        milliseconds: int = self._options.node(option)
        return milliseconds / 1000
