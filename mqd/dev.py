"""`mqd dev`: a cluster on loopback for development. Writes a peers file, starts a process for each
node, and supervises them.

Each child is an `mqd start` in its own process group: Ctrl-C in the terminal reaches only the
supervisor, which signals the children. A thread for each child forwards its output. The main thread
takes events (ready, ended, signal) from a queue. It waits on a pipe, because a wait for the queue
could miss a signal.

With three or more nodes, a child that dies is restarted after a second, while the others continue:
`kill -9` demonstrates a failover. If a child dies repeatedly, or one of fewer than three dies, all
stop.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_urlsafe
from threading import Thread
from typing import Any

from mqd import __version__
from mqd.logs import write_line
from mqd.options import ConfigError, StartError
from mqd.peers import PeerNode, Peers, format_peers, load_peers

LOOPBACK = "127.0.0.1"
SECRET_NAME = "cluster-secret"
SECURE = "secure"
"""The folder of a secure cluster, as in dev_security.py, which is imported only for one."""
FIRST_PORT = 9092
PORT_STEP = 10
PORT_BLOCKS_TRIED = 100
STOP_TIMEOUT_S = 30.0
"""How long a child may take to stop after SIGTERM; then it is killed."""
NODES_FOR_FAILOVER = 3
"""The smallest cluster in which a majority remains when one node dies."""
RESTART_AFTER_S = 1.0
DEATHS_MAX, DEATHS_WITHIN_S = 3, 10.0
"""A child is not restarted after this many deaths in a row, each within DEATHS_WITHIN_S of its
start.
"""


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of `mqd dev`. `nodes` and `port` default to those of the peers file; without
    one, to one node and free ports.
    """

    nodes: int | None
    port: int | None
    data_directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """Whether a new cluster gets TLS, a login and ACLs. A cluster keeps what it has."""


def run(options: DevOptions) -> int:
    """Run the cluster. Returns 0 after an interrupt, 1 after a node has failed. Raises StartError
    if it cannot start.
    """
    try:
        options.data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"{options.data_directory}: cannot create the directory ({error.strerror}); choose "
            "another one with --data"
        ) from None
    with _locked(options.data_directory):
        peers = prepare_peers(options)
        if options.secure or is_secure(options.data_directory):
            from mqd import dev_security

            dev_security.prepare(options.data_directory, peers)
        return _Supervisor(options, peers).run()


def prepare_peers(options: DevOptions) -> Peers:
    """The peers file of the data directory. Written if it does not exist, or if its ports are not
    usable; the cluster id never changes.
    """
    path = options.data_directory / "peers.toml"
    if not path.exists():
        nodes = _block(options.nodes or 1, options.port)
        return _write(
            path, new_cluster_id(), nodes, token_urlsafe(32).encode() if len(nodes) > 1 else None
        )
    peers = load_peers(path)
    count = len(peers.nodes)
    if options.nodes not in (None, count):
        raise ConfigError(
            f"{path}: this cluster has {count} node(s), not {options.nodes}; use --nodes {count}, "
            "or another directory with --data"
        )
    if any(node.host != LOOPBACK for node in peers.nodes.values()):
        return peers  # edited by hand: keep its addresses
    taken = [port for port in _ports(peers.nodes) if not _is_free(port)]
    wants_others = options.port not in (None, next(iter(peers.nodes.values())).port)
    if not taken and not wants_others:
        return peers
    nodes = _block(count, options.port)
    # only the addresses change
    moved = [
        PeerNode(old.id, LOOPBACK, new.port, new.peer_port, old.rack, old.voter, LOOPBACK, new.port)
        for old, new in zip(peers.nodes.values(), nodes)
    ]
    return _write(path, peers.cluster_id, moved, peers.secret)


def start_command(options: DevOptions, peers: Peers, node_id: int) -> list[str]:
    """The command line that starts one node."""
    command = [
        sys.executable,
        "-m",
        "mqd",
        "start",
        "--peers",
        str(peers.path),
        "--node",
        str(node_id),
    ]
    command += ["--data", str(options.data_directory / f"node-{node_id}")]
    if is_secure(options.data_directory):
        command += ["--config", str(options.data_directory / SECURE / f"node-{node_id}.properties")]
    for key, value in options.settings.items():
        command += ["-o", f"{key}={value}"]
    return command


def is_secure(data_directory: Path) -> bool:
    """Whether the cluster of this directory was created with --secure."""
    return (data_directory / SECURE).is_dir()


