"""Delivery guarantee exactly-once: each task commits its rows together with a marker.

The order of a task's steps is the protocol (tests/spark/exactly_once_model.py):

1. Plan, on the driver. In the first batch of a run: fence the tasks of earlier runs, then read the
   markers of all tasks. The newest one goes to the tasks.
2. InitProducerId for `<query>-<task>`: fences every other attempt, and ends what it left open.
3. Read the marker of the task, and both batch markers. If one of them, or the newest one, shows
   that the checkpoint is an older one, stop. If the task's marker is that of this batch, the rows
   are committed: compare them. If the task's marker is not of the previous batch, the batch marker
   must be.
4. Send the rows, add the marker (TxnOffsetCommit), and commit. Both are visible, or none. Task 0
   adds the batch marker, too.

A retry, a speculative copy, a zombie or a second run of the batch is fenced, or finds the marker. A
batch is not atomic: readers may see the rows of some tasks before those of others. The plan must
put the same rows into the same task in a second run. `commit` on the driver checks that an earlier
run of the batch had no further tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from mqd.client.descriptions import Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.client.group_member import GroupMetadata
from mqd.client.offsets import CommittedOffset
from mqd.types import TopicPartition

from .checkpoint_files import last_batch_of, planned_ms_of, query_id_of
from .connection import client_for
from .markers import (
    DEFAULT_RETENTION_MS,
    LEAST_RETENTION_MS,
    ExactlyOnceError,
    Marker,
    TaskAction,
    check_extra_tasks,
    check_first_batch,
    check_newest,
    check_same_rows,
    is_young,
    marker_of,
    task_action_by_batch_marker,
    task_action_of,
)
from .sink_options import Columns, SinkOptions
from .transaction_ids import batch_group, identity_of, task_id, task_of

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.sync import BlockingClient

    from .sink_tasks import Task

logger = logging.getLogger("pyspark_mqd")

EXTRA_MARKERS_READ = 8
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
    """Rows of this attempt that were not written, because other rows are committed for this
    task."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the driver knows before the tasks of a batch start."""

    batch_id: int | None = None
    """None if the checkpoint is not on the driver's file system."""
    planned_ms: int | None = None
    """`checkpoint_files.planned_ms_of` this batch."""
    newest: Mapping[str, Marker] = field(default_factory=dict)
    """By group: the newest marker of all tasks; empty after the first batch of a run."""
    alone: bool = True
    """The driver does not know the query's identity, so each task reads the markers."""

    def planned_ms_of(self, batch_id: int) -> int | None:
        """The same for a task, which knows its batch."""
        return self.planned_ms if self.batch_id == batch_id else None


_planned_last: dict[str, int | None] = {}
"""In the driver's Python worker that plans: query -> the batch that it has planned last."""

