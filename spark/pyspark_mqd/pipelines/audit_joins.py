"""What `mqd-spark audit` joins: what producers know of each record, and what the log holds.

Every function takes DataFrames and returns one; nothing runs here. A history has one JSON object a
line:

    {"event": "invoke", "producer": "3", "topic": "orders", "partition": 0, "number": 7, "id":
    "3-7"} {"event": "ok", "topic": "orders", "partition": 0, "id": "3-7", "offset": 1041}

`event` is `invoke` (about to be sent), `ok` (acknowledged, and committed if transactional), `fail`
(certainly not written, or the transaction was aborted) or `info` (unknown). `topic` and `id` are
required, and an id is unique within its topic. A record's events may stand in any order and in any
file; one without an outcome counts as `info`. `producer` and `number` are needed to find reordered
records, `partition` and `offset` to find misplaced ones. `number` rises with each record that the
producer sends to a partition. Other keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqd.types import TopicPartition
from pyspark_mqd.pipelines.cli import Failure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = (
    "event string, producer string, topic string, partition int, number long, id string,"
    " offset long, damaged string"
)
INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
EVENTS = (INVOKE, OK, FAIL, INFO)

LOST, DOUBLED, MISPLACED = "lost", "doubled", "misplaced"
REORDERED, ABORTED_VISIBLE, UNKNOWN = "reordered", "aborted-visible", "unknown"
KINDS = {
    LOST: "acknowledged, and not in the log",
    DOUBLED: "in the log more than once",
    MISPLACED: "acknowledged at another partition or offset",
    REORDERED: "after a record that its producer sent to the partition later",
    ABORTED_VISIBLE: "failed or aborted, and in the log",
    UNKNOWN: "in the log, and in no history",
}
COLUMNS = ("kind", "topic", "partition", "offset", "id", "producer", "number", "detail")

RULES = ("key", "value", "int64", "header:NAME", "json:PATH")
_HEADER = re.compile(r"header:(.+)")
_JSON = re.compile(r"json:([A-Za-z_$][\w.$\[\]]*)")


@dataclass(frozen=True, slots=True)
class IdRule:
    """Where a record's id is: in the key, the value, a header, or a field of a JSON value. The load
    of chaos runs has it in the first eight bytes of the value, as a signed integer."""

    kind: str
    name: str = ""

    @property
    def needs_headers(self) -> bool:
        return self.kind == "header"


def parse_rule(text: str) -> IdRule:
    """One of RULES. Raises Failure."""
    if text in ("key", "value", "int64"):
        return IdRule(text)
    if found := _HEADER.fullmatch(text):
        return IdRule("header", found[1])
    if found := _JSON.fullmatch(text):
        return IdRule("json", found[1])
    raise Failure(
        f"'{text}' does not name the id of a record.",
        remedy=f"Use one of {', '.join(RULES)}, for example header:id or json:order.id.",
    )


def id_of(rule: IdRule) -> Column:
    """The id of a record of the source, as a string; null where it has none."""
    from pyspark.sql import functions as f

    if rule.kind == "key":
        return f.col("key").cast("string")
    if rule.kind == "value":
        return f.col("value").cast("string")
    if rule.kind == "int64":
        digits = f.hex(f.substring(f.col("value"), 1, 8))
        number = f.conv(digits, 16, -10)
        return f.when(f.length("value") >= 8, number)
    if rule.kind == "json":
        return f.get_json_object(f.col("value").cast("string"), f"$.{rule.name.removeprefix('$.')}")
    named = f.filter(f.col("headers"), lambda header: header["key"] == rule.name)
    return f.try_element_at(named, f.lit(-1))["value"].cast("string")


def read_history(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The events of all files; `damaged` has the lines that are not events, as text."""
    reader = spark.read.schema(SCHEMA)
    return reader.option("columnNameOfCorruptRecord", "damaged").json(paths)


def is_damaged() -> Column:
    """Whether a line of a history cannot be used."""
    from pyspark.sql import functions as f

    usable = f.col("event").isin(*EVENTS) & f.col("topic").isNotNull() & f.col("id").isNotNull()
    return f.col("damaged").isNotNull() | ~f.coalesce(usable, f.lit(False))


def outcomes(history: DataFrame) -> DataFrame:
    """One row an id: what became of the record, who sent it, and where it was acknowledged."""
    from pyspark.sql import functions as f

    event = f.col("event")
    placed = f.when(event == OK, f.col("partition"))
    return history.groupBy("topic", "id").agg(
        f.when(f.max(event == OK), OK)
        .when(f.max(event == FAIL), FAIL)
        .otherwise(INFO)
        .alias("outcome"),
        f.first("producer", ignorenulls=True).alias("producer"),
        f.min("number").alias("number"),
        f.first(placed, ignorenulls=True).alias("acked_partition"),
        f.min(f.when(event == OK, f.col("offset"))).alias("acked_offset"),
    )


