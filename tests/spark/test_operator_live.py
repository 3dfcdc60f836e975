"""lag, offsets, txn and doctor against real brokers and the checkpoint of a real query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.errors import ClientError
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition
from pyspark_mqd.atomic_driver import Driver
from pyspark_mqd.decisions import NO_CONTENTS, Prepared
from pyspark_mqd.pipelines import doctor, lag, offsets, txn
from pyspark_mqd.pipelines.cli import Failure
from pyspark_mqd.transaction_ids import task_id, worker_id

pytestmark = pytest.mark.spark


@pytest.fixture
def call(cluster: Ensemble) -> Callable[..., Any]:
    """Run a command with -o json: what it prints. Failures rise."""

    def run(command: Any, *arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(command, [*arguments, "-b", cluster.bootstrap, "-o", "json"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


def produce(client: BlockingClient, topic: str, count: int) -> None:
    with client.producer() as producer:
        for number in range(count):
            producer.enqueue(topic, b"%d" % number, partition=number % 3)
        producer.flush()


def run_query(spark: Any, cluster: Ensemble, topic: str, checkpoint: Path) -> int:
    """One run over what is there; returns how many rows it read."""
    frame = spark.readStream.format("mqd").option("kafka.bootstrap.servers", cluster.bootstrap)
    frame = frame.options(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20"
    ).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return sum(each["numInputRows"] for each in query.recentProgress)


def test_lag_and_offsets_of_a_query(
    spark: Any,
    client: BlockingClient,
    cluster: Ensemble,
    new_topic: Callable[..., str],
    call: Callable[..., Any],
    tmp_path: Path,
) -> None:
    topic, checkpoint = new_topic(3), tmp_path / "checkpoint"
    produce(client, topic, 30)
    assert run_query(spark, cluster, topic, checkpoint) == 30
    where = ("--checkpoint", str(checkpoint))
    assert call(lag.command, *where)["total_lag"] == 0
    produce(client, topic, 6)
    shown = call(lag.command, *where)
    assert (shown["total_lag"], shown["min_lag"], shown["avg_lag"], shown["max_lag"]) == (
        6,
        2,
        2.0,
        2,
    )
    assert 0 <= shown["max_behind_seconds"] < 60
    assert [row["next"] for row in call(offsets.command, "show", *where)["rows"]] == [10, 10, 10]

    target = json.dumps({topic: {"0": 4, "1": -2}})
    plan = call(offsets.command, "reset", *where, "--to", target, "--quiet-seconds", "0")
    assert [(row["from"], row["to"]) for row in plan["rows"]] == [(10, 4), (10, 0)]
    assert call(lag.command, *where)["total_lag"] == 6  # only a plan
    with pytest.raises(Failure, match="The query may run"):
        call(offsets.command, "reset", *where, "--to", target, "--yes")
    with pytest.raises(
        Failure, match=f"Offset 13 of '{topic}-2' is outside of the log, which has 0 to 12"
    ):
        call(offsets.command, "reset", *where, "--to", json.dumps({topic: {"2": 13}}))
    done = call(offsets.command, "reset", *where, "--to", target, "--quiet-seconds", "0", "--yes")
    assert done["changed"] is True
    assert call(lag.command, *where, "--no-time")["total_lag"] == 8 + 12 + 2
    assert run_query(spark, cluster, topic, checkpoint) == 8 + 12 + 2
    assert call(lag.command, *where)["total_lag"] == 0

    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as if the driver had died before the batch was done
    with pytest.raises(Failure, match=f"Batch {newest.name} is planned and not done"):
        call(offsets.command, "reset", *where, "--to", "earliest", "--quiet-seconds", "0", "--yes")


def test_lag_of_a_group(
    client: BlockingClient, new_topic: Callable[..., str], call: Callable[..., Any]
) -> None:
    topic = new_topic(3)
    produce(client, topic, 30)
    client.admin.alter_group_offsets(f"{topic}-group", {TopicPartition(topic, 0): 4})
    shown = call(lag.command, "--group", f"{topic}-group", "--no-time")
    assert [row["lag"] for row in shown["rows"]] == [6, 10, 10]


def test_a_transaction_of_a_dead_task_is_aborted(
    client: BlockingClient, new_topic: Callable[..., str], call: Callable[..., Any]
) -> None:
    topic = new_topic(1)
    name = task_id(topic, 0)
    with client.transactional_producer(name) as producer:
        producer.begin()
        producer.send(topic, b"never committed", partition=0)
        listed = call(txn.command, "list", "--query", topic)
        assert [
            (row["transactional_id"], row["state"], row["fate"], row["partitions"])
            for row in listed
        ] == [(name, "Ongoing", "to abort", [f"{topic}-0"])]
        with pytest.raises(Failure, match="needs a confirmation"):
            call(txn.command, "abort", "--query", topic)
        assert call(txn.command, "abort", "--query", topic, "--yes") == {
            "aborted": [name],
            "left_decided": [],
        }
        with pytest.raises(ClientError):
            producer.commit()
    assert call(txn.command, "list", "--query", topic) == []


def prepare(client: BlockingClient, topic: str, name: str) -> Prepared:
    """A prepared transaction with one record; its producer is gone."""
    import numpy as np
    import pyarrow as pa

    from mqd.client.columns import encode

    rows = pa.array([name.encode()], pa.binary())
    with client.raw_producer(transactional_id=name, two_phase=True) as producer:
        producer.begin()
        for batch in encode(rows, rows, np.zeros(1, np.int32), timestamps_ms=0):
            producer.send(topic, batch)
        return Prepared(*producer.prepare()[:3])


def committed(client: BlockingClient, topic: str) -> list[bytes | None]:
    with client.consumer(
        {TopicPartition(topic, 0): "beginning"}, end="end", read_committed=True
    ) as consumer:
        return [record.key for batch in consumer for record in batch.records]


def test_decided_transactions_are_committed_and_never_aborted(
    client: BlockingClient, new_topic: Callable[..., str], call: Callable[..., Any]
) -> None:
    topic = new_topic(1, {"retention.ms": "-1"})
    query = topic
    decided, orphan = (worker_id(query, letter * 12, 0) for letter in "ab")
    driver = Driver(client, query, topic)
    claim = driver.plan("query-id")
    transaction = prepare(client, topic, decided)
    driver._end_all = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]  # replaced by the test
    with pytest.raises(KeyboardInterrupt):  # the driver dies right after its decision
        driver.commit(0, "query-id", claim, [transaction], NO_CONTENTS)
    prepare(client, topic, orphan)

    listed = {
        row["transactional_id"]: row["fate"] for row in call(txn.command, "list", "--query", query)
    }
    assert (listed[decided], listed[orphan]) == ("decided: to commit", "to abort")
    done = call(txn.command, "abort", "--query", query, "--yes")
    assert done == {"aborted": [orphan], "left_decided": [decided]}
    assert committed(client, topic) == []
    done = call(txn.command, "commit", "--query", query, "--yes")
    assert done == {"query": query, "batch": 0, "committed": [decided]}
    assert committed(client, topic) == [decided.encode()]
    with pytest.raises(Failure, match="has no decided batch"):
        call(txn.command, "commit", "--query", query, "--yes")


def test_a_driver_that_is_alive_cannot_decide_what_was_aborted(
    client: BlockingClient, new_topic: Callable[..., str], call: Callable[..., Any]
) -> None:
    topic = new_topic(1, {"retention.ms": "-1"})
    driver = Driver(client, topic, topic)
    claim = driver.plan("query-id")
    transaction = prepare(client, topic, worker_id(topic, "a" * 12, 0))
    assert call(txn.command, "abort", "--query", topic, "--yes")["aborted"] == [
        transaction.transactional_id
    ]
    with pytest.raises(Exception, match=topic):
        driver.commit(0, "query-id", claim, [transaction], NO_CONTENTS)
    assert committed(client, topic) == []
    assert call(txn.command, "list", "--query", topic) == []


def test_abort_leaves_a_run_alone_that_starts_meanwhile(
    client: BlockingClient,
    new_topic: Callable[..., str],
    call: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1, {"retention.ms": "-1"})
    driver = Driver(client, topic, topic)
    driver.plan("query-id")
    dead, alive = (worker_id(topic, letter * 12, 0) for letter in "ab")
    prepare(client, topic, dead)
    started: list[tuple[str, Prepared]] = []
    abort_all = Driver._abort_all

    def starting(self: Driver, transactions: Any) -> None:
        abort_all(self, transactions)
        monkeypatch.undo()
        started.append((driver.plan("query-id"), prepare(client, topic, alive)))

    monkeypatch.setattr(Driver, "_abort_all", starting)
    assert call(txn.command, "abort", "--query", topic, "--yes")["aborted"] == [dead]
    ((claim, transaction),) = started
    driver.commit(0, "query-id", claim, [transaction], NO_CONTENTS)
    assert committed(client, topic) == [alive.encode()]


def test_the_doctor_finds_a_healthy_cluster_healthy(
    new_topic: Callable[..., str], call: Callable[..., Any]
) -> None:
    topic = new_topic(3)
    found = call(doctor.command, "--guarantee", "atomic-batch", "--topics", topic)
    assert found["healthy"] is True
    states = {each["check"]: each["state"] for each in found["findings"]}
    assert {
        states[name]
        for name in ("java", "brokers", "reading", "exactly-once", "atomic-batch", f"topic {topic}")
    } == {"ok"}
    missing = call(doctor.command, "--topics", "no-such-topic", code=1)
    assert any(
        "no-such-topic" in each["what"] and each["state"] == "failed"
        for each in missing["findings"]
    )
