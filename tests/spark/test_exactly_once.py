"""Mode exactly-once on a real cluster: restarts, failing tasks, replays, markers that expire."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.exactly_once import RUN, read_markers
from pyspark_mqd.sink_tasks import local_property
from pyspark_mqd.transaction_ids import batch_group, identity_of, task_id
from tests.spark.reading import ends_of, open_transactions, rows_in, values_in
from tests.spark.source_tools import delete_records
from tests.spark.streams import Stream, fill, query_id_of_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewTopic = Callable[..., str]


@pytest.fixture
def stream(spark: SparkSession, cluster: Ensemble, new_topic: NewTopic, tmp_path: Path) -> Stream:
    spark.conf.set("spark.sql.adaptive.streaming.stateless.enabled", "false")
    options = {"deliveryGuarantee": "exactly-once"}
    return Stream(spark, cluster, new_topic(8), new_topic(3), tmp_path / "checkpoint", options)


def test_eight_tasks_into_three_partitions_with_restarts(
    client: BlockingClient, stream: Stream
) -> None:
    fill(client, stream.source, range(4_000), 8)
    stream.run(maxOffsetsPerTrigger="1600")
    fill(client, stream.source, range(4_000, 5_000), 8)
    stream.run()

    assert values_in(client, stream.target) == values_in(client, stream.source)
    query = identity_of(query_id_of_checkpoint(stream.checkpoint))
    assert open_transactions(client, query) == []
    assert ends_of(client, stream.target) == ends_of(client, stream.target, committed=False)
    markers = list(read_markers(client, [task_id(query, task) for task in range(8)]).values())
    assert [marker and marker.batch_id for marker in markers] == [3] * 8
    assert sum(marker.rows for marker in markers if marker) == 1_000


def test_the_last_batch_replayed_writes_nothing(client: BlockingClient, stream: Stream) -> None:
    fill(client, stream.source, range(800), 8)
    stream.run()
    stream.forget_commit(0)
    stream.run()

    assert len(values_in(client, stream.target)) == 800


def test_failing_tasks_double_nothing(client: BlockingClient, stream: Stream) -> None:
    fill(client, stream.source, range(800), 8)
    with pytest.raises(Exception, match="this task fails"):
        stream.run(fail_on=b"value-700")
    assert 0 < len(values_in(client, stream.target)) < 800, "tasks commit for themselves"
    stream.run()

    assert values_in(client, stream.target) == values_in(client, stream.source)


def test_expired_markers_stop_a_resumed_query(client: BlockingClient, stream: Stream) -> None:
    fill(client, stream.source, range(80), 8)
    stream.run()
    query = identity_of(query_id_of_checkpoint(stream.checkpoint))
    groups = [task_id(query, task) for task in range(8)] + [batch_group(query, 0)]
    assert all(outcome is None for outcome in client.admin.delete_groups(groups).values())
    fill(client, stream.source, range(80, 160), 8)

    with pytest.raises(Exception, match="the marker of batch 0 is missing"):
        stream.run()
    assert len(values_in(client, stream.target)) == 80
    stream.run(acceptMissingMarkers="true")
    assert values_in(client, stream.target) == values_in(client, stream.source)


@pytest.mark.slow
def test_an_older_checkpoint_stops_the_query_before_it_doubles_rows(
    client: BlockingClient, stream: Stream, tmp_path: Path
) -> None:
    """Batch 1 has rows of partition 0, and batch 2 those of partition 1: both in task 0."""
    fill(client, stream.source, range(16), 8)
    stream.run()
    with stream.older_checkpoint(tmp_path / "newest"):
        for first in (16, 17):
            fill(client, stream.source, [first], 8)
            stream.run()
    with pytest.raises(Exception, match="has the marker of batch 2: the checkpoint is older"):
        stream.run()
    assert values_in(client, stream.target) == values_in(client, stream.source)

    shutil.rmtree(stream.checkpoint)
    (tmp_path / "newest").rename(stream.checkpoint)
    fill(client, stream.source, range(18, 32), 8)
    stream.run()
    assert values_in(client, stream.target) == values_in(client, stream.source)


@pytest.mark.slow
def test_a_batch_that_an_older_checkpoint_plans_again_doubles_nothing(
    client: BlockingClient, stream: Stream, tmp_path: Path
) -> None:
    """Batch 1 has rows of partition 1 in task 0; then partition 0 has new rows, too."""
    fill(client, stream.source, range(16), 8)
    stream.run()
    with stream.older_checkpoint(tmp_path / "newest"):
        fill(client, stream.source, [17], 8)
        stream.run()
    fill(client, stream.source, [16], 8)
    with pytest.raises(Exception, match=r"planned it again|an older checkpoint was restored"):
        stream.run()
    assert len(values_in(client, stream.target)) == 17


def test_other_rows_in_a_second_run_stop_the_query(client: BlockingClient, stream: Stream) -> None:
    fill(client, stream.source, range(80), 8)
    stream.run()
    stream.forget_commit(0)

    with pytest.raises(Exception, match="the plan is not deterministic"):
        stream.run(value="concat(cast(value as string), uuid())")
    assert len(values_in(client, stream.target)) == 80


def test_rows_of_a_source_that_has_shrunk_are_accepted_for_one_start(
    client: BlockingClient, stream: Stream
) -> None:
    """Retention deletes records of the last batch, and the batch runs again."""
    fill(client, stream.source, range(80), 8)
    stream.run()
    stream.forget_commit(0)
    delete_records(client, stream.source, {3: 4})

    with pytest.raises(Exception, match="has lost records between the two runs"):
        stream.run(reading={"failOnDataLoss": "false"})
    stream.run(reading={"failOnDataLoss": "false"}, acceptChangedRows="true")
    assert len(values_in(client, stream.target)) == 80


def test_a_first_batch_is_not_run_again_after_markers_have_expired(
    client: BlockingClient, stream: Stream
) -> None:
    """Batch 0 has no batch before it: the checkpoint says when it was planned."""
    fill(client, stream.source, range(80), 8)
    stream.run()
    stream.forget_commit(0)
    query = identity_of(query_id_of_checkpoint(stream.checkpoint))
    groups = [task_id(query, task) for task in range(8)] + [batch_group(query, 0)]
    assert all(outcome is None for outcome in client.admin.delete_groups(groups).values())
    entry = stream.checkpoint / "offsets" / "0"
    planned = r'"batchTimestampMs":\d+'
    entry.write_text(re.sub(planned, '"batchTimestampMs":1700000000000', entry.read_text()))
    (stream.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)

    with pytest.raises(Exception, match="Batch 0 was planned and not completed"):
        stream.run()
    assert len(values_in(client, stream.target)) == 80


def test_tasks_know_the_run_of_their_query(spark: SparkSession, tmp_path: Path) -> None:
    """So the driver lists all groups once in a run."""

    def runs(batches: Any) -> Any:
        for batch in batches:
            names = [local_property(RUN)] * len(batch)
            yield pa.RecordBatch.from_pydict({"run": pa.array(names, pa.string())})

    data = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    writer = data.mapInArrow(runs, "run string").writeStream.format("parquet")
    found = []
    for _ in range(2):
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        found.append(str(query.runId))
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert {row.run for row in rows} == set(found) and len(set(found)) == 2


def test_adaptive_execution_is_refused(
    spark: SparkSession, client: BlockingClient, stream: Stream
) -> None:
    fill(client, stream.source, range(8), 8)
    spark.conf.unset("spark.sql.adaptive.streaming.stateless.enabled")

    with pytest.raises(Exception, match="Adaptive execution may choose another number of tasks"):
        stream.run()
    assert rows_in(client, stream.target) == {0: [], 1: [], 2: []}


def test_markers_of_another_checkpoint_stop_the_query(
    client: BlockingClient, stream: Stream, tmp_path: Path
) -> None:
    fill(client, stream.source, range(8), 8)
    options: dict[str, Any] = {"exactlyOnceId": f"orders-{stream.target[-6:]}-x"}
    stream.run(**options)
    stream.checkpoint = tmp_path / "another"

    with pytest.raises(Exception, match="the checkpoint is another one"):
        stream.run(**options)
    assert len(values_in(client, stream.target)) == 8
