"""Workers of `python -m mqd.testing --jobs N` end with their parent process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 20
PARENT = """
import signal
from mqd.testing.jobs import results
from mqd.testing.settings import Settings
running = results([Settings(0, seconds=0.1), *map(Settings, range(1, 100))], jobs=2)
next(running)
print("begun", flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    workers: list[int] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"  # a seed has ended, so the workers run
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        workers = [os.pidfd_open(int(child)) for child in children]
        assert len(workers) >= 2
        parent.kill()
        parent.wait()
        for worker in workers:
            assert select.select([worker], [], [], SECONDS)[0], "A worker outlives its parent."
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
        for worker in workers:
            if not select.select([worker], [], [], 0)[0]:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)
