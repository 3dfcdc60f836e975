"""Checks the batches of a produce request, and appends them to their logs. ◆ hot path.

A batch whose codec is not the topic's `compression.type` is compressed again before it is appended.
A batch that begins a transaction in its partition needs the confirmation of the transaction
coordinator (verification.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.log.recompression import PRODUCER, is_small, is_wanted, recompressed
from mqd.protocol.batch import (
    CODEC_MASK,
    CODEC_POSITION,
    HEADER_BYTES,
    MAGIC,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_MASK,
    parse_header,
)
from mqd.protocol.hot_produce import (
    ProducePartition,
)
from mqd.protocol.slices import Slices
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, until_durable
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import hot_permissions, may_be_used_by_clients, may_use_topic
from mqd.server.connection import Connection
from mqd.server.context import Node
from mqd.server.partitions import current_leader, unknown_partition
from mqd.server.pending_produce import (
    NONE,
    Confirmation,
    PendingProduce,
    Row,
    Topic,
    note_refused,
    refused_row,
)
from mqd.server.refused_batches import RefusedBatches

_ZSTD = 4
_NO_PARTITIONS: dict[int, Partition] = {}
_NO_VIEWS: Mapping[int, memoryview | MqError] = {}
producer_of = Struct(">qhi").unpack_from
"""Producer id, epoch and base sequence of a batch, from `PRODUCER_ID_POSITION` on."""
_NAMING_LOG_START = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_RECORD,
    }
)
"""Errors of the log beside which the response has the log start offset, as with Apache Kafka."""
_WAITS = ": an earlier batch of this connection was refused, send that one again first"


class Appender:
    """Part of the Produce handler; built once a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replica = node.replica

    def append(
        self,
        pending: PendingProduce,
        name: bytes | None,
        topic_id: bytes | None,
        partitions: Sequence[ProducePartition],
        rows: list[Row],
        appends: list[Append[Partition]],
        view: memoryview,
        acks: int,
        now_ms: int,
        transactional_id: bytes | None,
        must_check: bool,
        confirmation: Confirmation | None,
        inspected: Mapping[int, memoryview | MqError] = _NO_VIEWS,
    ) -> bool:
        """Append to these partitions of one topic; `rows` gets a row for each. Returns whether a
        batch was refused.

        `must_check`: whether each batch needs the checks that most requests can skip. `inspected`:
        the batches that were inspected or compressed again before, by their start, or the error of
        a batch.
        """
        if self._node.authorizer.enforces and not self.may_write(
            pending.connection, name, topic_id, is_logged=True
        ):
            error = MqError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            rows += [refused_row(index, error, None) for index, _, _ in partitions]
            return bool(partitions)
        replica, version = self._replica, pending.version
        append_nowait = replica.append_nowait
        connection = pending.connection
        held = self.held(name, topic_id)
        refused = False
        for index, start, stop in partitions:
            partition = held.get(index)
            try:
                if partition is None or must_check or start < 0 or partition.is_restricted:
                    self._check(partition, name, topic_id, index, acks, start)
                    if partition is not None and not partition.is_shared:
                        check_transactional(partition, view, start, stop)
                    assert partition is not None
                    if confirmation is not None:
                        self._check_confirmed(partition, view, start, stop, confirmation)
                attributes = view[start + CODEC_POSITION] if stop - start > CODEC_POSITION else 0
                if attributes & TRANSACTIONAL_MASK and transactional_id is None:
                    raise MqError(
                        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                        "the request names no transactional id",
                    )
                if version < 7 and attributes & CODEC_MASK == _ZSTD:
                    raise MqError(
                        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or later"
                    )
                log = partition.log
                batch = inspected.get(start) if inspected else None
                if batch is None:
                    batch = view[start:stop]
                    config = log.config
                    if config.compression_type != PRODUCER and is_wanted(config, view, start, stop):
                        if not is_small(config, view, start, stop):
                            raise MqError(
                                ErrorCode.KAFKA_STORAGE_ERROR,
                                "compression.type changed meanwhile: try again",
                            )
                        batch = recompressed(batch, config)
                elif isinstance(batch, MqError):
                    raise batch
                if connection.refused_batches is not None:
                    check_order(connection.refused_batches, partition, batch)
                base_offset, last_offset, log_append_time_ms, _ = append_nowait(
                    partition, batch, acks, now_ms
                )
                if connection.refused_batches is not None:
                    connection.refused_batches.forget(partition.assignment.topic_partition)
            except MqError as caught:
                refused = True
                error = caught
                by_coordinator = confirmation is not None and partition in confirmation.refusals
                log_start = NONE
                if partition is not None and not by_coordinator:
                    if is_idempotent(view, start, stop):
                        error = error_in_order(connection, partition, caught)
                    if error.code in _NAMING_LOG_START and is_one_batch(view, start, stop):
                        log_start = partition.log.log_start_offset
                rows.append(
                    refused_row(
                        index,
                        error,
                        current_leader(self._node, partition, name, topic_id, index),
                        log_start,
                    )
                )
                continue
            if acks == -1:
                wanted = last_offset + 1
            else:
                wanted = until_durable(last_offset + 1) if log.config.flush_before_ack else NONE
            appends.append((partition, wanted, rows, len(rows)))
            rows.append((index, 0, base_offset, log_append_time_ms, log.log_start_offset, None))
        return refused

    def may_write(
        self,
        connection: Connection,
        name: bytes | None,
        topic_id: bytes | None,
        *,
        is_logged: bool = False,
    ) -> bool:
        """Whether the client may write to a topic. Callers skip this without an authorizer."""
        permissions = hot_permissions(self._node, connection)
        if permissions is None:
            return True
        writes = permissions.writes
        if writes.by_id.get(topic_id or b"") if name is None else writes.by_name.get(name):
            return True
        now = connection.owner.now
        return may_use_topic(
            self._node, permissions, Operation.WRITE, name, topic_id, now, is_logged=is_logged
        )

    def may_write_to_transaction(self, connection: Connection, transactional_id: bytes) -> bool:
        """Whether the client may use a transactional id. Nobody may use those of nodes."""
        name = transactional_id.decode(errors="replace")
        of_type = ResourceType.TRANSACTIONAL_ID
        if not may_be_used_by_clients(of_type, name, Operation.WRITE):
            return False
        permissions = hot_permissions(self._node, connection)
        if permissions is None:
            return True
        rule = permissions.rule(Operation.WRITE, of_type, name)
        now = connection.owner.now
        self._node.audit.note(permissions, Operation.WRITE, of_type, name, rule, "Produce", now)
        return rule.allowed

    @staticmethod
    def done_without_acks(pending: PendingProduce, refused: bool) -> None:
        """End a request with acks=0: no response, and a closed connection after an error."""
        pending.freed = True
        pending.parts = []
        pending.connection.response_ready()
        if refused:
            pending.connection.close()

    def _check(
        self,
        partition: Partition | None,
        name: bytes | None,
        topic_id: bytes | None,
        index: int,
        acks: int,
        start: int,
    ) -> None:
        """Checks that need no look at the batch. Raises MqError if it must not be appended."""
        if acks not in (1, -1, 0):
            raise MqError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: allowed are -1 (all), 0 and 1"
            )
        if partition is None:
            raise unknown_partition(self._node, name, topic_id, index)
        if start < 0:
            raise MqError(ErrorCode.INVALID_RECORD, "no records")
        if partition.is_internal:  # also for the client id __admin_client, unlike Apache Kafka
            raise MqError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition.assignment.topic_partition.topic} is written by this cluster only",
            )

    def _check_confirmed(
        self,
        partition: Partition,
        view: memoryview,
        start: int,
        stop: int,
        confirmation: Confirmation,
    ) -> None:
        """Raises MqError if the coordinator refused the partition, or did not verify it.
        NOT_LEADER_OR_FOLLOWER: this node did not lead the partition then.
        """
        if partition in confirmation.refusals:
            raise confirmation.refusals[partition]
        if partition not in confirmation.partitions and stop - start >= HEADER_BYTES:
            producer_id, epoch, _ = producer_of(view, start + PRODUCER_ID_POSITION)
            if view[
                start + CODEC_POSITION
            ] & TRANSACTIONAL_MASK and not partition.log.producers.in_transaction(
                producer_id, epoch
            ):
                raise MqError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "this node did not lead the partition when the request came: try again",
                )

    def held(self, name: bytes | None, topic_id: bytes | None) -> dict[int, Partition]:
        replica = self._replica
        return (
            replica.by_name.get(name, _NO_PARTITIONS)
            if name is not None
            else replica.by_id.get(topic_id or b"", _NO_PARTITIONS)
        )

    def unconfirmed(
        self, connection: Connection, view: memoryview, topics: Sequence[Any]
    ) -> dict[Partition, tuple[int, int, int]]:
        """(producer id, epoch, base sequence) of each batch that begins a transaction in its
        partition. Skips topics that the client may not write to.
        """
        waiting = {}
        replica = self._replica
        enforces = self._node.authorizer.enforces
        for name, topic_id, partitions in topics:
            if enforces and not self.may_write(connection, name, topic_id):
                continue
            held = (
                replica.by_name.get(name, _NO_PARTITIONS)
                if name is not None
                else replica.by_id.get(topic_id or b"", _NO_PARTITIONS)
            )
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None or not partition.serves or stop - start < HEADER_BYTES:
                    continue
                producer_id, epoch, sequence = producer_of(view, start + PRODUCER_ID_POSITION)
                transactional = (
                    producer_id >= 0 and view[start + CODEC_POSITION] & TRANSACTIONAL_MASK
                )
                if transactional and not partition.log.producers.in_transaction(producer_id, epoch):
                    waiting[partition] = producer_id, epoch, sequence
        return waiting


