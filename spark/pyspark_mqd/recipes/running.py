"""What the recipes share: decoding in Arrow batches, and two queries, for records and dead letters.

A decoder is a function `bytes -> dict` that raises for a value that it cannot decode. An error that
is not the value's fault (a registry that does not respond) is an `Outage`. It fails the task, and
no record becomes a dead letter for it. A record without a value (a tombstone) has a null record,
and is no error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import HELP_NAMES, Failure, Settings, guarded, options
from pyspark_mqd.pipelines.dead_letters import OWN
from pyspark_mqd.pipelines.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Decoder = Callable[[bytes], Mapping[str, Any]]

RECORD, ERROR_CLASS, ERROR_MESSAGE = "record", "error_class", "error_message"
HEADERS = "array<struct<key:string,value:binary>>"
MESSAGE_CHARACTERS_MAX = 1000
POLL_S = 0.5
INITIALIZE_SECONDS = 60.0


class Outage(Failure):
    """Something else than the value is wrong: the task fails, and Spark tries it again."""


class Undecodable(Exception):
    """A value that does not have the expected form."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a recipe reads, and where it writes."""

    source: Mapping[str, str]
    """Options of the format `mqd`, with the topics."""
    folder: str
    dead_letters: str
    checkpoint: str


def read(spark: SparkSession, places: Places) -> DataFrame:
    """The committed records of the topics as a stream, with headers: dead letters keep them."""
    given = {
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **places.source,
        "includeHeaders": "true",
    }
    return spark.readStream.format("mqd").options(**given).load()


# -- decoding in Arrow batches


