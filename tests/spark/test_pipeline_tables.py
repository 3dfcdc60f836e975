"""`snapshot`, `rollup` and `upsert`: their pure parts in a session, and each on a real cluster."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition
from pyspark_mqd.pipelines import rollup, snapshot, upsert, upsert_events
from pyspark_mqd.pipelines.cli import Failure
from pyspark_mqd.pipelines.session import EXACTLY_ONCE, ROCKSDB

NOW = {"availableNow": True}
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ROW = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key:string,value:binary>>"
)


def rows_of(spark: Any, rows: Sequence[tuple[Any, Any, int, int, float]]) -> Any:
    """Rows of the source: (key, value, partition, offset, seconds after noon)."""
    full = [
        (
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            *("t", partition, offset, NOON + timedelta(seconds=seconds), 0, None),
        )
        for key, value, partition, offset, seconds in rows
    ]
    return spark.createDataFrame(full, ROW)


def source_of(cluster: Ensemble, topic: str, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }


# -- snapshot


def test_the_latest_value_of_each_key(spark: Any) -> None:
    frame = rows_of(
        spark,
        [
            ("a", "1", 0, 0, 0),
            ("b", "1", 0, 1, 1),
            ("a", "2", 0, 2, -5),  # the offset counts, not the timestamp
            ("b", None, 0, 3, 3),  # deleted
            ("c", "1", 1, 9, 0),
            ("c", "2", 2, 0, 1),  # moved to another partition later
            ("d", None, 0, 4, 0),
            ("d", "back", 0, 5, 0),
            (None, "no key", 0, 6, 0),
        ],
    )
    found = {row.key.decode(): row.value.decode() for row in snapshot.latest(frame).collect()}
    assert found == {"a": "2", "c": "2", "d": "back"}


def test_snapshot_as_of_a_time(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2, {"cleanup.policy": "compact"})
    begun = int(datetime.now(UTC).timestamp() * 1_000) - 60_000
    with client.producer() as producer:
        for step, value in enumerate((b"old", b"new", None)):
            for key in (b"a", b"b", b"c")[: 3 - step]:
                producer.enqueue(topic, value, key=key, timestamp=begun + step * 1_000)
        producer.flush()
    options = {"includeHeaders": "true"}

    def values(**more: str) -> dict[str, str]:
        configuration = snapshot.SnapshotConfiguration(source_of(cluster, topic, **options, **more))
        frame = snapshot.plan(spark, configuration)
        return {row.key.decode(): row.value.decode() for row in frame.collect()}

    assert values() == {"b": "new", "c": "old"}
    assert values(asOfTimestamp=str(begun + 1_999)) == {"a": "new", "b": "new", "c": "old"}
    target = tmp_path / "latest"
    frame = snapshot.plan(
        spark, snapshot.SnapshotConfiguration(source_of(cluster, topic, **options))
    )
    snapshot.write(frame, target, overwrite=False)
    with pytest.raises(Failure, match="exists"):
        snapshot.write(frame, target, overwrite=False)
    snapshot.write(frame, target, overwrite=True)
    assert spark.read.parquet(str(target)).count() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


# -- rollup


def test_windows_groups_and_aggregates(spark: Any) -> None:
    def order(country: str, price: Any) -> str:
        return json.dumps({"user": {"country": country}, "price": price})

    frame = rows_of(
        spark,
        [
            ("k", order("NL", 2), 0, 0, 0),
            ("k", order("NL", 3.5), 0, 1, 59),
            ("k", order("DE", "x"), 0, 2, 30),
            ("k", order("NL", 1), 0, 3, 60),
            ("k", "no json", 0, 4, 61),
        ],
    )
    configuration = rollup.RollupConfiguration(
        {},
        "",
        by=("topic", "$.user.country"),
        aggregates=tuple(map(rollup.parse_aggregate, ("count", "sum:$.price", "max:$.price=top"))),
    )
    rows = rollup.aggregate(frame, configuration).orderBy("window_start", "user_country").collect()
    assert [tuple(row)[2:] for row in rows] == [
        ("t", "DE", 1, None, None),
        ("t", "NL", 2, 5.5, 3.5),
        ("t", None, 1, None, None),
        ("t", "NL", 1, 1.0, 1.0),
    ]
    assert rows[0].asDict().keys() >= {"window_start", "window_end", "sum_price", "top"}


def test_rollup_writes_each_window_once(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(2)
    begun = int(datetime.now(UTC).timestamp()) // 60 * 60_000 - 600_000
    configuration = rollup.RollupConfiguration(
        source_of(cluster, topic), str(tmp_path / "checkpoint"), watermark="0 seconds"
    )
    folder = tmp_path / "windows"

    def produce(minutes: range) -> None:
        with client.producer() as producer:
            for minute in minutes:
                for number in range(minute + 1):
                    moment = begun + minute * 60_000 + number
                    producer.enqueue(topic, b"v", partition=number % 2, timestamp=moment)
            producer.flush()

    def run() -> None:
        frame = rollup.plan(spark, configuration)
        query = rollup.start(rollup.to_parquet(frame, folder), configuration, NOW)
        query.awaitTermination()

    produce(range(3))
    run()
    produce(range(3, 6))
    run()
    rows = spark.read.parquet(str(folder)).orderBy("window_start").collect()
    assert [row["count"] for row in rows] == [1, 2, 3, 4, 5]  # the last window is still open

    live = rollup.LiveTable(2, 0)
    whole = rows_of(spark, [("k", "v", 0, 0, second) for second in (0, 60, 61, 120)])
    live.update(rollup.aggregate(whole, configuration), 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["WINDOW", "START", "WINDOW", "END", "COUNT"]
    assert [line.split()[-1] for line in lines[1:]] == ["2", "1"]


def test_rollup_into_a_topic(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    for name, value in {**EXACTLY_ONCE, **ROCKSDB}.items():
        spark.conf.set(name, value)
    topic, target = new_topic(2), new_topic(1)
    begun = int(datetime.now(UTC).timestamp()) // 60 * 60_000 - 600_000
    configuration = rollup.RollupConfiguration(
        source_of(cluster, topic),
        str(tmp_path / "checkpoint"),
        watermark="0 seconds",
        by=("$.shop",),
        aggregates=(rollup.parse_aggregate("sum:$.price=revenue"),),
        sink={"kafka.bootstrap.servers": cluster.bootstrap, "deliveryGuarantee": "exactly-once"},
    )
    with client.producer() as producer:
        for number in range(90):
            moment = begun + number * 2_000  # thirty orders a minute
            order = json.dumps({"shop": "ab"[number % 2], "price": 2}).encode()
            producer.enqueue(topic, order, partition=number % 2, timestamp=moment)
        producer.flush()
    for again in range(2):
        frame = rollup.plan(spark, configuration)
        writer = rollup.to_topic(frame, configuration, target)
        rollup.start(writer, configuration, NOW).awaitTermination()
        spark.streams.resetTerminated()
        if again == 0:  # the last micro-batch runs again
            newest = max(
                int(path.name) for path in (tmp_path / "checkpoint/commits").glob("[0-9]*")
            )
            for name in (f"{newest}", f".{newest}.crc"):
                (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    with client.consumer({TopicPartition(target, 0): 0}, end="end", read_committed=True) as reader:
        values = [json.loads(each.value or b"") for batch in reader for each in batch.records]
    found = sorted((each["window_start"], each["shop"], each["revenue"]) for each in values)
    assert [each[1:] for each in found] == [("a", 30.0), ("b", 30.0)] * 2  # the third is open


# -- upsert


def event(
    op: str, lsn: int, before: Any = None, after: Any = None, *, wrapped: bool = False
) -> str:
    envelope = {"op": op, "before": before, "after": after}
    envelope |= {"source": {"lsn": lsn, "ts_ms": 1_000 + lsn}}
    return json.dumps({"schema": {}, "payload": envelope} if wrapped else envelope)


def user(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, **more}


def merged(
    spark: Any,
    target: upsert.Target,
    batches: Sequence[Sequence[str | None]],
    query: str = "q",
    first: int = 0,
) -> dict[int, str]:
    """The table's rows after these batches of values."""
    import deltalake

    offset = 0
    for number, values in enumerate(batches, first):
        rows = []
        for value in values:
            rows.append(("k", value, 0, offset, 0.0))
            offset += 1
        planned = zlib.crc32(repr(values).encode())
        target.merge_as(query, upsert_events.envelopes(rows_of(spark, rows)), number, planned)
    table = deltalake.DeltaTable(str(target._configuration.to)).to_pyarrow_table()
    return {row["id"]: row["name"] for row in table.to_pylist() if not row["_deleted"]}


