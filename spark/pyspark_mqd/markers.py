"""Markers of mode exactly-once: which batch a task has committed last, and which rows. Pure.

A marker is a committed offset in the group `<query>-<task>`, for partition 0 of a topic that
exists. The offset is the batch id; the metadata names the query, and has the sum of the rows'
hashes. The task commits it in the same transaction as its rows, so either both exist or neither.
Task 0 commits one more in that transaction, the batch marker. Its two groups alternate from batch
to batch, so the batch marker of N - 1 stays while batch N is written.

Each marker expires separately: `offsets.retention.minutes` after it was committed, 7 days by
default. So a missing marker proves nothing by itself. A task may write batch N if its own marker is
that of batch N - 1: it has not committed batch N. A task without one checks the batch marker of N
- 1. Every marker of batch N is younger than that one. So if it is younger than the retention, no
  marker of batch N has expired, and the task has not committed. Its presence is not enough, because
  coordinators delete expired offsets at different times.

A task's own marker says nothing about the rows of other tasks. After an older checkpoint was
restored, Spark plans batch N again, perhaps with rows that another task has committed in batch N or
later. So the newest marker of all tasks is checked, too (`check_newest`). It must not be of a later
batch, nor of a batch N that was planned at another time.

The sum does not depend on the order of rows: a shuffle may deliver the same rows in another order.
The model in tests/spark/exactly_once_model.py checks these rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .errors import ConnectorError

VERSION = 2
DEFAULT_RETENTION_MS = 7 * 24 * 3_600_000
"""`offsets.retention.minutes` of brokers that do not show their configuration."""
LEAST_RETENTION_MS = 60_000
"""The least value that brokers accept for it."""
_CLOCKS_DIFFER_MS_MAX = 3_600_000
_TEXT_SHOWN_MAX = 200


class ExactlyOnceError(ConnectorError):
    """The query stops, because continuing would lose or duplicate rows."""


@dataclass(frozen=True, slots=True)
class RowSum:
    """What identifies the rows of one task, in any order."""

    rows: int = 0
    hashes: int = 0
    """The sum of the hashes of all rows, modulo 2**64."""

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows + other.rows, (self.hashes + other.hashes) % 2**64)


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch that a task has committed."""

    batch_id: int
    query_id: str
    rows: int
    hashes: int
    """The hashes of `RowSum`."""
    time_ms: int
    """Wall time of the task, in milliseconds since 1970, before it committed."""
    planned_ms: int | None = None
    """`checkpoint_files.planned_ms_of`; None where the driver cannot read the checkpoint."""

    @property
    def row_sum(self) -> RowSum:
        """What identifies the committed rows."""
        return RowSum(self.rows, self.hashes)

    def metadata(self) -> str:
        """The text beside the committed offset."""
        fields = {"v": VERSION, "query": self.query_id, "rows": self.rows, "hash": self.hashes}
        fields |= {"time": self.time_ms, "planned": self.planned_ms}
        return json.dumps(fields, separators=(",", ":"))


def marker_of(offset: int, metadata: str, group: str) -> Marker:
    """A committed offset as a marker. Raises ExactlyOnceError for one that is not ours."""
    version = None
    try:
        fields = json.loads(metadata)
        version = fields["v"]
        if version == VERSION:
            rows, hashes = int(fields["rows"]), int(fields["hash"])
            planned_ms = fields.get("planned")
            planned_ms = None if planned_ms is None else int(planned_ms)
            time_ms = int(fields["time"])
            return Marker(offset, str(fields["query"]), rows, hashes, time_ms, planned_ms)
    except (ValueError, TypeError, KeyError):
        version = None
    if isinstance(version, int):
        raise ExactlyOnceError(
            f"Group '{group}' has a marker of format {version}, but this version of the connector "
            f"reads format {VERSION} only. Let the query complete its last batch with the version "
            "that wrote the marker. Then set option 'exactlyOnceId' to a new name, and option "
            "'acceptMissingMarkers' to 'true' for one start."
        )
    raise ExactlyOnceError(
        f"Group '{group}' has a committed offset that is not a marker of this connector: "
        f"metadata '{metadata[:_TEXT_SHOWN_MAX]}'. Another program commits offsets to this "
        "group. Choose another name with option 'exactlyOnceId'."
    )