def contents(log: DataFrame) -> DataFrame:
    """One row an id: how often the log has it, and where first."""
    from pyspark.sql import functions as f

    place = f.struct("partition", "offset")
    return (
        log.groupBy("topic", "id")
        .agg(f.count("*").alias("copies"), f.min(place).alias("first"), f.max(place).alias("last"))
        .select("topic", "id", "copies", "first.*", f.col("last").alias("last"))
    )


def violations(
    history: DataFrame, log: DataFrame, starts: Mapping[TopicPartition, int] | None = None
) -> DataFrame:
    """Every broken promise, one row each, with the columns COLUMNS.

    `log` has topic, partition, offset, id. `starts`: where logs begin whose older records have
    expired; records that were acknowledged before are not lost.
    """
    from pyspark.sql import functions as f

    known = outcomes(history)
    joined = known.join(contents(log), ["topic", "id"], "full_outer")
    at = f.array_join(f.array(f.col("acked_partition"), f.col("acked_offset")), ":")
    last = f.array_join(f.array(f.col("last.partition"), f.col("last.offset")), ":")
    in_log, acked = f.col("copies").isNotNull(), f.col("outcome") == OK
    elsewhere = (f.col("acked_partition") != f.col("partition")) | (
        f.col("acked_offset") != f.col("offset")
    )
    checks = [
        (LOST, acked & ~in_log & ~expired(starts or {}), f.concat(f.lit("acknowledged at "), at)),
        (UNKNOWN, f.col("outcome").isNull(), f.lit("")),
        (ABORTED_VISIBLE, (f.col("outcome") == FAIL) & in_log, f.lit("")),
        (
            DOUBLED,
            f.col("copies") > 1,
            f.concat(f.col("copies").cast("string"), f.lit(" copies, the last at "), last),
        ),
        (
            MISPLACED,
            acked & in_log & (f.col("copies") == 1) & f.coalesce(elsewhere, f.lit(False)),
            f.concat(f.lit("acknowledged at "), at),
        ),
    ]
    kinds = f.filter(
        f.array(*[f.when(when, f.struct(f.lit(kind).alias("kind"), detail.alias("detail")))
                  for kind, when, detail in checks]),
        lambda each: each.isNotNull(),
    )  # fmt: skip
    single = (
        joined.withColumn("found", f.explode(kinds))
        .withColumn("kind", f.col("found.kind"))
        .withColumn("detail", f.col("found.detail"))
        .withColumn("partition", f.coalesce("partition", "acked_partition"))
        .withColumn("offset", f.coalesce("offset", "acked_offset"))
    )
    return single.select(*COLUMNS).unionByName(reordered(known, log))


def expired(starts: Mapping[TopicPartition, int]) -> Column:
    """Whether a record was acknowledged at an offset that its log no longer has."""
    from pyspark.sql import functions as f

    gone = f.lit(False)
    for tp, start in sorted(starts.items()):
        if start > 0:
            place = (f.col("topic") == tp.topic) & (f.col("acked_partition") == tp.partition)
            gone = gone | f.coalesce(place & (f.col("acked_offset") < start), f.lit(False))
    return gone


def reordered(known: DataFrame, log: DataFrame) -> DataFrame:
    """Records that stand behind one that their producer sent to the same partition later.

    Only the first copy of a record counts: a second one is doubled, not reordered.
    """
    from pyspark.sql import Window, functions as f

    first = log.groupBy("topic", "partition", "id").agg(f.min("offset").alias("offset"))
    numbered = known.where("number is not null and producer is not null")
    rows = first.join(numbered.select("topic", "id", "producer", "number"), ["topic", "id"])
    before = (
        Window.partitionBy("topic", "partition", "producer")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    detail = f.concat(f.lit("behind number "), f.col("highest").cast("string"))
    return (
        rows.withColumn("highest", f.max("number").over(before))
        .where("number < highest")
        .withColumn("kind", f.lit(REORDERED))
        .withColumn("detail", detail)
        .select(*COLUMNS)
    )


def samples(found: DataFrame, count: int) -> DataFrame:
    """The first few violations of each kind, by their place."""
    from pyspark.sql import Window, functions as f

    order = Window.partitionBy("kind").orderBy("topic", "partition", "offset", "id")
    ranked = found.withColumn("rank", f.row_number().over(order)).where(f.col("rank") <= count)
    return ranked.orderBy("kind", "rank").drop("rank")
