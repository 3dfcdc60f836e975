"""`mqd-spark upsert`: change events in Debezium's envelope, merged into a Delta table.

upsert_events.py reduces the rows of the source to one row for each key, its newest change. A Delta
MERGE applies them through delta-rs. Its commit carries the app transaction (query id, batch id) and
one with a digest of the planned offsets. So a re-run of a micro-batch changes nothing. The same id
with other offsets is an old copy of the checkpoint, and stops the query. A micro-batch without a
change has such a commit too: a table without one is not the table of the checkpoint.

The order of changes is (source.file; source.lsn, .pos or .scn; source.ts_ms; offset). A change that
is older than the row in the table has no effect. After a hard delete no row is left to compare
with: an older change in a later micro-batch brings the row back. `--soft-delete` keeps deleted rows
with `_deleted = true`, and has no such gap.

Events that cannot be applied (`UNUSABLE`) stop the query before their micro-batch is applied. With
`--skip-malformed` they are left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.batch_turns import (
    check_turn,
    digest_of,
    ranges_app,
    refuse_other_ranges,
)
from pyspark_mqd.pipelines.cli import Failure, Settings, check_source, options, split_list
from pyspark_mqd.pipelines.upsert_events import (
    CHANGE,
    DELETED,
    NO_ROW,
    ORDER,
    OWN_COLUMNS,
    SIMPLE_NAME,
    UNUSABLE,
    changes,
    envelopes,
    kinds,
    refuse_unusable,
    with_rows,
    without_bad_columns,
)
from pyspark_mqd.pipelines.upsert_schema import (
    check_keys,
    check_schema,
    columns_in,
    ddl_of,
    infer_schema,
    merged_schema,
    pa_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_OFFSETS = 500_000
RIGHT_CHECKPOINT = (
    "Use the newest checkpoint of the query that wrote this table. Or use a new checkpoint with"
    " --starting-offsets earliest: changes that the table has already have no effect."
)


@dataclass(frozen=True, slots=True)
class UpsertConfiguration:
    """`keys` are the columns that identify a row; `schema` is DDL, or None to infer it."""

    source: Mapping[str, str]
    to: Path
    checkpoint: str
    keys: tuple[str, ...]
    schema: str | None = None
    soft_delete: bool = False
    skip_malformed: bool = False


def plan(spark: SparkSession, configuration: UpsertConfiguration) -> DataFrame:
    """A streaming DataFrame of parsed envelopes."""
    return envelopes(spark.readStream.format("mqd").options(**configuration.source).load())


# -- the table


class Target:
    """The Delta table, and one MERGE for each micro-batch."""

    def __init__(self, configuration: UpsertConfiguration) -> None:
        self._configuration = configuration
        self._place = str(configuration.to)
        self.counts = dict.fromkeys(
            ("events", "inserted", "updated", "deleted", NO_ROW, *UNUSABLE), 0
        )
        self.failure: Failure | None = None

    def merge(self, frame: DataFrame, batch: int) -> None:
        """Apply a micro-batch of envelopes, unless an earlier attempt did. Raises Failure."""
        spark = frame.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        try:
            planned = planned_digest(spark, self._configuration.checkpoint, batch)
            self.merge_as(query, frame, batch, planned)
        except Failure as failure:
            self.failure = failure
            raise
        except BaseException as error:
            # Rust's panic is no Exception. Raised here, it would leave the JVM without a response.
            if type(error).__name__ != "PanicException":
                raise
            self.failure = Failure(
                f"The Delta library stopped with an internal error at micro-batch {batch} of the"
                f" table '{self._place}': {error}. Nothing of the micro-batch is applied.",
                remedy="Name the columns with --schema, or install another version of 'deltalake'.",
            )
            raise self.failure from None

    def merge_as(self, query: str, frame: DataFrame, batch: int, planned: int) -> None:
        """`merge` under the id of a query; `planned` is a digest of the offsets of the batch."""
        table = self._table()
        applied = None if table is None else table.transaction_version(query)
        target = f"table '{self._place}'"
        if check_turn(query, batch, applied, target, RIGHT_CHECKPOINT):
            if table.transaction_version(ranges_app(query)) != planned:
                refuse_other_ranges(query, batch, target, RIGHT_CHECKPOINT)
            return
        rows = self._rows(frame, table, batch)
        properties = properties_of(query, batch, planned)
        if table is None:
            table = self._created()
        if rows is not None:
            add_keys(table, rows.schema, self._configuration.keys)
            soft_delete = self._configuration.soft_delete
            found = execute(table, rows, self._configuration.keys, soft_delete, properties)
            self._count(found)
        table = self._table()
        if table.transaction_version(query) != batch:  # a MERGE without an effect has no commit
            table.create_write_transaction(
                [], "append", table.schema(), [], commit_properties=properties
            )

    def _table(self) -> Any:
        """The Delta table; None where it does not exist."""
        from pyspark_mqd.pipelines.archive_delta import require_deltalake

        kind = require_deltalake().DeltaTable
        return kind(self._place) if kind.is_deltatable(self._place) else None

    def _created(self) -> Any:
        """A new table with the columns of its own; MERGE adds the others."""
        import pyarrow as pa
        from deltalake import DeltaTable

        own = pa.schema([(ORDER, pa.string()), (DELETED, pa.bool_())])
        DeltaTable.create(self._place, own, mode="ignore", name="mqd upsert")
        return DeltaTable(self._place)

    def _rows(self, frame: DataFrame, table: Any, batch: int) -> pa.Table | None:
        """The newest change of each key; None without any. Raises Failure for unusable events."""
        keys = self._configuration.keys
        if self._configuration.schema is None:
            frame = without_bad_columns(frame)
        frame = frame.persist()
        try:
            schema = self._schema(frame, table)
            if schema is not None:
                check_keys(keys, schema)
            # Without a schema no event of the micro-batch has a row, nor a key.
            rowed = with_rows(frame, keys, schema or ", ".join(f"`{key}` string" for key in keys))
            self._count_events(kinds(rowed), batch)
            return None if schema is None else _utc(changes(rowed, keys).toArrow())
        finally:
            frame.unpersist()

    def _schema(self, frame: DataFrame, table: Any) -> str | None:
        given = self._configuration.schema
        if given is not None:
            check_schema(given)
            return given
        known = [] if table is None else columns_in(pa_schema(table))
        return merged_schema(ddl_of(known) or None, infer_schema(frame))

    def _count_events(self, found: Mapping[str, tuple[int, str]], batch: int) -> None:
        self.counts["events"] += sum(count for count, _ in found.values())
        for kind, (count, _) in found.items():
            if kind != CHANGE:
                self.counts[kind] += count
        if not self._configuration.skip_malformed:
            refuse_unusable(found, batch)

    def _count(self, metrics: Mapping[str, Any]) -> None:
        self.counts["inserted"] += metrics.get("num_target_rows_inserted", 0)
        self.counts["updated"] += metrics.get("num_target_rows_updated", 0)
        self.counts["deleted"] += metrics.get("num_target_rows_deleted", 0)


def planned_digest(spark: SparkSession, checkpoint: str, batch: int) -> int:
    """A digest of the offsets at which a micro-batch ends, by the offset log of the checkpoint.

    Spark writes that file before it runs the micro-batch, and never plans the same one again.
    """
    from pyspark_mqd.pipelines.checkpoint import OFFSET_LOG, parse_entry, parse_source

    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/{OFFSET_LOG}/{batch}")
    stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    ends = parse_source(parse_entry(batch, text).sources[0]).ends
    return digest_of({(tp.topic, tp.partition): [(0, end)] for tp, end in ends.items()})


def properties_of(query: str, batch: int, planned: int) -> Any:
    """What a commit remembers of its micro-batch."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        app_transactions=[Transaction(query, batch), Transaction(ranges_app(query), planned)]
    )


