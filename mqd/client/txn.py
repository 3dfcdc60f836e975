"""A transactional producer's view of its transaction, and the requests to its coordinator. Pure
(KIP-98, KIP-360, KIP-890).

Two protocol versions. Version 1: the producer registers every partition and group with the
coordinator before its first record (AddPartitionsToTxn, AddOffsetsToTxn), and keeps its epoch until
an error. Version 2, if the cluster has finalized `transaction.version` 2: brokers add partitions
when records arrive. Every end returns a new epoch, so that no late record of one transaction can
join the next.

Phases are a table. OPEN ends in COMMITTING or ABORTING. A failure of a record or an offset makes it
BROKEN: only `abort` is allowed. DEAD is final: another producer has our transactional id, or a
fatal error occurred. PREPARED (KIP-939) waits for an external decision: `end_transaction` ends it
from any process; this producer can only abort it. Invariants: a record is sent only in OPEN,
and under version 1 only to an added partition. A transaction with an unknown outcome ends with a
new epoch: the coordinator returns one only after the old transaction has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from mqd.client.errors import REMEDIES, ClientError, TransactionBroken, error_from_wire
from mqd.client.group_member import GroupMetadata
from mqd.client.offsets import (
    COMMIT_CAME_TOO_LATE,
    Offsets,
    commit_body,
    commit_errors,
    raise_most_severe,
)
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN = 22, 24, 25
END_TXN, TXN_OFFSET_COMMIT = 26, 28
FEATURE = "transaction.version"
ADD_PARTITIONS_CLIENTS_UP_TO = 3
"""The last request version for clients; later versions are for brokers (KIP-890)."""
END_TXN_V2_FROM = 5
TXN_OFFSET_COMMIT_V1_UP_TO = 4
PRODUCE_V2_FROM = 12
TWO_PHASE_FROM = 6
"""The first version of InitProducerId with two-phase commit (KIP-939)."""
TWO_PHASE_REMEDY = (
    "set transaction.two.phase.commit.enable=true on the brokers (Apache Kafka:"
    " unstable.api.versions.enable=true, too)"
)


class Phase(Enum):
    NEW = "without a producer id"
    READY = "between transactions"
    OPEN = "in a transaction"
    COMMITTING = "being committed"
    ABORTING = "being aborted"
    PREPARED = "prepared: only end_transaction or abort completes it"
    BROKEN = "can only be aborted"
    DEAD = "can never be used again"


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.READY, Phase.DEAD}),
    Phase.READY: frozenset({Phase.OPEN, Phase.DEAD}),
    Phase.OPEN: frozenset(
        {Phase.COMMITTING, Phase.ABORTING, Phase.PREPARED, Phase.BROKEN, Phase.DEAD}
    ),
    Phase.PREPARED: frozenset({Phase.ABORTING, Phase.DEAD}),
    Phase.COMMITTING: frozenset({Phase.READY, Phase.BROKEN, Phase.DEAD}),
    Phase.ABORTING: frozenset({Phase.READY, Phase.DEAD}),
    Phase.BROKEN: frozenset({Phase.ABORTING, Phase.DEAD}),
    Phase.DEAD: frozenset(),
}

FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    }
)


class PreparedTransaction(NamedTuple):
    """The values with which any client can end the transaction. A producer id of -1 means that
    nothing was written, so there is nothing to end.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared: bool = True
    """Whether the coordinator has stored the preparation, which removes the timeout. False if it
    does not support that (Apache Kafka 4.3): there, no transaction of a two-phase producer has a
    timeout. Also False if nothing was written.
    """