def check_transactional(partition: Partition, view: memoryview, start: int, stop: int) -> None:
    """Raises MqError for a batch without a transaction: the topic takes only those of its owner
    (I60).
    """
    attributes = view[start + CODEC_POSITION] if stop - start > CODEC_POSITION else 0
    if not attributes & TRANSACTIONAL_MASK:
        topic = partition.assignment.topic_partition.topic
        raise MqError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"Transactional Id authorization failed. The topic '{topic}' takes only transactions "
            "of one producer (mqd.producer.access). Set transactional.id",
        )


def is_idempotent(view: memoryview, start: int, stop: int) -> bool:
    """Whether the bytes are a batch with a producer id."""
    return (
        start >= 0
        and stop - start >= HEADER_BYTES
        and producer_of(view, start + PRODUCER_ID_POSITION)[0] >= 0
    )


def check_order(refused: RefusedBatches, partition: Partition, batch: memoryview) -> None:
    """Raises MqError OUT_OF_ORDER_SEQUENCE_NUMBER if the log does not know the producer, and an
    earlier batch of this connection was refused. This batch must not be its first one.
    """
    if partition.assignment.topic_partition not in refused or len(batch) < HEADER_BYTES:
        return
    producer_id, _, sequence = producer_of(batch, PRODUCER_ID_POSITION)
    if producer_id >= 0 and sequence and producer_id not in partition.log.producers.states:
        raise MqError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} is new and sent sequence {sequence}",
        )


