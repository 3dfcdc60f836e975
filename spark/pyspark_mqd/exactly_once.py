"""Delivery guarantee exactly-once: each task commits its rows together with a marker.

The order of a task's steps is the protocol (tests/spark/exactly_once_model.py):

1. InitProducerId for `<query>-<task>`: fences every other attempt, and ends what it left open.
2. Read the marker of the task. If it is that of this batch, the rows are committed: compare them.
   If it is neither that nor the one of the batch before, read the batch marker of the batch before.
3. Send the rows, add the marker (TxnOffsetCommit), and commit. Both are visible, or none. Task 0
   adds the batch marker, too.

A retry, a speculative copy, a zombie or a second run of the batch is fenced, or finds the marker. A
batch is not atomic: readers may see the rows of some tasks before those of others. The plan must
put the same rows into the same task in a second run. `commit` on the driver checks that an earlier
run of the batch had no further tasks.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from mqd.client.descriptions import Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.client.group import GroupMetadata
from mqd.client.offsets import CommittedOffset
from mqd.types import TopicPartition

from .connection import client_for
from .markers import (
    DEFAULT_RETENTION_MS,
    LEAST_RETENTION_MS,
    ExactlyOnceError,
    Marker,
    Verdict,
    check_extra_tasks,
    check_first_batch,
    check_same_rows,
    is_young,
    judge,
    judge_by_batch_marker,
    marker_of,
)
from .sink_options import Columns, SinkOptions
from .transaction_ids import batch_group, identity_of, task_id, task_of

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.sync import BlockingClient

    from .sink_tasks import Task

logger = logging.getLogger("pyspark_mqd")

NEAR = 8
"""With n tasks, the markers of tasks n to 2n + 7 are read when a batch completes."""
RUN = "spark.jobGroup.id"
"""Spark's name for the run id of a streaming query, in the local properties of its tasks."""
RETENTION = "offsets.retention.minutes"

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
    run: str | None = None
    """The query's run, if Spark names it."""
    changed_rows: int | None = None
    """Rows of this attempt that were not written, although others are committed in their stead."""


_completed_in: dict[str, str | None] = {}
"""In the driver's Python worker: query -> the run that has completed a batch."""


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """One micro-batch."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._planned_ms = first_batch_planned_ms(options.checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from .sink_tasks import current_task, local_property

        check_plan({name: local_property(name) for name in ADAPTIVE})
        return commit_rows(
            self._options,
            self._columns,
            current_task(),
            iterator,
            run=local_property(RUN),
            planned_ms=self._planned_ms,
        )

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
        for each in tasks:
            if each.changed_rows is not None:
                logger.warning("Batch %d: %s", batchId, changed_rows(each.task, each.rows, each.changed_rows))
        if already:
            logger.info("Batch %d: %d of %d tasks had committed before.", batchId, already, len(tasks))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Committed tasks stay committed. The next run of the batch finds their markers."""


def commit_rows(
    options: SinkOptions,
    columns: Columns,
    task: Task,
    batches: Iterator[pa.RecordBatch],
    *,
    run: str | None = None,
    planned_ms: int | None = None,
) -> TaskCommitted:
    """Write the rows of a task and its marker in one transaction, unless that was done.

    `run`: the query's run id. `planned_ms`: wall time when batch 0 was planned. None: not known.
    """
    from .sink_tasks import count_rows, encoder_for, send_rows

    query = options.identity or identity_of(task.query_id)
    name = task_id(query, task.partition)
    client = client_for(options.connection)
    encoder = encoder_for(client, options, columns, task, summed=True)
    report = TaskCommitted(task.partition, task.batch_id, 0, False, query, task.query_id, run, None)
    with client.raw_producer(
        transactional_id=name,
        transaction_timeout_ms=options.transaction_timeout_ms,
        in_flight_per_partition=options.in_flight,
        buffer_bytes_max=options.buffer_bytes,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
    ) as producer:
        committed = committed_rows(client, options, query, task, planned_ms)
        if committed is not None:
            count_rows(encoder, batches)
            same = check_same_rows(
                committed,
                encoder.sum,
                task=task.partition,
                accept_changed=options.accept_changed_rows,
            )
            report.rows, report.already = committed.rows, True
            report.changed_rows = None if same else encoder.rows
            return report
        producer.begin()
        send_rows(producer, encoder, batches)
        marker = Marker(task.batch_id, task.query_id, encoder.rows, encoder.sum.hashes, wall_ms())
        assert options.marker_topic is not None
        offsets = {TopicPartition(options.marker_topic, 0): CommittedOffset(task.batch_id, marker.metadata())}
        producer.send_offsets(offsets, GroupMetadata(name))
        if task.partition == 0:
            producer.send_offsets(offsets, GroupMetadata(batch_group(query, task.batch_id)))
        producer.commit()
    report.rows = encoder.rows
    return report


