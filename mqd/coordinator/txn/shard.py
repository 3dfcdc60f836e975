"""The transaction coordinator of one partition of `__transaction_state`: its calls and reports.

transaction.py has the states of one transactional id, store.py has all of them, and
expiration.py searches them. When the outcome of a transaction is committed, the effect
`WriteMarkers` follows: marker_sender.py writes the markers and reports with `MarkersWritten`. The
preparation for another coordinator (KIP-939) has the effect `SealPartitions` first: its new owner
is returned when every partition refuses the former one.

Invariants (I35): markers are sent only after the Prepare record of the outcome is committed.
Complete follows only when every partition of the transaction has its marker, or was deleted with
its topic. A prepared transaction is decided by its owner, or aborted by a new InitProducerId; never
by time, if it was prepared with `enable_2_pc` (I39).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from mqd.coordinator.account import UNBOUNDED, Account, text_bytes
from mqd.coordinator.shard import (
    NO_PRODUCER,
    NOTHING,
    CoordinatorRecord,
    CoordinatorResult,
    GroupOptions,
    Moment,
    Producer,
    Ticket,
    TopicsView,
)
from mqd.coordinator.txn import ending, initialization, partitions
from mqd.coordinator.txn.expiration import Expiration
from mqd.coordinator.txn.listing import described, idle_ms, listed
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    AddPartitions,
    DescribeIdleProducer,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkersWritten,
    PartitionsSealed,
    VerifyPartitions,
    check,
)
from mqd.coordinator.txn.outcomes import Outcomes, markers, seals
from mqd.coordinator.txn.store import TRANSACTION_BYTES, TransactionStore, weight
from mqd.coordinator.txn.transaction import (
    EPOCH_BUMP_VERSION,
    ONGOING,
    TWO_PHASE_TIMEOUT_MS,
    Transaction,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import TRANSACTIONS_TOPIC


class TransactionShard:
    """A Shard (mqd/coordinator/shard.py)."""

    def __init__(
        self,
        topics: TopicsView,
        options: GroupOptions,
        index: int,
        *,
        transaction_version: Callable[[], int],
        share: Callable[[], int] = lambda: UNBOUNDED,
        refusal: Callable[[str, str], MqError | None] = lambda topic, transactional_id: None,
    ) -> None:
        """`transaction_version()`: the level of that feature in this cluster.

        `refusal(topic, transactional id)`: why that id must not write to the topic now (I60).

        `share()`: bytes that this shard may take (account.py).
        """
        self.store = TransactionStore()
        self.account = Account(f"{TRANSACTIONS_TOPIC}-{index}", share, lambda: self.store.bytes)
        self._options = options
        self._refusal = refusal
        self._outcomes = Outcomes(transaction_version)
        self._expiration = Expiration(self.store, options, self._outcomes)

    # -- the contract ------------------------------------------------------------------------------

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> CoordinatorResult:
        check(op, self._options)
        match op:
            case AddPartitions():
                return self._add_partitions(ticket, op, now)
            case VerifyPartitions():
                errors = partitions.verify_partitions(
                    self.store.get(op.transactional_id), op.producer, op.partitions
                )
                return _response_only(ticket, {"errors": errors})
            case EndTransaction():
                return self._end(ticket, op, now)
            case InitializeProducer():
                return self._initialize(ticket, op, now)
            case MarkersWritten():
                return self._markers_written(ticket, op, now)
            case PartitionsSealed():
                return self._partitions_sealed(ticket, op)
            case AbortTimedOut():
                return self._abort_timed_out(ticket, op, now)
            case DescribeTransaction():
                return _response_only(ticket, described(self.store, op.transactional_id))
            case DescribeIdleProducer():
                idle = idle_ms(self.store, op.transactional_id, now.wall_ms)
                return _response_only(ticket, {"idle_ms": idle})
            case ListTransactions():
                rows = listed(self.store, op, now.wall_ms)
                return _response_only(ticket, {"transaction_states": rows})
        raise AssertionError(op)

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        self.store.replay(record)

    def recount(self) -> int:
        """The account from scratch, for tests and the simulation."""
        return self.store.recount()

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """No record of this topic is part of a transaction."""

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        self._expiration.begin(now)
        # No records: if they were refused, no markers would be written.
        transactions = self.store.transactions
        effects: list[Hashable] = [markers(one, transactions[one]) for one in self.store.unmarked]
        effects += [seals(one, transactions[one]) for one in self.store.unsealed]
        return CoordinatorResult(effects=effects)

    def on_absence(self, seconds: float) -> None:
        """A transaction times out nevertheless: it holds back the last stable offset."""

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        return NOTHING

    def next_deadline(self) -> float | None:
        return self._expiration.next_deadline()

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        return self._expiration.on_deadline(now)

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """Each call gets its response from its own decision."""

    # -- InitProducerId ----------------------------------------------------------------------------

    def _initialize(self, ticket: Ticket, op: InitializeProducer, now: Moment) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        if current is not None and current.state is ONGOING:
            if op.keep_prepared:
                return self._prepare(ticket, op, current, now)
            initialization.check_owner(current, op.expected)
            aborted = self._outcomes.fence(current, op.spare_producer_id, now)
            retry = MqError(
                ErrorCode.CONCURRENT_TRANSACTIONS, "The open transaction is being aborted. Retry."
            )
            return self._outcomes.decide(ticket, retry, op.transactional_id, aborted, now)
        if current is None:
            more = TRANSACTION_BYTES + text_bytes(op.transactional_id)
            self.account.make_room(more, f"transactional id {op.transactional_id}", now.seconds)
        initialized = initialization.initialize(
            current,
            timeout_ms=TWO_PHASE_TIMEOUT_MS if op.two_phase else op.timeout_ms,
            expected=op.expected,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        record = self._outcomes.record(op.transactional_id, initialized)
        self.store.note_initialized(record, initialized.last_producer_epoch)
        return CoordinatorResult(
            records=(record,), responses=((ticket, initialized.producer._asdict()),)
        )

    def _prepare(
        self, ticket: Ticket, op: InitializeProducer, current: Transaction, now: Moment
    ) -> CoordinatorResult:
        """Keep the open transaction for its next owner, who is returned when all partitions are
        sealed."""
        prepared = initialization.prepare(
            current,
            expected=op.expected,
            two_phase=op.two_phase,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        retry = MqError(
            ErrorCode.CONCURRENT_TRANSACTIONS, "The transaction is being prepared. Retry."
        )
        # The owner is returned only after every partition is sealed (I40).
        if self.store.unsealed.get(op.transactional_id):
            raise retry
        record = (self._outcomes.record(op.transactional_id, prepared),)
        if not current.is_prepared:
            return CoordinatorResult(
                records=record,
                responses=((ticket, retry),),
                effects=(seals(op.transactional_id, prepared),),
            )
        response = {
            **prepared.owner._asdict(),
            "ongoing_txn_producer_id": prepared.producer_id,
            "ongoing_txn_producer_epoch": prepared.producer_epoch,
        }
        return (
            _response_only(ticket, response)
            if prepared is current
            else CoordinatorResult(records=record, responses=((ticket, response),))
        )

    # -- partitions and EndTxn ---------------------------------------------------------------------

    def _add_partitions(self, ticket: Ticket, op: AddPartitions, now: Moment) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        for topic in dict.fromkeys(one.topic for one in op.partitions):
            # Without an await until the record is appended (I60).
            if (refused := self._refusal(topic, op.transactional_id)) is not None:
                raise refused
        added = partitions.add_partitions(
            current,
            op.producer,
            op.partitions,
            client_version=op.client_version,
            now_ms=now.wall_ms,
        )
        if added is None:
            return _response_only(ticket, {})
        more = weight(op.transactional_id, added) - weight(op.transactional_id, current)
        self.account.make_room(
            more, f"partitions of transactional id {op.transactional_id}", now.seconds
        )
        return CoordinatorResult(
            records=(self._outcomes.record(op.transactional_id, added),), responses=((ticket, {}),)
        )

    def _end(self, ticket: Ticket, op: EndTransaction, now: Moment) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        bumps_epoch = op.client_version >= EPOCH_BUMP_VERSION
        ended = ending.end(
            current,
            op.producer,
            committed=op.committed,
            client_version=op.client_version,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        if ended is None:
            assert current is not None
            return _response_only(
                ticket, (current.producer if bumps_epoch else NO_PRODUCER)._asdict()
            )
        response = (ended.producer_when_complete if bumps_epoch else NO_PRODUCER)._asdict()
        return self._outcomes.decide(ticket, response, op.transactional_id, ended, now)

    # -- reports of the node -----------------------------------------------------------------------

    def _markers_written(
        self, ticket: Ticket, op: MarkersWritten, now: Moment
    ) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        is_present = (
            current is not None
            and current.producer == op.producer
            and op.prepared_ms in (None, current.updated_ms)
        )
        if current is None or not is_present or not current.state.decided:
            return _response_only(ticket, {"pending": False})  # of an earlier transaction
        unmarked = self.store.unmarked[op.transactional_id].difference(op.partitions)
        if unmarked:
            self.store.unmarked[op.transactional_id] = unmarked
            return _response_only(ticket, {"pending": True})
        completed = ending.complete(current, now.wall_ms)
        return CoordinatorResult(
            records=(self._outcomes.record(op.transactional_id, completed),),
            responses=((ticket, {"pending": False}),),
        )

    def _partitions_sealed(self, ticket: Ticket, op: PartitionsSealed) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        if current is None or not current.is_prepared or current.seal != op.producer:
            return _response_only(
                ticket, {"pending": False}
            )  # of an earlier transaction, or decided
        unsealed = self.store.unsealed[op.transactional_id]
        unsealed.difference_update(op.partitions)
        return _response_only(ticket, {"pending": bool(unsealed)})

    def _abort_timed_out(self, ticket: Ticket, op: AbortTimedOut, now: Moment) -> CoordinatorResult:
        current = self.store.get(op.transactional_id)
        if (
            current is None
            or current.state is not ONGOING
            or current.producer != op.producer
            or not self._expiration.timed_out(op.transactional_id, now)
        ):
            return _response_only(ticket, {})
        aborted = self._outcomes.fence(current, op.spare_producer_id, now)
        return self._outcomes.decide(ticket, {}, op.transactional_id, aborted, now)


def _response_only(ticket: Ticket, response: Mapping[str, Any]) -> CoordinatorResult:
    return CoordinatorResult(responses=((ticket, response),))
