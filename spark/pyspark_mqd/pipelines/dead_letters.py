"""Dead letters as rows: the error, the origin, and the choice among them.

Programs that write dead letters describe the error in headers. Known are the headers of Kafka
Connect, Spring for Apache Kafka, Kafka Streams (KIP-1034) and the recipes of this package. A record
that failed twice has the headers of both failures; the last ones count.

The first part is pure; then every function takes a DataFrame and returns one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN = "mqd.error."
"""Headers of our recipes: class, message, topic, partition, offset; all text."""

TEXT_HEADERS: Mapping[str, tuple[str, ...]] = {
    "original_topic": (
        f"{OWN}topic",
        "__connect.errors.topic",
        "kafka_dlt-original-topic",
        "__streams.errors.topic",
    ),
    "original_partition": (
        f"{OWN}partition",
        "__connect.errors.partition",
        "__streams.errors.partition",
    ),
    "original_offset": (f"{OWN}offset", "__connect.errors.offset", "__streams.errors.offset"),
    "error": (
        f"{OWN}class",
        "__connect.errors.exception.class.name",
        "kafka_dlt-exception-cause-fqcn",
        "kafka_dlt-exception-fqcn",
        "__streams.errors.exception",
    ),
    "message": (
        f"{OWN}message",
        "__connect.errors.exception.message",
        "kafka_dlt-exception-message",
        "__streams.errors.message",
    ),
}
"""Column of a dead letter -> the headers that may hold it, as text."""
NUMBER_HEADERS = {
    "original_partition": "kafka_dlt-original-partition",
    "original_offset": "kafka_dlt-original-offset",
}
"""The same for numbers that Spring writes as big-endian bytes."""
PREFIXES = (OWN, "__connect.errors.", "kafka_dlt-", "__streams.errors.")

NO_ERROR = "(no error header)"
GROUPS = ("error", "topic", "partition", "message", "hour", "dlq-topic")


def is_error_header(name: str) -> bool:
    """Whether a header was added because the record failed."""
    return name.startswith(PREFIXES)


def error_headers(
    error: BaseException, topic: str, partition: int, offset: int
) -> list[tuple[str, bytes]]:
    """The headers of a dead letter that this package writes."""
    kind = type(error)
    fields = {
        "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        "message": str(error)[:1000],
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
    }
    return [(OWN + name, value.encode()) for name, value in fields.items()]


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; UTC where it names no zone."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time. Write, for example, 2026-11-23T08:00:00Z")
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are chosen: those that fit every field that is given."""

    error: str | None = None
    """A regular expression, found anywhere in the class of the error; so is `message`."""
    message: str | None = None
    original_topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None
    """A condition in SQL over the columns of a dead letter."""

    def described(self) -> str:
        """The choice as text for a message."""
        parts = [
            f"{name.replace('_', ' ')} {value}"
            for name in ("error", "message", "original_topic", "since", "until", "where")
            if (value := getattr(self, name)) is not None
        ]
        return ", ".join(parts) or "all"


# -- over DataFrames


def header(name: str) -> Column:
    """The last value of a header, as bytes; null where it is missing."""
    from pyspark.sql import functions as f

    named = f.filter(f.col("headers"), lambda each: each["key"] == name)
    return f.try_element_at(named, f.lit(-1))["value"]


def with_origin(frame: DataFrame) -> DataFrame:
    """Records with headers, plus the columns that the headers give: origin, error, message."""
    from pyspark.sql import functions as f

    for column, names in TEXT_HEADERS.items():
        values: list[Column] = [header(name).cast("string") for name in names]
        if column in NUMBER_HEADERS:
            as_number = f.conv(f.hex(header(NUMBER_HEADERS[column])), 16, -10)
            values = [each.try_cast("bigint") for each in (*values, as_number)]
        frame = frame.withColumn(column, f.coalesce(*values))
    return frame


def chosen(frame: DataFrame, choice: Choice) -> DataFrame:
    """The dead letters that fit the choice."""
    from pyspark.sql import functions as f

    if choice.error is not None:
        frame = frame.where(f.col("error").rlike(choice.error))
    if choice.message is not None:
        frame = frame.where(f.col("message").rlike(choice.message))
    if choice.original_topic is not None:
        frame = frame.where(f.col("original_topic") == choice.original_topic)
    if choice.since is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(choice.since))
    if choice.until is not None:
        frame = frame.where(f.col("timestamp") < f.lit(choice.until))
    return frame.where(choice.where) if choice.where is not None else frame


def summary(frame: DataFrame, by: Sequence[str]) -> DataFrame:
    """How many dead letters each group has, the largest group first."""
    from pyspark.sql import functions as f

    keys: dict[str, Column] = {
        "error": f.coalesce("error", f.lit(NO_ERROR)),
        "topic": f.col("original_topic"),
        "partition": f.col("original_partition"),
        "message": f.substring("message", 1, 120),
        "hour": f.date_format(f.date_trunc("hour", "timestamp"), "yyyy-MM-dd HH:mm"),
        "dlq-topic": f.col("topic"),
    }
    grouped = frame.groupBy(*[keys[name].alias(name.replace("-", "_")) for name in by])
    counted = grouped.agg(
        f.count("*").alias("count"),
        f.min("timestamp").alias("first"),
        f.max("timestamp").alias("last"),
        f.max_by(f.substring("message", 1, 120), "timestamp").alias("latest_message"),
    )
    return counted.orderBy(f.desc("count"), *[name.replace("-", "_") for name in by])


def sample(frame: DataFrame, count: int) -> DataFrame:
    """The newest `count` dead letters of each error and original topic."""
    from pyspark.sql import Window, functions as f

    newest = Window.partitionBy("error", "original_topic").orderBy(
        f.desc("timestamp"), f.desc("partition"), f.desc("offset")
    )
    ranked = frame.withColumn("rank", f.row_number().over(newest))
    return ranked.where(f.col("rank") <= count).orderBy("error", "original_topic", "rank")


def target_of(to: str | None) -> Column:
    """The topic that a dead letter is sent to; null where no header names it."""
    from pyspark.sql import functions as f

    return f.lit(to) if to is not None else f.col("original_topic")


def redriven(
    frame: DataFrame, *, to: str | None, drop_error_headers: bool, same_partition: bool
) -> DataFrame:
    """Dead letters as rows for the sink: the original record, to its original topic or to `to`."""
    from pyspark.sql import functions as f

    headers = f.col("headers")
    if drop_error_headers:
        kept = f.filter(headers, lambda each: ~_any_prefix(each["key"]))
        headers = f.when(f.size(kept) > 0, kept)
    columns = [
        f.col("key"),
        f.col("value"),
        headers.alias("headers"),
        target_of(to).alias("topic"),
    ]
    if same_partition:
        columns.append(f.col("original_partition").cast("int").alias("partition"))
    return frame.where(target_of(to).isNotNull()).select(*columns)


def _any_prefix(name: Column) -> Column:
    found = name.startswith(PREFIXES[0])
    for prefix in PREFIXES[1:]:
        found = found | name.startswith(prefix)
    return found
