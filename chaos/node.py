"""One real `mqd start` process in the hands of a test: started on loopback, killed, started again on the same data.

The node's address stays the same over restarts. Its standard error goes to a file, which is where readiness is read
from and what a failure quotes. Ports come from below the kernel's ephemeral range: a port that is free for a moment
between kill and restart must not be given to somebody's outgoing connection.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.005
PORTS = range(20_000, 32_000)
CLUSTER_ID = "bXFkLXRyaWFsLWNsdXN0ZQ"


class NodeFailed(Exception):
    """The process did not do what it was asked; the message ends with the tail of its standard error."""


def free_port() -> int:
    """A loopback port that nobody listens on now, outside the range that outgoing connections take theirs from."""
    dice = random.SystemRandom()
    for _ in range(200):
        port = dice.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise NodeFailed(f"no free port between {PORTS.start} and {PORTS.stop}")


class Node:
    """A node of a cluster of one. `directory` receives `peers.toml`, `stderr` and `data/`."""

    def __init__(self, directory: Path, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.data_directory = directory / "data"
        self.options = options
        self.port = free_port()
        self._stderr_path = directory / "stderr"
        self._stderr_start = 0
        self._launched = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "peers.toml").write_text(
            f'cluster_id = "{CLUSTER_ID}"\n\n[[node]]\nid = 1\nhost = "127.0.0.1"\nport = {self.port}\npeer_port = {free_port()}\n'
        )

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running node."""
        assert self._process is not None, "the node is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether a process was started that has neither been stopped nor died."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> float:
        """Start the process and wait for its ready line. Returns the seconds that took; raises NodeFailed."""
        self.launch()
        return self.wait_ready()

    def launch(self) -> None:
        """Start the process and do not wait."""
        assert self._process is None, "the node runs already"
        command = [sys.executable, "-m", "mqd", "start", "--peers", str(self.directory / "peers.toml"), "--node", "1"]
        command += ["--data", str(self.data_directory)]
        for option in self.options:
            command += ["-o", option]
        with self._stderr_path.open("ab") as stderr:
            self._stderr_start = stderr.tell()
            self._launched = time.monotonic()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)

    def wait_ready(self) -> float:
        """Wait for the ready line of a launched process. Returns the seconds since the launch; raises NodeFailed."""
        process = self._process
        assert process is not None, "the node was not launched"
        ready = f"mqd node 1 ready on {self.address}\n"
        while ready not in self.stderr():
            if process.poll() is not None:
                self._process = None
                raise NodeFailed(f"mqd start ended with exit code {process.returncode} before it was ready\n{self.stderr_tail()}")
            if time.monotonic() - self._launched > READY_TIMEOUT_S:
                self.kill()
                raise NodeFailed(f"no line {ready.strip()!r} on standard error within {READY_TIMEOUT_S:.0f} s\n{self.stderr_tail()}")
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - self._launched

    def stop(self) -> None:
        """SIGTERM, and demand a clean end: exit code 0 in time and no traceback. Raises NodeFailed."""
        process = self._process
        assert process is not None, "the node is not running"
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"mqd did not stop within {STOP_TIMEOUT_S:.0f} s of SIGTERM\n{self.stderr_tail()}") from None
        self._process = None
        if code != 0 or "Traceback" in self.stderr():
            raise NodeFailed(f"mqd ended with exit code {code} after SIGTERM\n{self.stderr_tail()}")

    def kill(self) -> None:
        """SIGKILL: what a power button does to a process."""
        process = self._process
        assert process is not None, "the node is not running"
        process.kill()
        process.wait()
        self._process = None

    def stderr(self) -> str:
        """Everything that the current (or last) process wrote to standard error."""
        with self._stderr_path.open("rb") as file:
            file.seek(self._stderr_start)
            return file.read().decode(errors="replace")

    def stderr_tail(self, lines: int = 40) -> str:
        """The last lines of `stderr()`, for messages."""
        return "\n".join(self.stderr().splitlines()[-lines:])

    def resident_bytes(self) -> int:
        """Resident memory of the process now."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptor_count(self) -> int:
        """Open file descriptors of the process now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))
