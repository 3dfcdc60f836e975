"""docs/CLIENT.md: each of its programs runs unchanged, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.node import Node

pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = (ROOT / "docs" / "CLIENT.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
PROGRAM_SECONDS = 50
EXPECTED = (r"^9999 b'customer-99' b'9999'$", r"^\d+ b'0'$", r"^rows: 2$")
"""A line that each program prints."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    running = Node(tmp_path / "node")
    running.start()
    yield running
    running.stop()


@pytest.mark.slow
def test_every_program_runs(node: Node, tmp_path: Path) -> None:
    assert len(PROGRAMS) == len(EXPECTED)
    for number, (text, expected) in enumerate(zip(PROGRAMS, EXPECTED, strict=True)):
        assert "127.0.0.1:9092" in text
        program = tmp_path / f"program_{number}.py"
        program.write_text(text.replace("127.0.0.1:9092", node.address))
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        assert re.search(expected, done.stdout, re.MULTILINE), f"{text}\n{done.stdout[-500:]}"
