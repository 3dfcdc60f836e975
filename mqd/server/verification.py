"""Whether a partition is part of the producer's transaction. The leader verifies this with the
transaction coordinator before the first append (KIP-890).

Without this check, a batch that arrives after its transaction has ended would begin a hanging
transaction. Then `read_committed` consumers would never read beyond it. Producers of transaction
version 2 do not register partitions: for them the coordinator adds the partition instead of
confirming it.

The coordinator's result is valid for the guard of its request (log/transaction_guard.py), and only
if no marker was written in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Any

import trio

from mqd.controller.configs import CurrentConfig
from mqd.errors import ErrorCode, MqError
from mqd.log.transaction_guard import Guard
from mqd.replica.partition import Partition
from mqd.server.context import Node
from mqd.server.handlers.add_partitions_to_txn import add_partitions
from mqd.types import GROUPS_TOPIC, NO_NODE, TRANSACTIONS_TOPIC, TopicPartition

REQUEST_TIMEOUT_SECONDS = 30.0
"""Kafka's `request.timeout.ms` of a broker."""
_VERSION = 5
_RETRY_MS = "add.partitions.to.txn.retry.backoff.ms"
_RETRY_MAX_MS = "add.partitions.to.txn.retry.backoff.max.ms"
_NO_SEQUENCE = -1
_REQUESTS_MAX = 20
"""A request is repeated if a marker was written in between. More than once is rare."""

Producer = tuple[int, int]
"""Id and epoch."""


class SupportedOperation(Enum):
    """The features that the client's version of Produce or TxnOffsetCommit supports (Kafka:
    TransactionSupportedOperation).
    """

    DEFAULT_ERROR = 0
    GENERIC_ERROR_SUPPORTED = 1
    """The client knows TRANSACTION_ABORTABLE."""
    ADD_PARTITION = 2
    """The request itself adds partitions to the transaction, and epochs change with each
    transaction.
    """

    @classmethod
    def of(cls, version: int, abortable_from: int, adds_from: int) -> SupportedOperation:
        return (
            cls.ADD_PARTITION
            if version >= adds_from
            else cls.GENERIC_ERROR_SUPPORTED
            if version >= abortable_from
            else cls.DEFAULT_ERROR
        )


