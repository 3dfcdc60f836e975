"""Runs the commands of a guide in docs/, as a reader would: one shell, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STOP = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"


def page(name: str) -> str:
    """The text of docs/NAME."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands_of(name: str) -> str:
    """All blocks of commands and of Python programs of docs/NAME, as commands."""
    return "\n".join(
        block if language == "sh" else f"python - <<'PROGRAM'\n{block}PROGRAM\n"
        for language, block in _BLOCK.findall(page(name))
    )


def run_guide(commands: str, directory: Path, *, seconds: float) -> str:
    """Run the commands in `directory`. Returns their output. Fails if one fails, or if a program
    writes a traceback. Logs are files with the suffix .log."""
    programs = directory / "bin"
    programs.mkdir()
    for name, module in (("mqd", "mqd"), ("mqctl", "mqctl"), ("python", "")):
        program = programs / name
        run = f"-m {module}" if module else ""
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {run} "$@"\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-ec", _STOP + commands],
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
        },
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    logs = "".join(path.read_text()[-2000:] for path in directory.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "Traceback" not in done.stderr + logs
    return done.stdout
