"""Records as Arrow batches for people without Spark: what `Consumer.arrow_batches` hands out, and
`open_arrow_producer`, which sends whole tables.

A face over `columns.py`, the fetcher and `raw_producer.py`. numpy and pyarrow are an extra: nothing
that works without them imports this file at module level.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import mqd.client.columns  # first: its error names what to install  # isort: skip
import numpy as np
import pyarrow as pa
import trio

from mqd import limits
from mqd.client.arguments import as_codec, check_topic, check_whole
from mqd.client.cluster import ClusterClient
from mqd.client.columns import COLUMNS, EncodedBatch, decode, encode, partition_for_keys, schema
from mqd.client.columns_schema import HEADERS_TYPE
from mqd.client.errors import ClientError, invalid_type, invalid_value, no_such_partition
from mqd.client.fetched_batches import Chunk
from mqd.client.fetcher import Fetcher
from mqd.client.keyword_options import checks_options
from mqd.client.partitioner import StickyPartitioner
from mqd.client.producer_options import CodecName
from mqd.client.raw_producer import RawProducer, open_raw_producer
from mqd.errors import MqError
from mqd.protocol.compression import Codec

assert mqd.client.columns

DEFAULT_COLUMNS: Final = COLUMNS[:7]
ENCODED_ROWS_MAX: Final = 32_768
"""Rows of a table that are encoded together, before other tasks have their turn: about 10 ms."""
_SENT: Final = ("key", "value", "headers", "partition", "timestamp")


# -- reading


class _ConsumedRows(NamedTuple):
    """One Arrow batch, and where its partition is read on behind it."""

    topic: str
    partition: int
    records: pa.RecordBatch | tuple[()]
    next_offset: int


class ArrowBatches:
    """Made by `arrow_batches` of a consumer: an async iterator of Arrow batches.

    Cancel-safe: no batch is lost. The position of the consumer, and what a member of a group
    commits, moves with each Arrow batch. After `next` of the consumer itself, or other
    `arrow_batches`, reading resumes behind the last batch that was handed out.
    """

    def __init__(
        self,
        next_of: Callable[[Callable[[], _ConsumedRows | None]], Awaitable[_ConsumedRows | None]],
        fetcher: Fetcher,
        columns: Sequence[str] | None,
        rows_max: int,
    ) -> None:
        self.schema: pa.Schema = schema(DEFAULT_COLUMNS if columns is None else columns)
        """The schema of every batch."""
        check_whole("rows_max", rows_max, 1)
        self._next_of = next_of
        self._fetcher = fetcher
        self._rows_max = rows_max
        names = self.schema.names
        self._decoded = names if "offset" in names else [*names, "offset"]
        self._chunk: Chunk | None = None
        self._rows: Iterator[pa.RecordBatch] = iter(())

    async def next(self) -> pa.RecordBatch | None:
        """The next Arrow batch; None when every partition has reached its end. Raises ClientError,
        as `next` of the consumer."""
        taken = await self._next_of(self._take)
        return None if taken is None else taken.records

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await self.next()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _take(self) -> _ConsumedRows | None:
        chunk = self._chunk
        if chunk is None or not self._fetcher.may_deliver(chunk):
            chunk = self._chunk = self._fetcher.take_chunk()
            if chunk is None:
                return None
            self._rows = decode(
                chunk.data,
                chunk.tp.topic,
                chunk.tp.partition,
                start=chunk.start,
                end=chunk.end,
                columns=self._decoded,
                aborted=chunk.aborted,
                read_committed=chunk.read_committed,
                rows_max=self._rows_max,
            )
        try:
            rows = next(self._rows, None)
        except MqError as error:
            self._chunk = None
            self._fetcher.damaged(chunk, error)
            return _ConsumedRows(*chunk.tp, (), self._fetcher.position(chunk.tp))
        if rows is None:
            self._chunk = None
            self._fetcher.delivered(chunk)
            return _ConsumedRows(*chunk.tp, (), chunk.next_offset)
        next_offset = rows.column("offset")[-1].as_py() + 1
        self._fetcher.delivered_until(chunk, next_offset)
        return _ConsumedRows(*chunk.tp, rows.select(self.schema.names), next_offset)


# -- writing


class ArrowProducer:
    """Made by `open_arrow_producer`. One task at a time sends."""

    def __init__(
        self,
        client: ClusterClient,
        raw: RawProducer,
        *,
        codec: Codec,
        batch_bytes: int,
        timeout_s: float,
    ) -> None:
        self.raw = raw
        """The producer beneath, which begins and ends transactions."""
        self._client = client
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._timeout_s = timeout_s
        self._sticky: dict[str, StickyPartitioner] = {}

    async def send(self, topic: str, rows: pa.Table | pa.RecordBatch) -> int:
        """Queue the rows of a table, in their order within each partition; waits for room only.
        Returns how many rows that were.

        Columns: `value`, and if there are `key` (binary or string), `headers`, `partition`,
        `timestamp` (a timestamp, or milliseconds as int64). The key chooses the partition of a row
        without one. A row without a timestamp gets the current time. Raises ClientError: a column
        that does not fit, or the first failure of the producer.
        """
        check_topic(topic)
        if not isinstance(rows, pa.Table | pa.RecordBatch):
            message = f"the rows are {type(rows).__name__}"
            raise invalid_type(message, "give a pyarrow.Table or a pyarrow.RecordBatch")
        if unknown := [name for name in rows.schema.names if name not in _SENT]:
            raise invalid_value(
                f"column '{unknown[0]}' cannot be sent", f"choose among {', '.join(_SENT)}"
            )
        if "value" not in rows.schema.names:
            raise invalid_value(
                "the table has no column 'value'", "name the column of values 'value'"
            )
        sent = 0
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for batch in table.to_batches(max_chunksize=ENCODED_ROWS_MAX):
            for encoded in await self._encode(topic, batch):
                await self.raw.send(topic, encoded)
            sent += batch.num_rows
            await trio.lowlevel.checkpoint()
        return sent

    async def flush(self) -> None:
        """Wait until every row is acknowledged. Raises the first failure of the producer."""
        await self.raw.flush()

    async def _encode(self, topic: str, rows: pa.RecordBatch) -> list[EncodedBatch]:
        if not rows.num_rows:
            return []
        deadline = trio.current_time() + self._timeout_s
        info = await self._client.topic(topic, deadline=deadline, create=True, unknown_grace_s=5.0)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        values = _binary("value", columns["value"])
        keys = _binary("key", columns["key"]) if "key" in columns else _nulls(rows.num_rows)
        partitions = self._partitions(topic, keys, columns.get("partition"), len(info.partitions))
        if (keyless := partitions < 0).any():
            led = [p.partition for p in info.partitions if p.leader in self._client.view.brokers]
            sticky = self._sticky.get(topic)
            if sticky is None:
                below = self._client.entropy.below
                sticky = self._sticky[topic] = StickyPartitioner(self._batch_bytes, below)
            partitions[keyless] = sticky.partition(values.nbytes + keys.nbytes, led)
        headers = columns.get("headers")
        if headers is not None and headers.type != HEADERS_TYPE:
            headers = _cast("headers", headers, HEADERS_TYPE)
        return encode(
            keys,
            values,
            partitions,
            timestamps_ms=self._stamps(columns.get("timestamp")),
            headers=headers,
            codec=self._codec,
            batch_bytes=self._batch_bytes,
        )

    def _partitions(
        self, topic: str, keys: pa.Array, given: pa.Array | None, count: int
    ) -> np.ndarray[Any, Any]:
        """The partition of each row; -1 where neither the row nor its key names one."""
        if given is None:
            return partition_for_keys(keys, count)
        named = _cast("partition", given, pa.int32())
        is_named = named.is_valid().to_numpy(zero_copy_only=False)
        numbers: np.ndarray[Any, Any] = named.fill_null(0).to_numpy()
        wrong = is_named & ((numbers < 0) | (numbers >= count))
        if wrong.any():
            raise no_such_partition(int(numbers[wrong][0]), topic, count)
        return np.where(is_named, numbers, partition_for_keys(keys, count))

    def _stamps(self, given: pa.Array | None) -> int | pa.Array:
        now = self._client.clock.wall_ms()
        if given is None:
            return now
        if pa.types.is_timestamp(given.type):
            given = _cast("timestamp", given, pa.timestamp("ms", given.type.tz))
        return _cast("timestamp", given, pa.int64()).fill_null(now)


def _nulls(rows: int) -> pa.Array:
    return pa.nulls(rows, pa.binary())


def _binary(name: str, column: pa.Array) -> pa.Array:
    """A column of bytes or of text, of whatever layout, as binary."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _cast(name, column, pa.binary())
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _cast(name, column.cast(pa.large_binary()), pa.binary())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _cast(name, column, pa.binary())
    raise _misfit(name, kind, "bytes or text")


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind, safe=not pa.types.is_timestamp(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _misfit(name, column.type, str(kind)) from None


def _misfit(name: str, kind: pa.DataType, wanted: str) -> ClientError:
    return invalid_type(f"column '{name}' has type {kind}", f"cast it to {wanted}")


@checks_options(open_raw_producer)
@asynccontextmanager
async def open_arrow_producer(
    client: ClusterClient,
    *,
    codec: Codec | CodecName = Codec.NONE,
    batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
    **options: Any,
) -> AsyncIterator[ArrowProducer]:
    """An ArrowProducer for the length of a block; other options as of `open_raw_producer`.

    The end of the block flushes. Always acks=all and idempotent: if anything is refused for good,
    the producer fails as a whole, and everything after it, too.
    """
    chosen = as_codec(codec)
    check_whole("batch_bytes", batch_bytes, 1, limits.REQUEST_BYTES_MAX // 2)
    async with open_raw_producer(client, **options) as raw:
        timeout_s = float(options.get("delivery_timeout_s", 120.0))
        yield ArrowProducer(client, raw, codec=chosen, batch_bytes=batch_bytes, timeout_s=timeout_s)