_completed_in: dict[str, str | None] = {}
"""In the driver's Python worker: query -> the run that has completed a batch."""


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """One micro-batch."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._plan: BatchPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Step 1. Spark calls it twice for each micro-batch; the second call does nothing."""
        if self._plan is None:
            self._plan = plan(self._options)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from .sink_tasks import current_task, local_property

        check_plan({name: local_property(name) for name in ADAPTIVE})
        return commit_rows(
            self._options,
            self._columns,
            current_task(),
            iterator,
            run=local_property(RUN),
            plan=self._plan or BatchPlan(),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Check that every task has committed."""
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
                logger.warning(
                    "Batch %d: %s", batchId, changed_rows(each.task, each.rows, each.changed_rows)
                )
        if already:
            logger.info(
                "Batch %d: %d of %d tasks had committed before.", batchId, already, len(tasks)
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Committed tasks stay committed. The next run of the batch finds their markers."""


def commit_rows(
    options: SinkOptions,
    columns: Columns,
    task: Task,
    batches: Iterator[pa.RecordBatch],
    *,
    run: str | None = None,
    plan: BatchPlan,
) -> TaskCommitted:
    """Write the rows of a task and its marker in one transaction, unless that was done.

    `run`: the query's run id; None: not known.
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
        committed = committed_rows(client, options, query, task, plan)
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
        planned_ms = plan.planned_ms_of(task.batch_id)
        summed = encoder.sum
        marker = Marker(
            task.batch_id, task.query_id, summed.rows, summed.hashes, wall_ms(), planned_ms
        )
        assert options.marker_topic is not None
        offsets = {
            TopicPartition(options.marker_topic, 0): CommittedOffset(
                task.batch_id, marker.metadata()
            )
        }
        producer.send_offsets(offsets, GroupMetadata(name))
        if task.partition == 0:
            producer.send_offsets(offsets, GroupMetadata(batch_group(query, task.batch_id)))
        producer.commit()
    report.rows = encoder.rows
    return report


def changed_rows(task: int, committed: int, found: int) -> str:
    """The warning of a task for a user who has set `acceptChangedRows`."""
    return (
        f"Task {task} keeps the {committed} rows that it has committed. It does not write the "
        f"{found} other rows of this run, because option 'acceptChangedRows' is 'true'. Remove "
        "the option before the next start."
    )


def check_further_tasks(client: BlockingClient, tasks: list[TaskCommitted]) -> None:
    """On the driver: an earlier run of the batch had no further tasks. Raises ExactlyOnceError.

    A task cannot know how many tasks there are, so the driver detects duplicated rows afterwards.
    Only the first batch that a run completes may have run before. For that batch it fences further
    tasks that are still alive, and then checks all groups of the query. Later, it checks only a
    few.
    """
    first, count = tasks[0], len(tasks)
    if first.run is not None and _completed_in.get(first.query) == first.run:
        groups = [
            task_id(first.query, task) for task in range(count, 2 * count + EXTRA_MARKERS_READ)
        ]
    else:
        fence_further_tasks(client, first.query, count)
        names = (each.group_id for each in client.admin.list_groups())
        groups = [name for name in names if is_further(name, first.query, count)]
    markers = read_markers(client, groups)
    check_extra_tasks(markers, batch_id=first.batch_id, query_id=first.query_id, tasks=count)
    _completed_in[first.query] = first.run


def fence_further_tasks(client: BlockingClient, query: str, count: int) -> None:
    """Abort open transactions of an earlier run's tasks, so that they cannot commit."""
    names = (each.transactional_id for each in client.admin.list_transactions())
    outcomes = client.admin.fence_producers(
        [name for name in names if is_further(name, query, count)]
    )
    for outcome in outcomes.values():
        if isinstance(outcome, ClientError):
            raise outcome


def is_further(name: str, query: str, count: int) -> bool:
    """Whether a group or a transactional id belongs to a task number of `count` or more."""
    task = task_of(name, query)
    return task is not None and task >= count


def check_plan(settings: dict[str, str | None]) -> None:
    """Refuse plans that may distribute rows differently in a second run. Raises
    ExactlyOnceError."""
    if "false" not in [(value or "").lower() for value in settings.values()]:
        raise ExactlyOnceError(
            "Mode 'exactly-once' needs the same rows in the same task when Spark runs a batch "
            "again. Adaptive execution may choose another number of tasks after a shuffle. Set "
            "'spark.sql.adaptive.streaming.stateless.enabled' to 'false', or build the session "
            "with pyspark_mqd.configure(builder)."
        )


def committed_rows(
    client: BlockingClient, options: SinkOptions, query: str, task: Task, plan: BatchPlan
) -> Marker | None:
    """The task's marker if it has committed this batch; None if it must write it.

    Raises ExactlyOnceError if neither is certain. Called after InitProducerId only.
    """
    group = task_id(query, task.partition)
    batch_groups = [batch_group(query, batch_id) for batch_id in (0, 1)]
    markers = read_markers(client, [group, *batch_groups])
    marker = markers[group]
    planned_ms = plan.planned_ms_of(task.batch_id)
    has_committed = marker is not None and marker.batch_id == task.batch_id
    check_newest(
        {**plan.newest, **markers},
        batch_id=task.batch_id,
        query_id=task.query_id,
        planned_ms=None if has_committed else planned_ms,  # then its rows are compared
        alone=plan.alone,
    )
    action = task_action_of(
        marker,
        batch_id=task.batch_id,
        query_id=task.query_id,
        task=task.partition,
        group=group,
        accept_missing=options.accept_missing_markers,
    )
    now_ms = wall_ms()
    if action is TaskAction.CHECK_BATCH_MARKER:
        group = batch_group(query, task.batch_id - 1)
        found = markers[group]
        action = task_action_by_batch_marker(
            found,
            batch_id=task.batch_id,
            query_id=task.query_id,
            group=group,
            now_ms=now_ms,
            retention_ms=retention_ms(client, _time_of(found, task.batch_id - 1), now_ms),
        )
    elif planned_ms is not None and marker is None and not options.accept_missing_markers:
        check_first_batch(
            planned_ms, now_ms=now_ms, retention_ms=retention_ms(client, planned_ms, now_ms)
        )
    return marker if action is TaskAction.ALREADY_COMMITTED else None


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _time_of(marker: Marker | None, batch_id: int) -> int | None:
    """When the marker of this batch was committed; None where it is missing."""
    return None if marker is None or marker.batch_id != batch_id else marker.time_ms


def retention_ms(client: BlockingClient, time_ms: int | None, now_ms: int) -> int:
    """How long the brokers keep offsets: the shortest of all; the default where none shows it.

    If `time_ms` is more recent than the minimum retention, return the minimum.
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


def plan(options: SinkOptions) -> BatchPlan:
    """On the driver, before tasks start. Raises ExactlyOnceError and ClientError."""
    batch_id = last_batch_of(options.checkpoint)
    planned_ms = None if batch_id is None else planned_ms_of(options.checkpoint, batch_id)
    query_id = query_id_of(options.checkpoint)
    query = options.identity or (query_id and identity_of(query_id))
    if not query:
        return BatchPlan(batch_id, planned_ms)
    newest = newest_markers(client_for(options.connection), query, batch_id)
    return BatchPlan(batch_id, planned_ms, newest, alone=False)


def newest_markers(client: BlockingClient, query: str, batch_id: int | None) -> dict[str, Marker]:
    """The newest marker of each checkpoint, by its group, when no earlier run may add one.

    If this process planned the previous batch, this is not the first batch of a run, and no marker
    is read. Without a batch id all markers are read, and only a process's first plan fences.
    """
    again = query in _planned_last
    before = _planned_last.get(query)
    if again and batch_id is not None and before == batch_id - 1:
        _planned_last[query] = batch_id
        return {}
    if not again or batch_id is not None:
        fence_further_tasks(client, query, 0)
    names = [each.group_id for each in client.admin.list_groups()]
    groups = [name for name in names if is_further(name, query, 0)]
    groups += [batch_group(query, number) for number in (0, 1)]
    newest: dict[str, tuple[str, Marker]] = {}
    for group, marker in read_markers(client, groups).items():
        if marker is None:
            continue
        known = newest.get(marker.query_id)
        if known is None or known[1].batch_id < marker.batch_id:
            newest[marker.query_id] = group, marker
    _planned_last[query] = batch_id
    return dict(newest.values())


def read_markers(client: BlockingClient, groups: list[str]) -> dict[str, Marker | None]:
    """The newest marker of each group, when no transaction can change it any longer."""
    newest: dict[str, Marker | None] = {}
    for group, found in client.admin.list_group_offsets(groups, stable=True).items():
        if isinstance(found, Exception):
            raise found
        markers = [marker_of(each.offset, each.metadata, group) for each in found.values()]
        newest[group] = max(markers, key=lambda each: each.batch_id, default=None)
    return newest
