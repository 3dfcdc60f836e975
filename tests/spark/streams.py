"""A streaming query from one topic to another, which tests run, break and resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(client: BlockingClient, topic: str, numbers: Iterable[int], partitions: int) -> None:
    """Records `key-n`, `value-n`, in partition n modulo `partitions`."""
    with client.producer() as producer:
        for number in numbers:
            producer.enqueue(
                topic,
                b"value-%d" % number,
                key=b"key-%d" % number,
                partition=number % partitions,
            )
        producer.flush()


@dataclass
class Stream:
    """The query. `run` reads what is there, and returns at its end."""

    spark: SparkSession
    cluster: Ensemble
    source: str
    target: str
    checkpoint: Path
    options: dict[str, str]

    def run(
        self,
        *,
        fail_on: bytes | None = None,
        value: str = "value",
        maxOffsetsPerTrigger: str | None = None,  # noqa: N803
        reading: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """One run to the end of the source. `fail_on`: the task with this value fails.

        `reading`: options of the source; `options`: of the sink.
        """
        reader = (
            self.spark.readStream.format("mqd")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .options(**reading or {})
        )
        if maxOffsetsPerTrigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", maxOffsetsPerTrigger)
        data = reader.load().selectExpr("key", f"{value} as value")
        if fail_on is not None:
            data = data.mapInArrow(failing_on(fail_on), data.schema)
        writer = (
            data.writeStream.format("mqd")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap)
            .option("topic", self.target)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**self.options, **options)
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(self, batch_id: int) -> None:
        """Remove the batch from Spark's log of completed batches: the next run repeats it."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    @contextmanager
    def older_checkpoint(self, keep: Path) -> Iterator[None]:
        """Restore the checkpoint as it was before this block; the newest one is in `keep` then."""
        older = keep.with_name(f"{keep.name}-older")
        shutil.copytree(self.checkpoint, older)
        yield
        self.checkpoint.rename(keep)
        older.rename(self.checkpoint)


def failing_on(value: bytes) -> Callable[[Any], Any]:
    """A function for mapInArrow that raises when it meets a value."""

    def check(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if value in batch.column("value").to_pylist():
                raise RuntimeError("this task fails")

    return check


def query_id_of_checkpoint(checkpoint: Path) -> str:
    """The id that Spark gave the query."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