@pytest.fixture
def target(tmp_path: Path) -> Callable[..., upsert.Target]:
    pytest.importorskip("deltalake")

    def make(**more: Any) -> upsert.Target:
        return upsert.Target(upsert.UpsertConfiguration({}, tmp_path / "t", "", ("id",), **more))

    return make


def test_changes_are_applied_in_the_order_of_the_source(
    spark: Any, target: Callable[..., upsert.Target]
) -> None:
    it = target()
    first = [
        event("r", 5, after=user(1, "snapshot")),
        event("c", 6, after=user(2, "two")),
        event("u", 9, after=user(1, "newest")),
        event("u", 8, after=user(1, "late")),  # out of order
        event("c", 7, after=user(3, "three"), wrapped=True),
        None,  # a tombstone
        json.dumps({"op": "m"}),
        json.dumps({"status": "BEGIN", "id": "571"}),
        json.dumps({"source": {}, "ddl": "CREATE TABLE t"}),
    ]
    second = [
        event("d", 12, before=user(2, "two")),
        event("u", 7, after=user(1, "older than the table")),
        event("u", 11, after=user(3, "drei", age=7)),  # a new column
        event("c", 6, after=user(2, "repeated")),
    ]
    assert merged(spark, it, [first, second]) == {1: "newest", 3: "drei"}
    assert it.counts == {
        "events": 12, "inserted": 3, "updated": 1, "deleted": 1, "no_row": 3,
        "malformed": 0, "truncate": 0, "without_key": 0, "bad_column": 0,
    }  # fmt: skip


