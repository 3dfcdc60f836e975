"""Markers of mode exactly-once: which batch a task has committed last, and of which rows. Pure.

A marker is a committed offset in the group `<query>-<task>`, for partition 0 of a topic that
exists. The offset is the batch id; the metadata names the query, and has a checksum of the rows.
The task commits it in the same transaction as its rows, so both are there or none.

Markers expire with the group's offsets (`offsets.retention.minutes`, 7 days by default). So a
marker that is missing proves nothing by itself. A task may write batch N only if its own marker is
that of batch N - 1, or if the marker of task 0 shows that markers have not expired: task 0 runs in
every batch. The model in tests/spark/exactly_once_model.py checks this rule.

Checksums do not depend on the order of rows: a shuffle may deliver the same rows in another order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .errors import ConnectorError

VERSION = 1
_TEXT_SHOWN_MAX = 200


class ExactlyOnceError(ConnectorError):
    """The query stops, because going on would lose or duplicate rows."""


@dataclass(frozen=True, slots=True)
class RowSum:
    """What identifies the rows of one task, in any order."""

    rows: int = 0
    hashes: int = 0
    """The sum of the hashes of all rows, modulo 2**64."""

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows + other.rows, (self.hashes + other.hashes) % 2**64)

    @property
    def checksum(self) -> int:
        """What the marker keeps beside the number of rows."""
        return self.hashes


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch that a task has committed."""

    batch_id: int
    query_id: str
    rows: int
    checksum: int

    def metadata(self) -> str:
        """The text beside the committed offset."""
        fields = {"v": VERSION, "query": self.query_id, "rows": self.rows, "crc": self.checksum}
        return json.dumps(fields, separators=(",", ":"))


def marker_of(offset: int, metadata: str, group: str) -> Marker:
    """A committed offset as a marker. Raises ExactlyOnceError for one that is not ours."""
    try:
        fields = json.loads(metadata)
        version = fields["v"]
        marker = Marker(offset, str(fields["query"]), int(fields["rows"]), int(fields["crc"]))
    except (ValueError, TypeError, KeyError):
        version, marker = None, None
    if version != VERSION or marker is None:
        raise ExactlyOnceError(
            f"Group '{group}' has a committed offset that is not a marker of this connector: "
            f"metadata '{metadata[:_TEXT_SHOWN_MAX]}'. Another program commits offsets to this "
            "group. Choose another name with option 'exactlyOnceId'."
        )
    return marker


class Verdict(Enum):
    """What a task has to do."""

    WRITE = "write"
    ALREADY_COMMITTED = "already committed"
    LOOK_AT_TASK_0 = "look at the marker of task 0"


def judge(
    marker: Marker | None,
    *,
    batch_id: int,
    query_id: str,
    task: int,
    group: str,
    accept_missing: bool,
) -> Verdict:
    """What a task has to do, by its own marker. Raises ExactlyOnceError."""
    assert batch_id >= 0 and task >= 0
    if marker is not None:
        _check_query(marker, query_id, group)
        if marker.batch_id > batch_id:
            raise ExactlyOnceError(
                f"Task {task} is to write batch {batch_id}, but group '{group}' has the marker of "
                f"batch {marker.batch_id}: the checkpoint is older than what was written. Restore "
                "the newest checkpoint, or start with a new one to write everything again."
            )
        if marker.batch_id == batch_id:
            return Verdict.ALREADY_COMMITTED
        if marker.batch_id == batch_id - 1:
            return Verdict.WRITE
    if batch_id == 0 or accept_missing:
        return Verdict.WRITE
    if task > 0:
        return Verdict.LOOK_AT_TASK_0
    raise missing_marker(batch_id, group, marker)


def judge_by_task_0(marker: Marker | None, *, batch_id: int, query_id: str, group: str) -> Verdict:
    """The same for a task that did not run in the batch before, by the marker of task 0."""
    if marker is not None:
        _check_query(marker, query_id, group)
        if marker.batch_id >= batch_id - 1:
            return Verdict.WRITE
    raise missing_marker(batch_id, group, marker)


def missing_marker(batch_id: int, group: str, found: Marker | None) -> ExactlyOnceError:
    """Why a resumed query stops."""
    last = "no marker" if found is None else f"the marker of batch {found.batch_id}"
    return ExactlyOnceError(
        f"Batch {batch_id} cannot be written exactly once: group '{group}' has {last}, and the "
        f"marker of batch {batch_id - 1} is missing. Markers expire when a query is stopped for "
        "longer than 'offsets.retention.minutes' of the brokers (7 days by default), and a query "
        "whose delivery guarantee has changed has none. Rows of this batch may be in the topic "
        "already. Compare the topic with the batch; then set option 'acceptMissingMarkers' to "
        "'true' for one start to write the batch, or start with a new checkpoint."
    )


def check_same_rows(marker: Marker, sum_of_rows: RowSum, *, task: int) -> None:
    """The rows of a second run are those that were committed. Raises ExactlyOnceError."""
    if (marker.rows, marker.checksum) == (sum_of_rows.rows, sum_of_rows.checksum):
        return
    raise ExactlyOnceError(
        f"Task {task} of batch {marker.batch_id} has committed {marker.rows} rows (checksum "
        f"{marker.checksum}) already, but this run of the batch has {sum_of_rows.rows} rows "
        f"(checksum {sum_of_rows.checksum}): the plan is not deterministic, or its number of tasks "
        "has changed. Rows of this batch may be lost or doubled. Mode 'exactly-once' needs the "
        "same rows in the same task when Spark runs a batch again: do not use rand() or uuid(), "
        "keep 'minPartitions' and 'spark.sql.shuffle.partitions', and set "
        "'spark.sql.adaptive.streaming.stateless.enabled' to 'false'. For other plans, set option "
        "'deliveryGuarantee' to 'atomic-batch'."
    )


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
