"""What the tasks of all sinks share: where they run, and how their rows are sent.

Runs in Python workers of executors. A task has a producer for its length and the process's client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from .rows import RowEncoder, TaskHeaders, coalesced
from .sink_options import Columns, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.sync import BlockingClient, BlockingRawProducer

logger = logging.getLogger("pyspark_mqd")

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = 2**31 - 1

_warned = False


@dataclass(frozen=True, slots=True)
class Task:
    """A task attempt. `batch_id` is -1 and `query_id` is empty in a batch write."""

    partition: int
    attempt: int
    batch_id: int
    query_id: str

    def in_batch(self, batch_id: int) -> Task:
        """The same task under another batch id."""
        return replace(self, batch_id=batch_id)


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What a task reports to the driver."""

    task: int
    rows: int


def current_task() -> Task:
    """The task that runs in this process. Task 0 warns where Spark is slow without need."""
    context = TaskContext.get()
    assert context is not None, "not in a task"
    batch_id = context.getLocalProperty(BATCH_ID)
    task = Task(
        context.partitionId(),
        context.attemptNumber(),
        -1 if batch_id is None else int(batch_id),
        context.getLocalProperty(QUERY_ID) or "",
    )
    if task.partition == 0:
        _warn_once(context.getLocalProperty(ARROW_BYTES))
    return task


def local_property(name: str) -> str | None:
    """A setting of the session that runs this task; None where it was not set."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _warn_once(arrow_bytes: str | None) -> None:
    """Once a Python worker."""
    global _warned
    if _warned or (
        arrow_bytes is not None and arrow_bytes.isdecimal() and int(arrow_bytes) >= NO_LIMIT
    ):
        return
    _warned = True
    logger.warning(
        "'%s' is not %d: Spark measures the whole Arrow batch again for every row, and writing is "
        "10 to 30 times slower. Build the session with pyspark_mqd.configure(builder).",
        ARROW_BYTES,
        NO_LIMIT,
    )


def encoder_for(
    client: BlockingClient,
    options: SinkOptions,
    columns: Columns,
    task: Task,
    *,
    summed: bool = False,
) -> RowEncoder:
    """The encoder of a task's rows."""
    headers = None
    if options.task_headers:
        headers = TaskHeaders(task.query_id, str(task.batch_id), str(task.partition))
    return RowEncoder(
        options,
        columns,
        partition_count=lambda topic, fresh: client.partition_count(topic, fresh=fresh),
        now_ms=lambda: time.time_ns() // 1_000_000,
        first_partition=task.partition,
        task_headers=headers,
        summed=summed,
    )


def send_rows(
    producer: BlockingRawProducer, encoder: RowEncoder, batches: Iterator[pa.RecordBatch]
) -> None:
    """Encode and send all rows; the producer sends while the next rows are encoded."""
    for batch in coalesced(batches):
        producer.send_all(list(encoder.encode(batch)))


def count_rows(encoder: RowEncoder, batches: Iterator[pa.RecordBatch]) -> None:
    """Count and sum rows that were committed already, without sending them."""
    for batch in coalesced(batches):
        encoder.count_only(batch)
