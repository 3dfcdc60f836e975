"""A query that is stopped within a call of foreachBatch ends without a Java stack trace.

Spark searches the message of the interrupted call with a regular expression that recurses once a
character (`StreamExecution.PROXY_ERROR`). With Java's default stack it ends in a StackOverflowError
and a trace of 1,024 lines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import threading
import time

from pyspark_mqd.pipelines.cli import Settings
from pyspark_mqd.pipelines.session import session

begun = threading.Event()


def fail(frame, number):
    begun.set()
    while query.isActive:
        time.sleep(0.01)
    raise RuntimeError(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect" + " trace" * 3_000
    )


with session(Settings(master="local[1]"), "stopped", brokers=False) as spark:
    query = spark.readStream.format("rate").load().writeStream.foreachBatch(fail).start()
    begun.wait()
    query.stop()
    print("stopped")
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_no_stack_trace(tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'spark'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "StackOverflowError" not in done.stderr, done.stderr[:3_000]
    assert done.stdout == "stopped\n", done.stderr[-3_000:]