class VerificationResult:
    """The coordinator's result for some partitions."""

    __slots__ = ("_guards", "_producer_id", "refusals")

    def __init__(
        self, refusals: dict[Partition, ErrorCode], producer_id: int, guards: dict[Partition, Guard]
    ) -> None:
        self.refusals = refusals
        """Which of them are not part of the transaction, and why."""
        self._producer_id = producer_id
        self._guards = guards

    @property
    def is_outdated(self) -> bool:
        """Whether a marker removed the guard of a partition that was not refused."""
        return any(
            partition.log.producers.guards.get(self._producer_id) is not guard
            for partition, guard in self._guards.items()
            if partition not in self.refusals
            and not partition.log.producers.in_transaction(self._producer_id, guard.epoch)
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context, without awaits, a confirmed batch may begin its transaction."""
        for partition, guard in self._guards.items():
            guard.confirmed = (
                partition not in self.refusals
                and partition.log.producers.guards.get(self._producer_id) is guard
            )
        try:
            yield
        finally:
            for guard in self._guards.values():
                guard.confirmed = False


class Verification:
    """For the partitions of one node; shared by all connections."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._current_config = CurrentConfig(node.config, lambda: node.image, node.node_id)

    @property
    def is_enabled(self) -> bool:
        """`transaction.partition.verification.enable`, as it is now."""
        return self._current_config().boolean("transaction.partition.verification.enable")

    @asynccontextmanager
    async def verified(
        self,
        transactional_id: str,
        producer: Producer,
        wanted: Mapping[Partition, int],
        supported: SupportedOperation,
    ) -> AsyncIterator[VerificationResult]:
        """A context with the coordinator's result: whether batches with these base sequences may
        begin the producer's transaction in their partitions. Raises nothing: the result is
        NETWORK_EXCEPTION if the coordinator is unreachable.

        A producer that adds partitions need not wait for the markers of its previous transaction.
        So the request is retried for a moment while that transaction is completing
        (CONCURRENT_TRANSACTIONS). If a marker of it is written to one of these partitions
        meanwhile, the request is repeated: the epoch distinguishes the transactions.
        """
        held: dict[Guard, Partition] = {}
        try:
            yield await self._verify(transactional_id, producer, wanted, supported, held)
        finally:
            for guard, partition in held.items():
                self._node.guards.leave(guard, partition.log.producers, producer[0])

    async def _verify(
        self,
        transactional_id: str,
        producer: Producer,
        wanted: Mapping[Partition, int],
        supported: SupportedOperation,
        held: dict[Guard, Partition],
    ) -> VerificationResult:
        """`held` gets all guards that this request waits behind."""
        clock, config = self._node.clock, self._node.config
        give_up_at = clock.monotonic() + config.integer(_RETRY_MAX_MS) / 1000
        requests = 0
        while True:
            guards: dict[Partition, Guard] = {}
            for partition, sequence in wanted.items():
                guard = partition.log.producers.guard(
                    *producer,
                    sequence,
                    supported is SupportedOperation.ADD_PARTITION,
                    clock.wall_ms(),
                )
                if guard is not None:
                    guards[partition] = guard
                    if guard not in held:
                        held[guard] = partition
                        self._node.guards.take(guard)
            if not guards or (
                supported is not SupportedOperation.ADD_PARTITION
                and not self.is_enabled
                and not any(partition.is_restricted for partition in guards)
            ):
                return VerificationResult({}, producer[0], guards)
            places = {partition.assignment.topic_partition: partition for partition in guards}
            refused = await self._send_request(transactional_id, producer, places, supported)
            result = VerificationResult(
                {places[place]: code for place, code in refused.items() if place in places},
                producer[0],
                guards,
            )
            requests += 1
            if supported is not SupportedOperation.ADD_PARTITION:
                return result
            if ErrorCode.CONCURRENT_TRANSACTIONS in refused.values():
                if clock.monotonic() >= give_up_at:
                    return result
                await trio.sleep(config.integer(_RETRY_MS) / 1000)
            elif not result.is_outdated or requests >= _REQUESTS_MAX:
                return result

    async def _send_request(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        supported: SupportedOperation,
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": supported is not SupportedOperation.ADD_PARTITION,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        code = ErrorCode.NETWORK_EXCEPTION
        response: Mapping[str, Any] | None = None
        with trio.move_on_after(REQUEST_TIMEOUT_SECONDS):
            try:
                response = await self._send_to_coordinator(
                    transactional_id, {"transactions": [transaction]}
                )
            except MqError as error:
                code = error.code
            except OSError:
                pass
        if response is not None and not response["error_code"]:
            found = [
                row
                for result in response["results_by_transaction"]
                for row in result["topic_results"]
            ]
            return {
                TopicPartition(topic["name"], row["partition_index"]): _client_code(
                    ErrorCode(row["partition_error_code"]), supported
                )
                for topic in found
                for row in topic["results_by_partition"]
                if row["partition_error_code"]
            }
        if response is not None:
            code = ErrorCode(response["error_code"])
        return dict.fromkeys(partitions, _client_code(code, supported))

    async def _send_to_coordinator(
        self, transactional_id: str, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Raises MqError COORDINATOR_NOT_AVAILABLE if the id has no coordinator; OSError if that
        node is unreachable.
        """
        node = self._node
        found = node.image.partition(
            TRANSACTIONS_TOPIC, node.transactions.partition_of(transactional_id)
        )
        if found is None or found.leader == NO_NODE:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if found.leader == node.node_id:
            return await add_partitions(node, request)
        return await node.forward(found.leader, "AddPartitionsToTxn", _VERSION, request)


def _client_code(code: ErrorCode, supported: SupportedOperation) -> ErrorCode:
    """The error code that a producer gets for a refusal of the coordinator, as in Apache Kafka."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code is ErrorCode.TRANSACTION_ABORTABLE and supported is SupportedOperation.DEFAULT_ERROR
    ):
        return ErrorCode.INVALID_TXN_STATE
    return code


_TRANSIENT = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_refusal(code: ErrorCode, supported: SupportedOperation) -> MqError:
    """The error for a producer. If its version lacks the error of the coordinator, it gets one that
    it retries without a metadata refresh.
    """
    if code in _TRANSIENT or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS
        and supported is not SupportedOperation.ADD_PARTITION
    ):
        reason = (
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}"
        )
        return MqError(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        reason = (
            "Transactional Id authorization failed. Another transactional id owns the topic "
            "(mqd.producer.access=exclusive). DescribeConfigs shows it as mqd.producer.owner"
        )
        return MqError(code, reason)
    if code is ErrorCode.INVALID_TXN_STATE:
        return MqError(code, "Partition was not added to the transaction")
    return MqError(code)


@asynccontextmanager
async def offsets_confirmed(
    node: Node,
    group_id: str,
    transactional_id: str,
    producer: Producer,
    supported: SupportedOperation,
) -> AsyncIterator[None]:
    """Within this context, the group coordinator may append offsets of this transaction. If the
    group coordinator is on another node, it returns that error itself.

    Raises MqError if the partition is not part of the transaction. COORDINATOR_LOAD_IN_PROGRESS if
    that is unknown now: clients then retry without a search for another coordinator.
    """
    partition = node.replica.get(TopicPartition(GROUPS_TOPIC, node.groups.partition_of(group_id)))
    if (
        partition is None
        or not partition.serves
        or partition.log.producers.in_transaction(*producer)
    ):
        yield
        return
    async with Verification(node).verified(
        transactional_id, producer, {partition: _NO_SEQUENCE}, supported
    ) as result:
        for refused in result.refusals.values():
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if refused is ErrorCode.NETWORK_EXCEPTION
                else refused
            )
        with result.applied():
            yield
