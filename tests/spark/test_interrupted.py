"""Ctrl-C and SIGTERM to the whole process group, as a terminal or systemd sends them.

The command exits with 130 or 143, without a stack trace, and no Java process is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 120
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
STARTING = """
from pyspark_mqd.pipelines.cli import Settings, guarded
from pyspark_mqd.pipelines.session import session

def main():
    with session(Settings(master="local[1]"), "starting", brokers=False) as spark:
        print("started", flush=True)

guarded(main)
"""
RUNNING = """
from pyspark_mqd.pipelines.cli import Settings, guarded
from pyspark_mqd.pipelines.progress import Progress, run_query
from pyspark_mqd.pipelines.session import session

def main():
    with session(Settings(master="local[1]"), "running", brokers=False) as spark:
        rows = spark.readStream.format("rate").load()
        query = rows.writeStream.foreachBatch(lambda frame, number: frame.count()).start()
        with Progress("running") as progress:
            run_query(query, progress, lambda: print("polled", flush=True) or 1)

guarded(main)
"""
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java, and this machine has none",
    ),
]


def started(program: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        [sys.executable, str(folder / "program.py"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'spark'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(group: int) -> list[str]:
    """The programs of a session's processes that have not ended."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(group)], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def ended(process: subprocess.Popen[str], number: int) -> tuple[str, str]:
    """What the process has printed, after its end; its session is empty then."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == CODES[signal.Signals(number)], err[-3_000:]
        deadline = time.monotonic() + DEADLINE_S
        while left := members(process.pid):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    for trace in ("Exception", "Traceback", "\tat "):
        assert trace not in err, err[-3_000:]
    return out, err


@pytest.mark.parametrize("number", list(CODES))
def test_while_java_starts(number: int, tmp_path: Path) -> None:
    process = started(STARTING, tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    while not any("org.apache.spark.deploy.SparkSubmit" in each for each in members(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, number)
    out, _ = ended(process, number)
    assert out == ""


@pytest.mark.parametrize("number", list(CODES))
def test_while_a_query_runs(number: int, tmp_path: Path) -> None:
    process = started(RUNNING, tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "polled\n"
    os.killpg(process.pid, number)
    ended(process, number)


FAILING = """
import sys

from pyspark.sql.functions import udf
from pyspark.sql.types import LongType
from pyspark_mqd.pipelines.cli import Settings, guarded
from pyspark_mqd.pipelines.progress import Progress, run_query
from pyspark_mqd.pipelines.session import session

@udf(LongType())
def fail(value):
    raise RuntimeError("Row 1 is malformed.")

def main():
    settings = Settings(master="local[1]", verbose="--verbose" in sys.argv)
    with session(settings, "failing", brokers=False) as spark:
        rows = spark.readStream.format("rate").load().select(fail("value"))
        query = rows.writeStream.format("noop").start()
        with Progress("failing") as progress:
            run_query(query, progress)

guarded(main)
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_a_failure_is_one_sentence_without_java_traces(verbose: bool, tmp_path: Path) -> None:
    process = started(FAILING, tmp_path, *(["--verbose"] if verbose else []))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, err[-3_000:]
    assert ("\tat " in err) == verbose, err[-3_000:]
    lines = err.splitlines()
    assert "error: Row 1 is malformed." in lines
    assert verbose or len(lines) < 12, err[-3_000:]
