"""Drivers of a chaos run, here programs that report batches: their whole process group is killed,
and they are counted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from chaos.spark_driver import STOPS, Driver, Drivers
from tests.log.support import wait_until


def driver(tmp_path: Path, program: str) -> Driver:
    return Driver([sys.executable, "-c", program], tmp_path / "driver.log")


async def test_a_killed_driver_takes_its_child_along(tmp_path: Path) -> None:
    program = "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    program += f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); "
    program += "print('started', 'batch 0 10', 'batch 1 10', sep='\\n', flush=True); child.wait()"
    running = driver(tmp_path, program)
    await wait_until(lambda: running.batches == 2)
    child = int((tmp_path / "child").read_text())
    assert running.started and running.poll() is None

    running.kill()
    assert running.poll() == -9
    await wait_until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_query_that_stops_before_duplicate_rows_is_a_violation(
    tmp_path: Path,
) -> None:
    log = tmp_path / "driver.log"
    drivers = Drivers([], fail_percent=0, log=log, report=lambda _: None)
    failing = driver(tmp_path, f"import sys; print({STOPS[0]!r}, file=sys.stderr); sys.exit(3)")
    await wait_until(lambda: failing.poll() is not None)
    drivers._end(failing, 3)

    assert drivers.ended == {"failed": 1}
    (stop,) = drivers.stops
    assert STOPS[0] in stop
