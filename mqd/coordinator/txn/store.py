"""The transactions of one shard, and their size in memory. `replay` is the only mutation of what
records hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from mqd.coordinator.account import TEXT_BYTES, text_bytes
from mqd.coordinator.shard import CoordinatorRecord
from mqd.coordinator.txn import ending, records
from mqd.coordinator.txn.transaction import ONGOING, Transaction
from mqd.types import NO_EPOCH, TopicPartition

TRANSACTION_BYTES: Final = 1024
"""Memory of a transactional id, without its characters and the partitions of its transaction."""
PARTITION_BYTES: Final = 256
"""Memory of a partition of a transaction, without the characters of its topic: in the transaction,
and in `unmarked` or `unsealed`."""


def weight(transactional_id: str, transaction: Transaction | None) -> int:
    """About how many bytes a transactional id takes in memory; 0 for an unknown one."""
    if transaction is None:
        return 0
    topics = sum(
        len(topic) + TEXT_BYTES
        for topic, _ in groupby(transaction.partitions, key=attrgetter("topic"))
    )
    return (
        TRANSACTION_BYTES
        + text_bytes(transactional_id)
        + PARTITION_BYTES * len(transaction.partitions)
        + topics
    )


class TransactionStore:
    """By transactional id.

    No record holds this soft state: partitions that already have their marker or seal, and the
    epoch that a producer may repeat after InitProducerId. Nor does one hold when this node first
    saw a transaction open. After a failover, all markers and seals are written again; a repeated
    one does nothing.
    """

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.open: dict[str, float | None] = {}
        """Open transactions: when the search for timeouts saw each first, in monotonic seconds;
        None before."""
        self.unmarked: dict[str, set[TopicPartition]] = {}
        """Decided transactions: the partitions that may lack the marker."""
        self.unsealed: dict[str, set[TopicPartition]] = {}
        """Prepared transactions: the partitions that may lack the seal."""
        self.bytes = 0
        self._initialized: tuple[CoordinatorRecord, int] | None = None
        """The record of the latest InitProducerId, and its last producer epoch. If the append of
        the record is refused, it is never replayed."""

    def get(self, transactional_id: str) -> Transaction | None:
        return self.transactions.get(transactional_id)

    def recount(self) -> int:
        """`bytes` from scratch, for tests and the simulation."""
        return sum(weight(*pair) for pair in self.transactions.items())

    def note_initialized(self, record: CoordinatorRecord, last_producer_epoch: int) -> None:
        self._initialized = record, last_producer_epoch

    def replay(self, record: CoordinatorRecord) -> None:
        # The state is the replay of the log, and nothing else (I32).
        transactional_id, transaction = records.decode(record)
        before = self.transactions.get(transactional_id)
        self.bytes += weight(transactional_id, transaction) - weight(transactional_id, before)
        seen_at = self.open.pop(transactional_id, None)
        self.unmarked.pop(transactional_id, None)
        unsealed = self.unsealed.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            return
        initialized_epoch = NO_EPOCH
        if self._initialized is not None and self._initialized[0] == record:
            initialized_epoch = self._initialized[1]
        last_epoch = ending.last_epoch_after(before, transaction, initialized_epoch)
        self.transactions[transactional_id] = replace(transaction, last_producer_epoch=last_epoch)
        if transaction.state is ONGOING:
            is_same = (
                before is not None
                and before.state is ONGOING
                and before.started_ms == transaction.started_ms
            )
            self.open[transactional_id] = seen_at if is_same else None
            if transaction.is_prepared:
                self.unsealed[transactional_id] = (
                    set(transaction.partitions) if unsealed is None else unsealed
                )
        elif transaction.state.decided:
            self.unmarked[transactional_id] = set(transaction.partitions)
