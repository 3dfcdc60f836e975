"""Change events in the envelope of Debezium: parsed, ordered, and one row for each key. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_mqd.pipelines.cli import Failure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "_order"
DELETED = "_deleted"
KIND = "_kind"
CHANGE, NO_ROW, MALFORMED, TRUNCATE, WITHOUT_KEY, BAD_COLUMN = (
    "change",
    "no_row",
    "malformed",
    "truncate",
    "without_key",
    "bad_column",
)
"""Kinds of events. NO_ROW has no row by its nature: a message (op `m`), a schema change, or the
begin or end of a transaction."""
UNUSABLE = {
    MALFORMED: "not JSON, or not an envelope with a known op",
    TRUNCATE: "op 't': the source's table was truncated",
    WITHOUT_KEY: "a null in a column of --key",
    BAD_COLUMN: "a column without a name, with a backtick in it, or named _order or _deleted",
}
OWN_COLUMNS = (ORDER, DELETED)
_DIGITS = 20
SIMPLE_NAME = re.compile(r"[A-Za-z_]\w*")


def envelopes(frame: DataFrame) -> DataFrame:
    """Columns `op`, `before`, `after` (JSON), `_order`, `_kind`, topic, partition and offset.

    The envelope is the value itself, or its field `payload` where schemas are enabled. Tombstones
    are dropped: they follow a delete, and have no effect of their own.
    """
    from pyspark.sql import functions as f

    text = f.decode("value", "UTF-8")
    whole = frame.where("value is not null").withColumn("_text", text)
    envelope = f.coalesce(f.get_json_object("_text", "$.payload"), f.col("_text"))
    op = f.get_json_object("_envelope", "$.op")
    without_op = [f.get_json_object("_envelope", each) for each in ("$.ddl", "$.status")]
    kind = (
        f.when(f.try_parse_json("_text").isNull(), MALFORMED)
        .when(op.isin("c", "u", "r", "d"), CHANGE)
        .when(op == "t", TRUNCATE)
        .when((op == "m") | (op.isNull() & f.coalesce(*without_op).isNotNull()), NO_ROW)
        .otherwise(MALFORMED)
    )
    return whole.withColumn("_envelope", envelope).select(
        op.alias("op"),
        f.get_json_object("_envelope", "$.before").alias("before"),
        f.get_json_object("_envelope", "$.after").alias("after"),
        _order(f.col("_envelope")).alias(ORDER),
        f.col("topic"),
        f.col("partition"),
        f.col("offset"),
        kind.alias(KIND),
    )


def _order(envelope: Column) -> Column:
    """The place of a change in the order of changes, as text that sorts like it.

    A snapshot read (`r`) has the position at which the snapshot began, so later changes win.
    """
    from pyspark.sql import functions as f

    def number(*paths: str) -> Column:
        found = f.coalesce(*[f.get_json_object(envelope, path) for path in paths], f.lit("0"))
        plain = f.regexp_replace(found, r"\D", "")
        return f.lpad(plain, _DIGITS, "0")

    return f.concat_ws(
        ".",
        number("$.source.file"),
        number("$.source.lsn", "$.source.pos", "$.source.scn"),
        number("$.source.ts_ms", "$.ts_ms"),
        f.lpad(f.col("offset").cast("string"), _DIGITS, "0"),
    )


def with_rows(frame: DataFrame, keys: tuple[str, ...], schema: str) -> DataFrame:
    """`frame` with the column `row` by `schema`; a change with a null key is WITHOUT_KEY.

    A delete has its row in `before`, every other change in `after`.
    """
    from pyspark.sql import functions as f

    text = f.when(f.col("op") == "d", f.col("before")).otherwise(f.col("after"))
    has_key = f.lit(True)
    for key in keys:
        has_key = has_key & f.col("row")[key].isNotNull()
    kind = f.when((f.col(KIND) == CHANGE) & ~has_key, WITHOUT_KEY).otherwise(f.col(KIND))
    return frame.withColumn("row", f.from_json(text, schema)).withColumn(KIND, kind)


def changes(frame: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """One row a key: the newest change. The columns of the rows, `_order` and `_deleted`."""
    from pyspark.sql import Window, functions as f

    usable = frame.where(f.col(KIND) == CHANGE)
    newest = Window.partitionBy(*[f.col("row")[key] for key in keys]).orderBy(f.col(ORDER).desc())
    ranked = usable.withColumn("rank", f.row_number().over(newest)).where("rank = 1")
    return ranked.select("row.*", ORDER, (f.col("op") == "d").alias(DELETED))


def _has_backtick(name: Column) -> Column:
    return name.contains("`")


def without_bad_columns(frame: DataFrame) -> DataFrame:
    """`frame` where a change that has a column with an unusable name is BAD_COLUMN.

    Spark's names ignore case, and MERGE in delta-rs cannot quote a backtick. Only inferred columns
    need this: others are not read.
    """
    from pyspark.sql import functions as f

    reserved = f.array(*map(f.lit, (*OWN_COLUMNS, "")))
    is_bad = f.lit(False)
    for row in ("before", "after"):
        names = f.transform(f.json_object_keys(row), f.lower)
        for bad in (f.arrays_overlap(names, reserved), f.exists(names, _has_backtick)):
            is_bad = is_bad | f.coalesce(bad, f.lit(False))
    kind = f.when((f.col(KIND) == CHANGE) & is_bad, BAD_COLUMN).otherwise(f.col(KIND))
    return frame.withColumn(KIND, kind)


def kinds(frame: DataFrame) -> dict[str, tuple[int, str]]:
    """Kind -> how many events are of it, and the place of one: `topic-partition offset n`."""
    from pyspark.sql import functions as f

    first = f.min(f.struct("topic", "partition", "offset")).alias("first")
    found = frame.groupBy(KIND).agg(f.count("*").alias("count"), first).collect()
    return {
        row[KIND]: (
            row["count"],
            f"'{row['first']['topic']}-{row['first']['partition']}' offset "
            f"{row['first']['offset']}",
        )
        for row in found
    }


def refuse_unusable(found: Mapping[str, tuple[int, str]], batch: int) -> None:
    """Raises Failure where a micro-batch has events that cannot be applied."""
    some = [
        f"{found[kind][0]} {kind.replace('_', ' ')} ({meaning}; the first is {found[kind][1]})"
        for kind, meaning in UNUSABLE.items()
        if kind in found
    ]
    if some:
        raise Failure(
            f"Micro-batch {batch} has change events that cannot be applied: {', '.join(some)}."
            " Nothing of the micro-batch is applied.",
            remedy="Re-run with --skip-malformed to leave out such events and count them.",
        )
