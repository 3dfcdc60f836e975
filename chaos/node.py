"""Real broker processes under the control of a test: started on loopback, killed, frozen, started
again on the same data.

A node's address stays the same over restarts. Its standard error goes to a file, which is what a
failure quotes and where mqd's readiness is read from. Ports come from below the kernel's ephemeral
range: a port that is free for a moment between kill and restart must not be given to an
outgoing connection.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.005
PORTS = range(20_000, 32_000)
CLUSTER_ID = "bXFkLXRyaWFsLWNsdXN0ZQ"
CLUSTER_SECRET = "what the nodes of a chaos run know"
"""So that what is killed and cut off is what runs in earnest: nodes that prove themselves
to one another.
"""
LOOPBACK = "127.0.0.1"


class NodeFailed(Exception):
    """The process did not do what was requested; the message ends with the tail of its
    standard error.
    """


def end_on_sigterm() -> None:
    """Let SIGTERM end this program as an exception does, so that the processes it started
    are ended, too.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def free_port() -> int:
    """A loopback port without a listener, outside the range that outgoing
    connections take theirs from.
    """
    return free_ports(1)[0]


def free_ports(count: int, *, step: int = 1) -> list[int]:
    """`count` such ports, `step` apart. Raises NodeFailed."""
    random_source = random.SystemRandom()
    for _ in range(200):
        first = random_source.choice(PORTS)
        with ExitStack() as probes:
            try:
                for port in range(first, first + count * step):
                    probes.enter_context(socket.socket()).bind((LOOPBACK, port))
            except OSError:
                continue
            return list(range(first, first + count * step, step))
    raise NodeFailed(f"no {count} free ports {step} apart between {PORTS.start} and {PORTS.stop}")


def write_peers(
    path: Path, ports: dict[int, tuple[int, int]], racks: dict[int, str] | None = None
) -> None:
    """A peers file: node id -> (port for clients, port for peers), all on loopback."""
    text = [f'cluster_id = "{CLUSTER_ID}"\ncluster_secret = "{CLUSTER_SECRET}"\n']
    for node_id, (port, peer_port) in ports.items():
        text.append(
            f'\n[[node]]\nid = {node_id}\nhost = "{LOOPBACK}"\nport = {port}\npeer_port = '
            f"{peer_port}\n"
        )
        if racks:
            text.append(f'rack = "{racks[node_id]}"\n')
    path.write_text("".join(text))


