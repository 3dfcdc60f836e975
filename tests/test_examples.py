"""The examples run unchanged, all with the same real node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from chaos.node import free_ports
from tests.test_tidy import ROOT

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
PAPERS = ("GROUPS.md", "CLIENT.md")
NEEDS = {
    "pandas_frames.py": ("pyarrow", "pandas"),
    "polars_frames.py": ("pyarrow", "polars"),
    "duckdb_frames.py": ("pyarrow", "duckdb"),
}
"""Modules that an example needs, and mqd does not."""
WAITING = ("failover.py",)
"""Examples that wait some seconds, and use no processor time meanwhile."""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Records older than the default retention are refused: a node may delete them before the
    # example reads them.
    before_max_ms = 7 * 24 * 3600_000
    options = {
        "group.initial.rebalance.delay.ms": 0,
        "log.message.timestamp.before.max.ms": before_max_ms,
    }
    with running_node(tmp_path_factory.mktemp("examples"), options) as address:
        yield address


@contextmanager
def running_node(directory: Path, options: Mapping[str, int]) -> Iterator[str]:
    """A node with broker options for the length of a block; yields its address."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mqd", "dev", "--port", str(port)]
    command += ["--data", str(directory / "data")]
    for key, value in options.items():
        command += ["-o", f"{key}={value}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as node:
        assert node.stdout is not None
        lines = []
        for line in node.stdout:
            lines.append(line)
            if " ready on " in line and "node(s)" in line:
                break
        else:
            raise AssertionError("".join(lines))
        # otherwise it stops when the pipe is full
        reader = threading.Thread(target=node.stdout.read)
        reader.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            node.terminate()
            node.wait(30)
            reader.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_example_runs(bootstrap: str) -> None:
    """Each in two concurrent runs: they must not interfere with each other. Those that wait for a
    session to end run beside all others.
    """
    skipped = [name for name in NEEDS if not all(map(find_spec, NEEDS[name]))]
    with ExitStack() as ends:
        runs = [ends.enter_context(two_runs(name, bootstrap)) for name in WAITING]
        for name in EXAMPLES:
            if name not in (*WAITING, *skipped):
                with two_runs(name, bootstrap) as pair:
                    end_well(name, pair)
        for name, pair in zip(WAITING, runs, strict=True):
            end_well(name, pair)
    if skipped:
        pytest.skip(f"all others ran; the modules of {skipped} are not installed")


@contextmanager
def two_runs(name: str, bootstrap: str) -> Iterator[list[subprocess.Popen[str]]]:
    runs = [
        subprocess.Popen(
            [sys.executable, f"examples/{name}", bootstrap],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]
    try:
        yield runs
    finally:
        for ran in runs:
            ran.kill()
            ran.communicate()


def end_well(name: str, runs: list[subprocess.Popen[str]]) -> None:
    for ran in runs:
        out, err = ran.communicate(timeout=50)
        assert ran.returncode == 0, f"{name}: {out}{err}"
        assert out and not err, (name, err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (
            {"log.retention.ms": 1, "group.initial.rebalance.delay.ms": 0},
            0,
            "the group resumes at minute 30",
        ),
        # the rebalance delay of 3 s is enough for retention
        ({"log.retention.bytes": 1, "log.roll.ms": 1}, 1, ""),
    ],
    ids=["retention.ms", "retention.bytes"],
)
def test_the_seek_example_ends_although_retention_deletes_records(
    tmp_path: Path, options: dict[str, int], code: int, text: str
) -> None:
    """The example's topic has its own retention time, but not its own retention size."""
    with running_node(tmp_path, {**options, "log.retention.check.interval.ms": 100}) as address:
        ran = subprocess.run(
            [sys.executable, "examples/seek_and_lag.py", address],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=50,
            check=False,
        )
    assert ran.returncode == code and text in ran.stdout, ran.stdout + ran.stderr
    assert ("did retention delete them?" in ran.stderr) == bool(code)


def test_the_documents_name_every_example() -> None:
    paper = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAPERS)
    assert EXAMPLES and [name for name in EXAMPLES if f"examples/{name}" not in paper] == []
    assert all((ROOT / word).is_file() for word in set(_mentioned(paper)))


def _mentioned(paper: str) -> Iterator[str]:
    for line in paper.splitlines():
        for word in line.replace("`", " ").replace("(", " ").replace(")", " ").split():
            if word.startswith("examples/") and word.endswith(".py"):
                yield str(Path(word))