UNUSABLE = (
    ("{broken", "malformed"),
    (json.dumps({"id": 1, "name": "no envelope"}), "malformed"),
    (json.dumps({"op": "x", "after": user(1, "op")}), "malformed"),
    (json.dumps([1]), "malformed"),
    (event("t", 9), "truncate"),
    (event("u", 9, after={"name": "no key"}), "without_key"),
    (event("u", 9, after={"id": None, "name": "null"}), "without_key"),
    (event("u", 9), "without_key"),
    (event("d", 9), "without_key"),
)


@pytest.mark.parametrize("schema", ["id long, name string", None])
def test_events_that_cannot_be_applied_are_counted_or_refused(
    spark: Any, target: Callable[..., upsert.Target], schema: str | None
) -> None:
    good = event("c", 8, after=user(1, "good"))
    batch = [good, *[value for value, _ in UNUSABLE]]
    strict = target(schema=schema)
    with pytest.raises(Failure) as refused:
        merged(spark, strict, [batch])
    assert not strict._configuration.to.exists()
    for part in (
        "Micro-batch 0 has", "4 malformed", "the first is 't-0' offset 1)", "1 truncate",
        "'t-0' offset 5)", "4 without key", "Nothing of the micro-batch is applied.",
    ):  # fmt: skip
        assert part in refused.value.message
    it = target(schema=schema, skip_malformed=True)
    assert merged(spark, it, [batch]) == {1: "good"}
    assert it.counts == {
        "events": 10, "inserted": 1, "updated": 0, "deleted": 0, "no_row": 0,
        "malformed": 4, "truncate": 1, "without_key": 4, "bad_column": 0,
    }  # fmt: skip