def changed_rows(task: int, committed: int, found: int) -> str:
    """What a user reads who has set `acceptChangedRows`."""
    return (
        f"Task {task} keeps the {committed} rows that it has committed, and does not write the "
        f"{found} other rows of this run, because option 'acceptChangedRows' is 'true'. Remove "
        "the option before the next start."
    )


def check_further_tasks(client: BlockingClient, tasks: list[TaskCommitted]) -> None:
    """On the driver: an earlier run of the batch had no further tasks. Raises ExactlyOnceError.

    A task cannot know how many tasks there are, so rows that it doubles are found afterwards. Only
    the first batch that a run completes may have run before. So then all groups of the query count,
    and further tasks that are still alive are fenced before; later a few markers are read.
    """
    first, count = tasks[0], len(tasks)
    if first.run is not None and _completed_in.get(first.query) == first.run:
        groups = [task_id(first.query, task) for task in range(count, 2 * count + NEAR)]
    else:
        fence_further_tasks(client, first.query, count)
        names = (each.group_id for each in client.admin.list_groups())
        groups = [name for name in names if is_further(name, first.query, count)]
    markers = read_markers(client, groups)
    check_extra_tasks(markers, batch_id=first.batch_id, query_id=first.query_id, tasks=count)
    _completed_in[first.query] = first.run


def fence_further_tasks(client: BlockingClient, query: str, count: int) -> None:
    """Abort what tasks of an earlier run have open, so that they commit nothing any more."""
    names = (each.transactional_id for each in client.admin.list_transactions())
    outcomes = client.admin.fence_producers([name for name in names if is_further(name, query, count)])
    for outcome in outcomes.values():
        if isinstance(outcome, ClientError):
            raise outcome


def is_further(name: str, query: str, count: int) -> bool:
    """Whether a group or a transactional id is of a task that a run with `count` tasks lacks."""
    task = task_of(name, query)
    return task is not None and task >= count


def check_plan(settings: dict[str, str | None]) -> None:
    """Refuse plans that may be cut in another way in a second run. Raises ExactlyOnceError."""
    if "false" not in [(value or "").lower() for value in settings.values()]:
        raise ExactlyOnceError(
            "Mode 'exactly-once' needs the same rows in the same task when Spark runs a batch "
            "again, but adaptive execution may choose another number of tasks after a shuffle. Set "
            "'spark.sql.adaptive.streaming.stateless.enabled' to 'false', or build the session "
            "with pyspark_mqd.configure(builder)."
        )


def committed_rows(client: BlockingClient, options: SinkOptions, query: str, task: Task, planned_ms: int | None) -> Marker | None:
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
    now_ms = wall_ms()
    if verdict is Verdict.LOOK_AT_BATCH_MARKER:
        group = batch_group(query, task.batch_id - 1)
        found = read_marker(client, group)
        verdict = judge_by_batch_marker(
            found,
            batch_id=task.batch_id,
            query_id=task.query_id,
            group=group,
            now_ms=now_ms,
            retention_ms=retention_ms(client, None if found is None else found.time_ms, now_ms),
        )
    elif planned_ms is not None and marker is None and not options.accept_missing_markers:
        check_first_batch(planned_ms, now_ms=now_ms, retention_ms=retention_ms(client, planned_ms, now_ms))
    return marker if verdict is Verdict.ALREADY_COMMITTED else None


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def retention_ms(client: BlockingClient, time_ms: int | None, now_ms: int) -> int:
    """How long the brokers keep offsets: the shortest of all; the default where none shows it.

    The least possible value suffices where what was committed at `time_ms` is younger than that.
    """
    if time_ms is not None and is_young(time_ms, now_ms, LEAST_RETENTION_MS):
        return LEAST_RETENTION_MS
    cluster = client.admin.describe_cluster()
    nodes = [node.node_id for node in cluster.brokers if node.node_id not in cluster.fenced]
    resources = [Resource(ResourceType.BROKER, str(node)) for node in nodes]
    minutes = [
        int(entry.value)
        for outcome in client.admin.describe_configs(resources, [RETENTION]).values()
        for entry in ([] if isinstance(outcome, ClientError) else outcome)
        if entry.value is not None
    ]
    return min(minutes) * 60_000 if minutes else DEFAULT_RETENTION_MS


def first_batch_planned_ms(checkpoint: str | None) -> int | None:
    """On the driver: wall time when batch 0 was planned, out of Spark's offset log.

    None if its entry is not on this file system, or not there any more.
    """
    path = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    if not os.path.isabs(path):
        return None
    try:
        lines = (Path(path) / "offsets" / "0").read_text(encoding="utf-8").splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


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
