"""The transaction coordinator of one partition of `__transaction_state`: which transactional id is
what, and what is to be done about it.

What may become of one id is decided in state.py. Here is what surrounds that: all ids, the two
searches that time brings (open transactions that took too long are aborted, ids that nobody uses
are forgotten), and the markers. A transaction that is decided gives an effect `WriteMarkers` when
its record is committed; service.py has the markers written and says so with `MarkersWritten`. One
that is prepared for another coordinator (KIP-939) gives `SealPartitions` first: its new owner is
named when every partition refuses the old one.

Invariants: markers leave only after the Prepare record that decided the outcome is committed;
Complete follows only when every partition of the transaction has its marker, or is gone with its
topic. A prepared transaction is decided by its owner, or aborted by whoever initializes the id
anew; never by time, if it was prepared with `enable_2_pc`.

A failover forgets one thing: which partitions have their marker or seal already. All are written
again; a repeated one does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, Final

from mqd.coordinator.account import TEXT_BYTES, UNBOUNDED, Account, text_bytes
from mqd.coordinator.shard import (
    INTERNAL,
    NO_PRODUCER,
    NOTHING,
    CoordinatorRecord,
    Decision,
    GroupOptions,
    Moment,
    Producer,
    Ticket,
    TopicsView,
)
from mqd.coordinator.txn import records, state
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkersWritten,
    PartitionsSealed,
    SealPartitions,
    SpareProducerId,
    VerifyPartitions,
    WriteMarkers,
    check,
    compiled,
)
from mqd.coordinator.txn.state import (
    AT_REST,
    ONGOING,
    STATES_BY_LABEL,
    ProducerIdWanted,
    Transaction,
)
from mqd.errors import ErrorCode, MqError
from mqd.limits import TRANSACTIONS_PER_SEARCH
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TRANSACTIONS_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

ABORT_INTERVAL: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRY_INTERVAL: Final = "transaction.remove.expired.transaction.cleanup.interval.ms"
_PORTION_SECONDS = 0.02
"""Between two portions of one search: others are served meanwhile, and a log that refuses
is not asked without a pause.
"""
_AS_SEALED: Final = 1
"""The `transaction.version` of a marker whose epoch the partition has already, from the seal."""


Answer = Mapping[str, Any]


TRANSACTION_BYTES: Final = 1024
"""What a transactional id costs in memory, without its characters and the partitions of its
transaction.
"""
PARTITION_BYTES: Final = 256
"""What a partition of a transaction costs, without the characters of its topic: in the
transaction, and without a marker or a seal.
"""


def weight(transactional_id: str, transaction: Transaction | None) -> int:
    """What a transactional id costs in memory, about, in bytes; 0 for one that is not known."""
    if transaction is None:
        return 0
    topics = sum(
        len(topic) + TEXT_BYTES
        for topic, _ in groupby(transaction.partitions, key=lambda one: one.topic)
    )
    return (
        TRANSACTION_BYTES
        + text_bytes(transactional_id)
        + PARTITION_BYTES * len(transaction.partitions)
        + topics
    )


class TransactionShard:
    """See the head of the file, and coordinator/shard.py for the contract."""

    def __init__(
        self,
        topics: TopicsView,
        options: GroupOptions,
        index: int,
        *,
        transaction_version: Callable[[], int],
        share: Callable[[], int] = lambda: UNBOUNDED,
    ) -> None:
        """`transaction_version()`: the level of that feature in this cluster.

        `share()`: bytes that this shard may take (account.py).
        """
        self.account = Account(f"{TRANSACTIONS_TOPIC}-{index}", share, lambda: self._bytes)
        self._bytes = 0
        self._options = options
        self._transaction_version = transaction_version
        self._transactions: dict[str, Transaction] = {}
        self._open: dict[str, float | None] = {}
        """Ids whose transaction is open: what a search for time-outs looks at.

        When a search saw it first, in seconds; None before.
        """
        self._unmarked: dict[str, set[TopicPartition]] = {}
        """For each id whose transaction is decided: the partitions without a marker, as far
        as is known.
        """
        self._unsealed: dict[str, set[TopicPartition]] = {}
        """For each id whose transaction is prepared: the partitions without a seal, as far
        as is known.
        """
        self._given: tuple[CoordinatorRecord, int] | None = None
        """The latest initialization, and the last epoch that goes with it, which no record holds.
        It is replayed at once, or never where the log refuses it: then nothing replays that record,
        and the next initialization takes its place.
        """
        self._abort_search_at: float | None = None
        self._expiry_search_at: float | None = None

    # -- the contract ------------------------------------------------------------------------------

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> Decision:
        check(op, self._options)
        match op:
            case AddPartitions():
                return self._add_partitions(ticket, op, now)
            case VerifyPartitions():
                errors = state.verify_partitions(
                    self._transactions.get(op.transactional_id), op.producer, op.partitions
                )
                return _answer(ticket, {"errors": errors})
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
                return _answer(ticket, self._described(op.transactional_id))
            case ListTransactions():
                return _answer(ticket, {"transaction_states": self._listed(op, now)})
        raise AssertionError(op)

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        transactional_id, transaction = records.decode(record)
        before = self._transactions.get(transactional_id)
        self._bytes += weight(transactional_id, transaction) - weight(transactional_id, before)
        given = self._given[1] if self._given is not None and self._given[0] == record else NO_EPOCH
        seen_at = self._open.pop(transactional_id, None)
        self._unmarked.pop(transactional_id, None)
        unsealed = self._unsealed.pop(transactional_id, None)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
            return
        last_epoch = state.last_epoch_after(before, transaction, given)
        self._transactions[transactional_id] = replace(transaction, last_producer_epoch=last_epoch)
        if transaction.state is ONGOING:
            same = (
                before is not None
                and before.state is ONGOING
                and before.started_ms == transaction.started_ms
            )
            self._open[transactional_id] = seen_at if same else None
            if transaction.is_prepared:
                self._unsealed[transactional_id] = (
                    set(transaction.partitions) if unsealed is None else unsealed
                )
        elif transaction.state.decided:
            self._unmarked[transactional_id] = set(transaction.partitions)

    def recount(self) -> int:
        """The account from scratch, for tests and the simulation."""
        return sum(weight(*pair) for pair in self._transactions.items())

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """Nothing in this topic is part of a transaction."""

    def on_loaded(self, now: Moment) -> Decision:
        self._abort_search_at = now.seconds + self._interval(ABORT_INTERVAL)
        self._expiry_search_at = now.seconds + self._interval(EXPIRY_INTERVAL)
        # nothing is written here: were that refused, nobody would have the markers written
        effects: list[Hashable] = [_markers(one, self._transactions[one]) for one in self._unmarked]
        effects += [_seals(one, self._transactions[one]) for one in self._unsealed]
        return Decision(effects=effects)

    def on_absence(self, seconds: float) -> None:
        """Nothing: a transaction ends when its time-out is over, for what it holds back
        does not wait.
        """

    def on_metadata(self, now: Moment) -> Decision:
        return NOTHING

    def next_deadline(self) -> float | None:
        wanted = []
        if self._open and self._abort_search_at is not None:
            wanted.append(self._abort_search_at)
        if self._transactions and self._expiry_search_at is not None:
            wanted.append(self._expiry_search_at)
        return min(wanted, default=None)

    def on_deadline(self, now: Moment) -> Decision:
        if (
            self._open
            and self._abort_search_at is not None
            and self._abort_search_at <= now.seconds
        ):
            return self._search_timed_out(now)
        if (
            self._transactions
            and self._expiry_search_at is not None
            and self._expiry_search_at <= now.seconds
        ):
            return self._search_unused(now)
        return NOTHING

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """Every call is answered by the decision that took it."""

    # -- calls -------------------------------------------------------------------------------------

    def _initialize(self, ticket: Ticket, op: InitializeProducer, now: Moment) -> Decision:
        current = self._transactions.get(op.transactional_id)
        if current is not None and current.state is ONGOING:
            if op.keep:
                return self._prepare(ticket, op, current, now)
            state.check_owner(current, op.expected)
            aborted = self._fenced(current, op.spare_producer_id, now)
            wait = MqError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                "The transaction that was open is being aborted; try again.",
            )
            return self._decided(ticket, wait, op.transactional_id, aborted, now)
        if current is None:
            more = TRANSACTION_BYTES + text_bytes(op.transactional_id)
            self.account.make_room(more, f"transactional id {op.transactional_id}", now.seconds)
        initialized = state.initialize(
            current,
            timeout_ms=state.TWO_PHASE_TIMEOUT_MS if op.two_phase else op.timeout_ms,
            expected=op.expected,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        record = self._record(op.transactional_id, initialized)
        self._given = record, initialized.last_producer_epoch
        return Decision(records=(record,), replies=((ticket, initialized.producer._asdict()),))

    def _prepare(
        self, ticket: Ticket, op: InitializeProducer, current: Transaction, now: Moment
    ) -> Decision:
        """Keep the open transaction for its next owner, who is named when all partitions
        are sealed.
        """
        prepared = state.prepare(
            current,
            expected=op.expected,
            two_phase=op.two_phase,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        wait = MqError(
            ErrorCode.CONCURRENT_TRANSACTIONS, "The transaction is being prepared; try again."
        )
        if self._unsealed.get(op.transactional_id):
            raise wait
        record = (self._record(op.transactional_id, prepared),)
        if not current.is_prepared:
            return Decision(
                records=record,
                replies=((ticket, wait),),
                effects=(_seals(op.transactional_id, prepared),),
            )
        answer = {
            **prepared.owner._asdict(),
            "ongoing_txn_producer_id": prepared.producer_id,
            "ongoing_txn_producer_epoch": prepared.producer_epoch,
        }
        return (
            _answer(ticket, answer)
            if prepared is current
            else Decision(records=record, replies=((ticket, answer),))
        )

    def _partitions_sealed(self, ticket: Ticket, op: PartitionsSealed) -> Decision:
        current = self._transactions.get(op.transactional_id)
        if current is None or not current.is_prepared or current.seal != op.producer:
            return _answer(ticket, {"wanted": False})  # of an earlier transaction, or it is decided
        unsealed = self._unsealed[op.transactional_id]
        unsealed.difference_update(op.partitions)
        return _answer(ticket, {"wanted": bool(unsealed)})

    def _add_partitions(self, ticket: Ticket, op: AddPartitions, now: Moment) -> Decision:
        added = state.add_partitions(
            self._transactions.get(op.transactional_id),
            op.producer,
            op.partitions,
            client_version=op.client_version,
            now_ms=now.wall_ms,
        )
        if added is None:
            return _answer(ticket, {})
        more = weight(op.transactional_id, added) - weight(
            op.transactional_id, self._transactions.get(op.transactional_id)
        )
        self.account.make_room(
            more, f"partitions of transactional id {op.transactional_id}", now.seconds
        )
        return Decision(
            records=(self._record(op.transactional_id, added),), replies=((ticket, {}),)
        )

    def _end(self, ticket: Ticket, op: EndTransaction, now: Moment) -> Decision:
        current = self._transactions.get(op.transactional_id)
        second_protocol = op.client_version >= state.EPOCH_BUMP_VERSION
        ended = state.end(
            current,
            op.producer,
            committed=op.committed,
            client_version=op.client_version,
            spare_producer_id=op.spare_producer_id,
            now_ms=now.wall_ms,
        )
        if ended is None:
            assert current is not None
            return _answer(ticket, (current.producer if second_protocol else NO_PRODUCER)._asdict())
        answer = (ended.producer_when_complete if second_protocol else NO_PRODUCER)._asdict()
        return self._decided(ticket, answer, op.transactional_id, ended, now)

    def _decided(
        self,
        ticket: Ticket,
        answer: Answer | MqError,
        transactional_id: str,
        decided: Transaction,
        now: Moment,
    ) -> Decision:
        """Write the outcome down; then the markers, if there is anybody to tell."""
        written = [self._record(transactional_id, decided)]
        effects: Sequence[Hashable] = ()
        if decided.partitions:
            effects = (_markers(transactional_id, decided),)
        else:
            written.append(self._record(transactional_id, state.complete(decided, now.wall_ms)))
        return Decision(
            records=written,
            replies=((ticket, answer),) if ticket != INTERNAL else (),
            effects=effects,
        )

    def _markers_written(self, ticket: Ticket, op: MarkersWritten, now: Moment) -> Decision:
        current = self._transactions.get(op.transactional_id)
        is_it = (
            current is not None
            and current.producer == op.producer
            and op.prepared_ms in (None, current.updated_ms)
        )
        if current is None or not is_it or not current.state.decided:
            return _answer(ticket, {"wanted": False})  # of an earlier transaction
        unmarked = self._unmarked[op.transactional_id].difference(op.partitions)
        if unmarked:
            self._unmarked[op.transactional_id] = unmarked
            return _answer(ticket, {"wanted": True})
        completed = self._record(op.transactional_id, state.complete(current, now.wall_ms))
        return Decision(records=(completed,), replies=((ticket, {"wanted": False}),))

    # -- questions ---------------------------------------------------------------------------------

    def _described(self, transactional_id: str) -> dict[str, Any]:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise MqError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                f"There is no transactional id {transactional_id!r}.",
            )
        owner = transaction.owner if transaction.is_prepared else NO_PRODUCER
        partitions = (
            sorted(self._unmarked[transactional_id])
            if transaction.state.decided
            else transaction.partitions
        )
        return {
            "error_code": ErrorCode.NONE,
            "transactional_id": transactional_id,
            "transaction_state": transaction.state.label,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.started_ms,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "owner_producer_id": owner.producer_id,
            "owner_producer_epoch": owner.producer_epoch,
            "topics": [
                {"topic": topic, "partitions": [one.partition for one in group]}
                for topic, group in groupby(partitions, key=lambda one: one.topic)
            ],
        }

    def _listed(self, op: ListTransactions, now: Moment) -> list[dict[str, Any]]:
        states = {STATES_BY_LABEL[name] for name in op.states if name in STATES_BY_LABEL}
        expression = compiled(op.pattern)
        return [
            {
                "transactional_id": name,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.label,
                "prepared": transaction.is_prepared,
            }
            for name, transaction in self._transactions.items()
            if (not op.producer_ids or transaction.producer_id in op.producer_ids)
            and (not op.states or transaction.state in states)
            and (op.duration_ms < 0 or now.wall_ms - transaction.started_ms > op.duration_ms)
            and (expression is None or expression.fullmatch(name) is not None)
        ]

    # -- time --------------------------------------------------------------------------------------

    def _search_timed_out(self, now: Moment) -> Decision:
        """Abort what took too long, some at a time; the search goes on in a moment where
        there was more.
        """
        overdue = (name for name in self._open if self._timed_out(name, now))
        found = list(islice(overdue, TRANSACTIONS_PER_SEARCH + 1))
        more = len(found) > TRANSACTIONS_PER_SEARCH
        self._abort_search_at = now.seconds + (
            _PORTION_SECONDS if more else self._interval(ABORT_INTERVAL)
        )
        written: list[CoordinatorRecord] = []
        effects: list[Hashable] = []
        for transactional_id in found[:TRANSACTIONS_PER_SEARCH]:
            current = self._transactions[transactional_id]
            logger.info(
                "transaction timed out transactional_id=%s producer_id=%d",
                transactional_id,
                current.producer_id,
            )
            try:
                aborted = self._fenced(current, NO_PRODUCER_ID, now)
            except ProducerIdWanted:
                effects.append(SpareProducerId(transactional_id, current.producer))
                continue
            decision = self._decided(INTERNAL, {}, transactional_id, aborted, now)
            written.extend(decision.records)
            effects.extend(decision.effects)
        return Decision(records=written, effects=effects)

    def _timed_out(self, transactional_id: str, now: Moment) -> bool:
        seen_at = self._open[transactional_id]
        if seen_at is None:
            seen_at = self._open[transactional_id] = now.seconds
        return state.timed_out(
            self._transactions[transactional_id], now.wall_ms, round((now.seconds - seen_at) * 1000)
        )

    def _abort_timed_out(self, ticket: Ticket, op: AbortTimedOut, now: Moment) -> Decision:
        current = self._transactions.get(op.transactional_id)
        if current is None or current.state is not ONGOING or current.producer != op.producer:
            return _answer(ticket, {})
        if not self._timed_out(op.transactional_id, now):
            return _answer(ticket, {})
        return self._decided(
            ticket, {}, op.transactional_id, self._fenced(current, op.spare_producer_id, now), now
        )

    def _search_unused(self, now: Moment) -> Decision:
        """Forget ids that nobody used for `transactional.id.expiration.ms`, some at a time."""
        limit_ms = now.wall_ms - self._options.node("transactional.id.expiration.ms")
        unused = (
            name
            for name, one in self._transactions.items()
            if one.state in AT_REST and one.updated_ms <= limit_ms
        )
        found = list(islice(unused, TRANSACTIONS_PER_SEARCH + 1))
        more = len(found) > TRANSACTIONS_PER_SEARCH
        self._expiry_search_at = now.seconds + (
            _PORTION_SECONDS if more else self._interval(EXPIRY_INTERVAL)
        )
        return Decision(
            records=[records.tombstone(name) for name in found[:TRANSACTIONS_PER_SEARCH]]
        )

    def _interval(self, option: str) -> float:
        milliseconds: int = self._options.node(option)
        return milliseconds / 1000

    # -- pieces ------------------------------------------------------------------------------------

    def _fenced(self, current: Transaction, spare_producer_id: int, now: Moment) -> Transaction:
        return state.fence(
            current,
            server_version=self._transaction_version(),
            spare_producer_id=spare_producer_id,
            now_ms=now.wall_ms,
        )

    def _record(self, transactional_id: str, transaction: Transaction) -> CoordinatorRecord:
        return records.encode(
            transactional_id,
            transaction,
            version=records.value_version(self._transaction_version()),
        )


def _markers(transactional_id: str, decided: Transaction) -> WriteMarkers:
    return WriteMarkers(
        transactional_id,
        decided.producer,
        decided.state is state.PREPARE_COMMIT,
        decided.partitions,
        min(decided.client_version, _AS_SEALED) if decided.was_prepared else decided.client_version,
        decided.updated_ms,
    )


def _seals(transactional_id: str, prepared: Transaction) -> SealPartitions:
    return SealPartitions(transactional_id, prepared.seal, prepared.partitions)


def _answer(ticket: Ticket, answer: Answer) -> Decision:
    return Decision(replies=((ticket, answer),))
