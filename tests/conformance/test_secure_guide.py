"""docs/SECURE_CLUSTER.md: every block of commands, run as it stands, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.node import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
PAPER = (ROOT / "docs" / "SECURE_CLUSTER.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REFUSAL = "Topic authorization failed."
_REFUSED = re.compile(r"^! (.*)$", re.MULTILINE)
FIRST_PORT, FIRST_PEER_PORT = 29092, 29192
SECONDS = 550
"""The guide promises ten minutes."""


@pytest.mark.mqd_only
@pytest.mark.timeout(SECONDS + 30)
def test_every_command_works(tmp_path: Path) -> None:
    commands = "\n".join(BLOCK.findall(PAPER))
    assert _REFUSED.search(commands) and f"This command fails with `{_REFUSAL}`:" in PAPER
    # bash -e ignores the exit code of a command that ! begins
    commands = _REFUSED.sub(
        r"if \1 2> refused; then echo 'this succeeded: \1' >&2; exit 1; fi\n"
        f"grep -F '{_REFUSAL}' refused >&2 || {{ cat refused >&2; exit 1; }}",
        commands,
    )
    assert commands.count("mqctl") > 10
    ports = free_ports(6)
    commands = commands.replace("29091 +", f"{ports[0] - 1} +")
    for number in range(3):
        commands = commands.replace(str(FIRST_PORT + number), str(ports[number]))
        commands = commands.replace(str(FIRST_PEER_PORT + number), str(ports[number + 3]))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("mqd", "mqd"), ("mqctl", "mqctl"), ("python", "")):
        program = programs / name
        run = f"-m {module}" if module else ""
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {run} "$@"\n')
        program.chmod(0o755)
    stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    done = subprocess.run(
        ["bash", "-ec", stop + commands],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    logs = "".join(path.read_text()[-2000:] for path in tmp_path.glob("node-*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "hello" in done.stdout
    assert "Traceback" not in done.stderr + logs
