"""The operations of a transaction coordinator's shard, and the effects of its decisions.

Calls of clients become operations in server/handlers. service.py carries out the effects, and its
reports are operations, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mqd.coordinator.expressions import compiled
from mqd.coordinator.shard import GroupOptions, Producer
from mqd.errors import ErrorCode, MqError
from mqd.limits import EXPRESSION_CHARS_MAX
from mqd.types import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

# -- operations


@dataclass(frozen=True, slots=True)
class InitializeProducer:
    """InitProducerId. Response: producer_id, producer_epoch, and those of a prepared transaction as
    `ongoing_txn_...`. ProducerIdWanted: retry with a spare id."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    """The id and epoch that the caller has (KIP-360). None for a caller that starts: it fences the
    producer before it."""
    spare_producer_id: int = NO_PRODUCER_ID
    two_phase: bool = False
    """Its transactions never time out (`enable_2_pc`)."""
    keep_prepared: bool = False
    """The open transaction is not aborted, but prepared (`keep_prepared_txn`)."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn and AddOffsetsToTxn. Response: nothing."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """AddPartitionsToTxn that only verifies. Response: `errors`, by partition."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn. Response: producer_id, producer_epoch of the next transaction, -1 in the first
    protocol. ProducerIdWanted as above."""

    transactional_id: str
    producer: Producer
    committed: bool
    client_version: int = 0
    spare_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """Response: a row of DescribeTransactions."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class DescribeIdleProducer:
    """Response: `idle_ms`, the time since the last transaction or initialization; -1 while a
    transaction is open. TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Response: `transaction_states`, rows of ListTransactions. An empty filter matches all."""

    producer_ids: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    """Kafka's names; unknown ones match nothing."""
    duration_ms: int = -1
    """Only what began longer ago than this; negative for no filter."""


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """These partitions have the marker that `WriteMarkers` requested, or were deleted.
    Response: `pending`, whether another partition has none yet."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    prepared_ms: int | None = None
    """As in `WriteMarkers`: in the first protocol the next transaction has the same producer. None
    if that does not matter."""


@dataclass(frozen=True, slots=True)
class PartitionsSealed:
    """These partitions have the seal that `SealPartitions` requested, or were deleted.
    Response: `pending`, whether another partition has none yet."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AbortTimedOut:
    """The producer id that `SpareProducerId` requested."""

    transactional_id: str
    producer: Producer
    spare_producer_id: int


# -- effects


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """The outcome is committed: write a marker to every partition of the transaction, and report
    with `MarkersWritten`."""

    transactional_id: str
    producer: Producer
    """The producer in the markers. In the second protocol its epoch is one above the records'."""
    committed: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    prepared_ms: int = field(default=NO_TIMESTAMP, compare=False)
    """Wall time of the decision, which distinguishes it from earlier decisions."""


@dataclass(frozen=True, slots=True)
class SealPartitions:
    """The transaction is prepared. Its partitions must reject batches with the epoch of its
    records. Report the completion with `PartitionsSealed`.
    """

    transactional_id: str
    producer: Producer
    """The producer in the seals: its epoch is one above the records'."""
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class SpareProducerId:
    """A transaction timed out whose producer id has no epoch left: report with `AbortTimedOut`."""

    transactional_id: str
    producer: Producer


# -- checks


def check(op: Any, options: GroupOptions) -> None:
    """Check what no shard is needed for. Raises MqError: INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
    if not getattr(op, "transactional_id", True):
        raise MqError(ErrorCode.INVALID_REQUEST, "A transactional id has at least one character.")
    if not isinstance(op, InitializeProducer):
        return
    if (op.two_phase or op.keep_prepared) and not options.node(
        "transaction.two.phase.commit.enable"
    ):
        raise MqError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Two-phase commit is disabled. Set transaction.two.phase.commit.enable=true on every "
            "node to enable it.",
        )
    if not op.two_phase and not 0 < op.timeout_ms <= options.node("transaction.max.timeout.ms"):
        raise MqError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "transaction.timeout.ms is not between 1 and transaction.max.timeout.ms.",
        )


def compiled_pattern(pattern: str) -> Any:
    """A pattern of transactional ids, None for an empty one. Raises MqError
    INVALID_REGULAR_EXPRESSION."""
    if not pattern:
        return None
    try:
        return compiled(pattern)
    except ValueError as cause:
        raise MqError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"`{pattern[:EXPRESSION_CHARS_MAX]}` is not a valid regular expression: {cause}.",
        ) from None
