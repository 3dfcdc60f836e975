"""Delivery guarantee exactly-once: each task commits its rows together with a marker.

The order of a task's steps is the protocol (tests/spark/exactly_once_model.py):

1. InitProducerId for `<query>-<task>`: fences every other attempt, and ends what it left open.
2. Read the marker of the task. If it is that of this batch, the rows are committed: compare them.
3. Send the rows, add the marker (TxnOffsetCommit), and commit. Both are visible, or none.

`commit` on the driver has nothing left to do. A retry, a speculative copy, a zombie or a second run
of the batch is fenced, or finds the marker. A batch is not atomic: readers may see the rows of some
tasks before those of others. The plan must put the same rows into the same task in a second run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from mqd.client.group import GroupMetadata
from mqd.client.offsets import CommittedOffset
from mqd.types import TopicPartition

from .connection import client_for
from .markers import (
    ExactlyOnceError,
    Marker,
    Verdict,
    check_extra_tasks,
    check_same_rows,
    judge,
    judge_by_task_0,
    marker_of,
)
from .sink_options import Columns, SinkOptions
from .transaction_ids import identity_of, task_id

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.sync import BlockingClient

    from .sink_tasks import Task

logger = logging.getLogger("pyspark_mqd")

NEAR = 8
"""With n tasks, the markers of tasks n to 2n + 7 are read when a batch completes."""

ADAPTIVE = ("spark.sql.adaptive.streaming.stateless.enabled", "spark.sql.adaptive.enabled")


@dataclass(slots=True)
class TaskCommitted(WriterCommitMessage):
    """What a task reports to the driver."""

    task: int
    batch_id: int
    rows: int
    already: bool
    """An earlier attempt has committed the rows."""
    query: str
    query_id: str


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """One micro-batch."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from .sink_tasks import current_task, local_property

        check_plan({name: local_property(name) for name in ADAPTIVE})
        return commit_rows(self._options, self._columns, current_task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every task has committed for itself: check that."""
        tasks = [each for each in messages if isinstance(each, TaskCommitted)]
        if len(tasks) != len(messages) or any(each.batch_id != batchId for each in tasks):
            raise ExactlyOnceError(
                f"Spark completes batch {batchId} with {len(messages)} tasks, but "
                f"{len(messages) - len(tasks)} of them have reported no commit. Start the query "
                "again: the batch runs a second time, and committed rows are recognised."
            )
        if tasks:
            check_further_tasks(client_for(self._options.connection), tasks)
        already = sum(each.already for each in tasks)
        if already:
            logger.info(
                "Batch %d: %d of %d tasks had committed before.", batchId, already, len(tasks)
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Committed tasks stay committed. The next run of the batch finds their markers."""


def commit_rows(
    options: SinkOptions, columns: Columns, task: Task, batches: Iterator[pa.RecordBatch]
) -> TaskCommitted:
    """Write the rows of a task and its marker in one transaction, unless that was done."""
    from .sink_tasks import count_rows, encoder_for, send_rows

    query = options.identity or identity_of(task.query_id)
    name = task_id(query, task.partition)
    client = client_for(options.connection)
    encoder = encoder_for(client, options, columns, task, summed=True)
    with client.raw_producer(
        transactional_id=name,
        transaction_timeout_ms=options.transaction_timeout_ms,
        in_flight_per_partition=options.in_flight,
        buffer_bytes_max=options.buffer_bytes,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
    ) as producer:
        committed = committed_rows(client, options, query, task)
        if committed is not None:
            count_rows(encoder, batches)
            check_same_rows(committed, encoder.sum, task=task.partition)
            return TaskCommitted(
                task.partition, task.batch_id, encoder.rows, True, query, task.query_id
            )
        producer.begin()
        send_rows(producer, encoder, batches)
        marker = Marker(task.batch_id, task.query_id, encoder.rows, encoder.sum.checksum)
        assert options.marker_topic is not None
        place = TopicPartition(options.marker_topic, 0)
        offset = CommittedOffset(task.batch_id, marker.metadata())
        producer.send_offsets({place: offset}, GroupMetadata(name))
        producer.commit()
    return TaskCommitted(task.partition, task.batch_id, encoder.rows, False, query, task.query_id)


def check_further_tasks(client: BlockingClient, tasks: list[TaskCommitted]) -> None:
    """On the driver: an earlier run of the batch had no further tasks. Raises ExactlyOnceError.

    A task cannot know how many tasks there are, so rows that it doubles are found afterwards.
    """
    first, count = tasks[0], len(tasks)
    groups = [task_id(first.query, task) for task in range(count, 2 * count + NEAR)]
    markers = read_markers(client, groups)
    check_extra_tasks(markers, batch_id=first.batch_id, query_id=first.query_id, tasks=count)


def check_plan(settings: dict[str, str | None]) -> None:
    """Refuse plans that may be cut in another way in a second run. Raises ExactlyOnceError."""
    if "false" not in [(value or "").lower() for value in settings.values()]:
        raise ExactlyOnceError(
            "Mode 'exactly-once' needs the same rows in the same task when Spark runs a batch "
            "again, but adaptive execution may choose another number of tasks after a shuffle. Set "
            "'spark.sql.adaptive.streaming.stateless.enabled' to 'false', or build the session "
            "with pyspark_mqd.configure(builder)."
        )


def committed_rows(
    client: BlockingClient, options: SinkOptions, query: str, task: Task
) -> Marker | None:
    """The task's marker if it has committed this batch; None if it is to write it.

    Raises ExactlyOnceError where neither is certain. Called after InitProducerId only.
    """
    group = task_id(query, task.partition)
    marker = read_marker(client, group)
    verdict = judge(
        marker,
        batch_id=task.batch_id,
        query_id=task.query_id,
        task=task.partition,
        group=group,
        accept_missing=options.accept_missing_markers,
    )
    if verdict is Verdict.LOOK_AT_TASK_0:
        group = task_id(query, 0)
        verdict = judge_by_task_0(
            read_marker(client, group),
            batch_id=task.batch_id,
            query_id=task.query_id,
            group=group,
        )
    return marker if verdict is Verdict.ALREADY_COMMITTED else None


def read_marker(client: BlockingClient, group: str) -> Marker | None:
    """The newest marker of a group, when no transaction may change it any more."""
    return read_markers(client, [group])[group]


def read_markers(client: BlockingClient, groups: list[str]) -> dict[str, Marker | None]:
    """The same for many groups."""
    newest: dict[str, Marker | None] = {}
    for group, found in client.admin.list_group_offsets(groups, stable=True).items():
        if isinstance(found, Exception):
            raise found
        markers = [marker_of(each.offset, each.metadata, group) for each in found.values()]
        newest[group] = max(markers, key=lambda each: each.batch_id, default=None)
    return newest
