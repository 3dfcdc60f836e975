"""Produce, v3 to v13: record batches go from where they were received to the log; answered when they are committed.

v3 transactional_id; v5 log_start_offset in the answer; v7 zstd; v8 error messages; v9 flexible; v10 the current leader
in the answer to a stale client (KIP-951); v12 transactions v2; v13 topics by id. Versions 0 to 2 are advertised, because
librdkafka ties compression to them (KAFKA-18659), and not served.

acks: 0 is not answered (a refusal closes the connection, so that the client looks for the leader again), 1 is answered
once written here, -1 once every in-sync replica has it. ◆ hot path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.protocol.hot import decode_produce_request, encode_produce_response
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket, until_durable
from mqd.server.connection import Connection, Part
from mqd.server.context import Node
from mqd.server.partitions import Endpoint, current_leader, endpoints, unknown_partition

_NONE = -1
_ZSTD = 4
_ATTRIBUTES_POSITION = 22
"""The low byte of a batch's attributes: the codec is in its last three bits."""
_CODEC_MASK = 0x07
_NO_PARTITIONS: dict[int, Partition] = {}

Row = tuple[Any, ...]
Topic = tuple[bytes | None, bytes | None, list[Row]]


class _Pending(ProduceTicket):
    """A produce request until it is answered: its ticket and the place of its answer in one."""

    __slots__ = ("connection", "correlation_id", "node", "parts", "topics", "version")

    def __init__(self, node: Node, connection: Connection, version: int, correlation_id: int) -> None:  # calls no other: hot
        self.appends = []
        self.waiting = 0
        self.freed = False
        self.connection = connection
        self.parts: list[Part] | None = None
        self.node = node
        self.version = version
        self.correlation_id = correlation_id
        self.topics: list[Topic] = []

    def refuse(self, append: Append, code: ErrorCode) -> None:
        partition, _, rows, row = append
        if rows[row][1]:
            return  # the first refusal is the one that tells why
        rows[row] = refused_row(rows[row][0], MqError(code), current_leader(self.node, partition))

    def release(self) -> None:
        topics = self.topics
        addresses: Sequence[Endpoint] = ()
        if self.version >= 10:
            moved = {row[6][0] for _, _, rows in topics for row in rows if len(row) > 6 and row[6]}
            if moved:
                addresses = endpoints(self.node, moved)
        self.parts = [encode_produce_response(self.version, self.correlation_id, topics, 0, addresses)]
        self.connection.answered()


class Produce:
    """The handler; built once a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replica = node.replica

    def __call__(
        self, connection: Connection, buffer: bytearray, view: memoryview, position: int, end: int, version: int, correlation_id: int
    ) -> None:
        """Append what the request in [position, end) carries, and answer it when that is settled."""
        transactional_id, acks, timeout_ms, asked = decode_produce_request(view, position, end, version)
        replica = self._replica
        append_nowait = replica.append_nowait
        now_ms = connection.owner.now_ms
        pending = _Pending(self._node, connection, version, correlation_id)
        connection.slots.append(pending)
        appends = pending.appends
        impossible = transactional_id is not None or acks not in (1, -1, 0)
        refused = False
        for name, topic_id, partitions in asked:
            held = replica.by_name.get(name, _NO_PARTITIONS) if name is not None else replica.by_id.get(topic_id or b"", _NO_PARTITIONS)
            rows: list[Row] = []
            pending.topics.append((name, topic_id, rows))
            for index, start, stop in partitions:
                partition = held.get(index)
                try:
                    if partition is None or impossible or start < 0:
                        raise self._refusal(partition, name, topic_id, index, acks, start)
                    if version < 7 and stop - start > _ATTRIBUTES_POSITION and buffer[start + _ATTRIBUTES_POSITION] & _CODEC_MASK == _ZSTD:
                        raise MqError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or later")
                    base_offset, last_offset, log_append_time_ms, _ = append_nowait(partition, view[start:stop], acks, now_ms)
                except MqError as error:
                    refused = True
                    rows.append(refused_row(index, error, current_leader(self._node, partition, name, topic_id, index)))
                    continue
                log = partition.log
                if acks == -1:
                    wanted = last_offset + 1
                else:
                    wanted = until_durable(last_offset + 1) if log.config.flush_before_ack else _NONE
                appends.append((partition, wanted, rows, len(rows)))
                rows.append((index, 0, base_offset, log_append_time_ms, log.log_start_offset, None))
        if acks == 0:
            pending.freed = True
            pending.parts = []
            connection.answered()
            if refused:
                connection.close()
            return
        pending.deadline = connection.owner.now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        replica.wait_committed(pending)

    def _refusal(
        self, partition: Partition | None, name: bytes | None, topic_id: bytes | None, index: int, acks: int, start: int
    ) -> MqError:
        if acks not in (1, -1, 0):
            return MqError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: allowed are -1 (all), 0 and 1")
        if partition is None:
            return unknown_partition(self._node, name, topic_id, index)
        if start < 0:
            return MqError(ErrorCode.INVALID_RECORD, "no records")
        return MqError(ErrorCode.INVALID_TXN_STATE, "transactions are not served by this release: produce without a transactional id")


def refused_row(index: int, error: MqError, leader: tuple[int, int] | None) -> Row:
    """The answer for one partition that took nothing; to a stale client it names the leader (KIP-951)."""
    row: Row = (index, int(error.code), _NONE, _NONE, _NONE, error.message or None)
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and leader is not None:
        return (*row, leader)
    if error.record_errors:
        return (*row, None, error.record_errors)
    return row