class TaskAction(Enum):
    """What a task has to do."""

    WRITE = "write"
    ALREADY_COMMITTED = "already committed"
    CHECK_BATCH_MARKER = "check the marker of the previous batch"


def task_action_of(
    marker: Marker | None,
    *,
    batch_id: int,
    query_id: str,
    task: int,
    group: str,
    accept_missing: bool,
) -> TaskAction:
    """What a task has to do, by its own marker. Raises ExactlyOnceError."""
    assert batch_id >= 0 and task >= 0
    if marker is not None:
        _check_query(marker, query_id, group)
        assert marker.batch_id <= batch_id, "check_newest comes first"
        if marker.batch_id == batch_id:
            return TaskAction.ALREADY_COMMITTED
        # No attempt has committed this batch (I43).
        if marker.batch_id == batch_id - 1:
            return TaskAction.WRITE
    if batch_id == 0 or accept_missing:
        return TaskAction.WRITE
    return TaskAction.CHECK_BATCH_MARKER


def check_newest(
    markers: Mapping[str, Marker | None],
    *,
    batch_id: int,
    query_id: str,
    planned_ms: int | None,
    alone: bool,
) -> None:
    """Check that no task has committed rows that this batch may write again. Raises
    ExactlyOnceError.

    `markers`: by group. `planned_ms`: when Spark planned this batch. `alone`: the driver has not
    looked, so other tasks may have written rows before this one looks.
    """
    for group, marker in markers.items():
        if marker is None or marker.query_id != query_id or marker.batch_id < batch_id:
            continue
        if marker.batch_id > batch_id:
            what = f"the marker of batch {marker.batch_id}"
        elif planned_ms not in (None, marker.planned_ms) and marker.planned_ms is not None:
            what = "a marker of the batch from before Spark planned it again"
        else:
            continue
        effect = "This run has written no row"
        if alone:
            effect = (
                "Other tasks of this run may have written rows a second time: compare the topic "
                "with the source. Option 'exactlyOnceId' lets the driver look before any "
                "task writes"
            )
        raise ExactlyOnceError(
            f"Batch {batch_id} is not written, because group '{group}' has {what}: the checkpoint "
            f"is older than what was written. {effect}. Restore the newest checkpoint, or start "
            "with a new checkpoint and a new topic to write everything again."
        )


def task_action_by_batch_marker(
    marker: Marker | None,
    *,
    batch_id: int,
    query_id: str,
    group: str,
    now_ms: int,
    retention_ms: int,
) -> TaskAction:
    """The same for a task whose own marker is not of batch N - 1, by the batch marker of N - 1."""
    if marker is not None:
        _check_query(marker, query_id, group)
        if marker.batch_id == batch_id - 1 and is_young(marker.time_ms, now_ms, retention_ms):
            return TaskAction.WRITE
    raise missing_marker(batch_id, group, marker, retention_ms)


def check_first_batch(planned_ms: int | None, *, now_ms: int, retention_ms: int) -> None:
    """Batch 0 has no previous batch: no marker of it has expired if it was planned just now.

    `planned_ms` is None where the driver cannot read the checkpoint. Raises ExactlyOnceError.
    """
    if planned_ms is not None and not is_young(planned_ms, now_ms, retention_ms):
        raise ExactlyOnceError(
            "Batch 0 was planned and not completed in an earlier run, longer ago than the brokers' "
            f"'offsets.retention.minutes' ({retention_ms // 60_000}). Its markers may have "
            "expired, and its rows may be in the topic already. " + _REMEDY
        )


