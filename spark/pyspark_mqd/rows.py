"""Arrow batches of rows to record batches of topics and partitions. No I/O and no clock.

`coalesced` joins small Arrow batches and cuts large ones, `RowEncoder` encodes them. Rows keep
their order within a partition. A row goes to the partition in its column `partition`, or to the one
that Kafka's partitioner chooses: murmur2 of the key. Rows without a key fill a batch of one
partition, and then of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqd.client.columns import EncodedBatch, encode, partition_for_keys, schema

from .errors import ConnectorError
from .markers import RowSum
from .row_hashes import row_sum
from .sink_options import Columns, SinkOptions

ROWS_WANTED = 32_768
BYTES_WANTED = 4 * 1024 * 1024
BYTES_MAX = 16 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 70
"""Kafka's bound for a record without its key and value, in a batch of its own."""
ROW_OVERHEAD_BYTES = 22
"""The same for one of many records in a batch, as `columns.encode` estimates it."""

_HEADERS = schema(["headers"]).field(0).type
_HEADER = _HEADERS.value_type
Ints = np.ndarray[Any, Any]


class RowError(ConnectorError):
    """A row cannot be written."""


class TaskHeaders(NamedTuple):
    """Option `taskHeaders`: where a row comes from, for consumers that drop duplicates."""

    query: str
    batch: str
    task: str


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that is good to encode."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_WANTED or size >= BYTES_WANTED:
            yield from _cut(waiting, size)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _cut(waiting, size)


