"""A produce request until its response: the rows of the response, and the batches that wait for
their commit. ◆ hot path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from mqd.errors import ErrorCode, MqError
from mqd.protocol.hot_produce import (
    ProducePartition,
    encode_produce_response,
)
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket
from mqd.server.connection import Connection
from mqd.server.context import Node
from mqd.server.partitions import Endpoint, current_leader, endpoints
from mqd.server.refused_batches import RefusedBatches
from mqd.server.send_queue import Part

NONE: Final = -1

ERROR_CODE: Final = 1
CURRENT_LEADER: Final = 6
"""Positions in a row. A row of `CURRENT_LEADER` elements or fewer has none."""

Row = tuple[Any, ...]
"""A row of a produce response, as `mqd.protocol.hot_produce` encodes it."""
Topic = tuple[bytes | None, bytes | None, list[Row]]
TopicBatches = tuple[bytes | None, bytes | None, Sequence[ProducePartition]]
"""The name or the id of a topic, and the positions of its batches in the request."""


class PendingProduce(ProduceTicket[Partition]):
    """A produce request: its ticket, and its place in the connection's queue of responses."""

    __slots__ = (
        "connection",
        "correlation_id",
        "node",
        "parts",
        "throttle_ms",
        "topics",
        "version",
    )

    # does not call the __init__ of ProduceTicket: hot
    def __init__(
        self, node: Node, connection: Connection, version: int, correlation_id: int
    ) -> None:
        self.appends = []
        self.waiting = 0
        self.freed = False
        self.connection = connection
        self.parts: list[Part] | None = None
        self.node = node
        self.throttle_ms = 0
        """The throttle time of the response (client_quotas.py)."""
        self.version = version
        self.correlation_id = correlation_id
        self.topics: list[Topic] = []

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        partition, _, rows, row = append
        if rows[row][ERROR_CODE]:
            return  # the first error is the cause
        note_refused(self.connection, partition, code)
        rows[row] = refused_row(rows[row][0], MqError(code), current_leader(self.node, partition))

    def release(self) -> None:
        self.parts = [
            encode_produce_response(
                self.version,
                self.correlation_id,
                self.topics,
                self.throttle_ms,
                self.addresses(),
            )
        ]
        self.connection.response_ready()

    def addresses(self) -> Sequence[Endpoint]:
        """The addresses of the nodes that the response names as leaders."""
        if self.version < 10:
            return ()
        moved = {
            row[CURRENT_LEADER][0]
            for _, _, rows in self.topics
            for row in rows
            if len(row) > CURRENT_LEADER and row[CURRENT_LEADER]
        }
        return endpoints(self.node, moved, self.connection.client_listener) if moved else ()


class Confirmation:
    """The result of the transaction coordinator for a request, which is then appended."""

    __slots__ = ("now", "now_ms", "partitions", "pending", "refusals")

    def __init__(
        self,
        pending: PendingProduce,
        partitions: Collection[Partition],
        refusals: dict[Partition, MqError],
        now: float,
        now_ms: int,
    ) -> None:
        self.pending = pending
        self.partitions = partitions
        """Partitions that the request to the coordinator named."""
        self.refusals = refusals
        self.now = now
        self.now_ms = now_ms


def note_refused(connection: Connection, partition: Partition, code: ErrorCode) -> None:
    """A batch of this connection was refused, before or after it was appended."""
    if connection.refused_batches is None:
        connection.refused_batches = RefusedBatches()
    connection.refused_batches.note(partition.assignment.topic_partition, code)


def refused_row(
    index: int, error: MqError, leader: tuple[int, int] | None, log_start: int = NONE
) -> Row:
    """The row of a partition whose batch was rejected. For a stale client it names the leader
    (KIP-951).
    """
    row: Row = (index, int(error.code), NONE, NONE, log_start, error.message or None)
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and leader is not None:
        return (*row, leader)
    if error.record_errors:
        return (*row, None, error.record_errors)
    return row
