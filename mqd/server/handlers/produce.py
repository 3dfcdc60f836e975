"""Produce, v3 to v13: record batches go from where they were received to the log; answered when
they are committed.

v3 transactional_id; v5 log_start_offset in the answer; v7 zstd; v8 error messages; v9 flexible; v10
the current leader in the answer to a stale client (KIP-951); v12 transactions v2; v13 topics by id.
Versions 0 to 2 are advertised, because librdkafka ties compression to them (KAFKA-18659), and not
served.

acks: 0 is not answered (a refusal closes the connection, so that the client looks for the leader
again), 1 is answered once written here, -1 once every in-sync replica has it. ◆ hot path.

A batch whose codec is not the topic's compression.type is compressed anew before it is appended.

A request of many partitions or bytes, or with a large batch for a compacted topic or to be
compressed anew, is decoded, appended and answered in slices, in a task. Later requests of its
connection wait until all of it is appended. Each slice writes what it appends, and has a ticket of
its own. The records of the large batch are looked at before the slice in which it is appended.

What may begin a transaction in a partition waits for the transaction coordinator's word
(verification.py), and what comes behind it on its connection waits, too. The other batches of a
transaction go the way of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import DECODED_AT_ONCE_ROWS, KIB, MIB, PRODUCED_AT_ONCE_BYTES_MAX
from mqd.log.recompression import PRODUCER, is_small, is_wanted, recompressed
from mqd.log.record_inspection import is_large
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
    ProduceTopic,
    decode_produce_at_once,
    decode_produce_in_slices,
    encode_produce_response,
    encode_produce_response_in_slices,
)
from mqd.protocol.slices import Slices
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket, until_durable
from mqd.server.bugs import raised_in_core
from mqd.server.connection import Buffer, Connection, Part
from mqd.server.context import Node
from mqd.server.partitions import Endpoint, current_leader, endpoints, unknown_partition
from mqd.server.slices import finished_in_slices, one_slice
from mqd.server.verification import Speaks, Verification, produce_refusal

_NONE = -1
_ZSTD = 4
_NO_PARTITIONS: dict[int, Partition] = {}
_NO_VIEWS: Mapping[int, memoryview | MqError] = {}
_PRODUCER = Struct(">qhi").unpack_from
"""Producer id, epoch and base sequence of a batch, from `PRODUCER_ID_POSITION` on."""
_ABORTABLE_FROM, _ADDS_FROM = 11, 12
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
_ADMIN_CLIENT = b"__admin_client"
"""The one client that may write to internal topics, as with Apache Kafka."""
_COMPRESSED_AT_ONCE_BYTES = 64 * KIB
"""Requests up to this are compressed anew on the event loop, where all their batches are
small: 1 ms with zstd, 3 ms with gzip.
"""
_SLICE_BYTES = MIB
_SLICE_ROWS = 100
"""Records and batches that are appended before others have a turn: 2 ms."""
_TOO_MANY_PRODUCERS = "Transactional records contained more than one producer ID"

Row = tuple[Any, ...]
Topic = tuple[bytes | None, bytes | None, list[Row]]
_Piece = tuple[bytes | None, bytes | None, Sequence[ProducePartition], list[Row]]
"""Some partitions of a topic, and the rows of its answer."""
_Asked = tuple[bytes | None, bytes | None, Sequence[ProducePartition]]
_NOTHING = memoryview(b"")


class _Pending(ProduceTicket[Partition]):
    """A produce request until it is answered: its ticket and the place of its answer in one."""

    __slots__ = ("connection", "correlation_id", "node", "parts", "topics", "version")

    # calls no other: hot
    def __init__(
        self, node: Node, connection: Connection, version: int, correlation_id: int
    ) -> None:
        self.appends = []
        self.waiting = 0
        self.freed = False
        self.connection = connection
        self.parts: list[Part] | None = None
        self.node = node
        self.version = version
        self.correlation_id = correlation_id
        self.topics: list[Topic] = []

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        partition, _, rows, row = append
        if rows[row][1]:
            return  # the first refusal is the one that tells why
        rows[row] = refused_row(rows[row][0], MqError(code), current_leader(self.node, partition))

    def release(self) -> None:
        self.parts = [
            encode_produce_response(
                self.version, self.correlation_id, self.topics, 0, self.addresses()
            )
        ]
        self.connection.answered()

    def addresses(self) -> Sequence[Endpoint]:
        """Of the nodes that the answer names as leaders."""
        if self.version < 10:
            return ()
        moved = {row[6][0] for _, _, rows in self.topics for row in rows if len(row) > 6 and row[6]}
        return endpoints(self.node, moved) if moved else ()


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

    def __init__(self, pending: _Pending, view: memoryview) -> None:
        self.pending = pending
        self.view = view
        self.transactional_id: bytes | None = None
        self.acks = 0
        self.deadline = 0.0
        self.producers: set[tuple[int, int]] = set()
        """Id and epoch of those whose transactions the request adds to."""
        self.refused = False
        self.examined: dict[int, memoryview | MqError] = {}
        """Of the present slice: batches that were looked at or compressed anew before they
        are appended, by their start.
        """
        self.unfinished = 1
        """Shares that wait to be committed, and one for the slices that are left."""
        self.finished = trio.Event()


class _Second:
    """What is known when a request is taken up for the second time, after the transaction
    coordinator was asked.
    """

    __slots__ = ("asked", "now", "now_ms", "pending", "refusals")

    def __init__(
        self,
        pending: _Pending,
        asked: Collection[Partition],
        refusals: dict[Partition, MqError],
        now: float,
        now_ms: int,
    ) -> None:
        self.pending = pending
        self.asked = asked
        self.refusals = refusals
        self.now = now
        self.now_ms = now_ms


class Produce:
    """The handler; built once a node."""

    def __init__(
        self, node: Node, spawn: Callable[..., None], bug: Callable[[Connection, str], None]
    ) -> None:
        """`spawn(function, *args)` starts a task in the server's nursery; `bug` is
        Dispatcher.bug.
        """
        self._node = node
        self._replica = node.replica
        self._spawn = spawn
        self._bug = bug
        self._verification = Verification(node)
        self._examination = trio.Lock()
        """One large batch is decompressed at a time, for memory."""

    def __call__(
        self,
        connection: Connection,
        buffer: Buffer,
        view: memoryview,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
        second: _Second | None = None,
    ) -> None:
        """Append what the request in [position, end) carries, and answer it when that is settled.

        With `second` it is called for the second time, with the bytes of the request's body alone.
        """
        request = decode_produce_at_once(view, position, end, version)
        if request is None or (
            second is None
            and (
                (end - position > PRODUCED_AT_ONCE_BYTES_MAX and not _is_single(request[3]))
                or self._must_examine(view, request[3], end - position)
            )
        ):
            self._take_up_large(connection, buffer, view[position:end], version, correlation_id)
            return
        transactional_id, acks, timeout_ms, asked = request
        replica = self._replica
        odd = acks not in (1, -1, 0)
        if second is None:
            now, now_ms = connection.owner.now, connection.owner.now_ms
            pending = _Pending(self._node, connection, version, correlation_id)
            connection.slots.append(pending)
            if transactional_id is not None and not odd:
                waiting = self._beginning(view, asked)
                if waiting:
                    connection.barrier = True
                    body = bytearray(view[position:end])
                    self._spawn(
                        self._append_when_confirmed, pending, body, transactional_id, waiting
                    )
                    return
        else:
            now, now_ms, pending, odd = second.now, second.now_ms, second.pending, True
        refused = False
        for name, topic_id, partitions in asked:
            rows: list[Row] = []
            pending.topics.append((name, topic_id, rows))
            if self._append(
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
                odd,
                second,
            ):
                refused = True
        if acks == 0:
            self._done_without_acks(pending, refused)
            return
        pending.deadline = now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        replica.wait_committed(pending)

    def _append(
        self,
        pending: _Pending,
        name: bytes | None,
        topic_id: bytes | None,
        partitions: Sequence[ProducePartition],
        rows: list[Row],
        appends: list[Append[Partition]],
        view: memoryview,
        acks: int,
        now_ms: int,
        transactional_id: bytes | None,
        odd: bool,
        second: _Second | None,
        examined: Mapping[int, memoryview | MqError] = _NO_VIEWS,
    ) -> bool:
        """Append to these partitions of one topic; `rows` gets a row for each. Returns whether one
        was refused.

        `examined`: the batches that were looked at or compressed anew before, by their start; an
        error refuses the batch.
        """
        replica, version = self._replica, pending.version
        append_nowait = replica.append_nowait
        held = self._held(name, topic_id)
        refused = False
        for index, start, stop in partitions:
            partition = held.get(index)
            try:
                if partition is None or odd or start < 0 or partition.is_internal:
                    self._check(partition, name, topic_id, index, acks, start, pending.connection)
                    assert partition is not None
                    if second is not None:
                        self._check_second(partition, view, start, stop, second)
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
                batch = examined.get(start) if examined else None
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
                base_offset, last_offset, log_append_time_ms, _ = append_nowait(
                    partition, batch, acks, now_ms
                )
            except MqError as error:
                refused = True
                of_coordinator = second is not None and partition in second.refusals
                log_start = _NONE
                if (
                    partition is not None
                    and not of_coordinator
                    and error.code in _NAMING_LOG_START
                    and _is_one_batch(view, start, stop)
                ):
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
                wanted = until_durable(last_offset + 1) if log.config.flush_before_ack else _NONE
            appends.append((partition, wanted, rows, len(rows)))
            rows.append((index, 0, base_offset, log_append_time_ms, log.log_start_offset, None))
        return refused

    @staticmethod
    def _done_without_acks(pending: _Pending, refused: bool) -> None:
        pending.freed = True
        pending.parts = []
        pending.connection.answered()
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
        connection: Connection,
    ) -> None:
        """Raises MqError where nothing may be appended, for what can be known without
        looking at the batch.
        """
        if acks not in (1, -1, 0):
            raise MqError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: allowed are -1 (all), 0 and 1"
            )
        if partition is None:
            raise unknown_partition(self._node, name, topic_id, index)
        if start < 0:
            raise MqError(ErrorCode.INVALID_RECORD, "no records")
        if partition.is_internal and connection.client_id != _ADMIN_CLIENT:
            raise MqError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition.assignment.topic_partition.topic} is written by this cluster only",
            )

    def _check_second(
        self, partition: Partition, view: memoryview, start: int, stop: int, second: _Second
    ) -> None:
        """Raises MqError for what the coordinator refused, and, to be tried again, for a
        transaction of which it was not asked: of a partition that this node did not lead when the
        request came.
        """
        if partition in second.refusals:
            raise second.refusals[partition]
        if partition not in second.asked and stop - start >= HEADER_BYTES:
            producer_id, epoch, _ = _PRODUCER(view, start + PRODUCER_ID_POSITION)
            if view[
                start + CODEC_POSITION
            ] & TRANSACTIONAL_MASK and not partition.log.producers.in_transaction(
                producer_id, epoch
            ):
                raise MqError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "this node did not lead the partition when the request came: try again",
                )

    # -- large requests ----------------------------------------------------------------------------

    def _take_up_large(
        self,
        connection: Connection,
        buffer: Buffer,
        body: memoryview,
        version: int,
        correlation_id: int,
    ) -> None:
        pending = _Pending(self._node, connection, version, correlation_id)
        connection.slots.append(pending)
        connection.barrier = True
        if not connection.keep_frame(buffer):
            body = memoryview(bytearray(body))
        self._spawn(self._append_large, pending, body, connection.owner.now)

    async def _append_large(self, pending: _Pending, view: memoryview, now: float) -> None:
        """A task: what comes behind this request on its connection is held back until all
        of it is appended.
        """
        connection, owner = pending.connection, pending.connection.owner
        large = _Large(pending, view)
        connection.pool.bytes += len(view)
        try:
            try:
                await self._append_in_slices(large, now)
            finally:
                connection.pool.bytes -= len(view)
            large.view = view = _NOTHING
            if not connection.open:
                return
            connection.barrier = False
            owner.resume_later(connection)
            if large.acks == 0:
                self._done_without_acks(pending, large.refused)
                return
            await large.finished.wait()
            encoding = encode_produce_response_in_slices(
                pending.version, pending.correlation_id, pending.topics, 0, pending.addresses()
            )
            pending.parts = [await finished_in_slices(encoding)]
            connection.answered()
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
        large.transactional_id, large.acks, timeout_ms, asked = request
        large.deadline = now + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        if large.transactional_id is not None:
            large.producers = await finished_in_slices(_producers(view, asked))
        for pieces in _slices(asked, pending.topics):
            if not pending.connection.open:
                return
            await self._append_slice(large, pieces)
        large.unfinished -= 1
        if not large.unfinished:
            large.finished.set()

    async def _append_slice(self, large: _Large, pieces: list[_Piece]) -> None:
        inspection = self._node.logs.inspection
        examined = large.examined = {}
        pool, made_bytes = large.pending.connection.pool, 0
        try:
            for partition, start, stop in self._to_examine(
                large.view, [piece[:3] for piece in pieces]
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
        """The batch as it is to be appended: with the codec of its topic, and looked at
        where that is much work. Or its refusal.
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
        odd = large.acks not in (1, -1, 0)
        waiting: dict[Partition, tuple[int, int, int]] = {}
        async with one_slice():
            if large.transactional_id is not None and not odd:
                waiting = self._beginning(large.view, [piece[:3] for piece in pieces])
            if not waiting:
                self._append_pieces(large, pieces, None)
                return
        assert large.transactional_id is not None
        clock, speaks = (
            self._node.clock,
            Speaks.of(large.pending.version, _ABORTABLE_FROM, _ADDS_FROM),
        )
        if len(large.producers) > 1:
            refusals = dict.fromkeys(
                waiting, MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, _TOO_MANY_PRODUCERS)
            )
            async with one_slice():
                self._append_pieces(
                    large,
                    pieces,
                    _Second(large.pending, waiting, refusals, clock.monotonic(), clock.wall_ms()),
                )
            return
        (producer,) = large.producers
        sequences = {partition: one[2] for partition, one in waiting.items()}
        async with self._verification.asked(
            large.transactional_id.decode(errors="replace"), producer, sequences, speaks
        ) as word:
            refusals = {
                partition: produce_refusal(code, speaks)
                for partition, code in word.refusals.items()
            }
            async with one_slice():
                with word.counts():
                    self._append_pieces(
                        large,
                        pieces,
                        _Second(
                            large.pending, waiting, refusals, clock.monotonic(), clock.wall_ms()
                        ),
                    )

    def _append_pieces(self, large: _Large, pieces: list[_Piece], second: _Second | None) -> None:
        """One slice: appended, written, and registered to wait for its commit."""
        pending, acks = large.pending, large.acks
        appends: list[Append[Partition]] = []
        now_ms = self._node.clock.wall_ms()
        odd = second is not None or acks not in (1, -1, 0)
        for name, topic_id, partitions, rows in pieces:
            if self._append(
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
                odd,
                second,
                large.examined,
            ):
                large.refused = True
        if appends and acks != 0:
            share = _Share(large)
            share.appends = appends
            self._replica.wait_committed(share)
        self._replica.end_of_turn()

    # -- records that the broker looks at ----------------------------------------------------------

    def _must_examine(self, view: memoryview, asked: Iterable[_Asked], size: int) -> bool:
        for name, topic_id, partitions in asked:  # without a generator: every request comes here
            held = self._held(name, topic_id)
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
        self, view: memoryview, asked: Iterable[_Asked]
    ) -> Iterator[tuple[Partition, int, int]]:
        """Large batches for compacted topics, and batches to be compressed anew: before
        they are appended.
        """
        for name, topic_id, partitions in asked:
            held = self._held(name, topic_id)
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None:
                    continue
                config = partition.log.config
                if is_wanted(config, view, start, stop) or (
                    "compact" in config.cleanup_policy and is_large(view, start, stop)
                ):
                    yield partition, start, stop

    def _held(self, name: bytes | None, topic_id: bytes | None) -> dict[int, Partition]:
        replica = self._replica
        return (
            replica.by_name.get(name, _NO_PARTITIONS)
            if name is not None
            else replica.by_id.get(topic_id or b"", _NO_PARTITIONS)
        )

    # -- transactions that begin -------------------------------------------------------------------

    def _beginning(
        self, view: memoryview, asked: Sequence[Any]
    ) -> dict[Partition, tuple[int, int, int]]:
        """(producer id, epoch, base sequence) of each batch that is part of a transaction
        which is not open in its partition.
        """
        waiting = {}
        replica = self._replica
        for name, topic_id, partitions in asked:
            held = (
                replica.by_name.get(name, _NO_PARTITIONS)
                if name is not None
                else replica.by_id.get(topic_id or b"", _NO_PARTITIONS)
            )
            for index, start, stop in partitions:
                partition = held.get(index)
                if partition is None or not partition.serves or stop - start < HEADER_BYTES:
                    continue
                producer_id, epoch, sequence = _PRODUCER(view, start + PRODUCER_ID_POSITION)
                transactional = (
                    producer_id >= 0 and view[start + CODEC_POSITION] & TRANSACTIONAL_MASK
                )
                if transactional and not partition.log.producers.in_transaction(producer_id, epoch):
                    waiting[partition] = producer_id, epoch, sequence
        return waiting

    async def _append_when_confirmed(
        self,
        pending: _Pending,
        body: bytearray,
        transactional_id: bytes,
        waiting: dict[Partition, tuple[int, int, int]],
    ) -> None:
        """A task: what comes behind this request on its connection is held back until it
        has ended.
        """
        connection = pending.connection
        speaks = Speaks.of(pending.version, _ABORTABLE_FROM, _ADDS_FROM)
        connection.pool.bytes += len(body)
        try:
            producers = {one[:2] for one in waiting.values()}
            if len(producers) > 1:
                error = MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, _TOO_MANY_PRODUCERS)
                self._append_confirmed(pending, body, waiting, dict.fromkeys(waiting, error))
                return
            sequences = {partition: one[2] for partition, one in waiting.items()}
            async with self._verification.asked(
                transactional_id.decode(errors="replace"), producers.pop(), sequences, speaks
            ) as word:
                refusals = {
                    partition: produce_refusal(code, speaks)
                    for partition, code in word.refusals.items()
                }
                with word.counts():
                    self._append_confirmed(pending, body, waiting, refusals)
        except Exception as error:
            if raised_in_core(error):
                raise
            self._bug(connection, "produce")
        finally:
            connection.pool.bytes -= len(body)

    def _append_confirmed(
        self,
        pending: _Pending,
        body: bytearray,
        asked: Collection[Partition],
        refusals: dict[Partition, MqError],
    ) -> None:
        """A turn of its own, unless the client is gone: appended, written, and the
        connection goes on.
        """
        connection, clock = pending.connection, self._node.clock
        connection.barrier = False
        if not connection.open:
            return
        second = _Second(pending, asked, refusals, clock.monotonic(), clock.wall_ms())
        self(
            connection,
            body,
            memoryview(body),
            0,
            len(body),
            pending.version,
            pending.correlation_id,
            second,
        )
        self._replica.end_of_turn()
        connection.owner.resume_later(connection)