def _cut(batches: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    whole = batches[0]
    if len(batches) > 1:
        # malloc's, not Arrow's pool: the next call gets the same pages without page faults
        whole = pa.concat_batches(batches, memory_pool=pa.system_memory_pool())
    rows = max(1, whole.num_rows * BYTES_MAX // max(size, 1))
    for first in range(0, whole.num_rows, rows):
        yield whole.slice(first, rows)


class RowEncoder:
    """The rows of one task.

    `partition_count(topic, fresh)` returns the number of partitions of a topic; with `fresh` it
    requests it from the brokers.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Columns,
        *,
        partition_count: Callable[[str, bool], int],
        now_ms: Callable[[], int],
        first_partition: int = 0,
        task_headers: TaskHeaders | None = None,
        summed: bool = False,
    ) -> None:
        self.rows = 0
        self.sum = RowSum()
        """The sum of all rows so far, with `summed`."""
        self._options = options
        self._columns = columns
        self._partition_count = partition_count
        self._now_ms = now_ms
        self._first_partition = first_partition
        self._task_headers = task_headers
        self._summed = summed
        self._filled: dict[str, int] = {}
        """Bytes of rows without a key so far, by topic."""
        self._counts: dict[str, int] = {}
        """Partitions by topic."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[str, EncodedBatch]]:
        """The record batches of these rows, with their topics. Raises RowError and ClientError."""
        count = batch.num_rows
        values = _binary(batch.column("value"))
        keys = _binary(batch.column("key")) if self._columns.key else pa.nulls(count, pa.binary())
        self._check_sizes(keys, values)
        if self._summed:
            self.sum += row_sum(keys, values)
        headers = self._headers(batch)
        chosen = batch.column("partition") if self._columns.partition else None
        stamps = self._timestamps(batch)
        self.rows += count
        for topic, index in self._by_topic(batch):
            if index is None:
                yield from self._one_topic(topic, keys, values, headers, chosen, stamps)
            else:
                yield from self._one_topic(
                    topic,
                    keys.take(index),
                    values.take(index),
                    None if headers is None else headers.take(index),
                    None if chosen is None else chosen.take(index),
                    stamps if isinstance(stamps, int) else stamps.take(index),
                )

    def count_only(self, batch: pa.RecordBatch) -> None:
        """Count and sum these rows without encoding them."""
        values = _binary(batch.column("value"))
        count = len(values)
        keys = _binary(batch.column("key")) if self._columns.key else pa.nulls(count, pa.binary())
        self.sum += row_sum(keys, values)
        self.rows += count

    def _one_topic(
        self,
        topic: str,
        keys: pa.Array,
        values: pa.Array,
        headers: pa.Array | None,
        chosen: pa.Array | None,
        stamps: int | pa.Array,
    ) -> Iterator[tuple[str, EncodedBatch]]:
        for encoded in encode(
            keys,
            values,
            self._partitions(topic, keys, values, chosen),
            timestamps_ms=stamps,
            headers=headers,
            codec=self._options.codec,
            batch_bytes=self._options.batch_bytes,
        ):
            yield topic, encoded

    # -- columns

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array | None]]:
        """Topics, with the places of their rows; None for all rows."""
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        names = batch.column("topic")
        if names.null_count:
            raise RowError(
                "The Kafka message data sent to the producer contains a null topic. Use the "
                "`topic` option for setting a default topic."
            )
        coded = names.dictionary_encode()
        topics = coded.dictionary.to_pylist()
        if len(topics) == 1:
            yield topics[0], None
            return
        codes = coded.indices.to_numpy()
        for code, topic in enumerate(topics):
            yield topic, pa.array(np.flatnonzero(codes == code))

    def _timestamps(self, batch: pa.RecordBatch) -> int | pa.Array:
        now = self._now_ms()
        if self._columns.timestamp is None:
            return now
        stamps = batch.column(self._columns.timestamp)
        if stamps.type != pa.timestamp("us"):
            stamps = stamps.cast(pa.timestamp("us", stamps.type.tz), safe=False)
        return (
            pc.floor_temporal(stamps, unit="millisecond")
            .cast(pa.timestamp("ms", stamps.type.tz), safe=False)
            .cast(pa.int64())
            .fill_null(now)
        )

    def _headers(self, batch: pa.RecordBatch) -> pa.Array | None:
        own = batch.column("headers").cast(_HEADERS) if self._columns.headers else None
        if self._task_headers is None:
            return own
        return with_task_headers(own, self._task_headers, self.rows, batch.num_rows)

    def _check_sizes(self, keys: pa.Array, values: pa.Array) -> None:
        most = self._options.request_bytes_max
        if values.nbytes + keys.nbytes <= most - RECORD_OVERHEAD_BYTES:
            return
        sizes = _lengths(keys) + _lengths(values) + RECORD_OVERHEAD_BYTES
        if int(sizes.max()) > most:
            raise RowError(
                f"The message is {int(sizes.max())} bytes when serialized which is larger than "
                f"{most}, which is the value of the max.request.size configuration. Raise option "
                "'kafka.max.request.size' and the topic's 'max.message.bytes', or write smaller "
                "rows."
            )

    # -- partitions

    def _partitions(
        self, topic: str, keys: pa.Array, values: pa.Array, chosen: pa.Array | None
    ) -> Ints:
        count = self._count(topic, chosen)
        if chosen is not None and not chosen.null_count:
            return self._in_range(topic, chosen.to_numpy(), count)
        if keys.null_count == len(keys):
            found = np.full(len(keys), -1, np.int32)
        else:
            found = partition_for_keys(keys, count)
        if chosen is not None:
            named = chosen.is_valid().to_numpy(zero_copy_only=False)
            numbers = chosen.fill_null(0).to_numpy()
            found = np.where(named, self._in_range(topic, numbers, count), found)
        keyless = found < 0
        if keyless.any():
            found = found.copy()
            found[keyless] = self._sticky(topic, _lengths(values)[keyless], count)
        return found

    def _count(self, topic: str, chosen: pa.Array | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._partition_count(topic, False)
        highest = None if chosen is None else pc.max(chosen).as_py()
        if highest is not None and highest >= count:
            count = self._partition_count(topic, True)
        self._counts[topic] = count
        return count

    def _sticky(self, topic: str, sizes: Ints, count: int) -> Ints:
        """Partitions for rows without a key: one until a batch is full, then the next."""
        before = self._filled.get(topic, 0)
        behind = before + np.cumsum(sizes + ROW_OVERHEAD_BYTES)
        self._filled[topic] = int(behind[-1])
        starts = np.concatenate(([before], behind[:-1]))
        return (self._first_partition + starts // self._options.batch_bytes) % count

    def _in_range(self, topic: str, partitions: Ints, count: int) -> Ints:
        lowest, highest = int(partitions.min()), int(partitions.max())
        if lowest < 0:
            raise RowError(
                f"Invalid partition: {lowest}. Partition number should always be non-negative or "
                "null. Correct the column 'partition'."
            )
        if highest >= count:
            raise RowError(
                f"Partition {highest} of topic {topic} with partition count {count} is not present "
                "in metadata. Correct the column 'partition', or add partitions to the topic."
            )
        return partitions


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: pa.Array) -> Ints:
    lengths: Ints = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


# -- headers of tasks


def with_task_headers(
    own: pa.Array | None, task: TaskHeaders, first_sequence: int, count: int
) -> pa.Array:
    """The headers of `count` rows with four more each: query, batch, task and sequence number."""
    names = ["spark.query", "spark.batch", "spark.task", "spark.seq"]
    fixed = [task.query.encode(), task.batch.encode(), task.task.encode()]
    sequences = np.arange(first_sequence, first_sequence + count)
    values = pa.chunked_array(
        [pa.array(fixed, pa.binary()), pa.array(sequences).cast(pa.string()).cast(pa.binary())]
    ).combine_chunks()
    index = np.empty((count, 4), np.int64)
    index[:, :3] = (0, 1, 2)
    index[:, 3] = np.arange(3, 3 + count)
    added = _pairs(
        pa.array(names).take(pa.array(np.tile(np.arange(4), count))),
        values.take(pa.array(index.ravel())),
    )
    if own is None:
        return _lists(np.arange(count + 1) * 4, added)
    counts = pc.list_value_length(own).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts + 4)
    flat = own.flatten()
    place = np.empty(int(ends[-1]), np.int64)
    is_added = np.zeros(len(place), bool)
    is_added[(ends[:, None] - 4 + np.arange(4)).ravel()] = True
    place[is_added] = np.arange(4 * count) + len(flat)
    place[~is_added] = np.arange(len(flat))
    both = pa.concat_arrays([flat, added]).take(pa.array(place))
    return _lists(np.concatenate(([0], ends)), both)


def _pairs(keys: pa.Array, values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))


def _lists(offsets: Ints, pairs: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs).cast(_HEADERS)
