"""Streaming queries: where each micro-batch ends, and which ranges its tasks read.

One instance lives in a worker of the driver for the whole run and decides offsets. Others, made in
planners, only `read`. So all that a task needs is in its partition, and all that a later run needs
is in the offsets. A batch that runs again calls `partitions(start, end)` only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .errors import OptionError
from .offset_reader import OffsetReader
from .offsets import EXTRA_KEY, LATEST, CommitTarget, Offsets, StreamOffset, TopicState, by_topic
from .option_limits import ByOffset, Earliest, Latest
from .options import SourceOptions
from .planning import (
    changes,
    effective_start,
    is_delayed,
    limit_bytes,
    limit_offsets,
    overtaken,
    plan_ranges,
    split_ranges,
    truncations,
)
from .task_reader import input_partitions, read_range, report_losses

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.types import TopicPartition

logger = logging.getLogger("pyspark_mqd")
_NO_LIMIT = 2**63 - 1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._reader = OffsetReader(options)
        self._latest: StreamOffset | None = None
        self._frozen: StreamOffset | None = None
        """The end of a query with Trigger.AvailableNow."""
        self._last_batch_s: float | None = None
        self._initial: dict[str, Any] | None = None

    # -- offsets, in order of Spark's calls

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._frozen = self._reader.latest()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._initial = self._written(self._reader.resolve(self._options.start, starting=True))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        before = StreamOffset.from_json(start)
        latest = self._available(before)
        cuts = self._reader.truncated(before, latest)
        latest = self._latest = latest.with_begins(cuts) if cuts else latest
        losses = changes(before, latest, cuts) + truncations(before, cuts)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        ends = latest.ends
        if not isinstance(limit, ReadAllAvailable):  # Trigger.Once reads all, whatever the options
            starts = effective_start(before, latest, latest.begins())
            if self._waits(starts, ends):
                return start
            ends = self._limited(starts, ends)
        replaced = any(before.is_replaced(topic, latest) for topic in before.topics)
        if ends == before.ends and not (replaced or cuts or self._is_to_lose_metadata(start)):
            return start
        end = StreamOffset(ends, latest.topics)
        return self._written(end.with_begins(before.ends) if start == self._initial else end)

    def _is_to_lose_metadata(self, start: Mapping[str, Any]) -> bool:
        """`offsetMetadata=false` writes a plain offset once, also without new records."""
        return EXTRA_KEY in start and not self._options.offset_metadata

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else dict(by_topic(self._latest.ends))

    def _available(self, before: StreamOffset) -> StreamOffset:
        if self._frozen is None:
            return self._reader.latest(before)
        if changes(before, self._frozen):
            self._frozen = self._reader.latest(before)
        return self._reader.with_begins(before, self._frozen)

    def _waits(self, starts: Offsets, ends: Offsets) -> bool:
        """`minOffsetsPerTrigger`. The first batch of a run never waits, as in Spark."""
        options = self._options
        if options.min_offsets is None or self._frozen is not None:
            return False
        now = time.monotonic()
        waited_s = _NO_LIMIT if self._last_batch_s is None else now - self._last_batch_s
        if is_delayed(
            options.min_offsets,
            starts,
            ends,
            waited_s=waited_s,
            max_delay_s=options.max_trigger_delay_s,
        ):
            return True
        self._last_batch_s = now
        return False

    def _limited(self, starts: Offsets, ends: Offsets) -> Offsets:
        options = self._options
        if options.max_bytes is not None:
            sizes = self._reader.offset_bytes(ends)
            ends = limit_bytes(options.max_bytes, starts, ends, sizes)
        if options.max_offsets is not None:
            ends = limit_offsets(options.max_offsets, starts, ends)
        return ends

    def _written(self, offset: StreamOffset) -> dict[str, Any]:
        """An offset as the checkpoint keeps it."""
        options = self._options
        if not options.offset_metadata:
            return StreamOffset(offset.ends).to_json()
        topics: Mapping[str, TopicState] = {
            name: state
            for name, state in offset.topics.items()
            if any(tp.topic == name for tp in offset.ends)
        }
        target = None
        if options.commit_offsets and options.group_id is not None:
            target = CommitTarget(options.group_id, options.connection.bootstrap)
        return StreamOffset(offset.ends, topics, target).to_json()

    # -- tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:  # first offsets in `end` belong to the previous batch
            return []
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(end)
        options = self._options
        if start == self._initial:  # the first batch again: others may have been added since
            before = StreamOffset(
                {tp: offset for tp, offset in before.ends.items() if tp in after.ends},
                before.topics,
            )
            if self._latest is None and not is_fixed(options):
                check_first_offsets(before, after)
        ranges, losses = plan_ranges(before, after, self._begins(before, after))
        losses += overtaken(ranges, self._reader.log_starts(each.tp for each in ranges))
        report_losses(losses, fail=options.fail_on_data_loss)
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        topic_ids = {name: state.topic_id for name, state in after.topics.items()}
        return input_partitions(parts, topic_ids)

    def _begins(self, before: StreamOffset, after: StreamOffset) -> dict[TopicPartition, int]:
        """First offsets of new partitions: out of the offset, or of the log where it lacks them.

        The end offset of the first batch has those of all partitions: `startingOffsets=latest`
        would mean another offset when the batch runs again.
        """
        known = after.begins()
        new = [
            tp for tp in after.ends if tp not in before.ends or before.is_replaced(tp.topic, after)
        ]
        return {**self._reader.log_starts(tp for tp in new if tp not in known), **known}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)

    # -- after a batch

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group (`commitOffsets`). Spark calls this one batch late, and not for the
        last one: the listener is prompter."""
        options = self._options
        if not options.commit_offsets or options.group_id is None:
            return
        from .listener import commit_offsets

        offsets = StreamOffset.from_json(end).ends
        reason = commit_offsets(options.connection, options.group_id, offsets)
        if reason is not None:
            logger.warning("Offsets are not committed to group '%s': %s", options.group_id, reason)

    def stop(self) -> None:
        """Nothing to do: the worker's client ends with the process."""


def is_fixed(options: SourceOptions) -> bool:
    """Whether the first offsets of a query are the same when they are resolved later."""
    start = options.start
    if isinstance(start, ByOffset):
        return LATEST not in start.offsets.values()
    return isinstance(start, Earliest) or not (isinstance(start, Latest) or options.no_match_latest)


def check_first_offsets(before: StreamOffset, after: StreamOffset) -> None:
    """A first batch that runs again needs the offsets at which it began. Raises OptionError.

    Offsets of Spark's own Kafka source lack them, and so do those with `offsetMetadata=false`. A
    Python source does not know its checkpoint, so it cannot read them there.
    """
    missing = sorted(tp for tp in before.ends if tp not in after.begins())
    if missing:
        raise OptionError(
            f"Batch 0 was planned by an earlier run and not completed, and the first offset of "
            f"partition {missing[0]} is not in the offset log. Format 'kafka', and option "
            "'offsetMetadata' with value 'false', do not write it there. The option for the start "
            f"of the query would now choose offset {before.ends[missing[0]]}. Format 'kafka' has "
            "stored the first offsets in the last line of file 'sources/0/0' of the checkpoint. "
            "Set option 'startingOffsets' to this JSON for one start. Without the file, complete "
            "the batch with format 'kafka', or start with a new checkpoint."
        )
