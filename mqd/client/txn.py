"""A transactional producer's view of its transaction, and the requests to its coordinator. Pure
(KIP-98, KIP-360, KIP-890).

Two protocol versions. Version 1: the producer registers every partition and group with the
coordinator before its first record (AddPartitionsToTxn, AddOffsetsToTxn), and keeps its epoch until
an error. Version 2, if the cluster has finalized `transaction.version` 2: brokers add partitions
when records arrive. Every end returns a new epoch, so that no late record of one transaction can
join the next.

Phases are a table. OPEN ends in COMMITTING or ABORTING. A failure of a record or an offset makes it
BROKEN: only `abort` is left. DEAD is final: another producer has our transactional id, or the id is
not authorized. PREPARED (KIP-939) waits for an external decision: EndTxn with the transactional id,
producer id and epoch ends it; here only `abort` is left. Invariants: a record is sent only in OPEN,
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
    raise_worst,
)
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN = 22, 24, 25
END_TXN, TXN_OFFSET_COMMIT = 26, 28
FEATURE = "transaction.version"
ADD_PARTITIONS_CLIENTS_UP_TO = 3
"""Later versions are for brokers (KIP-890)."""
END_TXN_V2_FROM = 5
TXN_OFFSET_COMMIT_V1_UP_TO = 4
PRODUCE_V2_FROM = 12
TWO_PHASE_FROM = 6
"""Of InitProducerId (KIP-939)."""
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
    """What ends a transaction from any connection. A producer id of -1: nothing was written, and
    there is nothing to end."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared: bool = True
    """The coordinator keeps it without a time-out. False where it cannot (Apache Kafka 4.3): there
    two-phase producers have none at all."""


