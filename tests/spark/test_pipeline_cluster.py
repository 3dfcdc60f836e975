"""A standalone Spark cluster of two workers on this machine runs archive and mirror by
spark-submit.

The commands are those of docs/SPARK.md. The workers get our modules from the zip archive.
"""

from __future__ import annotations

import json
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
from pyspark_mqd.pipelines.package import write_package
from tests.spark.test_pipeline_copies import produce, records

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "spark_cluster.sh"
SUBMIT_SECONDS = 400

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_000)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a cluster of two workers."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    folder = tmp_path_factory.mktemp("spark-cluster")
    (port,) = free_ports(1)
    environ = {**os.environ, "PYTHON": sys.executable}
    script = [str(SCRIPT)]
    started = subprocess.run(
        [*script, "start", "2", str(port), str(folder)], env=environ, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    try:
        yield started.stdout.strip()
    finally:
        subprocess.run([*script, "stop", str(folder)], check=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    return folder


def submit(master: str, package: Path, *arguments: str) -> dict[str, object] | list[object]:
    """Run a command by spark-submit in another folder, without our sources on the path."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_GATEWAY", "PYTHONPATH", "SPARK_"))
    }
    environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", master, "--total-executor-cores", "2", "--executor-memory", "512m"),
            *("--conf", "spark.ui.enabled=false"),
            *("--py-files", str(package / "pyspark_mqd.zip"), str(package / "main_submit.py")),
            *arguments,
            *("-o", "json"),
        ],
        cwd=package,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SUBMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, object] | list[object] = json.loads(done.stdout)
    return found


def test_archive_and_mirror(
    master: str,
    package: Path,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    from pyarrow import dataset

    source = new_topic(4)
    produce(client, source, range(2_000), 4)
    shared = ("-b", cluster.bootstrap, "--topics", source, "--available-now")
    archived = submit(
        master, package, "archive", *shared,
        *("--to", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "archive")),
    )  # fmt: skip
    assert isinstance(archived, list)
    (row,) = archived
    assert isinstance(row, dict) and (row["topic"], row["records"]) == (source, 2_000)
    table = dataset.dataset(tmp_path / "lake", partitioning="hive").to_table()
    places = zip(table["partition"].to_pylist(), table["offset"].to_pylist())
    assert sorted(places) == [(p, offset) for p in range(4) for offset in range(500)]

    mirrored = submit(
        master, package, "mirror", *shared, "--to", cluster.bootstrap, "--prefix", "copy.",
        *("--checkpoint", str(tmp_path / "mirror")),
    )  # fmt: skip
    assert isinstance(mirrored, dict) and mirrored["records"] == 2_000
    assert records(client, f"copy.{source}", 4) == records(client, source, 4)
