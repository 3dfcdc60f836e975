"""The streaming query of test_speculation.py, in a process of its own: a session has one master.

    python speculation_job.py MASTER BOOTSTRAP SOURCE TARGET MODE FOLDER

The first attempt of task 0 stops between its rows. When Spark has started a copy of it on the other
executor, and the copy has passed on its rows, the first attempt continues: they race to the end.
Each attempt leaves files in FOLDER/attempts: `<task>-<attempt>.started`, later `.passed`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def waiting_for_a_copy(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        Path(folder, f"{task}-{attempt}.started").touch()
        for batch in batches:
            yield batch.slice(0, 1)
            deadline = time.monotonic() + 120
            while task == 0 and attempt == 0 and not list(Path(folder).glob("0-[1-9]*.passed")):
                assert time.monotonic() < deadline, "Spark has started no copy of this task"
                time.sleep(0.01)
            yield batch.slice(1)
        Path(folder, f"{task}-{attempt}.passed").touch()

    return work


def main(master: str, bootstrap: str, source: str, target: str, mode: str, folder: str) -> None:
    """Read the source to its end."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    sys.path[:0] = [str(ROOT / "spark"), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    from pyspark.sql import SparkSession

    from pyspark_mqd import configure

    builder = SparkSession.builder.master(master).appName("speculation")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    spark = configure(builder).getOrCreate()
    attempts = Path(folder, "attempts")
    attempts.mkdir()
    data = (
        spark.readStream.format("mqd")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value")
    )
    query = (
        data.mapInArrow(waiting_for_a_copy(str(attempts)), data.schema)
        .writeStream.format("mqd")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("deliveryGuarantee", mode)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