def decoded(
    frame: DataFrame, make_decoder: Callable[[], Decoder], record: pa.DataType
) -> DataFrame:
    """`frame` with the columns record, error_class and error_message.

    `make_decoder` is called once a task, in its Python worker. `record` is the type of what the
    decoder returns.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [
        *frame.schema.fields,
        StructField(RECORD, from_arrow_type(record)),
        StructField(ERROR_CLASS, StringType()),
        StructField(ERROR_MESSAGE, StringType()),
    ]

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = make_decoder()
        for batch in batches:
            yield with_records(batch, decoder, record)

    return frame.mapInArrow(decode, StructType(fields))


def with_records(batch: pa.RecordBatch, decoder: Decoder, record: pa.DataType) -> pa.RecordBatch:
    """A batch with the three columns of the decoder. Raises Outage."""
    import pyarrow as pa

    rows: list[Mapping[str, Any] | None] = []
    errors: list[BaseException | None] = []
    for value in batch.column("value").to_pylist():
        row, error = _decode(decoder, value)
        rows.append(row)
        errors.append(error)
    records = _records(rows, errors, record)
    classes = [None if each is None else _class_of(each) for each in errors]
    messages = [None if each is None else str(each)[:MESSAGE_CHARACTERS_MAX] for each in errors]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, records, pa.array(classes, pa.string()), pa.array(messages, pa.string())],
        names=[*batch.schema.names, RECORD, ERROR_CLASS, ERROR_MESSAGE],
    )


def _decode(
    decoder: Decoder, value: bytes | None
) -> tuple[Mapping[str, Any] | None, Exception | None]:
    if value is None:
        return None, None
    try:
        return decoder(value), None
    except Outage:
        raise
    except Exception as error:  # any exception of a decoder for an invalid value
        return None, error


def _records(
    rows: list[Mapping[str, Any] | None], errors: list[BaseException | None], record: pa.DataType
) -> pa.Array:
    """The rows as one Arrow array; rows that do not fit the type become errors."""
    import pyarrow as pa

    try:
        return pa.array(rows, record)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for index, row in enumerate(rows):
            try:
                pa.array([row], record)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                rows[index], errors[index] = None, error
        return pa.array(rows, record)


def _class_of(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


# -- the two queries


def records_of(frame: DataFrame) -> DataFrame:
    """What could be decoded: the fields of the record, its key, and where it came from."""
    from pyspark.sql import functions as f

    place = f.struct("topic", "partition", "offset", "timestamp").alias("source")
    return frame.where(f.col(ERROR_CLASS).isNull()).select("key", f"{RECORD}.*", place)


def dead_letters_of(frame: DataFrame) -> DataFrame:
    """What could not: the original record, plus headers with the error and the origin."""
    from pyspark.sql import functions as f

    fields = {
        "class": f.col(ERROR_CLASS),
        "message": f.col(ERROR_MESSAGE),
        "topic": f.col("topic"),
        "partition": f.col("partition"),
        "offset": f.col("offset"),
    }
    added = f.array(
        *[
            f.struct(
                f.lit(OWN + name).alias("key"),
                value.cast("string").cast("binary").alias("value"),
            )
            for name, value in fields.items()
        ]
    )
    headers = f.concat(f.coalesce("headers", f.array().cast(HEADERS)), added)
    bad = frame.where(f.col(ERROR_CLASS).isNotNull())
    return bad.select("key", "value", headers.alias("headers"))


def start(frame: DataFrame, places: Places, trigger: Mapping[str, Any]) -> list[StreamingQuery]:
    """Two queries, each exactly once: records to Parquet files, dead letters to their topic."""
    files = (
        records_of(frame)
        .writeStream.format("parquet")
        .option("path", places.folder)
        .option("checkpointLocation", f"{places.checkpoint}/records")
        .queryName("records")
    )
    server = {name: each for name, each in places.source.items() if name.startswith("kafka.")}
    dead_letters = (
        dead_letters_of(frame)
        .writeStream.format("mqd")
        .options(**server, topic=places.dead_letters, deliveryGuarantee="exactly-once")
        .option("checkpointLocation", f"{places.checkpoint}/dead-letters")
        .queryName("dead-letters")
    )
    started = []
    for each in (files, dead_letters):
        started.append((each.trigger(**trigger) if trigger else each).start())
        _initialized(started[-1])
    return started


def _initialized(query: StreamingQuery) -> None:
    """Wait until the source of a query has its Python worker.

    Spark gives a worker ten seconds to start: two at once would take longer on a busy machine.
    """
    deadline = time.monotonic() + INITIALIZE_SECONDS
    while query.isActive and str(query.status["message"]).startswith("Initializing"):
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)


def wait(queries: Iterable[StreamingQuery], progress: Progress | None = None) -> int:
    """Wait until all have ended; one that fails stops the others. Returns how many records the
    first one has read."""
    waiting = list(queries)
    read: dict[int, int] = {}
    try:
        while any(not each.awaitTermination(POLL_S) for each in waiting):  # type: ignore[arg-type]
            _count(waiting[0], read)
            if progress is not None:
                progress.update(sum(read.values()))
    finally:
        for each in waiting:
            each.stop()
    _count(waiting[0], read)
    if progress is not None:
        progress.finish(sum(read.values()))
    return sum(read.values())


def _count(query: StreamingQuery, read: dict[int, int]) -> None:
    """Note the rows of each micro-batch: a query remembers the newest ones only."""
    for each in query.recentProgress:
        read[int(each["batchId"])] = int(each["numInputRows"])


# -- the command lines

MAP_IN_ARROW = "pandas"
"""What PySpark imports for `mapInArrow`."""


def require(*modules: str) -> None:
    """Import the modules that a recipe needs. Raises Failure that names the first missing one."""
    for module in modules:
        try:
            import_module(module)
        except ImportError:
            raise Failure(
                f"The recipe needs the Python module '{module}', which is not installed.",
                remedy="Run: pip install 'mqd[recipes]'",
            ) from None


def recipe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every recipe has; the recipe takes `settings` and `places`."""

    def gather(settings: Settings, topics: str, to: str, dlq: str, **rest: Any) -> Any:
        source = {**settings.source_options(), "subscribe": topics}
        return function(settings, Places(source, to, dlq, settings.checkpoint), **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    decorated: Any = gather
    for option in (
        click.option("--dlq", metavar="TOPIC", required=True, help="Topic of dead letters."),
        click.option("--to", metavar="DIR", required=True, help="Folder of Parquet files."),
        click.option("--topics", metavar="NAME,..", required=True, help="Topics to read."),
    ):
        decorated = option(decorated)
    shared: Callable[..., Any] = options(spark=True, stream=True)(decorated)
    return shared


def recipe_command(function: Callable[..., Any]) -> click.Command:
    """The function as a command of its own, with the help of `mqd-spark`."""
    return click.command(context_settings=HELP_NAMES)(function)


def run(
    settings: Settings, places: Places, name: str, plan: Callable[[SparkSession], DataFrame]
) -> None:
    """The whole recipe: a session, both queries, and what they did."""
    from pyspark_mqd.pipelines.session import EXACTLY_ONCE, session

    with session(settings, name, EXACTLY_ONCE) as spark, Progress(name) as progress:
        queries = start(plan(spark), places, settings.trigger.arguments())
        done = {"read": wait(queries, progress), "records_to": str(Path(places.folder))}
    report.show_summary(settings.output, {**done, "dead_letters_to": places.dead_letters})


def main(command: click.Command) -> None:
    """The entry point of a recipe's module."""
    guarded(lambda: command.main(sys.argv[1:], standalone_mode=False))
