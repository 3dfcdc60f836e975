"""Produce requests of many partitions or bytes, or with a large batch that the broker must inspect
or compress again. A task decodes, appends and encodes them in slices.

Later requests of the connection wait until all of the request is appended. Each slice writes what
it appends, and has its own ticket. A large batch is inspected before the slice that appends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import DECODED_AT_ONCE_ROWS, KIB, MIB
from mqd.log.recompression import PRODUCER, is_small, is_wanted, recompressed
from mqd.log.record_inspection import is_large
from mqd.protocol.batch import (
    CODEC_POSITION,
    HEADER_BYTES,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_MASK,
)
from mqd.protocol.hot_produce import (
    ProducePartition,
    ProduceTopic,
    decode_produce_in_slices,
    encode_produce_response_in_slices,
)
from mqd.protocol.slices import Slices
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket
from mqd.server.bugs import raised_in_core
from mqd.server.connection import Connection
from mqd.server.context import Node
from mqd.server.pending_produce import Confirmation, PendingProduce, Row, Topic, TopicBatches
from mqd.server.produce_append import Appender, denied_topics, producer_of
from mqd.server.receive_buffers import Buffer
from mqd.server.slices import finished_in_slices, one_slice
from mqd.server.verification import SupportedOperation, Verification, produce_refusal

ABORTABLE_FROM_VERSION, ADDS_FROM_VERSION = 11, 12
_COMPRESSED_AT_ONCE_BYTES = 64 * KIB
"""Requests up to this are compressed again on the event loop if all their batches are small: 1 ms
with zstd, 3 ms with gzip.
"""
_SLICE_BYTES = MIB
_SLICE_ROWS = 100
"""Records and batches that are appended before other requests have a turn: 2 ms."""
TOO_MANY_PRODUCERS = "Transactional records contained more than one producer ID"
_NOTHING = memoryview(b"")

_Piece = tuple[bytes | None, bytes | None, Sequence[ProducePartition], list[Row]]
"""Some partitions of a topic, and the rows of its response."""


class _Share(ProduceTicket[Partition]):
    """The part of a large request that one slice appended."""

    __slots__ = ("large",)

    def __init__(self, large: _Large) -> None:
        super().__init__()
        self.large = large
        self.deadline = large.deadline
        large.unfinished += 1

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        self.large.pending.refuse(append, code)

    def release(self) -> None:
        self.large.unfinished -= 1
        if not self.large.unfinished:
            self.large.finished.set()


class _Large:
    """A large request between its slices."""

    __slots__ = (
        "acks",
        "deadline",
        "examined",
        "finished",
        "pending",
        "producers",
        "refused",
        "transactional_id",
        "unfinished",
        "view",
    )

    def __init__(self, pending: PendingProduce, view: memoryview) -> None:
        self.pending = pending
        self.view = view
        self.transactional_id: bytes | None = None
        self.acks = 0
        self.deadline = 0.0
        self.producers: set[tuple[int, int]] = set()
        """Id and epoch of the producers to whose transactions the request adds."""
        self.refused = False
        self.examined: dict[int, memoryview | MqError] = {}
        """Batches of the current slice that were inspected or compressed again, by their start. An
        error rejects the batch.
        """
        self.unfinished = 1
        """Shares that are not committed, and one for the slices that are not appended."""
        self.finished = trio.Event()


class LargeProduce:
    """Part of the Produce handler; built once a node."""

    def __init__(
        self,
        node: Node,
        appender: Appender,
        verification: Verification,
        spawn: Callable[..., None],
        bug: Callable[[Connection, str], None],
    ) -> None:
        self._node = node
        self._replica = node.replica
        self._appender = appender
        self._verification = verification
        self._spawn = spawn
        self._bug = bug
        self._examination = trio.Lock()
        """One large batch is decompressed at a time, for memory."""

    def start(
        self,
        connection: Connection,
        buffer: Buffer,
        body: memoryview,
        version: int,
        correlation_id: int,
    ) -> None:
        pending = PendingProduce(self._node, connection, version, correlation_id)
        quotas = self._node.quotas
        if quotas.keys:
            pending.throttle_ms = quotas.of_produce(connection, len(body))
        connection.slots.append(pending)
        connection.barrier = True
        if not connection.frames.retain(buffer):
            body = memoryview(bytearray(body))
        self._spawn(self._append_large, pending, body, connection.owner.now)

    async def _append_large(self, pending: PendingProduce, view: memoryview, now: float) -> None:
        """A task. Later requests of the connection wait until all of this one is appended."""
        connection, owner = pending.connection, pending.connection.owner
        large = _Large(pending, view)
        connection.request_pool.bytes += len(view)
        try:
            try:
                await self._append_in_slices(large, now)
            finally:
                connection.request_pool.bytes -= len(view)
            large.view = view = _NOTHING
            if not connection.open:
                return
            connection.barrier = False
            owner.resume_later(connection)
            if large.acks == 0:
                self._appender.done_without_acks(pending, large.refused)
                return
            await large.finished.wait()
            encoding = encode_produce_response_in_slices(
                pending.version,
                pending.correlation_id,
                pending.topics,
                pending.throttle_ms,
                pending.addresses(),
            )
            pending.parts = [await finished_in_slices(encoding)]
            connection.response_ready()
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:
            if raised_in_core(error):
                raise
            self._bug(connection, "produce")

    async def _append_in_slices(self, large: _Large, now: float) -> None:
        pending, view = large.pending, large.view
        request = await finished_in_slices(
            decode_produce_in_slices(view, 0, len(view), pending.version)
        )
        large.transactional_id, large.acks, timeout_ms, topics = request
        transactional_id = large.transactional_id
        if (
            transactional_id is not None
            and self._node.authorizer.enforces
            and not self._appender.may_write_to_transaction(pending.connection, transactional_id)
        ):
            large.transactional_id = None
            denied = await finished_in_slices(denied_topics(view, topics))
            if denied:
                pending.topics, topics, large.refused = denied, [], True
        large.deadline = now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        if large.transactional_id is not None:
            large.producers = await finished_in_slices(_producers(view, topics))
        for pieces in _slices(topics, pending.topics):
            if not pending.connection.open:
                return
            await self._append_slice(large, pieces)
        large.unfinished -= 1
        if not large.unfinished:
            large.finished.set()

    async def _append_slice(self, large: _Large, pieces: list[_Piece]) -> None:
        inspection = self._node.logs.inspection
        examined = large.examined = {}
        pool, made_bytes = large.pending.connection.request_pool, 0
        try:
            for partition, start, stop in self._to_examine(
                large.pending.connection, large.view, [piece[:3] for piece in pieces]
            ):
                async with self._examination:
                    batch = examined[start] = await self._examined(
                        partition, large.view[start:stop]
                    )
                if not isinstance(batch, MqError) and batch.obj is not large.view.obj:
                    made_bytes += len(batch)
                    pool.bytes += len(batch)
            await self._append_examined(large, pieces)
        finally:
            pool.bytes -= made_bytes
            for batch in examined.values():
                if not isinstance(batch, MqError):
                    inspection.forget(batch)
            large.examined = {}

    async def _examined(self, partition: Partition, batch: memoryview) -> memoryview | MqError:
        """The batch to append: with the codec of its topic, and inspected if that is much work. An
        MqError if it is rejected.
        """
        config, size = partition.log.config, len(batch)
        if is_wanted(config, batch, 0, size):
            try:
                batch = await self._node.disk.offload(recompressed, batch, config)
            except MqError as error:
                return error
        if "compact" in config.cleanup_policy and is_large(batch, 0, len(batch)):
            await finished_in_slices(
                self._node.logs.inspection.inspect(batch, config.max_message_bytes)
            )
        return batch

    async def _append_examined(self, large: _Large, pieces: list[_Piece]) -> None:
        must_check = large.acks not in (1, -1, 0)
        waiting: dict[Partition, tuple[int, int, int]] = {}
        async with one_slice():
            if large.transactional_id is not None and not must_check:
                waiting = self._appender.unconfirmed(
                    large.pending.connection, large.view, [piece[:3] for piece in pieces]
                )
            if not waiting:
                self._append_pieces(large, pieces, None)
                return
        assert large.transactional_id is not None
        clock, supported = (
            self._node.clock,
            SupportedOperation.of(large.pending.version, ABORTABLE_FROM_VERSION, ADDS_FROM_VERSION),
        )
        if len(large.producers) > 1:
            refusals = dict.fromkeys(
                waiting, MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, TOO_MANY_PRODUCERS)
            )
            async with one_slice():
                self._append_pieces(
                    large,
                    pieces,
                    Confirmation(
                        large.pending, waiting, refusals, clock.monotonic(), clock.wall_ms()
                    ),
                )
            return
        (producer,) = large.producers
        sequences = {partition: one[2] for partition, one in waiting.items()}
        async with self._verification.verified(
            large.transactional_id.decode(errors="replace"), producer, sequences, supported
        ) as verdict:
            refusals = {
                partition: produce_refusal(code, supported)
                for partition, code in verdict.refusals.items()
            }
            async with one_slice():
                with verdict.applied():
                    self._append_pieces(
                        large,
                        pieces,
                        Confirmation(
                            large.pending, waiting, refusals, clock.monotonic(), clock.wall_ms()
                        ),
                    )

    def _append_pieces(
        self, large: _Large, pieces: list[_Piece], confirmation: Confirmation | None
    ) -> None:
        """One slice: appended, written, and registered to wait for its commit."""
        pending, acks = large.pending, large.acks
        appends: list[Append[Partition]] = []
        now_ms = self._node.clock.wall_ms()
        must_check = confirmation is not None or acks not in (1, -1, 0)
        for name, topic_id, partitions, rows in pieces:
            if self._appender.append(
                pending,
                name,
                topic_id,
                partitions,
                rows,
                appends,
                large.view,
                acks,
                now_ms,
                large.transactional_id,
                must_check,
                confirmation,
                large.examined,
            ):
                large.refused = True
        if appends and acks != 0:
            share = _Share(large)
            share.appends = appends
            self._replica.wait_committed(share)
        self._replica.end_of_turn()

    def must_examine(
        self, connection: Connection, view: memoryview, topics: Iterable[TopicBatches], size: int
    ) -> bool:
        enforces = self._node.authorizer.enforces
        for name, topic_id, partitions in topics:  # without a generator: every request comes here
            if enforces and not self._appender.may_write(connection, name, topic_id):
                continue
            held = self._appender.held(name, topic_id)
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None:
                    continue
                config = partition.log.config
                if "compact" in config.cleanup_policy and is_large(view, start, stop):
                    return True
                if config.compression_type == PRODUCER or not is_wanted(config, view, start, stop):
                    continue
                if size > _COMPRESSED_AT_ONCE_BYTES or not is_small(config, view, start, stop):
                    return True
        return False

    def _to_examine(
        self, connection: Connection, view: memoryview, topics: Iterable[TopicBatches]
    ) -> Iterator[tuple[Partition, int, int]]:
        """Large batches for compacted topics, and batches to compress again."""
        enforces = self._node.authorizer.enforces
        for name, topic_id, partitions in topics:
            if enforces and not self._appender.may_write(connection, name, topic_id):
                continue
            held = self._appender.held(name, topic_id)
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None:
                    continue
                config = partition.log.config
                if is_wanted(config, view, start, stop) or (
                    "compact" in config.cleanup_policy and is_large(view, start, stop)
                ):
                    yield partition, start, stop


def _slices(topics: Sequence[ProduceTopic], response: list[Topic]) -> Iterator[list[_Piece]]:
    """The request in slices; `response` gets each topic when its first slice begins."""
    pieces: list[_Piece] = []
    count = size = 0
    for name, topic_id, partitions in topics:
        rows: list[Row] = []
        response.append((name, topic_id, rows))
        first = 0
        for position, (_, start, stop) in enumerate(partitions, 1):
            count += 1
            size += stop - start
            if count >= _SLICE_ROWS or size >= _SLICE_BYTES:
                pieces.append((name, topic_id, partitions[first:position], rows))
                yield pieces
                pieces, first, count, size = [], position, 0, 0
        if first < len(partitions):
            pieces.append((name, topic_id, partitions[first:], rows))
    if pieces:
        yield pieces


def _producers(view: memoryview, topics: Sequence[ProduceTopic]) -> Slices[set[tuple[int, int]]]:
    """Id and epoch of each producer that has transactional batches in a request."""
    producers = set()
    count = 0
    for _, _, partitions in topics:
        for _, start, stop in partitions:
            if stop - start >= HEADER_BYTES and view[start + CODEC_POSITION] & TRANSACTIONAL_MASK:
                producers.add(producer_of(view, start + PRODUCER_ID_POSITION)[:2])
            count += 1
            if not count % DECODED_AT_ONCE_ROWS:
                yield DECODED_AT_ONCE_ROWS
    return producers
