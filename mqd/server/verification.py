"""Is this partition part of the producer's transaction? The transaction coordinator is asked before the first append (KIP-890).

Without that, a batch that was delayed beyond its transaction would begin one that nobody ever ends, and nothing behind it would be
read by those who read committed records only. Producers of transactions version 2 never say beforehand which partitions
they write: for them the coordinator adds the partition, instead of confirming that it was added.

The coordinator's word counts for the guard under which it was asked for (log/producers.py), and only as long as no marker came meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import trio

from mqd.controller.configs import effective_node_config
from mqd.errors import ErrorCode, MqError
from mqd.log.producers import Guard
from mqd.replica.partition import Partition
from mqd.server.context import Node
from mqd.server.handlers.add_partitions_to_txn import add_partitions
from mqd.types import NO_NODE, TopicPartition

ASK_SECONDS = 30.0
"""Kafka's `request.timeout.ms` of a broker."""
_VERSION = 5
_TRANSACTIONS_TOPIC = "__transaction_state"
_GROUPS_TOPIC = "__consumer_offsets"
_RETRY_MS = "add.partitions.to.txn.retry.backoff.ms"
_RETRY_MAX_MS = "add.partitions.to.txn.retry.backoff.max.ms"
_NO_SEQUENCE = -1

Producer = tuple[int, int]
"""Id and epoch."""


class Speaks(Enum):
    """What the client's version of Produce or TxnOffsetCommit can be told."""

    OLD_ERRORS = 0
    ABORTABLE = 1
    """It knows TRANSACTION_ABORTABLE."""
    ADDS = 2
    """The request itself adds partitions to the transaction, and epochs change with each transaction."""

    @classmethod
    def of(cls, version: int, abortable_from: int, adds_from: int) -> Speaks:
        return cls.ADDS if version >= adds_from else cls.ABORTABLE if version >= abortable_from else cls.OLD_ERRORS


class Verification:
    """Asks for one node's partitions; shared by all connections."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._image_index = -1
        self._enabled = True

    @property
    def is_enabled(self) -> bool:
        """`transaction.partition.verification.enable`, as it is now."""
        image = self._node.image
        if self._image_index != image.index:
            self._image_index = image.index
            config = effective_node_config(self._node.config, image, self._node.node_id)
            self._enabled = bool(config["transaction.partition.verification.enable"])
        return self._enabled

    async def ask(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], speaks: Speaks
    ) -> dict[TopicPartition, ErrorCode]:
        """Which partitions are not part of the transaction, and why; empty where all of them are. Nothing is raised.

        NETWORK_EXCEPTION where the coordinator cannot be asked. While the transaction before this one is being completed
        (CONCURRENT_TRANSACTIONS) those who add partitions are given a moment: with version 2 that is common.
        """
        if not partitions or (speaks is not Speaks.ADDS and not self.is_enabled):
            return {}
        clock, config = self._node.clock, self._node.config
        give_up_at = clock.monotonic() + config.integer(_RETRY_MAX_MS) / 1000
        while True:
            refused = await self._ask_once(transactional_id, producer, partitions, speaks)
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in refused.values()
            if speaks is not Speaks.ADDS or not concurrent or clock.monotonic() >= give_up_at:
                return refused
            await trio.sleep(config.integer(_RETRY_MS) / 1000)

    async def _ask_once(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], speaks: Speaks
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": speaks is not Speaks.ADDS,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        code = ErrorCode.NETWORK_EXCEPTION
        response: Mapping[str, Any] | None = None
        with trio.move_on_after(ASK_SECONDS):
            try:
                response = await self._coordinator_says(transactional_id, {"transactions": [transaction]})
            except MqError as error:
                code = error.code
            except OSError:
                pass
        if response is not None and not response["error_code"]:
            found = [row for result in response["results_by_transaction"] for row in result["topic_results"]]
            return {
                TopicPartition(topic["name"], row["partition_index"]): _understood(ErrorCode(row["partition_error_code"]), speaks)
                for topic in found
                for row in topic["results_by_partition"]
                if row["partition_error_code"]
            }
        if response is not None:
            code = ErrorCode(response["error_code"])
        return dict.fromkeys(partitions, _understood(code, speaks))

    async def _coordinator_says(self, transactional_id: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """MqError COORDINATOR_NOT_AVAILABLE where nobody coordinates it; OSError where that node cannot be asked."""
        node = self._node
        found = node.image.partition(_TRANSACTIONS_TOPIC, node.transactions.partition_of(transactional_id))
        if found is None or found.leader == NO_NODE:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if found.leader == node.node_id:
            return await add_partitions(node, request)
        return await node.forward(found.leader, "AddPartitionsToTxn", _VERSION, request)


def _understood(code: ErrorCode, speaks: Speaks) -> ErrorCode:
    """As Apache Kafka words the coordinator's refusal to a producer."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (code is ErrorCode.TRANSACTION_ABORTABLE and speaks is Speaks.OLD_ERRORS):
        return ErrorCode.INVALID_TXN_STATE
    return code


_PASSES = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_refusal(code: ErrorCode, speaks: Speaks) -> MqError:
    """What a producer is told: one that cannot know these errors must try again, and need not refresh its metadata for it."""
    if code in _PASSES or (code is ErrorCode.CONCURRENT_TRANSACTIONS and speaks is not Speaks.ADDS):
        reason = f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        return MqError(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
    if code is ErrorCode.INVALID_TXN_STATE:
        return MqError(code, "Partition was not added to the transaction")
    return MqError(code)


def confirm(guards: Collection[tuple[Partition, int, Guard]]) -> None:
    """The coordinator said yes for these (partition, producer id, guard): what is appended in this stretch may begin the transaction."""
    for partition, producer_id, guard in guards:
        if partition.log.producers.guards.get(producer_id) is guard:
            guard.confirmed = True


def withdraw(guards: Collection[tuple[Partition, int, Guard]]) -> None:
    """The stretch is over."""
    for _, _, guard in guards:
        guard.confirmed = False


@asynccontextmanager
async def offsets_confirmed(node: Node, group_id: str, transactional_id: str, producer: Producer, speaks: Speaks) -> AsyncIterator[None]:
    """Within it, the coordinator of the group may append offsets of this transaction. Where it is not here, it says so itself.

    MqError where the partition is not part of the transaction; COORDINATOR_LOAD_IN_PROGRESS where nobody can tell now, for that has
    clients try again without looking for another coordinator.
    """
    guard = None
    partition = node.replica.get(TopicPartition(_GROUPS_TOPIC, node.groups.partition_of(group_id)))
    if partition is not None and partition.serves:
        guard = partition.log.producers.guard(*producer, _NO_SEQUENCE, speaks is Speaks.ADDS, node.clock.wall_ms())
    if partition is None or guard is None:
        yield
        return
    topic_partition = partition.assignment.topic_partition
    refused = (await Verification(node).ask(transactional_id, producer, [topic_partition], speaks)).get(topic_partition)
    if refused is not None:
        raise MqError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if refused is ErrorCode.NETWORK_EXCEPTION else refused)
    guards = [(partition, producer[0], guard)]
    confirm(guards)
    try:
        yield
    finally:
        withdraw(guards)