def new_cluster_id() -> str:
    """128 random bits in Kafka's format: 22 characters, the first one not a dash."""
    while (text := urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _write(path: Path, cluster_id: str, nodes: list[PeerNode], secret: bytes | None) -> Peers:
    """Write the peers file, and the secret to a file that only its owner can read."""
    peers = Peers(cluster_id, {node.id: node for node in nodes}, path, secret)
    if secret is not None:
        part = path.with_name(SECRET_NAME + ".part")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret + b"\n")
        part.replace(path.with_name(SECRET_NAME))
    temporary = path.with_suffix(".part")
    text = format_peers(
        cluster_id, peers.nodes, secret_file=SECRET_NAME if secret is not None else None
    )
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    assert load_peers(path) == peers
    return peers


def _block(count: int, port: int | None) -> list[PeerNode]:
    """`count` nodes on a block of free ports: first the ports for clients, then those for peers."""
    if port is not None:
        nodes = _nodes_from(count, port)
        for number in _ports({node.id: node for node in nodes}):
            if number > 65535 or not _is_free(number):
                raise StartError(
                    f"port {number} on {LOOPBACK} is in use; choose another block with --port, or "
                    "omit --port"
                )
        return nodes
    for first in range(FIRST_PORT, FIRST_PORT + PORT_STEP * PORT_BLOCKS_TRIED, PORT_STEP):
        nodes = _nodes_from(count, first)
        if all(_is_free(number) for number in _ports({node.id: node for node in nodes})):
            return nodes
    raise StartError(
        f"no block of {2 * count} free ports from {FIRST_PORT} on; specify the start of a free "
        "block with --port"
    )


def _nodes_from(count: int, port: int) -> list[PeerNode]:
    return [
        PeerNode(
            id=number + 1,
            host=LOOPBACK,
            port=port + number,
            peer_port=port + count + number,
            rack=None,
            voter=number < 5,
            advertised_host=LOOPBACK,
            advertised_port=port + number,
        )
        for number in range(count)
    ]


