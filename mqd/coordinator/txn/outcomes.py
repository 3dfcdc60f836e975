"""Decisions about the outcome of a transaction: its records, and the effects after their commit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from mqd.coordinator.shard import INTERNAL, CoordinatorRecord, CoordinatorResult, Moment, Ticket
from mqd.coordinator.txn import ending, records
from mqd.coordinator.txn.operations import SealPartitions, WriteMarkers
from mqd.coordinator.txn.transaction import PREPARE_COMMIT, Transaction
from mqd.errors import MqError

_SEALED_MARKER_VERSION: Final = 1
"""The `transaction.version` of a marker for a sealed partition: the seal has the marker's epoch."""


class Outcomes:
    """`transaction_version()`: the level of that feature in this cluster."""

    def __init__(self, transaction_version: Callable[[], int]) -> None:
        self._transaction_version = transaction_version

    def record(self, transactional_id: str, transaction: Transaction) -> CoordinatorRecord:
        return records.encode(
            transactional_id,
            transaction,
            version=records.value_version(self._transaction_version()),
        )

    def fence(self, current: Transaction, spare_producer_id: int, now: Moment) -> Transaction:
        """Abort an open transaction and fence its producer. Raises ProducerIdWanted."""
        return ending.fence(
            current,
            server_version=self._transaction_version(),
            spare_producer_id=spare_producer_id,
            now_ms=now.wall_ms,
        )

    def decide(
        self,
        ticket: Ticket,
        response: Mapping[str, Any] | MqError,
        transactional_id: str,
        decided: Transaction,
        now: Moment,
    ) -> CoordinatorResult:
        """Write the outcome, and after its commit the markers. A transaction without partitions is
        complete at once."""
        written = [self.record(transactional_id, decided)]
        effects: Sequence[Hashable] = ()
        if decided.partitions:
            effects = (markers(transactional_id, decided),)
        else:
            written.append(self.record(transactional_id, ending.complete(decided, now.wall_ms)))
        return CoordinatorResult(
            records=written,
            responses=((ticket, response),) if ticket != INTERNAL else (),
            effects=effects,
        )


def markers(transactional_id: str, decided: Transaction) -> WriteMarkers:
    version = decided.client_version
    if decided.was_prepared:
        version = min(version, _SEALED_MARKER_VERSION)
    return WriteMarkers(
        transactional_id,
        decided.producer,
        decided.state is PREPARE_COMMIT,
        decided.partitions,
        version,
        decided.updated_ms,
    )


def seals(transactional_id: str, prepared: Transaction) -> SealPartitions:
    return SealPartitions(transactional_id, prepared.seal, prepared.partitions)