class Transactions:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, transactional_id: str, timeout_ms: int, *, two_phase: bool = False) -> None:
        assert transactional_id and timeout_ms > 0
        self.transactional_id = transactional_id
        self.two_phase = two_phase
        self.keeps: bool | None = None
        """Of two phases: whether the coordinator keeps a transaction that is prepared (mqd). It is
        found out before the first one. Where it does not (Apache Kafka 4.3), our transactions have
        no time-out from their beginning."""
        self.timeout_ms = timeout_ms
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self.phase = Phase.NEW
        self.error: ClientError | None = None
        """Why it is BROKEN or DEAD."""
        self.version_2 = False
        self.partitions: set[TopicPartition] = set()
        """Where records may go."""
        self.wanted: dict[TopicPartition, None] = {}
        """Where records wait until the coordinator knows of it."""
        self.groups: set[str] = set()
        self.touched = False
        """The brokers may know of this transaction, so it must be ended there."""
        self.doubtful = False
        """What the brokers know is not sure: only a new epoch makes sure that this transaction is
        over."""
        self.lifted = False
        """Our transactions have no time-out any more, since one was prepared. InitProducerId brings
        it back."""
        self.epoch_unsure = False
        """`prepare` was begun and had no answer: our epoch may be another one by now."""

    def _go(self, phase: Phase) -> None:
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
        """Raises ClientError unless records and offsets may be added."""
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            assert self.error is not None
            raise self.error.copy()
        if self.phase is not Phase.OPEN:
            now = self.phase.value
            message = f"transactional id {self.transactional_id!r} is {now}, not in a transaction"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message, remedy="call begin first")

    def begin(self, *, version_2: bool) -> None:
        """A transaction begins here; the brokers learn of it with the first record."""
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            assert self.error is not None
            raise self.error.copy()
        if self.phase is not Phase.READY:
            message = f"transactional id {self.transactional_id!r} is {self.phase.value}"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message, remedy="commit or abort first")
        self._go(Phase.OPEN)
        self.version_2 = version_2
        assert (
            not self.partitions
            and not self.wanted
            and not self.groups
            and not self.touched
            and not self.doubtful
        )

    def init_body(self) -> dict[str, Any]:
        """InitProducerId: at the start it fences earlier producers with our id; later it
        returns a new epoch.
        """
        body = {**self._identity(), "transaction_timeout_ms": self.timeout_ms}
        return {**body, "enable_2_pc": True} if self.keeps is False else body

    def on_init(self, answer: Any) -> None:
        """Raises ClientError; retry if it is retriable."""
        if answer.error_code:
            error = error_from_wire(answer.error_code, self._subject("getting a producer id"))
            if not error.retriable:
                self.die(error)
            raise error
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self.lifted = False
        if self.phase is Phase.NEW:
            self._go(Phase.READY)

    def probe_body(self) -> dict[str, Any]:
        """InitProducerId while no transaction is open here: the response shows whether the
        coordinator has one. The timeout does not change.
        """
        return self.init_body() | {"keep_prepared_txn": True}

    def on_probed(self, answer: Any) -> None:
        """As `on_init`, but for a coordinator that keeps none."""
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self.keeps = False
            return
        self.on_init(answer)
        self.keeps = True

    # -- records and offsets

    def want(self, tp: TopicPartition) -> None:
        """Records are to go to `tp`."""
        assert self.phase is Phase.OPEN
        if self.version_2:
            self.partitions.add(tp)
            self.touched = True
        elif tp not in self.partitions:
            self.wanted[tp] = None

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether records of `tp` may go out now."""
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

    def on_added(self, answer: Any) -> None:
        """Raises ClientError; retry if it is retriable."""
        errors = []
        added = []
        for topic in answer.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                tp = TopicPartition(topic.name, row.partition_index)
                if not row.partition_error_code:
                    added.append(tp)
                elif row.partition_error_code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                    errors.append(
                        error_from_wire(row.partition_error_code, self._subject(f"adding {tp}"))
                    )
        raise_worst(errors)
        self.touched |= bool(added)
        for tp in added:
            self.wanted.pop(tp, None)
            self.partitions.add(tp)

    def add_offsets_body(self, group_id: str) -> dict[str, Any]:
        """AddOffsetsToTxn; version 1 only."""
        return {**self._identity(), "group_id": group_id}

    def on_offsets_added(self, answer: Any, group_id: str) -> None:
        """Raises ClientError; retry if it is retriable."""
        if answer.error_code:
            raise error_from_wire(
                answer.error_code, self._subject(f"adding offsets of group {group_id!r}")
            )
        self.touched = True
        self.groups.add(group_id)

    def commit_offsets_body(self, group: GroupMetadata, offsets: Offsets) -> dict[str, Any]:
        """TxnOffsetCommit."""
        return commit_body(group, offsets) | self._identity()

    def on_offsets_committed(self, answer: Any, group: GroupMetadata) -> None:
        """Raises ClientError; retry if it is retriable."""
        raise_worst(commit_errors(answer).values())
        self.touched = True
        self.groups.add(group.group_id)

    # -- two phases (KIP-939)

    def prepare(self) -> None:
        """Begin to prepare, or again after an attempt that came to no result. Raises ClientError
        unless all is well."""
        if not self.two_phase:
            message = f"transactional id {self.transactional_id!r} was not opened for two phases"
            raise ClientError(
                ErrorCode.INVALID_TXN_STATE, message, remedy="open the producer with two_phase=True"
            )
        if self.phase is not Phase.PREPARED:
            self.check_open()
            self._go(Phase.PREPARED)
        self.epoch_unsure = True

    def keep_body(self) -> dict[str, Any]:
        """InitProducerId that keeps the open transaction and lifts its time-out."""
        return self.init_body() | {"enable_2_pc": True, "keep_prepared_txn": True}

    def on_kept(self, answer: Any) -> PreparedTransaction:
        """Raises ClientError; retry if it is retriable.

        EndTxn needs the epoch of the response, not the one under which the records were written:
        the coordinator fences that one.
        """
        assert self.phase in (Phase.PREPARED, Phase.ABORTING)
        if answer.error_code:
            error = error_from_wire(answer.error_code, self._subject("preparing"))
            if not error.retriable:
                self.die(error)
            raise error
        kept = answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
        if kept != (self.producer_id, self.producer_epoch):
            message = (
                self._subject("preparing")
                + f": the coordinator has transaction {kept}, not {self._identity()}"
            )
            error = ClientError(ErrorCode.PRODUCER_FENCED, message)
            self.die(error)
            raise error
        self.epoch_unsure = False
        self.lifted = True
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return PreparedTransaction(self.transactional_id, self.producer_id, self.producer_epoch)

    # -- failures

    def fail(
        self, error: ClientError, *, doubtful: bool = True, by_coordinator: bool = False
    ) -> None:
        """A record or an offset is missing from the transaction, so it must not be committed. No
        effect if the transaction is lost already. `by_coordinator`: the coordinator knows the
        current owner of our id; other brokers may only know an old epoch of ours.
        """
        if self.phase is Phase.DEAD:
            return
        if error.code in _FATAL or (by_coordinator and error.code in FENCED):
            self.die(error)
            return
        self.doubtful |= doubtful
        if self.phase in (Phase.OPEN, Phase.COMMITTING):
            remedy = "abort, and do it again in the next transaction"
            if error.code in COMMIT_CAME_TOO_LATE:
                remedy = "abort; the partitions belong to another member now"
            self.error = TransactionBroken(
                error.code, f"the transaction can only be aborted: {error.message}", remedy=remedy
            )
            self._go(Phase.BROKEN)

    def die(self, error: ClientError) -> None:
        """This process can no longer use this id."""
        if self.phase is Phase.DEAD:
            return
        remedy = REMEDIES[ErrorCode.PRODUCER_FENCED] if error.code in FENCED else error.remedy
        self.error = ClientError(error.code, error.message, remedy=remedy)
        self._go(Phase.DEAD)

    # -- the end

    def end(self, *, commit: bool) -> None:
        """Begin to end the transaction; again after an attempt that came to no result. Raises
        ClientError where that cannot be."""
        goal = Phase.COMMITTING if commit else Phase.ABORTING
        if self.phase is goal:
            return
        if commit or self.phase is Phase.DEAD:
            self.check_open()
        elif self.phase not in (Phase.OPEN, Phase.PREPARED, Phase.BROKEN):
            now = self.phase.value
            message = f"transactional id {self.transactional_id!r} is {now}: nothing to abort"
            raise ClientError(ErrorCode.INVALID_TXN_STATE, message)
        self._go(goal)

    def check_ending(self) -> None:
        """Raises ClientError if the transaction failed or the producer died after `end`: the end
        waits for requests that are in flight, and their responses may be fatal."""
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
        return self.touched and not self.needs_epoch

    @property
    def needs_epoch(self) -> bool:
        """Whether InitProducerId, with a new epoch, must follow the abort: under version 1 nothing
        else keeps off what comes late."""
        return self.phase is Phase.ABORTING and self.doubtful and not self.version_2

    def on_ended(self, answer: Any) -> bool:
        """True if there is a new epoch now. Raises ClientError; retry if it is retriable."""
        if answer.error_code:
            doing = "committing" if self.phase is Phase.COMMITTING else "aborting"
            error = error_from_wire(answer.error_code, self._subject(doing))
            if not error.retriable:
                self.fail(error, by_coordinator=True)
                if self.phase is Phase.ABORTING:
                    self.die(error)
            raise error
        if not self.version_2 or answer.producer_id < 0:
            return False
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return True

    def on_ended_in_doubt(self, answer: Any) -> None:
        """As `on_ended`, of an abort before `needs_epoch` gets its epoch: that there is nothing to
        abort is well."""
        if answer.error_code != ErrorCode.INVALID_TXN_STATE:
            self.on_ended(answer)

    def over(self) -> None:
        """It has its end; the next one may begin. Raises ClientError, see `check_ending`."""
        self.check_ending()
        self._go(Phase.READY)
        self.partitions.clear()
        self.wanted.clear()
        self.groups.clear()
        self.touched = self.doubtful = self.epoch_unsure = False
        self.error = None