def is_young(time_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Whether no marker that was committed since has expired, although clocks differ."""
    return now_ms - time_ms < retention_ms - min(_CLOCKS_DIFFER_MS_MAX, retention_ms // 10)


def missing_marker(
    batch_id: int, group: str, found: Marker | None, retention_ms: int
) -> ExactlyOnceError:
    """Why a resumed query stops."""
    if found is None:
        state = "the marker of batch {} is missing: group '{}' has none"
    elif found.batch_id == batch_id - 1:
        state = "the marker of batch {} in group '{}' is about to expire"
    else:
        state = f"the marker of batch {{}} is missing: group '{{}}' has that of {found.batch_id}"
    return ExactlyOnceError(
        f"Batch {batch_id} cannot be written exactly once, because "
        f"{state.format(batch_id - 1, group)}. Markers expire when a query is stopped for longer "
        f"than 'offsets.retention.minutes' of the brokers ({retention_ms // 60_000}), and a query "
        "whose delivery guarantee has changed has none. Rows of this batch may be in the topic "
        "already. " + _REMEDY
    )


_REMEDY = (
    "Compare the topic with the batch; then set option 'acceptMissingMarkers' to 'true' for one "
    "start to write the batch, or start with a new checkpoint."
)


def check_same_rows(
    marker: Marker, sum_of_rows: RowSum, *, task: int, accept_changed: bool
) -> bool:
    """Whether the rows of a second run are those that were committed. Raises ExactlyOnceError.

    With `accept_changed`, the committed rows replace different rows of this run, unless this run
    has more of them: those would be lost.
    """
    # The rows of the run before are in the same tasks (I44).
    if marker.row_sum == sum_of_rows:
        return True
    if accept_changed and sum_of_rows.rows <= marker.rows:
        return False
    raise ExactlyOnceError(
        f"Task {task} of batch {marker.batch_id} has committed {marker.rows} rows (hash "
        f"{marker.hashes}) already, but this run of the batch has {sum_of_rows.rows} rows (hash "
        f"{sum_of_rows.hashes}). {_more_rows(marker, sum_of_rows, accept_changed)}Either an older "
        "checkpoint "
        "was restored, or the plan is not deterministic, or its number of tasks has changed. Or "
        "the source has lost records between "
        "the two runs, by compaction or retention. Mode 'exactly-once' needs the same rows in the "
        "same task when Spark runs a batch again. Do not use rand() or uuid(), keep "
        "'minPartitions' and 'spark.sql.shuffle.partitions', and set "
        "'spark.sql.adaptive.streaming.stateless.enabled' to 'false'. If only the source has "
        "changed, set option 'acceptChangedRows' to 'true' for one start: the committed rows "
        "stay, and the task writes none. For other plans, set option 'deliveryGuarantee' to "
        "'atomic-batch'."
    )


def _more_rows(marker: Marker, sum_of_rows: RowSum, accept_changed: bool) -> str:
    if not accept_changed:
        return ""
    lost = sum_of_rows.rows - marker.rows
    return f"Option 'acceptChangedRows' does not apply, because {lost} rows would be lost. "


def check_extra_tasks(
    markers: Mapping[str, Marker | None], *, batch_id: int, query_id: str, tasks: int
) -> None:
    """No task beyond those of this run has committed the batch. Raises ExactlyOnceError.

    `markers` are those of tasks that this run does not have.
    """
    extra = [
        group
        for group, marker in markers.items()
        if marker is not None and marker.query_id == query_id and marker.batch_id == batch_id
    ]
    if extra:
        raise ExactlyOnceError(
            f"Batch {batch_id} was committed before with more tasks: this run has {tasks}, and "
            f"group '{extra[0]}' has a marker of the batch, too ({len(extra)} such groups). Rows "
            "of the batch may be doubled, because a task of this run has written rows that "
            "another task had committed. The number of tasks must not change between two runs of "
            "a batch: keep 'minPartitions', 'spark.sql.shuffle.partitions' and coalesce(). Compare "
            "the topic with the batch, then start with a new checkpoint and a new topic."
        )


def _check_query(marker: Marker, query_id: str, group: str) -> None:
    if marker.query_id != query_id:
        raise ExactlyOnceError(
            f"Group '{group}' has markers of the query with id '{marker.query_id}', but this query "
            f"has id '{query_id}': the checkpoint is another one. Batch ids of two checkpoints "
            "cannot be compared. Set option 'exactlyOnceId' to a name that was not used before, "
            "or resume from the checkpoint of the first query."
        )
