"""Runs mqctl in a process of its own, against a real node."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import trio


class Mqctl:
    def __init__(self, address: str) -> None:
        self.address = address

    async def __call__(self, *arguments: str, fails: bool = False) -> str:
        """All output, as text."""
        ran = await self._run(*arguments, "-o", "json")
        text = (ran.stdout + ran.stderr).decode()
        assert bool(ran.returncode) == fails, text
        return text

    async def rows(self, *arguments: str) -> list[Any]:
        """The rows of a command that succeeds."""
        ran = await self._run(*arguments, "-o", "json")
        assert ran.returncode == 0, ran.stderr.decode()
        found: list[Any] = json.loads(ran.stdout)
        return found

    async def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "mqctl", *arguments, "-b", self.address]
        return await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
