"""Produce requests of many partitions or bytes, or with a large batch that the broker must inspect
or compress again. A task decodes, appends and encodes them in slices.

Later requests of the connection wait until all of the request is appended. Each slice writes what
it appends, and has a ticket of its own. A large batch is inspected before the slice that appends
it. A worker thread decompresses and compresses it, in the order of batch_work.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import (
    DECODED_AT_ONCE_ROWS,
    INSPECTED_AT_ONCE_BYTES,
    KIB,
    MIB,
    RECOMPRESSED_BYTES_MAX,
)
from mqd.log.decompression import decompressed_bytes
from mqd.log.log_config import LogConfig
from mqd.log.recompression import PRODUCER, Recompression, is_small, is_wanted
from mqd.log.record_inspection import has_many_records, is_large
from mqd.protocol.batch import (
    CODEC_MASK,
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
from mqd.server.slices import finished_in_slices, finished_with_decompression, one_slice
from mqd.server.verification import SupportedOperation, Verification, produce_refusal

ABORTABLE_FROM_VERSION, ADDS_FROM_VERSION = 11, 12
_COMPRESSED_AT_ONCE_BYTES = 64 * KIB
"""Requests up to this are compressed again on the event loop if all their batches are small: 1 ms
with zstd, 3 ms with gzip.
"""
_INSPECTED_AT_ONCE_BYTES = 16 * KIB
"""A batch of this decompressed size is inspected in the slice that appends it."""
_COMPRESSED_BYTE_WEIGHT = 8
"""A compressed byte counts as so many decompressed ones: three bytes may be a block, whose header
takes 0.4 us.
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
        "finished",
        "inspected",
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
        self.inspected: dict[int, memoryview | MqError] = {}
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
        self._recompressed_bytes = 0
        """Batches of all clients that were compressed again and are not appended yet."""

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
            pending.throttle_ms = quotas.throttle_for_produce(connection, len(body))
        connection.slots.append(pending)
        connection.barrier = True
        if not connection.frames.retain(buffer):
            body = memoryview(bytearray(body))
        self._spawn(connection, self._append_large, pending, body, connection.owner.now)

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
        if transactional_id is not None and not self._appender.may_write_to_transaction(
            pending.connection, transactional_id
        ):
            large.transactional_id = None
            denied = await finished_in_slices(denied_topics(view, topics))
            if denied:
                pending.topics, topics, large.refused = denied, [], True
        large.deadline = now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        if large.transactional_id is not None:
            large.producers = await finished_in_slices(_producers(view, topics))
        for pieces in self._slices(view, topics, pending.topics):
            if not pending.connection.open:
                return
            await self._append_slice(large, pieces)
        large.unfinished -= 1
        if not large.unfinished:
            large.finished.set()

    async def _append_slice(self, large: _Large, pieces: list[_Piece]) -> None:
        inspection = self._node.logs.inspection
        inspected = large.inspected = {}
        connection, made_bytes = large.pending.connection, 0
        pool = connection.request_pool
        try:
            for partition, start, stop in self._to_examine(
                large.pending.connection, large.view, [piece[:3] for piece in pieces]
            ):
                batch = inspected[start] = await self._inspected(
                    connection, partition, large.view[start:stop]
                )
                if not connection.open:
                    return
                if not isinstance(batch, MqError) and batch.obj is not large.view.obj:
                    if not self._may_keep(len(batch), pool.bytes_max):
                        inspection.forget(batch)
                        batch = MqError(
                            ErrorCode.KAFKA_STORAGE_ERROR,
                            "too many batches to compress again at once: retry later",
                        )
                    else:
                        made_bytes += len(batch)
                        self._recompressed_bytes += len(batch)
                        pool.bytes += len(batch)
                    inspected[start] = batch
            await self._append_inspected(large, pieces)
        finally:
            self._recompressed_bytes -= made_bytes
            pool.bytes -= made_bytes
            for batch in inspected.values():
                if not isinstance(batch, MqError):
                    inspection.forget(batch)
            large.inspected = {}

    def _may_keep(self, size: int, pool_bytes_max: int) -> bool:
        """Whether there is memory for a batch that was compressed again. One always has room."""
        limit = min(RECOMPRESSED_BYTES_MAX, pool_bytes_max // 2)
        return not self._recompressed_bytes or self._recompressed_bytes + size <= limit

    async def _inspected(
        self, connection: Connection, partition: Partition, batch: memoryview
    ) -> memoryview | MqError:
        """The batch to append: with the codec of its topic, and inspected if that is much work. An
        MqError if it is rejected, or if the client has closed the connection.
        """
        config, batch_work = partition.log.config, self._node.batch_work

        def is_open() -> bool:
            return connection.open

        if is_wanted(config, batch, 0, len(batch)):
            recompression = Recompression(batch, config)
            async with batch_work.done(recompression, connection.peer, is_open):
                try:
                    batch = recompression.batch()
                except MqError as error:
                    return error
        if _must_inspect(config, batch, 0, len(batch)):
            await finished_with_decompression(
                self._node.logs.inspection.inspect(batch, config.max_message_bytes),
                batch_work,
                connection.peer,
                is_open,
            )
        return batch

    async def _append_inspected(self, large: _Large, pieces: list[_Piece]) -> None:
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
                large.inspected,
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
        inspected_bytes = 0
        for name, topic_id, partitions in topics:  # without a generator: every request comes here
            if enforces and not self._appender.may_write(connection, name, topic_id):
                continue
            held = self._appender.held(name, topic_id)
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None:
                    continue
                config = partition.log.config
                if "compact" in config.cleanup_policy:
                    if has_many_records(view, start, stop):
                        return True
                    if view[start + CODEC_POSITION] & CODEC_MASK:
                        inspected_bytes += _COMPRESSED_BYTE_WEIGHT * (stop - start)
                        if inspected_bytes <= INSPECTED_AT_ONCE_BYTES:
                            inspected_bytes += decompressed_bytes(view, start, stop)
                        if inspected_bytes > INSPECTED_AT_ONCE_BYTES:
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
                if is_wanted(config, view, start, stop) or _must_inspect(config, view, start, stop):
                    yield partition, start, stop

    def _slices(
        self, view: memoryview, topics: Sequence[ProduceTopic], response: list[Topic]
    ) -> Iterator[list[_Piece]]:
        """The request in slices, by the decompressed size where that counts; `response` gets each
        topic when its first slice begins.
        """
        pieces: list[_Piece] = []
        count = size = 0
        for name, topic_id, partitions in topics:
            held = self._appender.held(name, topic_id)
            rows: list[Row] = []
            response.append((name, topic_id, rows))
            first = 0
            for position, (index, start, stop) in enumerate(partitions, 1):
                count += 1
                size += stop - start
                partition = held.get(index)
                if partition is not None and is_wanted(partition.log.config, view, start, stop):
                    size += decompressed_bytes(view, start, stop)
                    size += _COMPRESSED_BYTE_WEIGHT * (stop - start)
                if count >= _SLICE_ROWS or size >= _SLICE_BYTES:
                    pieces.append((name, topic_id, partitions[first:position], rows))
                    yield pieces
                    pieces, first, count, size = [], position, 0, 0
            if first < len(partitions):
                pieces.append((name, topic_id, partitions[first:], rows))
        if pieces:
            yield pieces


def _must_inspect(config: LogConfig, view: memoryview, start: int, stop: int) -> bool:
    return "compact" in config.cleanup_policy and is_large(
        view, start, stop, _INSPECTED_AT_ONCE_BYTES
    )


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
