"""Commands of mqd-spark as processes of their own, on a real cluster: what they print, and
write.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient, NewTopic
from tests.spark.conftest import ROOT
from tests.spark.test_pipeline_copies import produce, records
from tests.spark.test_pipeline_tables import event, user

COMMAND_SECONDS = 200
WAIT_SECONDS = 120
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java, and this machine has none",
    ),
]


def command(bootstrap: str, *arguments: str | Path) -> list[str]:
    given = map(str, arguments)
    shared = ("-b", bootstrap, "-o", "json", "--master", "local[2]")
    return [sys.executable, "-m", "pyspark_mqd.pipelines", *given, *shared]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


def finished(bootstrap: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    return subprocess.run(
        command(bootstrap, *arguments),
        env=environment(), capture_output=True, text=True, timeout=COMMAND_SECONDS,
    )  # fmt: skip


@pytest.fixture
def run(cluster: Ensemble) -> Callable[..., Any]:
    """Run a command: what it prints, with exit code 0; or with another one its errors."""

    def call(*arguments: str | Path, code: int = 0) -> Any:
        done = finished(cluster.bootstrap, *arguments)
        assert done.returncode == code, done.stderr[-4_000:]
        return json.loads(done.stdout) if code == 0 else done.stderr

    return call


@contextmanager
def running(bootstrap: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until SIGTERM."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command(bootstrap, *arguments), env=environment(), stdout=pipe, stderr=pipe, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until `condition` holds. Fails where the command ends, or after a deadline."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"the command ended: {process.communicate()[1][-4_000:]}")
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.2)


def topics_of(client: BlockingClient) -> dict[str, int]:
    return {each.name: len(each.partitions) for each in client.admin.list_topics()}


def test_mirror_makes_topics_and_partitions_that_appear_later(
    cluster: Ensemble, client: BlockingClient, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    first = new_topic(2)
    later = f"{first}-later"
    produce(client, first, range(40), 2)

    def copied(counts: dict[str, int]) -> Callable[[], bool]:
        def check() -> bool:
            known = topics_of(client)
            return all(
                known.get(f"copy.{name}") == count
                and records(client, f"copy.{name}", count) == records(client, name, count)
                for name, count in counts.items()
            )

        return check

    with running(
        cluster.bootstrap, "mirror", "--topics-pattern", f"^{first}", "--to", cluster.bootstrap,
        *("--prefix", "copy.", "--checkpoint", tmp_path, "--trigger", "1 second"),
    ) as process:  # fmt: skip
        wait_for(process, copied({first: 2}))
        client.admin.create_topics([NewTopic(later, 3)])
        produce(client, later, range(60), 3)
        client.admin.add_partitions({first: 4})
        wait_for(process, lambda: topics_of(client)[first] == 4)
        produce(client, first, range(40, 80), 4)
        wait_for(process, copied({first: 4, later: 3}))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=COMMAND_SECONDS)
    assert process.returncode == 143, err[-4_000:]
    summary = json.loads(out)
    assert summary["topics"] == [f"{name} to copy.{name}" for name in (first, later)]
    assert summary["created"] == [f"copy.{first}", f"copy.{later}"]


def test_mirror_and_replay_with_atomic_batch(
    client: BlockingClient,
    cluster: Ensemble,
    new_topic: Callable[..., str],
    run: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source, again = new_topic(3), new_topic(3)
    produce(client, source, range(300), 3)
    atomic = ("--delivery-guarantee", "atomic-batch")
    mirrored = run(
        "mirror", "--topics", source, "--to", cluster.bootstrap, "--prefix", "copy.", *atomic,
        *("--checkpoint", tmp_path / "mirror", "--available-now"),
        *("--max-offsets-per-trigger", "120"),
    )  # fmt: skip
    assert mirrored["records"] == 300
    assert records(client, f"copy.{source}", 3) == records(client, source, 3)

    lake = tmp_path / "lake"
    run(
        "archive", "--topics", source, "--to", lake, "--available-now",
        *("--checkpoint", tmp_path / "archive"),
    )  # fmt: skip
    replayed = run("replay", "--from", lake, "--topic", source, "--to", again, *atomic)
    assert replayed == {"topic": again, "partitions": 3, "records": 300}
    assert records(client, again, 3) == records(client, source, 3)
    refused = run("replay", "--from", lake, "--topic", source, "--to", again, code=2)
    assert "is not empty" in refused and "--yes" in refused
    part = ("--from-offset", "10", "--to-offset", "20", "--partition", "1", "--yes")
    replayed = run("replay", "--from", lake, "--topic", source, "--to", again, *part)
    assert replayed == {"topic": again, "partitions": 1, "records": 10}


def test_rollup(
    client: BlockingClient, new_topic: Callable[..., str], run: Callable[..., Any], tmp_path: Path
) -> None:
    topic, target = new_topic(2), new_topic(1)
    begun = int(datetime.now(UTC).timestamp()) // 60 * 60_000 - 600_000
    with client.producer() as producer:
        for number in range(90):
            value = json.dumps({"shop": "ab"[number % 2], "price": 2}).encode()
            moment = begun + number * 2_000  # thirty orders a minute
            producer.enqueue(topic, value, partition=number % 2, timestamp=moment)
        producer.flush()
    shared = ("rollup", "--topics", topic, "--by", "$.shop", "--available-now")
    what = ("--aggregate", "sum:$.price=revenue", "--watermark", "0 seconds")
    done = run(*shared, *what, "--to-topic", target, "--checkpoint", tmp_path / "topic")
    assert done == {"to": target, "records": 90}
    values = [json.loads(value or b"") for _, value, _, _ in records(client, target, 1)[0]]
    assert sorted(
        (each["window_start"][14:16], each["shop"], each["revenue"]) for each in values
    ) == [
        (f"{minute:02}", shop, 30.0)
        for minute in sorted((begun // 60_000 + step) % 60 for step in range(2))
        for shop in "ab"
    ]  # the third minute is still open
    folder = tmp_path / "windows"
    done = run(*shared, *what, "--to-parquet", folder, "--checkpoint", tmp_path / "parquet")
    assert done == {"to": str(folder), "records": 90}
    assert "does not exist" in run(
        *shared, "--to-topic", f"{target}-none", "--checkpoint", tmp_path / "none", code=1
    )


def test_snapshot_shows_progress(
    cluster: Ensemble, client: BlockingClient, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2, {"cleanup.policy": "compact"})
    with client.producer() as producer:
        for number in range(40):
            producer.enqueue(topic, b"%d" % number, key=b"k%d" % (number % 10))
        producer.flush()
    done = finished(cluster.bootstrap, "snapshot", "--topics", topic, "--to", tmp_path / "latest")
    assert done.returncode == 0, done.stderr[-4_000:]
    assert json.loads(done.stdout) == {"folder": str(tmp_path / "latest"), "keys": 10}
    assert re.search(r"^snapshot  [1-9]\d* tasks  ", done.stderr, re.MULTILINE)


def test_upsert(
    client: BlockingClient, new_topic: Callable[..., str], run: Callable[..., Any], tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    topic = new_topic(1)
    values = [
        event("c", 1, after=user(1, "one")), event("c", 2, after=user(2, "two")),
        event("t", 3), "{broken", event("u", 4, after={"name": "no key"}),
        event("d", 5, before=user(2, "two")),
    ]  # fmt: skip
    with client.producer() as producer:
        for value in values:
            producer.enqueue(topic, value.encode())
        producer.flush()
    given = (
        "upsert", "--topics", topic, "--to", tmp_path / "table", "--key", "id", "--available-now",
        "--checkpoint", tmp_path / "state",
    )  # fmt: skip
    error = run(*given, code=1)
    assert "1 malformed" in error and "1 truncate" in error and "1 without key" in error
    assert error.endswith("Re-run with --skip-malformed to leave out such events and count them.\n")
    counts = run(*given, "--skip-malformed")
    assert counts == {
        "events": 6, "inserted": 1, "updated": 0, "deleted": 0, "no_row": 0,
        "malformed": 1, "truncate": 1, "without_key": 1, "bad_column": 0,
    }  # fmt: skip
    rows = deltalake.DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "one")]
