"""Real broker processes under the control of a test: started on loopback, killed, suspended,
restarted on the same data.

A restarted node keeps its address. Its standard error goes to a file, which failures quote, and in
which mqd reports that it is ready. Ports are below the kernel's ephemeral range: otherwise an
outgoing connection could take the port of a killed node before its restart.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.005
PORTS = range(20_000, 32_000)
BLOCK_PORTS = 200
CLUSTER_ID = "bXFkLXRyaWFsLWNsdXN0ZQ"
CLUSTER_SECRET = "what the nodes of a chaos run know"
"""With a secret, so that the nodes authenticate one another as in production."""
LOOPBACK = "127.0.0.1"


class NodeFailed(Exception):
    """A process failed. The message ends with the last lines of its standard error."""


def end_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that this program also ends the processes that it has
    started.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def free_port() -> int:
    """A loopback port without a listener, outside the range of outgoing connections."""
    return free_ports(1)[0]


def free_ports(count: int, *, step: int = 1) -> list[int]:
    """`count` such ports, `step` apart. No other process gets them, nor the ports between them, and
    this process gets others until it has received its whole block. Raises NodeFailed.
    """
    return _own_block().take(count, step)


@cache
def _own_block() -> PortBlock:
    block = PortBlock()
    atexit.register(block.close)
    return block


class PortBlock:
    """Ports for one process. A probe alone is not enough: two processes can find the same port
    free before one of them listens.

    The claim is a socket with an abstract name: no other process can bind that name until this one
    has ended. Such names are unique within a network namespace, as ports are.
    """

    def __init__(self, all_ports: range = PORTS) -> None:
        self._claim, self.ports = self._claimed(all_ports)
        self._next = self.ports.start

    @staticmethod
    def _claimed(all_ports: range) -> tuple[socket.socket, range]:
        for first in all_ports[::BLOCK_PORTS]:
            claim = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                claim.bind(f"\0mqd-ports-{first}")
                return claim, range(first, first + BLOCK_PORTS)
            claim.close()
        raise NodeFailed(
            f"other processes have claimed all blocks of {BLOCK_PORTS} ports between "
            f"{all_ports.start} and {all_ports.stop}; end some of them"
        )

    def take(self, count: int, step: int = 1) -> list[int]:
        """Raises NodeFailed."""
        length = count * step
        assert length <= len(self.ports), length
        for _ in self.ports:
            if self._next + length > self.ports.stop:
                self._next = self.ports.start
            first = self._next
            with ExitStack() as probes:
                try:
                    for port in range(first, first + length):
                        probes.enter_context(socket.socket()).bind((LOOPBACK, port))
                except OSError:
                    self._next = port + 1
                    continue
            self._next = first + length
            return list(range(first, first + length, step))
        raise NodeFailed(f"no {count} free ports {step} apart among {self.ports}")

    def close(self) -> None:
        """Another process may claim the block."""
        self._claim.close()


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
    """One broker process. `directory` contains `stderr`, `data/` and other files of the broker."""

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
        """The command to run in the foreground. Signals must reach the broker itself."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the launched process serves clients."""

    def environment(self) -> dict[str, str] | None:
        """The environment of the process; None: that of this process."""
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
        """Whether its process runs."""
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
            # a separate session: an interrupt at the terminal is for the parent process
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
            if time.monotonic() - self._launched > self.ready_timeout_s:
                self.kill()
                raise NodeFailed(
                    f"node {self.node_id}: not ready within {self.ready_timeout_s:.0f} "
                    f"s\n{self.stderr_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - self._launched

    def terminate(self) -> None:
        """Send SIGTERM. Does not wait."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM, and require a clean end: in time, with a clean exit code and without a
        traceback. Raises NodeFailed.
        """
        self.terminate()
        self.wait_stopped()

    def wait_stopped(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait for the clean end of a node that got SIGTERM. Raises NodeFailed.

        The signal itself may end a process whose interpreter is still starting: this process has
        written nothing.
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
    ready_timeout_s = READY_TIMEOUT_S

    def kill(self) -> None:
        """End it with SIGKILL, as the kernel does when memory is exhausted. The page cache
        survives.
        """
        process = self._process
        assert process is not None, "the node is not running"
        process.kill()
        process.wait()
        self._process = None
        self.paused = False

    def pause(self) -> None:
        """Suspend it with SIGSTOP: it is silent, and its connections stay open."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Resume it with SIGCONT."""
        assert self._process is not None, "the node is not running"
        self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def stderr(self) -> str:
        """The standard error of the current or last process."""
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
    """`mqd start`. Without `peers`, a cluster of one node, with its `peers.toml` in the
    directory.
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
        return f"mqd node {self.node_id} ready on " in self.stderr()


class KafkaNode(Process):
    """Apache Kafka, on a directory of `scripts/kafka.sh format`. It serves when it responds to
    ApiVersions.
    """

    program = "Apache Kafka"
    clean_exit_codes = (0, 143)
    """A JVM exits with 143 after SIGTERM."""
    ready_timeout_s = 3 * READY_TIMEOUT_S
    """A JVM on a busy machine starts slowly."""

    SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "kafka.sh"
    HEAP = "512m"
    """Small, because three nodes and their load share a machine."""

    def __init__(self, home: Path, node_id: int, port: int, java_options: str = "") -> None:
        super().__init__(home / str(node_id), node_id, port)
        self.home = home
        self.java_options = java_options

    def command(self) -> list[str]:
        return ["bash", str(self.SCRIPT), "run", str(self.home), str(self.node_id)]

    def environment(self) -> dict[str, str]:
        chosen = {"JAVA_TOOL_OPTIONS": self.java_options} if self.java_options else {}
        return {"KAFKA_HEAP": self.HEAP} | os.environ | chosen

    def is_ready(self) -> bool:
        # ApiVersions 0, correlation id 1, no client id
        request = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
        try:
            with socket.create_connection((LOOPBACK, self.port), 1) as connection:
                connection.sendall(request)
                return len(connection.recv(4)) == 4
        except OSError:
            return False
