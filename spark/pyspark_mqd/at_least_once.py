"""Delivery guarantee at-least-once: each task has an idempotent producer.

A record is in the topic once for each attempt that sent it. A task that fails, or a batch that runs
again after a crash, may write its rows a second time. With option `taskHeaders` each row carries
`spark.query`, `spark.batch`, `spark.task` and `spark.seq`, so that readers can drop duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .connection import client_for
from .sink_options import Columns, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


def _write(
    options: SinkOptions, columns: Columns, batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    from .sink_tasks import Written, current_task, encoder_for, send_rows

    task = current_task()
    client = client_for(options.connection)
    encoder = encoder_for(client, options, columns, task)
    with client.raw_producer(
        in_flight_per_partition=options.in_flight,
        buffer_bytes_max=options.buffer_bytes,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
    ) as producer:
        send_rows(producer, encoder, batches)
        producer.flush()
    return Written(task.partition, encoder.rows)


class Writer(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._columns, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._columns, iterator)
