"""Spark starts a copy of a slow task on a second executor: rows are in the topic once.

Spark starts copies on another host only. So the two workers have different names of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from chaos.node import free_ports
from mqd.client.sync import BlockingClient
from tests.spark import speculation_job
from tests.spark.reading import open_transactions, values_in
from tests.spark.streams import fill, query_id_of_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "spark_cluster.sh"
JOB_SECONDS = 300
TASKS = 4

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a cluster of two workers with one core each."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    folder = str(tmp_path_factory.mktemp("spark-cluster"))
    (port,) = free_ports(1)
    environ = os.environ | {"PYTHON": sys.executable}
    started = subprocess.run(
        [str(SCRIPT), "start", "2", str(port), folder], env=environ, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    try:
        yield started.stdout.strip()
    finally:
        subprocess.run([str(SCRIPT), "stop", folder], check=True)


@pytest.mark.parametrize("mode", ["exactly-once", "atomic-batch"])
def test_two_attempts_of_a_task_race(
    mode: str,
    master: str,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = new_topic(TASKS), new_topic(3)
    fill(client, source, range(400), TASKS)
    arguments = (master, cluster.bootstrap, source, target, mode, str(tmp_path))
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))
    }
    done = subprocess.run(
        [sys.executable, speculation_job.__file__, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4_000:]

    attempts = {each.name for each in (tmp_path / "attempts").iterdir()}
    assert {"0-0.started", "0-1.started", "0-1.passed"} <= attempts, "Spark has started no copy"
    assert values_in(client, target) == values_in(client, source)
    query = query_id_of_checkpoint(tmp_path / "checkpoint")
    assert open_transactions(client, f"spark-{query}") == []