class Transactions:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, transactional_id: str, timeout_ms: int, *, two_phase: bool = False) -> None:
        assert transactional_id and timeout_ms > 0
        self.transactional_id = transactional_id
        self.two_phase = two_phase
        self.supports_keep_prepared: bool | None = None
        """For two-phase commit: whether the coordinator supports `keep_prepared_txn` (mqd). None
        until a request before the first transaction has shown it. Without the support (Apache
        Kafka 4.3), our transactions have no timeout from their beginning.
        """
        self.timeout_ms = timeout_ms
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self.phase = Phase.NEW
        self.error: ClientError | None = None
        """The cause of phase BROKEN or DEAD."""
        self.version_2 = False
        self.partitions: set[TopicPartition] = set()
        """The partitions of this transaction, to which records may be sent."""
        self.partitions_to_add: dict[TopicPartition, None] = {}
        """The partitions whose records wait until the coordinator has added the partition."""
        self.groups: set[str] = set()
        self.known_to_brokers = False
        """The brokers may know of this transaction, so it must be ended there."""
        self.outcome_uncertain = False
        """The state at the brokers is uncertain: only a new epoch ensures that the transaction has
        ended.
        """
        self.timeout_removed = False
        """A preparation has removed the timeout of our transactions. InitProducerId restores it."""
        self.epoch_uncertain = False
        """`prepare` has no response yet: the coordinator may have changed our epoch."""

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], (self.phase, phase)
        self.phase = phase

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def _subject(self, doing: str) -> str:
        return f"{doing} (transactional id {self.transactional_id!r})"

    # -- beginning

    def check_open(self) -> None:
        """Raise ClientError unless records and offsets may be added."""
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            assert self.error is not None
            raise self.error.copy()
        if self.phase is not Phase.OPEN:
            now = self.phase.value
            message = f"transactional id {self.transactional_id!r} is {now}, not in a transaction"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message, remedy="call begin first")

    def begin(self, *, version_2: bool) -> None:
        """Begin a transaction. The first record or offset makes it known to the brokers."""
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            assert self.error is not None
            raise self.error.copy()
        if self.phase is not Phase.READY:
            message = f"transactional id {self.transactional_id!r} is {self.phase.value}"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message, remedy="commit or abort first")
        self._enter(Phase.OPEN)
        self.version_2 = version_2
        assert (
            not self.partitions
            and not self.partitions_to_add
            and not self.groups
            and not self.known_to_brokers
            and not self.outcome_uncertain
        )

    def init_body(self) -> dict[str, Any]:
        """InitProducerId. The first one fences earlier producers with our id; later ones return a
        new epoch.
        """
        body = {**self._identity(), "transaction_timeout_ms": self.timeout_ms}
        return {**body, "enable_2_pc": True} if self.supports_keep_prepared is False else body

    def on_init(self, response: Any) -> None:
        """Raises ClientError; retry if it is retriable."""
        if response.error_code:
            error = error_from_wire(response.error_code, self._subject("getting a producer id"))
            if not error.retriable:
                self.enter_dead(error)
            raise error
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self.timeout_removed = False
        if self.phase is Phase.NEW:
            self._enter(Phase.READY)

    def detect_keep_body(self) -> dict[str, Any]:
        """InitProducerId while no transaction is open here: the response shows whether the
        coordinator has one. The timeout does not change.
        """
        return self.init_body() | {"keep_prepared_txn": True}

    def on_keep_detected(self, response: Any) -> None:
        """As `on_init`. UNSUPPORTED_VERSION: the coordinator cannot keep prepared transactions."""
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self.supports_keep_prepared = False
            return
        self.on_init(response)
        self.supports_keep_prepared = True

    # -- records and offsets

    def add_partition(self, tp: TopicPartition) -> None:
        """The user has a record for `tp`: add the partition to the transaction."""
        assert self.phase is Phase.OPEN
        if self.version_2:
            self.partitions.add(tp)
            self.known_to_brokers = True
        elif tp not in self.partitions:
            self.partitions_to_add[tp] = None

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether records of `tp` may be sent now."""
        return self.phase is Phase.OPEN and tp in self.partitions

    def add_body(self, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
        """AddPartitionsToTxn, version 3 at most."""
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        return {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.producer_epoch,
            "v3_and_below_topics": [
                {"name": name, "partitions": indexes} for name, indexes in topics.items()
            ],
        }

    def on_added(self, response: Any) -> None:
        """Raises ClientError; retry if it is retriable."""
        errors = []
        added = []
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                tp = TopicPartition(topic.name, row.partition_index)
                if not row.partition_error_code:
                    added.append(tp)
                elif row.partition_error_code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                    errors.append(
                        error_from_wire(row.partition_error_code, self._subject(f"adding {tp}"))
                    )
        raise_most_severe(errors)
        self.known_to_brokers |= bool(added)
        for tp in added:
            self.partitions_to_add.pop(tp, None)
            self.partitions.add(tp)

    def add_offsets_body(self, group_id: str) -> dict[str, Any]:
        """AddOffsetsToTxn; version 1 only."""
        return {**self._identity(), "group_id": group_id}

    def on_offsets_added(self, response: Any, group_id: str) -> None:
        """Raises ClientError; retry if it is retriable."""
        if response.error_code:
            raise error_from_wire(
                response.error_code, self._subject(f"adding offsets of group {group_id!r}")
            )
        self.known_to_brokers = True
        self.groups.add(group_id)

    def commit_offsets_body(self, group: GroupMetadata, offsets: Offsets) -> dict[str, Any]:
        """TxnOffsetCommit."""
        return commit_body(group, offsets) | self._identity()

    def on_offsets_committed(self, response: Any, group: GroupMetadata) -> None:
        """Raises ClientError; retry if it is retriable."""
        raise_most_severe(commit_errors(response).values())
        self.known_to_brokers = True
        self.groups.add(group.group_id)

    # -- two phases (KIP-939)

    def prepare(self) -> None:
        """Begin or retry the preparation. Raises ClientError if the phase does not allow it."""
        if not self.two_phase:
            message = f"transactional id {self.transactional_id!r} was not opened for two phases"
            raise ClientError(
                ErrorCode.INVALID_TXN_STATE, message, remedy="open the producer with two_phase=True"
            )
        if self.phase is not Phase.PREPARED:
            self.check_open()
            self._enter(Phase.PREPARED)
        self.epoch_uncertain = True

    def prepare_body(self) -> dict[str, Any]:
        """InitProducerId that keeps the open transaction and removes its timeout."""
        return self.init_body() | {"enable_2_pc": True, "keep_prepared_txn": True}

    def on_prepared(self, response: Any) -> PreparedTransaction:
        """Raises ClientError; retry if it is retriable.

        EndTxn needs the epoch of the response. The coordinator fences the epoch under which the
        records were written.
        """
        assert self.phase in (Phase.PREPARED, Phase.ABORTING)
        if response.error_code:
            error = error_from_wire(response.error_code, self._subject("preparing"))
            if not error.retriable:
                self.enter_dead(error)
            raise error
        kept = response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
        if kept != (self.producer_id, self.producer_epoch):
            message = (
                self._subject("preparing")
                + f": the coordinator has transaction {kept}, not {self._identity()}"
            )
            error = ClientError(ErrorCode.PRODUCER_FENCED, message)
            self.enter_dead(error)
            raise error
        self.epoch_uncertain = False
        self.timeout_removed = True
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        return PreparedTransaction(self.transactional_id, self.producer_id, self.producer_epoch)

    # -- failures

    def fail(
        self, error: ClientError, *, outcome_uncertain: bool = True, by_coordinator: bool = False
    ) -> None:
        """A record or an offset is missing from the transaction, so it must not be committed. No
        effect in phase DEAD. `by_coordinator`: the error is from the coordinator, which knows the
        current owner of our id. Another broker may only have an old epoch of ours.
        """
        if self.phase is Phase.DEAD:
            return
        if error.code in _FATAL or (by_coordinator and error.code in FENCED):
            self.enter_dead(error)
            return
        self.outcome_uncertain |= outcome_uncertain
        if self.phase in (Phase.OPEN, Phase.COMMITTING):
            remedy = "abort, then repeat the work in a new transaction"
            if error.code in COMMIT_CAME_TOO_LATE:
                remedy = "abort; the partitions belong to another member now"
            self.error = TransactionBroken(
                error.code, f"the transaction can only be aborted: {error.message}", remedy=remedy
            )
            self._enter(Phase.BROKEN)

    def enter_dead(self, error: ClientError) -> None:
        """Enter phase DEAD: this producer can no longer use its id."""
        if self.phase is Phase.DEAD:
            return
        remedy = REMEDIES[ErrorCode.PRODUCER_FENCED] if error.code in FENCED else error.remedy
        self.error = ClientError(error.code, error.message, remedy=remedy)
        self._enter(Phase.DEAD)

    # -- the end

    def end(self, *, commit: bool) -> None:
        """Begin or retry the end of the transaction. Raises ClientError if the phase does not allow
        it.
        """
        goal = Phase.COMMITTING if commit else Phase.ABORTING
        if self.phase is goal:
            return
        if commit or self.phase is Phase.DEAD:
            self.check_open()
        elif self.phase not in (Phase.OPEN, Phase.PREPARED, Phase.BROKEN):
            now = self.phase.value
            message = f"transactional id {self.transactional_id!r} is {now}: nothing to abort"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message)
        self._enter(goal)

    def check_ending(self) -> None:
        """Raise ClientError if the phase is BROKEN or DEAD since `end`: requests that were in
        flight then may have had an error response.
        """
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            assert self.error is not None
            raise self.error.copy()
        assert self.phase in (Phase.COMMITTING, Phase.ABORTING)

    def end_body(self) -> dict[str, Any]:
        """EndTxn. Raises ClientError, see `check_ending`."""
        self.check_ending()
        return {**self._identity(), "committed": self.phase is Phase.COMMITTING}

    @property
    def needs_end(self) -> bool:
        """Whether the end needs a request to the coordinator."""
        return self.known_to_brokers and not self.needs_epoch

    @property
    def needs_epoch(self) -> bool:
        """Whether InitProducerId must follow the abort: under version 1, only a new epoch fences
        late requests of this transaction.
        """
        return self.phase is Phase.ABORTING and self.outcome_uncertain and not self.version_2

    def on_ended(self, response: Any) -> bool:
        """Returns whether the epoch is new. Raises ClientError; retry if it is retriable."""
        if response.error_code:
            doing = "committing" if self.phase is Phase.COMMITTING else "aborting"
            error = error_from_wire(response.error_code, self._subject(doing))
            if not error.retriable:
                self.fail(error, by_coordinator=True)
                if self.phase is Phase.ABORTING:
                    self.enter_dead(error)
            raise error
        if not self.version_2 or response.producer_id < 0:
            return False
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        return True

    def on_aborted_if_open(self, response: Any) -> None:
        """As `on_ended`, for an abort before InitProducerId (`needs_epoch`). INVALID_TXN_STATE is
        no error: the coordinator has no transaction to abort.
        """
        if response.error_code != ErrorCode.INVALID_TXN_STATE:
            self.on_ended(response)

    def complete(self) -> None:
        """The transaction has ended; the next one may begin. Raises ClientError, see
        `check_ending`.
        """
        self.check_ending()
        self._enter(Phase.READY)
        self.partitions.clear()
        self.partitions_to_add.clear()
        self.groups.clear()
        self.known_to_brokers = self.outcome_uncertain = self.epoch_uncertain = False
        self.error = None