def _ports(nodes: Mapping[int, PeerNode]) -> list[int]:
    return [port for node in nodes.values() for port in (node.port, node.peer_port)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as the daemon does: a connection in TIME_WAIT does not block the port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory: a second cluster there would change the ports of the first."""
    with (directory / "dev.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"{directory}: in use by another `mqd dev`; stop it, or choose another directory "
                "with --data"
            ) from None
        yield


class _Supervisor:
    """Starts the children, forwards their output, and ends when all have ended."""

    def __init__(self, options: DevOptions, peers: Peers) -> None:
        self._options = options
        self._peers = peers
        self._events: SimpleQueue[tuple[str, int]] = SimpleQueue()
        """("ready", node id), ("ended", node id) or ("signal", its number)."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: dict[int, Thread] = {}
        """The thread that forwards the output of a node's present child."""
        self._started_at: dict[int, float] = {}
        self._early_deaths = dict.fromkeys(peers.nodes, 0)
        """The number of early deaths in a row, by node."""
        self._restarts: dict[int, float] = {}
        """Nodes that are down, with the time of their restart (monotonic seconds)."""
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            for node_id in self._peers.nodes:
                self._start(node_id)
            self._supervise()
        finally:
            for child in self._children.values():
                if child.poll() is None:
                    child.kill()
            for thread in self._threads.values():
                thread.join()
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)
        return self._exit_code

    def _start(self, node_id: int) -> None:
        command = start_command(self._options, self._peers, node_id)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._children[node_id] = child
        self._started_at[node_id] = time.monotonic()
        thread = self._threads[node_id] = Thread(
            target=self._forward_output, args=(node_id, child), name=f"node-{node_id}"
        )
        thread.start()

    def _forward_output(self, node_id: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        ready = f"mqd node {node_id} ready on "
        with child.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip("\n")
                write_line(f"node {node_id} | {line}")
                if line.startswith(ready):
                    self._send_event("ready", node_id)
        child.wait()
        self._send_event("ended", node_id)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._events.put(("signal", number))  # the interpreter has already written to the pipe

    def _send_event(self, event: str, node_id: int) -> None:
        self._events.put((event, node_id))
        with suppress(BlockingIOError):  # a full pipe also wakes the main thread
            os.write(self._wake_write, b"\0")

    def _next_event(self) -> tuple[str, int] | None:
        """Wait for the next event. None if the children have not stopped in time, or a restart is
        due.
        """
        while True:
            with suppress(Empty):
                return self._events.get_nowait()
            wait = STOP_TIMEOUT_S if self._stopping else None
            if self._restarts:
                wait = max(0.0, min(self._restarts.values()) - time.monotonic())
            readable, _, _ = select.select([self._wake_read], [], [], wait)
            if not readable:
                return None
            os.read(self._wake_read, 4096)

    def _supervise(self) -> None:
        running = set(self._children)
        ready: set[int] = set()
        guide_printed = False
        while running or self._restarts:
            next_event = self._next_event()
            if next_event is None and self._restarts:
                for node_id in [
                    one for one, due in self._restarts.items() if due <= time.monotonic()
                ]:
                    del self._restarts[node_id]
                    self._start(node_id)
                    running.add(node_id)
                continue
            if next_event is None:
                write_line(
                    f"mqd dev: node {', '.join(map(str, sorted(running)))} did not stop within "
                    f"{STOP_TIMEOUT_S:.0f} s: killing it"
                )
                self._signal_all(signal.SIGKILL)
                self._exit_code = 1
                continue
            event, number = next_event
            if event == "ready":
                ready.add(number)
                if ready == set(self._children) and not self._stopping and not guide_printed:
                    guide_printed = True
                    write_line(guide(self._peers, self._options.data_directory), sys.stdout)
            elif event == "ended":
                running.discard(number)
                ready.discard(number)
                self._on_ended(number)
            elif self._stopping:
                self._signal_all(signal.SIGKILL)  # the second signal
            else:
                self._stop()

    def _on_ended(self, node_id: int) -> None:
        code = self._children[node_id].returncode
        if self._stopping and code in (0, -signal.SIGTERM):
            return  # -SIGTERM: it had not yet installed its signal handlers
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        ended = f"mqd dev: node {node_id} ended with {how}"
        now = time.monotonic()
        is_early = now - self._started_at[node_id] < DEATHS_WITHIN_S
        self._early_deaths[node_id] = self._early_deaths[node_id] + 1 if is_early else 0
        if (
            not self._stopping
            and len(self._children) >= NODES_FOR_FAILOVER
            and self._early_deaths[node_id] < DEATHS_MAX
        ):
            write_line(
                f"{ended}: the other nodes keep running; restarting it in {RESTART_AFTER_S:.0f} s"
            )
            self._restarts[node_id] = now + RESTART_AFTER_S
            return
        self._exit_code = 1
        write_line(ended + ("" if self._stopping else ": stopping the other nodes"))
        if not self._stopping:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._restarts.clear()
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for child in self._children.values():
            child.send_signal(number)  # no effect on children that have ended


def guide(peers: Peers, data_directory: Path) -> str:
    """Commands to copy, which produce and consume with three clients. Printed at the start."""
    servers = ",".join(
        f"{node.advertised_host}:{node.advertised_port}" for node in peers.nodes.values()
    )
    mqctl = _command("mqctl")
    exports = f"export MQCTL_BOOTSTRAP={servers}"
    kcat = f"kcat -b {servers}"
    python = _command(Path(sys.executable).name)
    config = f'"bootstrap.servers": "{servers}"'
    nodes = f"{len(peers.nodes)} node(s) ready on {servers}"
    login = ""
    if is_secure(data_directory):
        folder = shlex.quote(str(data_directory / SECURE))
        exports += f"\n                   export MQCTL_COMMAND_CONFIG={folder}/admin.properties"
        options = _librdkafka_options(data_directory)
        kcat += "".join(f" -X {key}={shlex.quote(value)}" for key, value in options.items())
        kcat += f' -X sasl.password="$(cat {folder}/admin.password)"'
        config += "".join(f', "{key}": "{value}"' for key, value in options.items())
        config += f', "sasl.password": open("{folder}/admin.password").read().strip()'
        login = (
            "\n  TLS, SASL and ACLs are on. The super user is admin; its password is in "
            f"{folder}/admin.password\n  and admin.properties. Renew the certificates with "
            f"`mqctl cert renew {folder}`.\n"
        )
    return f"""
mqd {__version__}: {nodes}, data in {data_directory} (Ctrl-C stops)
{login}
  mqctl            {exports}
                   {mqctl} topic create demo
                   echo hello | {mqctl} produce demo
                   {mqctl} consume demo --exit-at-end

  kcat             echo hello | {kcat} -t demo -P
                   {kcat} -t demo -C -o beginning -e

  confluent-kafka  {python} -c 'from confluent_kafka import Producer
p = Producer({{{config}}}); p.produce("demo", b"hello"); p.flush()'
                   {python} -c 'from confluent_kafka import Consumer, TopicPartition
c = Consumer({{{config}, "group.id": "g", "enable.auto.commit": False}})
c.assign([TopicPartition("demo", 0, 0)]); print(c.poll(10).value()); c.close()'
"""


def _librdkafka_options(data_directory: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(data_directory / SECURE / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
    }


def _command(name: str) -> str:
    """The program next to this Python, as its shortest name for a shell in this directory."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not beside.exists() or (found is not None and os.path.dirname(found) == str(beside.parent)):
        return name
    return shlex.quote(min(str(beside), os.path.relpath(beside), key=len))