def add_keys(table: Any, schema: pa.Schema, keys: tuple[str, ...]) -> None:
    """Add the columns of the key that a new table lacks: the MERGE compares by them."""
    import pyarrow as pa
    from deltalake import Schema

    known = set(pa_schema(table).names)
    missing = [schema.field(key) for key in keys if key not in known]
    if missing:
        table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)


def execute(
    table: Any, rows: pa.Table, keys: tuple[str, ...], soft_delete: bool, properties: Any
) -> dict[str, Any]:
    """One MERGE; returns its metrics. Older changes than the table's rows have no effect."""
    same = " AND ".join(f't."{key}" = s."{key}"' for key in keys)
    newer = f't."{ORDER}" < s."{ORDER}"'
    merger = table.merge(
        rows, same, source_alias="s", target_alias="t", merge_schema=True,
        commit_properties=properties,
    )  # fmt: skip
    if soft_delete:
        merger = merger.when_matched_update_all(newer).when_not_matched_insert_all()
    else:
        gone = f's."{DELETED}" = true'
        merger = merger.when_matched_delete(f"{newer} AND {gone}")
        merger = merger.when_matched_update_all(f'{newer} AND s."{DELETED}" = false')
        merger = merger.when_not_matched_insert_all(f's."{DELETED}" = false')
    metrics: dict[str, Any] = merger.execute()
    return metrics


