"""`mqd-spark demo`: a cluster, a producer of orders, `archive` and `rollup`, and a live table.

Everything runs on this machine until Ctrl-C, which ends all of it. The nodes are a process of their
own, the JVM ends with its driver, and the producer is a thread.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import Failure, Settings, output_option, signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_mqd.pipelines.archive import Runner

TOPIC = "orders"
PARTITIONS = 4
COUNTRIES = ("DE", "ES", "FR", "IT", "NL", "PL", "PT", "SE")
READY_SECONDS = 60.0
STOP_SECONDS = 30.0
ROWS_SHOWN = 16


def order(number: int, random_: random.Random) -> tuple[bytes, bytes]:
    """The key and the value of one order."""
    country = random_.choice(COUNTRIES)
    price = round(random_.lognormvariate(3, 0.8), 2)
    value = {"order": number, "country": country, "price": price}
    return b"customer-%d" % random_.randrange(1_000), json.dumps(value).encode()


class Orders:
    """A thread that produces orders at a steady rate until it is stopped."""

    def __init__(self, bootstrap: str, rate: float) -> None:
        self.count = 0
        self._bootstrap = bootstrap
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def _run(self) -> None:
        from pyspark_mqd.pipelines.brokers import connected

        random_ = random.Random(1)
        begun = time.monotonic()
        with connected(Settings(self._bootstrap)) as client, client.producer() as producer:
            while not self._ended.wait(0.1):
                due = int((time.monotonic() - begun) * self._rate)
                for number in range(self.count, due):
                    key, value = order(number, random_)
                    producer.enqueue(TOPIC, value, key=key)
                self.count = max(self.count, due)

    def __enter__(self) -> Orders:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(STOP_SECONDS)


@contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[str]:
    """Nodes in a process of their own, for the length of a block; yields their bootstrap address.

    Ctrl-C in a terminal reaches every process of its group. The nodes are in another group, so that
    they end after the queries.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "cluster.log"
    command = [sys.executable, "-m", "mqd", "dev", "--nodes", str(nodes)]
    command += ["--data", str(folder / "cluster")]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _wait_ready(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        found = address_in(text)
        if found is not None:
            return found
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise Failure(f"The cluster did not start: see '{log}'.")


def address_in(text: str) -> str | None:
    """The bootstrap address in the output of `mqd dev`; None as long as it is not ready."""
    for line in text.splitlines():
        if line.startswith("mqd ") and " node(s) ready on " in line:
            return line.partition(" node(s) ready on ")[2].partition(", data in ")[0].strip()
    return None


class Screen:
    """What one watches: the windows as they fill, and how far the archive is."""

    def __init__(self, orders: Orders, archive: Runner, *, output: str) -> None:
        from pyspark_mqd.pipelines.rollup import LiveTable

        self._orders = orders
        self._archive = archive
        self._output = output
        self._table = LiveTable(ROWS_SHOWN, 1, output=output)

    def update(self, frame: DataFrame, number: int) -> None:
        """Show a micro-batch of the rollup."""
        self._table.update(frame, number)
        if self._output == "table":
            sys.stdout.write("\n" + report.fields(self.totals()) + "\n")
            sys.stdout.flush()

    def totals(self) -> dict[str, Any]:
        """How much there is."""
        counts = self._archive.files.get(TOPIC, [0, 0, 0])
        return {
            "orders produced": self._orders.count,
            "orders archived": counts[1],
            "archived files": counts[0],
            "archived bytes": counts[2],
        }


def run(spark: Any, bootstrap: str, folder: Path, orders: Orders, output: str) -> Screen:
    """Start both queries; returns what shows them."""
    from pyspark_mqd.pipelines import archive, rollup

    source = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
    }
    lake = archive.ArchiveConfiguration(source, folder / "lake", str(folder / "state" / "archive"))
    runner = archive.Runner(lake)
    runner.start(spark, {"processingTime": "5 seconds"})
    windows = rollup.RollupConfiguration(
        source,
        str(folder / "state" / "rollup"),
        window="10 seconds",
        watermark="30 seconds",
        by=("$.country",),
        aggregates=(
            rollup.Aggregate("count", "", "orders"),
            rollup.Aggregate("sum", "$.price", "revenue"),
        ),
    )
    screen = Screen(orders, runner, output=output)
    frame = rollup.plan(spark, windows)
    writer = frame.writeStream.outputMode("update").foreachBatch(screen.update)
    rollup.start(writer, windows, {"processingTime": "2 seconds"})
    return screen


def watch(queries: Sequence[StreamingQuery], seconds: float | None) -> None:
    """Wait until the time is over. Raises what made a query fail."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        with signals.held():
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()
                    return
        time.sleep(0.5)


def make_topics(bootstrap: str, topics: Mapping[str, int]) -> Sequence[str]:
    """Create the topics that do not exist."""
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import create_missing

    with connected(Settings(bootstrap)) as client:
        return create_missing(client, topics)


@click.command()
@click.option("--nodes", type=click.IntRange(1), default=1, help="Number of nodes of the cluster.")
@click.option("--rate", type=click.FloatRange(1), default=500.0, help="Orders per second.")
@click.option("--data", metavar="DIR", help="Store all data in DIR  [default: a temporary folder]")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    help="Stop after this many seconds  [default: run until Ctrl-C]",
)
@output_option
def command(nodes: int, rate: float, data: str | None, seconds: float | None, output: str) -> None:
    """Run a cluster, a producer of orders, archive and rollup, and show a table that fills.

    Ctrl-C stops all processes.

    \b
    Example: mqd-spark demo --rate 2000
    """
    from pyspark_mqd.pipelines.session import ROCKSDB, session

    folder = Path(data or tempfile.mkdtemp(prefix="mqd-demo-")).absolute()
    print(f"Starts {nodes} node(s), a producer and Spark. Ctrl-C ends all.", file=sys.stderr)
    defaults = {**ROCKSDB, "spark.sql.shuffle.partitions": "2"}
    try:
        with ExitStack() as stack:
            if data is None:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            bootstrap = stack.enter_context(cluster(nodes, folder))
            make_topics(bootstrap, {TOPIC: PARTITIONS})
            spark = stack.enter_context(
                session(Settings(master="local[2]"), "demo", defaults, brokers=False)
            )
            orders = stack.enter_context(Orders(bootstrap, rate))
            screen = run(spark, bootstrap, folder, orders, output)
            try:
                watch(spark.streams.active, seconds)
            except KeyboardInterrupt:
                print(file=sys.stderr)  # behind the terminal's ^C
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for query in spark.streams.active:
                    query.stop()
            report.show_summary(output, screen.totals())
    except KeyboardInterrupt:
        print("Interrupted before the queries ran.", file=sys.stderr)
