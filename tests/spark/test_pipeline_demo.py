"""`mqd-spark demo`: a table fills, and Ctrl-C leaves no process and no folder behind."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark_mqd.pipelines.demo import address_in, order

SECONDS = 240.0


def test_orders() -> None:
    key, value = order(7, random.Random(1))
    assert key.startswith(b"customer-") and json.loads(value)["order"] == 7


def test_the_address_of_the_cluster() -> None:
    ready = "mqd 0.1.0: 3 node(s) ready on 127.0.0.1:9092,127.0.0.1:9094, data in x (Ctrl-C stops)"
    assert address_in(f"node 1 | ...\n{ready}\n") == "127.0.0.1:9092,127.0.0.1:9094"
    assert address_in("node 1 | mqd node 1 ready on 127.0.0.1:9092") is None


def processes_with(mark: str) -> list[int]:
    """Processes whose environment has the mark; zombies have none."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {SECONDS:.0f} s for {what}"
        time.sleep(0.2)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    mark = f"MQD_DEMO_TEST={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    environ = {**os.environ, name: value, "TMPDIR": str(tmp_path)}
    output = tmp_path / "output"
    with open(output, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_mqd.pipelines", "demo", "--rate", "100"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )

    def is_full() -> bool:
        assert process.poll() is None, output.read_text()
        text = output.read_text()
        archived = [line.split()[-1] for line in text.splitlines() if "orders archived" in line]
        return "REVENUE" in text and any(each not in ("0", "-") for each in archived)

    try:
        wait_for(is_full, "the table and the archive to fill")
        assert len(processes_with(mark)) >= 3  # the driver, the JVM, the node
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(SECONDS) == 0, output.read_text()[-2_000:]
        wait_for(lambda: processes_with(mark) == [], "the processes to end")
        assert not list(tmp_path.glob("mqd-demo-*"))
        assert "Traceback" not in output.read_text()
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)
