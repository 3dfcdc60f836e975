"""The examples run as they are shown, each against the same real node, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes import free_ports
from tests.test_tidy import ROOT

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
READY_SECONDS = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("examples")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mqd", "dev", "--port", str(port), "--data", str(directory / "data")]
    command += ["-o", "group.initial.rebalance.delay.ms=0"]
    said = directory / "said"
    with open(said, "wb") as file, subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file) as node:
        try:
            deadline = time.monotonic() + READY_SECONDS
            while " ready on " not in said.read_text():
                assert node.poll() is None and time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            node.terminate()
            node.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(bootstrap: str, name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, f"examples/{name}", bootstrap], cwd=ROOT, capture_output=True, text=True, timeout=50, env=environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout and not ran.stderr


def test_the_paper_names_every_example() -> None:
    paper = (ROOT / "docs" / "GROUPS.md").read_text(encoding="utf-8")
    assert EXAMPLES and [name for name in EXAMPLES if f"examples/{name}" not in paper] == []
    assert all((ROOT / word).is_file() for word in set(_mentioned(paper)))


def _mentioned(paper: str) -> Iterator[str]:
    for line in paper.splitlines():
        for word in line.replace("`", " ").replace("(", " ").replace(")", " ").split():
            if word.startswith("examples/") and word.endswith(".py"):
                yield str(Path(word))
