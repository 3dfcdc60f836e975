"""A group of worker processes (copy_worker.py) that copy one topic with one kind of client, and
random changes of its members.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress

from .copy_worker import HUNG_CODE, KNOWN_HANGS_S
from .ensemble import Ensemble
from .history import Key
from .workload import Reader, TrialFailed

INPUT = "eos-input"
COPY_PARTITIONS = 4
SLOTS = 3
"""The maximum number of workers in a group. At least one always works."""
TRANSACTION_MS = 10_000
WORKER_END_S = 60.0


class Worker:
    """One worker process, and its reports."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.last_commit = 0.0
        self._hung_in = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "committed":
                self.last_commit = time.monotonic()
                self.counts["records"] += int(rest)
            elif what == "hung":
                self._hung_in = rest
            else:
                self.reasons[f"{what}: {rest}"] += 1
            self.counts[what] += 1

    @property
    def hung(self) -> bool:
        """Whether it ended because its client did not return from a call that is known to hang."""
        return self._process.poll() == HUNG_CODE and self._call() in KNOWN_HANGS_S

    def _call(self) -> str:
        """The call in which the client of an ended worker hung; empty if it did not hang."""
        self._thread.join()
        return self._hung_in

    def check_alive(self) -> None:
        """Raises TrialFailed if it ended by itself, except for a known hang."""
        if self._process.poll() is not None and not self.hung:
            self._errors.seek(0)
            tail = self._errors.read().decode(errors="replace")[-3000:]
            where = f", hung in {self._call()}" if self._call() else ""
            raise TrialFailed(
                f"worker {self.name} ended with exit code {self._process.returncode}{where}\n{tail}"
            )

    def request_end(self) -> None:
        """Close its standard input, so that it leaves its group. Does not wait."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait_ended(self) -> None:
        """Raises TrialFailed."""
        try:
            code = self._process.wait(WORKER_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TrialFailed(
                f"worker {self.name} did not end within {WORKER_END_S:.0f} s of the request"
            ) from None
        self._thread.join()
        if code:
            self.check_alive()

    def kill(self) -> None:
        """End it with SIGKILL, at any point of its work."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def close(self) -> None:
        """Release the files of a process that has ended."""
        self.request_end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class CopyGroup:
    """One kind of client, its group, and its copy."""

    def __init__(self, client: str, cluster: Ensemble, random_source: random.Random) -> None:
        self.client = client
        self.group = f"eos-{client}"
        self.topic = f"eos-copy-{client}"
        self.workers: dict[int, Worker] = {}
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.reader: Reader | None = None
        self._names = {slot: f"{self.group}-{slot}" for slot in range(SLOTS)}
        self._bootstrap = cluster.bootstrap
        self._command_config = cluster.command_config
        self._random = random_source
        self._launched = 0

    @property
    def keys(self) -> list[Key]:
        return [(self.topic, partition) for partition in range(COPY_PARTITIONS)]

    def name(self, slot: int) -> str:
        """The transactional id of a confluent-kafka worker."""
        return self._names[slot]

    def start_worker(self, slot: int, *, renamed: bool = False) -> None:
        """Start a process, with the transactional id of the slot's previous worker or with a new
        one.
        """
        self._launched += 1
        if renamed:
            self._names[slot] = f"{self.group}-{slot}-{self._launched}"
        command = [
            sys.executable,
            "-m",
            "chaos.copy_worker",
            "--client",
            self.client,
            "--bootstrap",
            self._bootstrap,
        ]
        command += [
            "--group",
            self.group,
            "--source",
            INPUT,
            "--target",
            self.topic,
            "--targets",
            str(COPY_PARTITIONS),
        ]
        command += [
            "--name",
            self._names[slot],
            "--seed",
            str(self._random.randrange(2**31)),
            "--transaction-ms",
            str(TRANSACTION_MS),
        ]
        if self._command_config is not None:
            command += ["--command-config", str(self._command_config)]
        self.workers[slot] = Worker(command, self._names[slot])

    def change(self) -> str:
        """Make a random change: a worker joins, leaves, or is killed and restarted. Returns the
        change as text.
        """
        free = [slot for slot in range(SLOTS) if slot not in self.workers]
        busy = sorted(self.workers)
        if free and (len(busy) <= 1 or self._random.random() < 0.4):
            slot = self._random.choice(free)
            self.start_worker(slot)
            return f"{self.client} worker joins"
        slot = self._random.choice(busy)
        worker = self.workers.pop(slot)
        event = self._random.choice(
            ("leaves", "dies", "dies and restarts", "dies and restarts with another id")
        )
        if event == "leaves":
            worker.request_end()
            worker.wait_ended()
        else:
            worker.kill()
        self._add_counts(worker)
        if "restarts" in event:
            self.start_worker(slot, renamed=event.endswith("id"))
        return f"{self.client} worker {event}"

    def restart_hung(self) -> None:
        """Restart workers that ended with a known hang."""
        for slot in [slot for slot, worker in self.workers.items() if worker.hung]:
            self._add_counts(self.workers.pop(slot))
            self.start_worker(slot)

    def finish(self) -> None:
        """Let all workers leave. Raises TrialFailed."""
        for worker in self.workers.values():
            worker.request_end()
        for worker in self.workers.values():
            worker.wait_ended()
            self._add_counts(worker)
        self.workers.clear()

    def kill(self) -> None:
        """Kill every process that still runs."""
        for worker in self.workers.values():
            worker.kill()
            self._add_counts(worker)
        self.workers.clear()

    def _add_counts(self, worker: Worker) -> None:
        self.counts += worker.counts
        self.reasons += worker.reasons
        worker.close()

    @property
    def last_commit(self) -> float:
        """The monotonic time of the last commit of a running worker."""
        return max((worker.last_commit for worker in self.workers.values()), default=0.0)