def error_in_order(connection: Connection, partition: Partition, error: MqError) -> MqError:
    """The error of a refused batch. Returns the error of the earlier refused batch if this one must
    follow it (refused_batches.py, I7).
    """
    if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        note_refused(connection, partition, error.code)
    elif connection.refused_batches is not None:
        code = connection.refused_batches.error_of_next(partition.assignment.topic_partition)
        if code is not None:
            return MqError(code, f"{error.message}{_WAITS}")
    return error


def is_one_batch(view: memoryview, start: int, stop: int) -> bool:
    """Whether the bytes are one batch v2 of the length in its header."""
    if start < 0 or stop - start < HEADER_BYTES:
        return False
    header = parse_header(view, start)
    return header.magic == MAGIC and header.size == stop - start


def denied_topics(view: memoryview, topics: Sequence[Any]) -> Slices[list[Topic]]:
    """The rows of a request whose transactional id the client may not use: all are refused if a
    batch is transactional, as in Apache Kafka. Otherwise there are none.
    """
    error = MqError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    found: list[Topic] = []
    is_transactional = False
    for name, topic_id, partitions in topics:
        rows: list[Row] = []
        for index, start, stop in partitions:
            rows.append(refused_row(index, error, None))
            if stop - start > CODEC_POSITION and (
                view[start + CODEC_POSITION] & TRANSACTIONAL_MASK
            ):
                is_transactional = True
        found.append((name, topic_id, rows))
        yield 1 + len(rows)
    return found if is_transactional else []