def test_a_micro_batch_without_any_row_is_refused_too(
    spark: Any, target: Callable[..., upsert.Target]
) -> None:
    for value, kind in UNUSABLE:
        if "name" in value:
            continue
        with pytest.raises(Failure, match=f"1 {kind.replace('_', ' ')}"):
            merged(spark, target(), [[value]])


def test_a_repeated_batch_changes_nothing(spark: Any, target: Callable[..., upsert.Target]) -> None:
    import deltalake

    it = target(schema="id long, name string")
    batches = [[event("c", 1, after=user(1, "a"))], [event("u", 2, after=user(1, "b"))]]
    merged(spark, it, batches)
    version = deltalake.DeltaTable(str(it._configuration.to)).version()
    assert merged(spark, it, batches[1:], first=1) == {1: "b"}
    assert deltalake.DeltaTable(str(it._configuration.to)).version() == version
    assert merged(spark, it, batches[:1], query="other") == {1: "b"}  # older than the row


@pytest.mark.parametrize("gone", ["old copy", "table", "other"])
def test_a_checkpoint_that_is_not_of_the_table_is_refused(
    spark: Any, target: Callable[..., upsert.Target], gone: str
) -> None:
    it = target()
    batches = [[event("c", 1, after=user(1, "a"))], [event("c", 2, after=user(2, "b"))]]
    merged(spark, it, batches)
    if gone == "old copy":
        with pytest.raises(Failure, match="with other offsets than the checkpoint plans"):
            merged(spark, it, [[event("c", 3, after=user(3, "c"))]], first=1)
    elif gone == "table":
        shutil.rmtree(it._configuration.to)
        with pytest.raises(Failure, match=r"has no micro-batch of query 'q'.*micro-batch 2"):
            it.merge_as("q", upsert_events.envelopes(rows_of(spark, [])), 2, 0)
    else:
        with pytest.raises(Failure, match="has micro-batch 1 as the last one"):
            it.merge_as("q", upsert_events.envelopes(rows_of(spark, [])), 0, 0)


def test_micro_batches_without_a_row_are_remembered(
    spark: Any, target: Callable[..., upsert.Target]
) -> None:
    note, row = json.dumps({"op": "m"}), event("c", 1, after=user(1, "a"))
    late = event("u", 0, after=user(1, "late"))
    it = target()
    assert merged(spark, it, [[note], [None], [row], [late], [note]]) == {1: "a"}
    assert it._table().transaction_version("q") == 4


NAMES = (
    "a.b", " ", "a,b", 'a"b', "a'b", "_rank", "rank", "row", "VOID", "ä", "a:b", "a<b",
    "OBJECT<", "x;y", "{z}", "(y)", "a\tb", "a\\b", "kind", "a=b", "op",
)  # fmt: skip


def test_columns_of_any_name(spark: Any, target: Callable[..., upsert.Target]) -> None:
    it = target()
    row = dict.fromkeys(NAMES, "x")
    names = iter("abc")
    batches = [[event("u", 1, after=user(1, next(names)))]]
    batches += [[event("u", lsn, after=user(1, next(names), **row))] for lsn in (2, 3)]
    merged(spark, it, batches)
    (found,) = it._table().to_pyarrow_table().to_pylist()
    assert {name: found.get(name) for name in ("name", *NAMES)} == {"name": "c", **row}


@pytest.mark.parametrize("name", ["_order", "_deleted", "_Deleted", "", "a`b"])
def test_reserved_names_are_unusable(
    spark: Any, target: Callable[..., upsert.Target], name: str
) -> None:
    good, bad = event("c", 1, after=user(1, "a")), event("c", 2, after=user(2, "b", **{name: "x"}))
    with pytest.raises(Failure, match=r"1 bad column \(.*the first is 't-0' offset 1\)"):
        merged(spark, target(), [[good, bad]])
    skipping = target(skip_malformed=True)
    assert merged(spark, skipping, [[good, bad]]) == {1: "a"}
    assert skipping.counts["bad_column"] == 1
    given = target(schema="id long, name string")
    assert merged(spark, given, [[good, bad]], query="given") == {1: "a", 2: "b"}


