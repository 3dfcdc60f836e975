"""Batch queries: offsets are resolved once, when Spark plans, and each range is a task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from .offset_reader import OffsetReader
from .offsets import Offsets
from .option_limits import ByGlobalTimestamp
from .options import SourceOptions
from .planning import Loss, OffsetRange, batch_ranges, overtaken, split_ranges
from .task_reader import input_partitions, read_range, report_losses

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("pyspark_mqd")


class BatchReader(DataSourceReader):
    """Made for each plan of a query; planning has no side effects."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        reader = OffsetReader(options)
        start = reader.resolve(options.start, starting=True)
        end = reader.resolve(options.end, starting=False)
        starts = dict(start.ends)
        ends = {tp: end.ends.get(tp, place) for tp, place in starts.items()}
        latest = reader.latest().ends
        ranges, losses = _within(batch_ranges(starts, ends), latest)
        log_starts = reader.log_starts(each.tp for each in ranges)
        losses += overtaken(ranges, log_starts)
        report_losses(losses, fail=options.fail_on_data_loss)
        ranges = self._narrowed(reader, ranges)
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        topic_ids = {name: state.topic_id for name, state in start.topics.items()}
        return input_partitions(parts, topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)

    def _narrowed(self, reader: OffsetReader, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return ranges


def _within(ranges: list[OffsetRange], latest: Offsets) -> tuple[list[OffsetRange], list[Loss]]:
    """Ranges that end where the log does at the latest, and losses for what lies behind."""
    found, losses = [], []
    for each in ranges:
        log_end = latest.get(each.tp, each.end)
        if each.end > log_end:
            losses.append(
                Loss(
                    each.tp,
                    f"offsets [{max(each.start, log_end)}, {each.end}) of partition {each.tp} do "
                    f"not exist: its log ends at {log_end}",
                )
            )
            each = each._replace(end=max(each.start, log_end))
        found.append(each)
    return found, losses


class PushdownReader(BatchReader):
    """With option `filterPushdown`: filters narrow the ranges, and Spark still applies them.

    A class of its own, because Spark refuses readers with `pushFilters` while its configuration
    `spark.sql.python.filterPushdown.enabled` is false, which is the default.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filters: list[tuple[str, str, Any]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            operator = _OPERATORS.get(type(each))
            attribute: tuple[str, ...] = getattr(each, "attribute", ())
            if operator is not None and len(attribute) == 1:
                self._filters.append((attribute[0].lower(), operator, getattr(each, "value", None)))
            yield each

    def _narrowed(self, reader: OffsetReader, ranges: list[OffsetRange]) -> list[OffsetRange]:
        for column, operator, value in self._filters:
            if column in ("topic", "partition") and operator in ("==", "in"):
                wanted = set(value) if operator == "in" else {value}
                ranges = [each for each in ranges if getattr(each.tp, column) in wanted]
            elif column == "offset":
                ranges = [_cut(each, operator, value) for each in ranges]
            elif column == "timestamp" and operator in (">", ">=", "=="):
                ranges = self._since(reader, ranges, value)
        return [each for each in ranges if each.size > 0]

    def _since(
        self, reader: OffsetReader, ranges: list[OffsetRange], value: object
    ) -> list[OffsetRange]:
        """All records before the first one at or after a timestamp are older than it."""
        if not isinstance(value, datetime) or value.tzinfo is None or not ranges:
            return ranges
        timestamp = ByGlobalTimestamp(int(value.timestamp() * 1000))
        if timestamp.timestamp < 0:  # ListOffsets takes it as a name, and records may be as old
            return ranges
        first = reader.resolve(timestamp, starting=False).ends
        return [
            each._replace(start=min(max(each.start, first.get(each.tp, each.start)), each.end))
            for each in ranges
        ]


_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "==",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


def _cut(whole: OffsetRange, operator: str, value: Any) -> OffsetRange:
    """The part of a range whose offsets pass a filter."""
    start, end = whole.start, whole.end
    if operator == "in":
        numbers = [each for each in value if isinstance(each, int)]
        if len(numbers) != len(value) or not numbers:
            return whole
        start, end = max(start, min(numbers)), min(end, max(numbers) + 1)
    elif not isinstance(value, int):
        return whole
    if operator in ("==", ">="):
        start = max(start, value)
    if operator == ">":
        start = max(start, value + 1)
    if operator in ("==", "<="):
        end = min(end, value + 1)
    if operator == "<":
        end = min(end, value)
    return whole._replace(start=start, end=max(start, end))