class Process(ABC):
    """One broker process.

    `directory` receives `stderr`, `data/` and whatever else the broker needs.
    """

    program = "the broker"

    def __init__(self, directory: Path, node_id: int, port: int) -> None:
        self.directory = directory
        self.data_directory = directory / "data"
        self.node_id = node_id
        self.port = port
        self.paused = False
        self._stderr_path = directory / "stderr"
        self._stderr_start = 0
        self._launched = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]:
        """What to run in the foreground; signals must reach the broker itself."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the launched process serves clients."""

    def environment(self) -> dict[str, str] | None:
        """The environment of the process; None: ours."""
        return None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self.port}"

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
        """Start the process and wait until it serves.

        Returns the seconds that took; raises NodeFailed.
        """
        self.launch()
        return self.wait_ready()

    def launch(self) -> None:
        """Start the process and do not wait."""
        assert self._process is None, "the node runs already"
        with self._stderr_path.open("ab") as stderr:
            self._stderr_start = stderr.tell()
            self._launched = time.monotonic()
            # a session of its own: an interrupt at the terminal is for the parent process
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=self.environment(),
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Raises NodeFailed if a launched process ended by itself."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._process = None
            raise NodeFailed(
                f"node {self.node_id}: {self.program} ended with exit code "
                f"{process.returncode}\n{self.stderr_tail()}"
            )

    def wait_ready(self) -> float:
        """Wait until a launched process serves.

        Returns the seconds since the launch; raises NodeFailed.
        """
        assert self._process is not None, "the node was not launched"
        while not self.is_ready():
            self.check_alive()
            if time.monotonic() - self._launched > READY_TIMEOUT_S:
                self.kill()
                raise NodeFailed(
                    f"node {self.node_id}: not ready within {READY_TIMEOUT_S:.0f} "
                    f"s\n{self.stderr_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - self._launched

    def terminate(self) -> None:
        """SIGTERM, and do not wait."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM, and demand a clean end: in time, with a good exit code and no traceback.

        Raises NodeFailed.
        """
        self.terminate()
        self.wait_stopped()

    def wait_stopped(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait for the clean end of a node that was terminated. Raises NodeFailed.

        A process whose interpreter is still starting ends by the signal: it has not started to
        work, and has written nothing.
        """
        process = self._process
        assert process is not None, "the node is not running"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(
                f"node {self.node_id}: {self.program} did not stop within {timeout_s:.0f} s "
                f"of SIGTERM\n{self.stderr_tail()}"
            ) from None
        self._process = None
        if code == -signal.SIGTERM and not self.stderr():
            return
        if code not in self.clean_exit_codes or "Traceback" in self.stderr():
            raise NodeFailed(
                f"node {self.node_id}: {self.program} ended with exit code {code} after "
                f"SIGTERM\n{self.stderr_tail()}"
            )

    clean_exit_codes: tuple[int, ...] = (0,)

    def kill(self) -> None:
        """SIGKILL: as the kernel ends a process without memory.

        The page cache outlives it.
        """
        process = self._process
        assert process is not None, "the node is not running"
        process.kill()
        process.wait()
        self._process = None
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: silent, with every connection open."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def stderr(self) -> str:
        """Everything that the current (or last) process wrote to standard error."""
        if not self._stderr_path.exists():
            return ""
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


class Node(Process):
    """`mqd start`.

    Without `peers` a cluster of one: then the directory receives a `peers.toml`, too.
    """

    program = "mqd"

    def __init__(
        self,
        directory: Path,
        options: tuple[str, ...] = (),
        *,
        node_id: int = 1,
        port: int | None = None,
        peers: Path | None = None,
    ) -> None:
        port = port if port is not None else free_port()
        super().__init__(directory, node_id, port)
        self.options = options
        self.peers = peers if peers is not None else directory / "peers.toml"
        if peers is None:
            write_peers(self.peers, {node_id: (port, free_port())})

    def command(self) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "mqd",
            "start",
            "--peers",
            str(self.peers),
            "--node",
            str(self.node_id),
        ]
        command += ["--data", str(self.data_directory)]
        for option in self.options:
            command += ["-o", option]
        return command

    def is_ready(self) -> bool:
        return f"mqd node {self.node_id} ready on {self.address}\n" in self.stderr()


class KafkaNode(Process):
    """Apache Kafka, of a directory that `scripts/kafka.sh format` has made; serves when it
    responds to ApiVersions.
    """

    program = "Apache Kafka"
    clean_exit_codes = (0, 143)
    """A JVM exits with it after SIGTERM."""

    SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "kafka.sh"
    HEAP = "512m"
    """Three of them share a machine with whatever loads them."""

    def __init__(self, home: Path, node_id: int, port: int) -> None:
        super().__init__(home / str(node_id), node_id, port)
        self.home = home

    def command(self) -> list[str]:
        return ["bash", str(self.SCRIPT), "run", str(self.home), str(self.node_id)]

    def environment(self) -> dict[str, str]:
        return {"KAFKA_HEAP": self.HEAP} | os.environ

    def is_ready(self) -> bool:
        # ApiVersions 0, correlation id 1, no client id
        request = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
        try:
            with socket.create_connection((LOOPBACK, self.port), 1) as connection:
                connection.sendall(request)
                return len(connection.recv(4)) == 4
        except OSError:
            return False