def _utc(rows: pa.Table) -> pa.Table:
    """Times in UTC: delta-rs refuses the names of other zones."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def start(
    spark: SparkSession,
    configuration: UpsertConfiguration,
    target: Target,
    trigger: Mapping[str, Any],
    *,
    name: str = "upsert",
) -> StreamingQuery:
    """Start the query."""
    writer = plan(spark, configuration).writeStream.foreachBatch(target.merge)
    writer = writer.queryName(name).option("checkpointLocation", configuration.checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


@click.command()
@options(spark=True, stream=True)
@click.option("--topics", metavar="NAME,..", required=True, help="Topics with change events.")
@click.option("--to", metavar="DIR", required=True, help="Folder of the Delta table.")
@click.option("--key", "keys", metavar="COLUMN,..", required=True, help="Key columns of the table.")
@click.option(
    "--schema", metavar="DDL",
    help="Columns, such as 'id long, name string'  [default: inferred; new columns are added]",
)  # fmt: skip
@click.option("--soft-delete", is_flag=True, help="Keep deleted rows, with '_deleted' set to true.")
@click.option(
    "--skip-malformed", is_flag=True,
    help="Leave out events that cannot be applied, and count them.",
)  # fmt: skip
@click.option(
    "--starting-offsets", default="earliest", metavar="POSITION",
    help="Where a new query starts: earliest, latest, or offsets as JSON.",
)  # fmt: skip
@click.option(
    "--max-offsets-per-trigger", type=click.IntRange(1), default=MAX_OFFSETS,
    help="Maximum number of offsets in a micro-batch; the driver holds its newest changes.",
)  # fmt: skip
def command(
    settings: Settings,
    topics: str,
    to: str,
    keys: str,
    schema: str | None,
    soft_delete: bool,
    skip_malformed: bool,
    starting_offsets: str,
    max_offsets_per_trigger: int,
) -> None:
    """Merge change events in Debezium's JSON envelope into a Delta table, exactly once.

    Creates, updates, deletes and snapshot reads are applied in the order of the source's log, even
    if events are repeated or late. Tombstones are ignored: the delete event before each suffices.

    An event that cannot be applied ends the command with exit code 1 before its micro-batch is
    applied. Such events are: a value that is not an envelope, a truncate (op t), a null in a --key
    column, a reserved column (_order, _deleted).

    \b
    Example: mqd-spark upsert --topics db.public.users --to users --key id --checkpoint state/users
    """
    from pyspark_mqd.pipelines.archive import local_folder

    names = tuple(split_list(keys))
    for key in names:
        if SIMPLE_NAME.fullmatch(key) is None or key.lower() in OWN_COLUMNS:
            raise click.BadParameter(f"{key!r} is not the name of a column", param_hint="--key")
    source = {
        **settings.source_options(),
        "subscribe": ",".join(split_list(topics)),
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "kafka.isolation.level": "read_committed",
    }
    check_source(source)
    folder = local_folder(to, "--to")
    configuration = UpsertConfiguration(
        source, folder, settings.checkpoint, names, schema, soft_delete, skip_malformed
    )
    _run(settings, configuration)


def _run(settings: Settings, configuration: UpsertConfiguration) -> None:
    from pyspark_mqd.pipelines.archive_delta import require_deltalake
    from pyspark_mqd.pipelines.progress import Progress, run_query
    from pyspark_mqd.pipelines.session import is_merged, session

    require_deltalake()
    target = Target(configuration)
    progress = Progress("upsert", unit="events", quiet=is_merged(settings.output))
    with session(settings, "upsert") as spark:
        try:
            with progress:
                query = start(spark, configuration, target, settings.trigger.arguments())
                run_query(query, progress, lambda: target.counts["events"])
        except Exception:
            if target.failure is not None:
                raise target.failure from None
            raise
        finally:
            report.show_summary(settings.output, target.counts)
