"""AddPartitionsToTxn (key 24), versions 0 to 5: add partitions to a transaction, or verify them.

v2 PRODUCER_FENCED. v3 flexible. v4 from brokers, for clients that produce (KIP-890): several
transactions at once, each to be extended or only verified. v5 TRANSACTION_ABORTABLE.

If a partition of a transaction does not exist, none is added: the others get
OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import trio

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import AddPartitions, VerifyPartitions
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, require_cluster
from mqd.server.context import CLIENT, Context, Node
from mqd.server.handlers.transactions import known_to
from mqd.server.producer_access import admit
from mqd.server.slices import KEY_CHARS_A_ROW, SLICE_ROWS, finished_soon, others_first
from mqd.types import INTERNAL_TOPICS, TopicPartition

_BATCHED_FROM = 4
_FENCED_SINCE = 2
_FIRST_PROTOCOL = 0
_SECOND_PROTOCOL = 2
_VERIFIED_AT_ONCE = 1_000

Errors = dict[TopicPartition, ErrorCode]


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    version = context.header.api_version
    if version >= _BATCHED_FROM:
        require_cluster(context, Operation.CLUSTER_ACTION)
        return await add_partitions(context.node, request, from_client=context.listener == CLIENT)
    partitions = await finished_soon(_partitions(request["v3_and_below_topics"]))
    transactional_id = request["v3_and_below_transactional_id"]
    if not is_authorized(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        errors = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return {"results_by_topic_v3_and_below": await finished_soon(_by_topic(errors))}
    errors = await finished_soon(_refused_to_client(context, partitions))
    if not errors:
        producer = Producer(
            request["v3_and_below_producer_id"], request["v3_and_below_producer_epoch"]
        )
        try:
            topics = (one.topic for one in partitions)
            await admit(context.node, transactional_id, producer, topics)
            await context.node.transactions.call(
                transactional_id,
                AddPartitions(transactional_id, producer, tuple(partitions), _FIRST_PROTOCOL),
            )
            code = ErrorCode.NONE
        except MqError as error:
            code = known_to(version, error, fenced_since=_FENCED_SINCE).code
        errors = dict.fromkeys(partitions, code)
    return {"results_by_topic_v3_and_below": await finished_soon(_by_topic(errors))}


async def add_partitions(
    node: Node, request: Mapping[str, Any], *, from_client: bool = False
) -> Mapping[str, Any]:
    """Version 5 of the request from a node of this cluster, possibly this one; in slices if it is
    large.
    """
    results: list[dict[str, Any]] = []
    weight = 0
    async with trio.open_nursery() as nursery:
        for transaction in request["transactions"]:
            result = {"transactional_id": transaction["transactional_id"], "topic_results": []}
            results.append(result)
            nursery.start_soon(_add, node, transaction, result, from_client)
            weight += 1 + len(transaction["transactional_id"]) // KEY_CHARS_A_ROW
            weight += sum(len(topic["partitions"]) for topic in transaction["topics"])
            if weight >= SLICE_ROWS:
                weight = 0
                await trio.lowlevel.checkpoint()
    return {"error_code": ErrorCode.NONE, "results_by_transaction": results}


async def _add(
    node: Node, transaction: Mapping[str, Any], result: dict[str, Any], from_client: bool
) -> None:
    partitions = await finished_soon(_partitions(transaction["topics"]))
    errors = await finished_soon(_refused(node, partitions, from_client=from_client))
    if not errors:
        transactional_id = transaction["transactional_id"]
        producer = Producer(transaction["producer_id"], transaction["producer_epoch"])
        try:
            if transaction["verify_only"]:
                errors = await _verified(node, transactional_id, producer, partitions)
            else:
                await admit(node, transactional_id, producer, (one.topic for one in partitions))
                op = AddPartitions(transactional_id, producer, tuple(partitions), _SECOND_PROTOCOL)
                await node.transactions.call(transactional_id, op)
                errors = dict.fromkeys(partitions, ErrorCode.NONE)
        except MqError as error:
            errors = dict.fromkeys(partitions, error.code)
    result["topic_results"] = await finished_soon(_by_topic(errors))


async def _verified(
    node: Node, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
) -> Errors:
    """The coordinator verifies portions. The transaction is the same for each of them, or a later
    one is refused.
    """
    errors: Errors = {}
    for start in range(0, len(partitions) or 1, _VERIFIED_AT_ONCE):
        if start:
            await others_first()
        some = tuple(partitions[start : start + _VERIFIED_AT_ONCE])
        op = VerifyPartitions(transactional_id, producer, some)
        errors |= (await node.transactions.call(transactional_id, op))["errors"]
    return errors


def failed(request: Any, error: MqError) -> dict[str, Any]:
    """For versions from 4 on, the only ones that are refused as a whole."""
    return {"error_code": error.code, "results_by_transaction": []}


def _partitions(topics: Iterable[Mapping[str, Any]]) -> Slices[list[TopicPartition]]:
    """The different partitions of a request, in its order."""
    found: dict[TopicPartition, None] = {}
    for topic in topics:
        name, partitions = topic["name"], topic["partitions"]
        for start in range(0, len(partitions), SLICE_ROWS):
            some = partitions[start : start + SLICE_ROWS]
            found.update((TopicPartition(name, partition), None) for partition in some)
            yield len(some)
        yield 1
    return list(found)


def _refused(node: Node, partitions: list[TopicPartition], *, from_client: bool) -> Slices[Errors]:
    """The error of each partition that cannot be in a transaction. Offsets have a request of their
    own.
    """
    wrong = yield from _wrong(node, partitions, from_client=from_client)
    return (yield from _with_others(partitions, wrong))


def _refused_to_client(context: Context, partitions: list[TopicPartition]) -> Slices[Errors]:
    """The same for a client, which must be able to write to the topics."""
    wrong = yield from _wrong(context.node, partitions, from_client=True)
    may_write: dict[str, bool] = {}
    for partition in partitions:
        name = partition.topic
        if name not in may_write:
            may_write[name] = name in INTERNAL_TOPICS or is_authorized(
                context, Operation.WRITE, ResourceType.TOPIC, name
            )
        if not may_write[name]:
            wrong[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        yield 1
    return (yield from _with_others(partitions, wrong))


def _wrong(node: Node, partitions: list[TopicPartition], *, from_client: bool) -> Slices[Errors]:
    wrong: Errors = {}
    for partition in partitions:
        topic = node.image.topics.get(partition.topic)
        if topic is not None and topic.internal and from_client:
            wrong[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= partition.partition < len(topic.partitions):
            wrong[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        yield 1
    return wrong


def _with_others(partitions: list[TopicPartition], wrong: Errors) -> Slices[Errors]:
    errors: Errors = {}
    if wrong:
        for one in partitions:
            errors[one] = wrong.get(one, ErrorCode.OPERATION_NOT_ATTEMPTED)
            yield 1
    return errors


def _by_topic(errors: Errors) -> Slices[list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, error in errors.items():
        topics.setdefault(partition.topic, []).append(
            {"partition_index": partition.partition, "partition_error_code": error}
        )
        yield 1
    return [{"name": name, "results_by_partition": rows} for name, rows in topics.items()]
