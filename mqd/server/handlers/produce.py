"""Produce, v3 to v13: appends record batches from where they were received, and responds when they
are committed.

v3 transactional_id. v5 log_start_offset in the response. v7 zstd. v8 error messages. v9 flexible.
v10 the current leader in the response to a stale client (KIP-951). v12 transactions v2. v13 topics
by id. Versions 0 to 2 are advertised and not served: librdkafka ties compression to them
(KAFKA-18659).

A request with acks=0 gets no response. An error closes its connection, so that the client finds the
leader again. With acks=1 the response is sent when this node has written the batches, with acks=-1
when every in-sync replica has them. ◆ hot path.

A request that begins a transaction in a partition waits for the transaction coordinator
(verification.py), and so do later requests of its connection. Later batches of the transaction do
not wait. `produce_append.py` appends, `large_produce.py` has large requests. `handle` is for
requests of other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCED_AT_ONCE_BYTES_MAX
from mqd.protocol.hot_produce import (
    ProduceTopic,
    decode_produce_at_once,
)
from mqd.protocol.slices import all_slices
from mqd.replica.partition import Partition
from mqd.server.bugs import raised_in_core
from mqd.server.connection import Connection
from mqd.server.context import Context, Node
from mqd.server.large_produce import (
    ABORTABLE_FROM_VERSION,
    ADDS_FROM_VERSION,
    TOO_MANY_PRODUCERS,
    LargeProduce,
)
from mqd.server.node_produce import produce as produce_of_node
from mqd.server.pending_produce import Confirmation, PendingProduce, Row, Topic
from mqd.server.produce_append import Appender, denied_topics
from mqd.server.receive_buffers import Buffer
from mqd.server.verification import SupportedOperation, Verification, produce_refusal


def handle(context: Context, request: Any) -> Coroutine[Any, Any, Mapping[str, Any]]:
    """A request on the peer listener."""
    return produce_of_node(context.node, context.header.api_version, request)


class Produce:
    """The handler; built once a node."""

    def __init__(
        self, node: Node, spawn: Callable[..., None], bug: Callable[[Connection, str], None]
    ) -> None:
        """`spawn(connection, function, *args)` starts a task for the connection; `bug` is
        Dispatcher.bug.
        """
        self._node = node
        self._replica = node.replica
        self._quotas = node.quotas
        self._spawn = spawn
        self._bug = bug
        self._verification = Verification(node)
        self._appender = Appender(node)
        self._large = LargeProduce(node, self._appender, self._verification, spawn, bug)

    def __call__(
        self,
        connection: Connection,
        buffer: Buffer,
        view: memoryview,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
        confirmation: Confirmation | None = None,
    ) -> None:
        """Append the batches of the request in [position, end), and respond when they are committed
        or rejected.

        Called again with the `confirmation` of the transaction coordinator, and with the bytes of
        the request's body alone.
        """
        request = decode_produce_at_once(view, position, end, version)
        if request is None or (
            confirmation is None
            and (
                (end - position > PRODUCED_AT_ONCE_BYTES_MAX and not _is_single(request[3]))
                or self._large.must_examine(connection, view, request[3], end - position)
            )
        ):
            self._large.start(connection, buffer, view[position:end], version, correlation_id)
            return
        transactional_id, acks, timeout_ms, topics = request
        replica = self._replica
        must_check = acks not in (1, -1, 0)
        denied: list[Topic] = []
        if transactional_id is not None and not self._appender.may_write_to_transaction(
            connection, transactional_id
        ):
            transactional_id = None
            denied = all_slices(denied_topics(view, topics))
        if confirmation is None:
            now, now_ms = connection.owner.now, connection.owner.now_ms
            pending = PendingProduce(self._node, connection, version, correlation_id)
            if self._quotas.keys:
                pending.throttle_ms = self._quotas.throttle_for_produce(connection, end - position)
            connection.slots.append(pending)
            if transactional_id is not None and not must_check:
                waiting = self._appender.unconfirmed(connection, view, topics)
                if waiting:
                    connection.barrier = True
                    body = bytearray(view[position:end])
                    self._spawn(
                        connection,
                        self._append_when_confirmed,
                        pending,
                        body,
                        transactional_id,
                        waiting,
                    )
                    return
        else:
            now, now_ms, pending = confirmation.now, confirmation.now_ms, confirmation.pending
            must_check = True
        refused = False
        if denied:
            pending.topics, topics, refused = denied, [], True
        for name, topic_id, partitions in topics:
            rows: list[Row] = []
            pending.topics.append((name, topic_id, rows))
            if self._appender.append(
                pending,
                name,
                topic_id,
                partitions,
                rows,
                pending.appends,
                view,
                acks,
                now_ms,
                transactional_id,
                must_check,
                confirmation,
            ):
                refused = True
        if acks == 0:
            self._appender.done_without_acks(pending, refused)
            return
        pending.deadline = now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        replica.wait_committed(pending)

    async def _append_when_confirmed(
        self,
        pending: PendingProduce,
        body: bytearray,
        transactional_id: bytes,
        waiting: dict[Partition, tuple[int, int, int]],
    ) -> None:
        """A task. Later requests of the connection wait until it has ended."""
        connection = pending.connection
        supported = SupportedOperation.of(
            pending.version, ABORTABLE_FROM_VERSION, ADDS_FROM_VERSION
        )
        connection.request_pool.bytes += len(body)
        try:
            producers = {one[:2] for one in waiting.values()}
            if len(producers) > 1:
                error = MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, TOO_MANY_PRODUCERS)
                self._append_confirmed(pending, body, waiting, dict.fromkeys(waiting, error))
                return
            sequences = {partition: one[2] for partition, one in waiting.items()}
            async with self._verification.verified(
                transactional_id.decode(errors="replace"), producers.pop(), sequences, supported
            ) as verdict:
                refusals = {
                    partition: produce_refusal(code, supported)
                    for partition, code in verdict.refusals.items()
                }
                with verdict.applied():
                    self._append_confirmed(pending, body, waiting, refusals)
        except Exception as error:
            if raised_in_core(error):
                raise
            self._bug(connection, "produce")
        finally:
            connection.request_pool.bytes -= len(body)

    def _append_confirmed(
        self,
        pending: PendingProduce,
        body: bytearray,
        partitions: Collection[Partition],
        refusals: dict[Partition, MqError],
    ) -> None:
        """Append and write in a separate turn, unless the client has closed the connection."""
        connection, clock = pending.connection, self._node.clock
        connection.barrier = False
        if not connection.open:
            return
        confirmation = Confirmation(
            pending, partitions, refusals, clock.monotonic(), clock.wall_ms()
        )
        self(
            connection,
            body,
            memoryview(body),
            0,
            len(body),
            pending.version,
            pending.correlation_id,
            confirmation,
        )
        self._replica.end_of_turn()
        connection.owner.resume_later(connection)


def _is_single(topics: Sequence[ProduceTopic]) -> bool:
    """Whether a request has one batch at most, which cannot be appended in slices."""
    return len(topics) == 1 and len(topics[0][2]) <= 1
