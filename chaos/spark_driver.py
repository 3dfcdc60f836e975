"""The drivers of one streaming query: one process at a time, killed with SIGKILL or run to the end.

A driver is `chaos.spark_copy` with its JVM, in a separate process group. `Drivers` starts them,
waits for their batches, and counts how they end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from .spark_copy import FAILED_CODE

ROOT = Path(__file__).resolve().parent.parent
START_S = 180.0
"""The time within which a driver must start, and must complete a micro-batch."""
END_S = 1800.0
"""The time within which the last driver must read everything."""
MIDWAY_S = (0.0, 4.0)
"""The time from the first micro-batch of a driver to its kill."""
EARLY_S = (1.0, 15.0)
"""The time from the start of the query to an early kill."""
EARLY_ODDS = 0.25
LOG_TAIL_CHARACTERS = 4000
FAILED_TASK = "ERROR Executor: Exception in task"
STOPS = ("cannot be written exactly once", "is not deterministic", "decided transaction")
"""Parts of the messages of a query that stops because rows would be lost or duplicated."""


class TrialFailed(Exception):
    """The trial is not valid."""


class Driver:
    """One driver process with its JVM, and its reports."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.batches = 0
        self.started = False
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.started = True
            self.batches += line.startswith(b"batch ")

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill Python and the JVM at the same time. Python workers are in another process group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the files of a process that has ended."""
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class Drivers:
    """All drivers of a trial. `command`: arguments of `chaos.spark_copy`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        fail_percent: float,
        log: Path,
        report: Callable[[str], None],
    ) -> None:
        self.ended: Counter[str] = Counter()
        self.batches = 0
        """The number of micro-batches that the drivers reported as completed."""
        self.stops: list[str] = []
        """The reasons for which the query refused to continue; each is a violation."""
        self._command = [sys.executable, "-m", "chaos.spark_copy", *command]
        self._fail_percent = fail_percent
        self._log = log
        self._report = report
        self._driver: Driver | None = None

    def kill_one(self, random_source: random.Random) -> str:
        """Start a driver and kill it at a random time; returns that time."""
        early = random_source.random() < EARLY_ODDS
        driver = self._wait(self._start(), early=early)
        time.sleep(random_source.uniform(*(EARLY_S if early else MIDWAY_S)))
        code = driver.poll()
        if code is None:
            self._kill(driver)
        else:
            self._end(driver, code)
        return "early" if early else f"after {driver.batches} batches"

    def run_to_end(self) -> None:
        """Start drivers until one has read everything. Raises TrialFailed."""
        deadline = time.monotonic() + END_S
        code: int | None = FAILED_CODE
        while code != 0:
            driver = self._start(last=True)
            while (code := driver.poll()) is None:
                if time.monotonic() > deadline:
                    raise TrialFailed(f"the last run took {END_S:.0f} s:\n{self.log_tail()}")
                time.sleep(0.1)
            self._end(driver, code)
            if code != 0 and (time.monotonic() > deadline or self.stops):
                raise TrialFailed(f"the last run fails:\n{self.log_tail()}")

    def close(self) -> None:
        """Kill the driver that still runs if the trial fails."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()

    def log_tail(self) -> str:
        """The last log lines of all drivers."""
        return self._logged()[-LOG_TAIL_CHARACTERS:]

    def failed_tasks(self) -> int:
        """The number of failed tasks, which Spark retried or which ended their query."""
        return self._logged().count(FAILED_TASK)

    def _logged(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _start(self, *, last: bool = False) -> Driver:
        more = ["--fail-percent", f"{self._fail_percent:g}", *["--until-end"] * last]
        self._driver = Driver([*self._command, *more], self._log)
        return self._driver

    def _wait(self, driver: Driver, *, early: bool) -> Driver:
        """Wait until the driver has started, or has completed a micro-batch. Restarts a driver that
        fails.
        """
        deadline = time.monotonic() + START_S
        while not (driver.started if early else driver.batches):
            code = driver.poll()
            if code is not None:
                self._end(driver, code)
                driver = self._start()
            if time.monotonic() > deadline:
                self._report(f"no batch for {START_S:.0f} s: the driver is killed now")
                return driver
            time.sleep(0.05)
        return driver

    def _kill(self, driver: Driver) -> None:
        driver.kill()
        self.batches += driver.batches
        self.ended["killed"] += 1

    def _end(self, driver: Driver, code: int) -> None:
        """Record how a driver ended by itself."""
        driver.close()
        self.batches += driver.batches
        if code == 0:
            return
        self.ended["failed" if code == FAILED_CODE else f"exit code {code}"] += 1
        tail = self.log_tail()
        for words in STOPS:
            if words in tail and not any(words in each for each in self.stops):
                self.stops.append(f"the query stopped: {words}:\n{tail}")
