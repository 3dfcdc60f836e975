"""What a task does with one offset range: fetch raw batches, decode them to Arrow.

The same code reads for batch queries and for streams. It needs nothing but its partition and the
options, so an attempt that runs again reads the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

from .connection import client_for
from .errors import ConnectorError, DataLoss
from .planning import Loss, OffsetRange, describe_losses

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.sync import BlockingClient

    from .options import SourceOptions

ROWS_MAX = 32_768
"""Rows of one Arrow batch: Spark is fastest with 20,000 to 50,000."""
KEEP_GOING = "Set option 'failOnDataLoss' to 'false' to continue without them."

logger = logging.getLogger("pyspark_mqd")


class RangePartition(InputPartition):
    """One task's range. `topic_id` is empty where it is unknown."""

    def __init__(self, range_: OffsetRange, topic_id: str) -> None:
        super().__init__(range_)
        self.tp = range_.tp
        self.start = range_.start
        self.end = range_.end
        self.topic_id = topic_id


def input_partitions(
    ranges: Sequence[OffsetRange], topic_ids: dict[str, str]
) -> list[InputPartition]:
    """The tasks of a batch, in the order of its ranges."""
    return [RangePartition(each, topic_ids.get(each.tp.topic, "")) for each in ranges]


def report_losses(losses: Sequence[Loss], *, fail: bool) -> None:
    """Raise DataLoss that names what was lost; with `failOnDataLoss=false`, warn and continue."""
    if not losses:
        return
    text = describe_losses(losses)
    if fail:
        raise DataLoss(f"{text} {KEEP_GOING}")
    logger.warning("%s The query continues because option 'failOnDataLoss' is 'false'.", text)


def read_range(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow batches with exactly Spark's schema."""
    if not isinstance(partition, RangePartition):
        return  # Spark makes one empty task where there is no range
    from mqd.client.columns import decode
    from mqd.client.range_plan import RANGE_BYTES_MAX

    shape = _Shape(schema)
    client = client_for(options.connection)
    tp, place = partition.tp, partition.start
    _check_topic(client, options, partition)
    reader_options: dict[str, Any] = {"read_committed": options.read_committed}
    if options.fetch_bytes is not None:
        reader_options["bytes_max"] = min(options.fetch_bytes, RANGE_BYTES_MAX)
    while place < partition.end:
        try:
            with client.range_reader(
                tp, place, partition.end, timeout_s=options.poll_timeout_s, **reader_options
            ) as reader:
                for fetched in reader:
                    batches = decode(
                        fetched.data,
                        tp.topic,
                        tp.partition,
                        start=fetched.start,
                        end=partition.end,
                        columns=shape.columns,
                        aborted=fetched.aborted,
                        read_committed=options.read_committed,
                        rows_max=ROWS_MAX,
                    )
                    for batch in _readable(batches, tp, fetched.start, fetched.next_offset):
                        yield shape.fit(batch)
                    place = fetched.next_offset
                return
        except ClientError as error:
            place = _after_loss(client, options, partition, place, error)


def _readable(
    batches: Iterator[pa.RecordBatch], tp: TopicPartition, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The same batches. Raises ConnectorError that names the offsets of damaged records."""
    try:
        yield from batches
    except MqError as error:
        raise ConnectorError(
            f"Records at offsets [{start}, {end}) of partition {tp} cannot be read: "
            f"{error.message}. Set option 'startingOffsets' behind them, or choose other "
            "columns with option 'columns'."
        ) from None


class _Shape:
    """Spark's Arrow schema, and the columns to decode for it."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        from .source_schema import column_named

        self.columns = tuple(column_named(field.name) for field in schema.fields)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _check_topic(client: BlockingClient, options: SourceOptions, partition: RangePartition) -> None:
    """The topic must still be the one that the driver planned for."""
    if not partition.topic_id:
        return
    outcome = client.admin.describe_topics([partition.tp.topic])[partition.tp.topic]
    if isinstance(outcome, ClientError) or str(outcome.topic_id) == partition.topic_id:
        return
    reason = (
        f"topic '{partition.tp.topic}' was deleted and created again (topic id "
        f"{partition.topic_id} became {outcome.topic_id}), so offsets "
        f"[{partition.start}, {partition.end}) of the old partition {partition.tp} are gone"
    )
    report_losses([Loss(partition.tp, reason)], fail=options.fail_on_data_loss)


def _after_loss(
    client: BlockingClient,
    options: SourceOptions,
    partition: RangePartition,
    place: int,
    error: ClientError,
) -> int:
    """Where to read on behind records that are gone. Raises DataLoss, or what is no loss."""
    tp = partition.tp
    if error.code in _TOPIC_GONE:
        loss = Loss(tp, f"offsets [{place}, {partition.end}) of partition {tp}: {error.message}")
        report_losses([loss], fail=options.fail_on_data_loss)
        return partition.end
    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    log_start = _bound(client, tp, -2)
    if log_start <= place:  # the log ends before it
        loss = Loss(tp, f"offsets [{place}, {partition.end}) of partition {tp}: {error.message}")
        report_losses([loss], fail=options.fail_on_data_loss)
        return partition.end
    gone = min(log_start, partition.end)
    loss = Loss(
        tp,
        f"offsets [{place}, {gone}) of partition {tp} were deleted: "
        f"its log starts at {log_start} now",
    )
    report_losses([loss], fail=options.fail_on_data_loss)
    return gone


def _bound(client: BlockingClient, tp: TopicPartition, spec: int) -> int:
    row = client.admin.list_offsets({tp: spec})[tp]
    if isinstance(row, ClientError):
        raise row
    return row.offset


_TOPIC_GONE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
