"""How much CPU time does a row cost in the source and in the sink, beside Spark's own Kafka source
and sink?

    python -m bench.spark [--rows 5000000] [--rounds 3] [--jars DIR] [--benchmarks source,sink]

One mqd node serves both sides. The sides take turns to read or write the same rows (12-byte key,
100-byte value) in one Spark session with `local[2]`. A warm-up run before that does not count. The
figure is rows per CPU second of Spark: the driver, the JVM and all Python workers, without the
broker. `--jars` is a folder with the jar `spark-sql-kafka-0-10` and its dependencies: with it,
Spark's own source and sink are measured, too. Without it, the source is compared with a source that
returns prepared Arrow batches, and the sink with nothing.

Benchmarks:
- `source`: batch into `noop`
- `stream`: streaming, availableNow, into `noop`
- `sink`: cached rows into a topic
- `archive`: topic to Parquet, beside a scan of that Parquet
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chaos.node import Node
from mqd.client import sync
from mqd.client.columns import encode
from mqd.client.descriptions import LATEST, ListedOffset
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TOPIC = "bench"
PARTITIONS = 4
LOAD_ROWS = 50_000
VALUE_BYTES = 100
BENCHMARKS = ("source", "stream", "sink", "archive")
GOALS = {("source", "kafka"): 1.5, ("sink", "kafka"): 1.5, ("source", "prepared"): 0.5}
"""The minimum ratio of mqd to the other side."""
PREPARED_ROWS = 20_000
"""Rows of one prepared Arrow batch: Spark is fastest with 20,000 to 50,000."""


@dataclass
class Figure:
    """One counted run."""

    benchmark: str
    side: str
    rows: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def rows_per_cpu_second(self) -> float:
        return self.rows / self.cpu_seconds


# -- CPU time of Spark


def tree_cpu_seconds(without: set[int]) -> float:
    """User and system time of this process and its descendants, dead children included.

    `without`: processes to leave out, with their children (the broker).
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:  # the process has ended
            continue
        fields = stat.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry))
        ticks[int(entry)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        if pid not in without:
            total += ticks.get(pid, 0)
            waiting += children.get(pid, [])
    return total / TICKS_PER_SECOND


# -- the data


def load(bootstrap: str, rows: int) -> None:
    """Fill the topic with `rows` records, spread over its partitions."""
    with sync.connect(bootstrap) as client:
        client.admin.create_topic(TOPIC, PARTITIONS)
        with client.raw_producer() as producer:
            for first in range(0, rows, LOAD_ROWS):
                numbers = range(first, min(first + LOAD_ROWS, rows))
                keys = pa.array([b"key-%08d" % (number % 997) for number in numbers], pa.binary())
                values = pa.array(
                    [(b"value-%d-" % number).ljust(VALUE_BYTES, b"x") for number in numbers],
                    pa.binary(),
                )
                partitions = np.fromiter(numbers, np.int32) % PARTITIONS
                now = int(time.time() * 1000)
                for batch in encode(keys, values, partitions.astype(np.int32), timestamps_ms=now):
                    producer.send(TOPIC, batch)
            producer.flush()


def prepared_source() -> type:
    """A data source that repeatedly returns one prepared Arrow batch, to measure Spark's own
    cost.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class PreparedReader(DataSourceReader):
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            count = PREPARED_ROWS
            columns = {
                "key": pa.array([b"key-00000123"] * count, pa.binary()),
                "value": pa.array([b"x" * 100] * count, pa.binary()),
                "topic": pa.array(["bench"] * count, pa.string()),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
                "timestampType": pa.array([0] * count, pa.int32()),
            }
            batch = pa.RecordBatch.from_pydict(columns)
            left = self.rows // PARTITIONS
            while left > 0:
                yield batch.slice(0, min(left, count))
                left -= count

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return "prepared"

        def schema(self) -> str:
            return (
                "key binary, value binary, topic string, partition int, offset bigint,"
                " timestamp timestamp, timestampType int"
            )

        def reader(self, schema: Any) -> DataSourceReader:
            return PreparedReader(int(self.options["rows"]))

    return Prepared


# -- one run of each benchmark


class WrongRows(Exception):
    """A side has read or written a wrong number of rows, so its figure is invalid."""


def check_rows(kind: str, found: int, wanted: int) -> None:
    """Raises WrongRows."""
    if found != wanted:
        raise WrongRows(f"format '{kind}' has {found} rows where {wanted} were to be there")


class Runs:
    """The runs of all benchmarks in one session."""

    def __init__(self, spark: SparkSession, bootstrap: str, scratch: Path, rows: int) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.scratch = scratch
        self.rows = rows
        self.made = 0
        self._counted: set[str] = set()
        self._cached: DataFrame | None = None

    def _name(self) -> str:
        self.made += 1
        return f"run-{self.made}"

    def _read(self, kind: str) -> DataFrame:
        reader = self.spark.read.format(kind)
        if kind == "prepared":
            return reader.option("rows", self.rows).load()
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", TOPIC).load()

    def source(self, kind: str) -> int:
        self._read(kind).write.format("noop").mode("overwrite").save()
        if kind not in self._counted:  # once for each side, in its warm-up run
            self._counted.add(kind)
            check_rows(kind, self._read(kind).count(), self.rows)
        return self.rows

    def stream(self, kind: str) -> int:
        reader = self.spark.readStream.format(kind)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.scratch / self._name())).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        check_rows(kind, read, self.rows)
        return self.rows

    def cached(self) -> DataFrame:
        """Rows that are cached in Spark's memory, for the sinks."""
        if self._cached is None:
            frame = self.spark.range(0, self.rows, 1, PARTITIONS).selectExpr(
                "cast(concat('key-', lpad(cast(id % 997 as string), 8, '0')) as binary) as key",
                f"cast(rpad(concat('value-', id, '-'), {VALUE_BYTES}, 'x') as binary) as value",
            )
            self._cached = frame.cache()
            self._cached.count()
        return self._cached

    def sink(self, kind: str) -> int:
        topic = self._name()
        with sync.connect(self.bootstrap) as client:
            client.admin.create_topic(topic, PARTITIONS)
        writer = self.cached().write.format(kind).mode("append")
        writer.option("kafka.bootstrap.servers", self.bootstrap).option("topic", topic).save()
        with sync.connect(self.bootstrap) as client:
            ends = client.admin.list_offsets(
                {TopicPartition(topic, number): LATEST for number in range(PARTITIONS)}
            )
            written = sum(end.offset for end in ends.values() if isinstance(end, ListedOffset))
            check_rows(kind, written, self.rows)
            client.admin.delete_topic(topic)
        return self.rows

    def archive(self, kind: str) -> int:
        """`mqd`: the pipeline `archive`; `parquet`: a scan of the archive."""
        from pyspark_mqd.pipelines.archive import archive

        target = self.scratch / "archive"
        if kind == "parquet":
            frame = self.spark.read.parquet(str(target))
            frame.write.format("noop").mode("overwrite").save()
        else:
            shutil.rmtree(target, ignore_errors=True)
            archive(
                self.spark,
                bootstrap=self.bootstrap,
                topics=[TOPIC],
                target=str(target),
                checkpoint=str(self.scratch / self._name()),
            )
        return self.rows


def sides(benchmark: str, has_jar: bool) -> tuple[str, ...]:
    """The sides that run a benchmark: mqd first."""
    if benchmark == "archive":
        return ("mqd", "parquet")
    prepared = ("prepared",) if benchmark == "source" else ()
    return ("mqd", *(("kafka",) if has_jar else ()), *prepared)


def measure(benchmark: str, side: str, run: Callable[[str], int], broker_pid: int) -> Figure:
    """One counted run."""
    cpu, wall = tree_cpu_seconds({broker_pid}), time.monotonic()
    rows = run(side)
    wall = time.monotonic() - wall
    return Figure(benchmark, side, rows, tree_cpu_seconds({broker_pid}) - cpu, wall)


@contextmanager
def session(scratch: Path, jars: list[Path]) -> Iterator[SparkSession]:
    """A session with `local[2]`; its workers run this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from pyspark_mqd import configure

    builder = configure(SparkSession.builder.master("local[2]").appName("bench"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(scratch / "local"),
        "spark.jars": ",".join(map(str, jars)),
    }
    for name, value in settings.items():
        if value:
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        spark.dataSource.register(prepared_source())
        yield spark
    finally:
        spark.stop()


def report(figures: list[Figure]) -> None:
    """Print the medians, and the ratio of mqd to each other side in each round."""
    print(
        f"\nSpark in local[2], {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}"
    )
    print(
        f"{'benchmark':<10}{'side':<10}{'M rows/CPU s':>14}{'M rows/s':>10}"
        "   ratio of ours to it (median, min, max)"
    )
    for benchmark in dict.fromkeys(figure.benchmark for figure in figures):
        by_side: dict[str, list[Figure]] = {}
        for figure in figures:
            if figure.benchmark == benchmark:
                by_side.setdefault(figure.side, []).append(figure)
        for side, runs in by_side.items():
            cpu = statistics.median(run.rows_per_cpu_second for run in runs)
            wall = statistics.median(run.rows / run.wall_seconds for run in runs)
            line = f"{benchmark:<10}{side:<10}{cpu / 1e6:>14.2f}{wall / 1e6:>10.2f}"
            if side != "mqd":
                pairs = zip(by_side["mqd"], runs, strict=True)
                ratios = [ours.rows_per_cpu_second / run.rows_per_cpu_second for ours, run in pairs]
                median = statistics.median(ratios)
                line += f"   {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                goal = GOALS.get((benchmark, side))
                if goal is not None:
                    line += f", goal {goal}: {'reached' if median >= goal else 'missed'}"
            print(line)


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=int, default=5_000_000, help="records in the topic [default: 5000000]"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="counted runs of each side [default: 3]"
    )
    parser.add_argument(
        "--jars", type=Path, help="folder with spark-sql-kafka-0-10 and its dependencies"
    )
    parser.add_argument(
        "--benchmarks", default=",".join(BENCHMARKS), help="which to run [default: all]"
    )
    parser.add_argument("--json", type=Path, help="write every run to this file")
    arguments = parser.parse_args()
    jars = sorted(arguments.jars.glob("*.jar")) if arguments.jars else []
    jars = [jar for jar in jars if not jar.name.startswith("scala-library")]
    scratch = Path(tempfile.mkdtemp(prefix="mqd-bench-spark-"))
    node = Node(scratch / "node")
    figures: list[Figure] = []
    try:
        node.start()
        load(node.address, arguments.rows)
        with session(scratch, jars) as spark:
            runs = Runs(spark, node.address, scratch, arguments.rows)
            for benchmark in arguments.benchmarks.split(","):
                run = getattr(runs, benchmark)
                for number in range(arguments.rounds + 1):
                    for side in sides(benchmark, bool(jars)):
                        figure = measure(benchmark, side, run, node.pid)
                        counted = "warm " if number == 0 else ""
                        print(
                            f"{counted}{benchmark} {side}:"
                            f" {figure.rows_per_cpu_second / 1e6:.2f} M rows/CPU s,"
                            f" {figure.rows / figure.wall_seconds / 1e6:.2f} M rows/s",
                            file=sys.stderr,
                        )
                        if number:
                            figures.append(figure)
        report(figures)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    finally:
        if node.running:
            node.stop()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