def test_a_panic_of_the_delta_library_is_a_failure(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no Exception: in a callback of the JVM it would leave the query without a response."""
    pytest.importorskip("deltalake")
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    for batch in range(2):
        text = f'v1\n{{}}\n{{"t":{{"0":{batch + 1}}}}}'
        (tmp_path / "checkpoint" / "offsets" / str(batch)).write_text(text)
    checkpoint = str(tmp_path / "checkpoint")
    it = upsert.Target(upsert.UpsertConfiguration({}, tmp_path / "t", checkpoint, ("id",)))
    good, bad = user(1, "a"), user(2, "b", _deleted="x")
    monkeypatch.setattr(upsert, "without_bad_columns", lambda frame: frame)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    try:
        it.merge(
            upsert_events.envelopes(rows_of(spark, [("k", event("c", 1, after=good), 0, 0, 0.0)])),
            0,
        )
        with pytest.raises(Failure, match="stopped with an internal error at micro-batch 1"):
            it.merge(
                upsert_events.envelopes(
                    rows_of(spark, [("k", event("c", 2, after=bad), 0, 1, 0.0)])
                ),
                1,
            )
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


def test_a_reserved_name_in_the_schema_is_refused(
    spark: Any, target: Callable[..., upsert.Target]
) -> None:
    with pytest.raises(Failure, match="The column '_order' of --schema has a reserved name"):
        merged(spark, target(schema="id long, _order long"), [[event("c", 1, after=user(1, "a"))]])


def test_soft_deletes_remember_the_order(spark: Any, target: Callable[..., upsert.Target]) -> None:
    batches = [
        [event("c", 1, after=user(1, "a")), event("c", 1, after=user(2, "b"))],
        [event("d", 9, before=user(1, "a"))],
        [event("u", 5, after=user(1, "late"))],
    ]
    assert merged(spark, target(soft_delete=True), batches) == {2: "b"}


def test_a_key_that_is_no_column_is_refused(
    spark: Any, target: Callable[..., upsert.Target]
) -> None:
    with pytest.raises(Failure, match="no column 'id'"):
        merged(spark, target(), [[event("c", 1, after={"name": "x"})]])


def test_upsert_from_a_topic(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    deltalake = pytest.importorskip("deltalake")
    topic = new_topic(2)
    with client.producer() as producer:
        for lsn in range(40):
            number = lsn % 10
            gone = lsn >= 35
            value = (
                event("d", lsn, before=user(number, "x"))
                if gone
                else event("u" if lsn >= 10 else "c", lsn, after=user(number, f"v{lsn}"))
            )
            producer.enqueue(topic, value.encode(), key=b"%d" % number)
        producer.flush()
    configuration = upsert.UpsertConfiguration(
        source_of(cluster, topic, maxOffsetsPerTrigger="15"),
        tmp_path / "table",
        str(tmp_path / "checkpoint"),
        ("id",),
    )
    it = upsert.Target(configuration)
    upsert.start(spark, configuration, it, NOW).awaitTermination()
    _refuses_an_old_copy(spark, client, configuration, topic)
    rows = deltalake.DeltaTable(str(configuration.to)).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["name"] for row in rows} == {n: f"v{30 + n}" for n in range(5)}


def _refuses_an_old_copy(
    spark: Any, client: BlockingClient, configuration: upsert.UpsertConfiguration, topic: str
) -> None:
    """The last micro-batch is planned anew with more offsets, as by a copy of the checkpoint."""
    checkpoint = Path(configuration.checkpoint)
    newest = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
    for log in ("commits", "offsets"):
        for name in (f"{newest}", f".{newest}.crc"):
            (checkpoint / log / name).unlink(missing_ok=True)
    with client.producer() as producer:
        producer.enqueue(topic, event("c", 99, after=user(99, "lost")).encode(), key=b"99")
        producer.flush()
    it = upsert.Target(configuration)
    with pytest.raises(Exception, match="with other offsets than the checkpoint plans"):
        upsert.start(spark, configuration, it, NOW).awaitTermination()
    assert it.failure is not None and "newest checkpoint" in it.failure.remedy
