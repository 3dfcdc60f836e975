"""A driver that the trial kills: a streaming query that copies a topic with the sink of
`pyspark_mqd`.

    python -m chaos.spark_copy --bootstrap ... --source ... --target ... --checkpoint DIR --mode ...

`chaos.spark_exactly_once` starts it, kills it with SIGKILL, and starts it again. Each row of the
copy is `<partition>-<offset>:<value>` of its source row. With `--fail-percent`, this share of the
tasks fails in the middle of its rows. The process writes a line to stdout for each completed
micro-batch. Exit code 0: the query has read everything (with `--until-end`); 3: the query failed,
and its exception is on stderr.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mqd.client.client_properties import read_client_properties

ROOT = Path(__file__).resolve().parent.parent
FAILED_CODE = 3
TASK_FAILURES_MAX = 8


def failing(percent: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow that fails in some tasks, after half of the rows of a batch."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        fails = random.SystemRandom().random() * 100 < percent
        for batch in batches:
            if fails:
                yield batch.slice(0, batch.num_rows // 2)
                raise RuntimeError("this task fails on purpose")
            yield batch
        if fails:
            raise RuntimeError("this task fails on purpose, without rows")

    return work


def security_options(command_config: Path | None) -> dict[str, str]:
    """Kafka's client properties in a file, as options of source and sink."""
    if command_config is None:
        return {}
    properties = read_client_properties(command_config)
    return {f"kafka.{key}": value for key, value in properties.items()}


def run(arguments: argparse.Namespace) -> int:
    """Run the query until its end, or until this process is killed."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    from pyspark.sql import SparkSession

    from pyspark_mqd import configure

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(arguments.checkpoint.parent / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[2,{TASK_FAILURES_MAX}]").appName("chaos")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = configure(builder).getOrCreate()
    security = security_options(arguments.command_config)
    data = (
        spark.readStream.format("mqd")
        .options(**security)
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(arguments.rows_per_batch))
        .load()
        .selectExpr("key", "concat(partition, '-', offset, ':', decode(value, 'UTF-8')) as value")
    )
    if arguments.fail_percent:
        data = data.mapInArrow(failing(arguments.fail_percent), data.schema)
    writer = (
        data.writeStream.format("mqd")
        .queryName("chaos")
        .options(**security)
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.target)
        .option("deliveryGuarantee", arguments.mode)
        .option("kafka.transaction.timeout.ms", "60000")
        .option("checkpointLocation", str(arguments.checkpoint))
    )
    trigger = {"availableNow": True} if arguments.until_end else {"processingTime": "0 seconds"}
    query = writer.trigger(**trigger).start()
    print("started", flush=True)
    shown = -1
    while True:
        ended = _ended(query)
        progress = query.lastProgress
        if progress and progress["batchId"] > shown and progress["numInputRows"]:
            shown = progress["batchId"]
            print(f"batch {shown} {progress['numInputRows']}", flush=True)
        if ended is not None:
            return ended


def _ended(query: Any) -> int | None:
    from pyspark.errors import StreamingQueryException

    try:
        return 0 if query.awaitTermination(0.1) else None
    except StreamingQueryException as error:
        print(str(error)[:4000], file=sys.stderr, flush=True)
        return FAILED_CODE


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.spark_copy", description="a driver to be killed"
    )
    for name in ("bootstrap", "source", "target", "mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--fail-percent", type=float, default=0.0)
    parser.add_argument("--rows-per-batch", type=int, default=500)
    parser.add_argument("--command-config", type=Path, help="client properties")
    parser.add_argument("--until-end", action="store_true")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