def _is_single(asked: Sequence[ProduceTopic]) -> bool:
    """Whether a request has one batch at most, which cannot be appended in slices."""
    return len(asked) == 1 and len(asked[0][2]) <= 1


def _slices(asked: Sequence[ProduceTopic], answer: list[Topic]) -> Iterator[list[_Piece]]:
    """The request in slices; `answer` gets each topic when its first slice begins."""
    pieces: list[_Piece] = []
    count = size = 0
    for name, topic_id, partitions in asked:
        rows: list[Row] = []
        answer.append((name, topic_id, rows))
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


def _producers(view: memoryview, asked: Sequence[ProduceTopic]) -> Slices[set[tuple[int, int]]]:
    """Id and epoch of each producer that has transactional batches in a request."""
    producers = set()
    count = 0
    for _, _, partitions in asked:
        for _, start, stop in partitions:
            if stop - start >= HEADER_BYTES and view[start + CODEC_POSITION] & TRANSACTIONAL_MASK:
                producers.add(_PRODUCER(view, start + PRODUCER_ID_POSITION)[:2])
            count += 1
            if not count % DECODED_AT_ONCE_ROWS:
                yield DECODED_AT_ONCE_ROWS
    return producers


def _is_one_batch(view: memoryview, start: int, stop: int) -> bool:
    """Whether the bytes are one batch v2, as its length says. What is not comes to no log."""
    if start < 0 or stop - start < HEADER_BYTES:
        return False
    header = parse_header(view, start)
    return header.magic == MAGIC and header.size == stop - start


def refused_row(
    index: int, error: MqError, leader: tuple[int, int] | None, log_start: int = _NONE
) -> Row:
    """The answer for one partition that took nothing; to a stale client it names the leader
    (KIP-951).
    """
    row: Row = (index, int(error.code), _NONE, _NONE, log_start, error.message or None)
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and leader is not None:
        return (*row, leader)
    if error.record_errors:
        return (*row, None, error.record_errors)
    return row
