"""Produce between nodes of this cluster: a part of a node writes a transaction to partitions that
other nodes, or this one, lead (mqd/relay/). Each partition gets one transactional batch.

A node needs no connection that stays, and no order beside other requests, so this is not the hot
path of handlers/produce.py. Checks are the same, except for ACLs: the sender is a node.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError
from mqd.log.recompression import Recompression, is_wanted
from mqd.protocol.batch import HEADER_BYTES, PRODUCER_ID_POSITION, parse_header
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import read_varint
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket
from mqd.server.context import Node
from mqd.server.partitions import leading
from mqd.server.produce_append import producer_of
from mqd.server.verification import SupportedOperation, Verification, produce_refusal

_CLIENT = "node"
"""The client of the work of recompression."""
_DELTA_BYTES_MAX = 16
"""By so much a record may be larger in a batch than alone: in its deltas of time and offset."""
_ABORTABLE_FROM, _ADDS_FROM = 11, 12

Row = dict[str, Any]


class _Ticket(ProduceTicket[Partition]):
    """The batches of one request on their way to the replicas."""

    __slots__ = ("committed",)

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline
        self.committed = trio.Event()

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        _, _, (row,), _ = append
        row["error_code"] = int(code)

    def release(self) -> None:
        self.committed.set()


def produce(node: Node, version: int, request: Any) -> Coroutine[Any, Any, Mapping[str, Any]]:
    """As the API declares it, for a request of this node, too. Responds when all batches are
    committed or refused. Raises nothing: each partition has its error.

    Copies the batches at once: the coroutine runs when the receive buffer has other bytes.
    """
    for topic in request.topic_data:
        for one in topic.partition_data:
            one["records"] = bytearray(one.records or b"")
    return _produce(node, version, request)


async def _produce(node: Node, version: int, request: Any) -> Mapping[str, Any]:
    rows: list[tuple[str, Row]] = []
    places: dict[Partition, tuple[Row, memoryview]] = {}
    producers: set[tuple[int, int]] = set()
    for topic in request.topic_data:
        for one in topic.partition_data:
            row: Row = {"index": one.index, "error_code": 0, "base_offset": -1}
            rows.append((topic.name, row))
            try:
                partition = _writable(node, topic.name, one.index)
                batch = await _as_topic_wants(node, partition, _transactional(one.records))
            except MqError as error:
                _refuse(row, error)
            else:
                places[partition] = row, batch
                producers.add(producer_of(batch, PRODUCER_ID_POSITION)[:2])
    if len(producers) > 1:
        for row, _ in places.values():
            _refuse(row, MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "more than one producer"))
    elif places:
        await _append(node, version, request, producers.pop(), places)
    topics: dict[str, list[Row]] = {}
    for name, row in rows:
        topics.setdefault(name, []).append(row)
    return {
        "responses": [
            {"name": name, "partition_responses": found} for name, found in topics.items()
        ]
    }


def _refuse(row: Row, error: MqError) -> None:
    row["error_code"], row["error_message"] = int(error.code), error.message or None
    row["record_errors"] = [
        {"batch_index": index, "batch_index_error_message": why}
        for index, why in error.record_errors
    ]


def too_large(batch: memoryview, limit: int) -> list[tuple[int, str]]:
    """(index, reason) of the records of a refused batch that a batch of their own would not make
    small enough. Empty if the batch is compressed."""
    header = parse_header(batch)
    found: list[tuple[int, str]] = []
    if header.codec != Codec.NONE:
        return found
    position = HEADER_BYTES
    for index in range(header.records_count):
        length, start = read_varint(batch, position, 5)
        size = HEADER_BYTES + start + length - position
        if size - _DELTA_BYTES_MAX > limit:
            found.append((index, f"a batch of {size} bytes; max.message.bytes is {limit}"))
        position = start + length
    return found


def _writable(node: Node, topic: str, index: int) -> Partition:
    """Raises MqError if this node does not lead it, or only coordinators write to it."""
    partition = leading(node, topic, index)
    if partition.is_internal:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by its coordinators only"
        )
    return partition


def _transactional(records: bytearray) -> memoryview:
    """The batch. Raises MqError if it is none of a transaction."""
    batch = memoryview(records)
    if len(batch) < HEADER_BYTES or not parse_header(batch).is_transactional:
        raise MqError(ErrorCode.INVALID_RECORD, "nodes write transactions only")
    return batch


async def _as_topic_wants(node: Node, partition: Partition, batch: memoryview) -> memoryview:
    """The batch with the codec of its topic."""
    config = partition.log.config
    if not is_wanted(config, batch, 0, len(batch)):
        return batch
    recompression = Recompression(batch, config)
    async with node.batch_work.done(recompression, _CLIENT, lambda: partition.serves):
        return recompression.batch()


async def _append(
    node: Node,
    version: int,
    request: Any,
    producer: tuple[int, int],
    places: Mapping[Partition, tuple[Row, memoryview]],
) -> None:
    """Append the batches once the transaction coordinator has confirmed their partitions."""
    now = node.clock.monotonic()
    ticket = _Ticket(now + max(0, request.timeout_ms) / 1000)
    supported = SupportedOperation.of(version, _ABORTABLE_FROM, _ADDS_FROM)
    sequences = {
        partition: producer_of(batch, PRODUCER_ID_POSITION)[2]
        for partition, (_, batch) in places.items()
        if not partition.log.producers.in_transaction(*producer)
    }
    async with Verification(node).verified(
        request.transactional_id, producer, sequences, supported
    ) as verdict:
        with verdict.applied():
            for partition, (row, batch) in places.items():
                try:
                    if partition in verdict.refusals:
                        raise produce_refusal(verdict.refusals[partition], supported)
                    if partition not in sequences:
                        _check_open(partition, producer)
                    appended = node.replica.append_nowait(
                        partition, batch, -1, node.clock.wall_ms()
                    )
                except MqError as error:
                    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                        error.record_errors = too_large(
                            batch, partition.log.config.max_message_bytes
                        )
                    _refuse(row, error)
                else:
                    row["base_offset"] = appended.base_offset
                    ticket.appends.append((partition, appended.last_offset + 1, [row], 0))
            if ticket.appends:
                node.replica.wait_committed(ticket)
                node.replica.end_of_turn()
    if ticket.appends:
        await ticket.committed.wait()


def _check_open(partition: Partition, producer: tuple[int, int]) -> None:
    """Raises MqError if the transaction has ended since the request came."""
    if not partition.log.producers.in_transaction(*producer):
        raise MqError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "the transaction ended while the request waited: try again",
        )
