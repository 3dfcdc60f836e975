"""The tutorial of docs/SPARK.md, each of its commands run as it stands, in the order of the
page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.node import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
PAPER = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
TUTORIAL = PAPER.split("\n## Tutorial\n")[1].split("\n## ")[0]
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READY_SECONDS = 60
BLOCK_SECONDS = 240


def blocks() -> list[tuple[str, str, str]]:
    """(language, "background" or "", text) of every command in the tutorial."""
    return [(found[1], found[2] or "", found[3]) for found in BLOCK.finditer(TUTORIAL)]


def test_the_tutorial_has_commands() -> None:
    assert [language for language, _, _ in blocks()].count("python") >= 2
    assert [kind for _, kind, _ in blocks()].count("background") == 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose virtual environment is active."""
    binaries = str(Path(sys.executable).parent)
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "HOME": str(tmp_path)}


@pytest.fixture
def background() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs in terminals of their own; they end with Ctrl-C."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(READY_SECONDS) == 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_works(
    tmp_path: Path, environment: dict[str, str], background: list[subprocess.Popen[bytes]]
) -> None:
    port = free_ports(3)[0]
    output, exported = "", ""
    for number, (language, kind, text) in enumerate(blocks()):
        command = text.replace("127.0.0.1:9092", f"127.0.0.1:{port}")
        if kind == "background":
            command = command.replace("--port 9092", f"--port {port}").strip()
            log = tmp_path / "background.log"
            with log.open("wb") as file:
                background.append(
                    subprocess.Popen(
                        ["bash", "-c", f"exec {command}"],
                        cwd=tmp_path,
                        env=environment,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,
                    )
                )
            wait_until_healthy(f"127.0.0.1:{port}", environment)
            continue
        if language == "python":
            program = tmp_path / f"block_{number}.py"
            program.write_text(command)
            arguments = [sys.executable, str(program)]
        else:
            arguments = ["bash", "-euo", "pipefail", "-c", f"{exported}\n{command}"]
            exported += "\n".join(re.findall(r"^export .*$", command, re.MULTILINE))
        done = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        output += done.stdout
    assert "\n3500\n" in output, "rows in the archive"
    # amounts 5 and 6 of 3,000 events; the later 500 events have amount 1
    assert "\n856\n" in output, "records in the topic 'large'"


def wait_until_healthy(bootstrap: str, environment: dict[str, str]) -> None:
    """Wait until all nodes of the cluster are registered."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        command = ["mqctl", "--bootstrap", bootstrap, "cluster", "health"]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, done.stdout.decode() + done.stderr.decode()
