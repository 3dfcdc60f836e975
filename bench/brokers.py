"""The brokers under test: their start, their cost, and whether they respond.

A broker that this process started is known by its process ids, and its CPU time and memory are read
from /proc. For a broker that is given as host:port, this needs a pid as well; its start cannot be
measured.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.generators import BenchError
from chaos.cluster_security import ClusterSecurity
from chaos.node import CLUSTER_ID
from mqd.protocol.apis import by_key
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.schema import Api, decode_response_header, encode_request_header

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
DROP_SECONDS_MAX = 10
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Broker:
    """One broker.

    `launch` starts it on the data of `prepare` and returns its pid. It is None for a broker that
    already runs.
    """

    name: str
    address: tuple[str, int]
    pid: int | None = None
    launch: Callable[[], subprocess.Popen[bytes]] | None = None
    find_pid: Callable[[], int] | None = None
    halt: Callable[[], None] | None = None
    fixed_topic: str | None = None
    security: ClusterSecurity | None = None
    """How librdkafka's clients connect. All other requests use PLAINTEXT."""
    secured_port: int = 0
    """The port of the listener with `security`."""
    process: subprocess.Popen[bytes] | None = None
    topics_made: int = 0
    _admin: AdminClient | None = field(default=None, repr=False)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def client_address(self) -> tuple[str, int]:
        """The listener for librdkafka's clients."""
        return self.address if self.security is None else (self.address[0], self.secured_port)

    @property
    def command_config(self) -> Path | None:
        """The file of the client properties; None for PLAINTEXT."""
        return None if self.security is None else self.security.command_config

    # -- life

    def start(self) -> tuple[float, float]:
        """Start it, and wait until it responds to ApiVersions. Returns (the seconds that took, the
        monotonic time of the start).
        """
        assert self.launch is not None
        started_at = time.monotonic()
        self.process = self.launch()
        ready = wait_until(
            lambda: responds_to_api_versions(self.address), f"{self.name} to respond", self.process
        )
        self.pid = self.find_pid() if self.find_pid is not None else self.process.pid
        if self.security is not None:
            self.security.create_users(self.bootstrap)
        return ready - started_at, started_at

    def stop(self) -> None:
        """Stop the broker that `start` started, cleanly, and wait for its end."""
        self._admin = None
        if self.halt is not None and self.pid is not None:
            self.halt()
        if self.process is not None:
            if self.halt is None:
                with suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
            self.pid = None

    # -- cost

    def cpu_seconds(self) -> float | None:
        """User and system time of the process so far."""
        if self.pid is None:
            return None
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def resident_mb(self) -> float | None:
        """Resident memory, in MB of 1e6 bytes."""
        if self.pid is None:
            return None
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    # -- topics

    def _administrator(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def make_topic(self, label: str) -> str:
        """A new topic with one partition that has a leader."""
        if self.fixed_topic is not None:
            return self.fixed_topic
        self.topics_made += 1
        name = f"bench-{os.getpid()}-{self.topics_made}-{label}"
        admin = self._administrator()
        # free the disk soon: a whole run writes more than a small machine has
        wanted = NewTopic(
            name, num_partitions=1, replication_factor=1, config={"file.delete.delay.ms": "1000"}
        )
        try:
            admin.create_topics([wanted])[name].result(START_SECONDS_MAX)
        except (KafkaException, TimeoutError) as error:
            raise BenchError(f"{self.name} does not create a topic: {error!r}") from None
        wait_until(lambda: _has_leader(admin, name), f"a leader of {name}", self.process)
        return name

    def drop_topic(self, name: str) -> None:
        if name != self.fixed_topic:
            # if the broker has ended, the next benchmark reports that
            with suppress(KafkaException, TimeoutError):
                self._administrator().delete_topics([name])[name].result(DROP_SECONDS_MAX)


def _has_leader(admin: AdminClient, topic: str) -> bool:
    """Whether the leader serves the topic. Apache Kafka names a leader before it does."""
    asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
    try:
        for found in admin.list_offsets(asked, request_timeout=5).values():
            found.result()
    except KafkaException:
        return False
    return True


def wait_until(
    condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None
) -> float:
    """Poll a condition every 5 ms. Returns the monotonic time at which it became true."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"waited {START_SECONDS_MAX} s for {what}")
        if process is not None and process.poll() not in (None, 0):
            raise BenchError(
                f"the process ended with code {process.returncode} while waiting for {what}"
            )
        time.sleep(0.005)
    return time.monotonic()


# -- raw requests: the timeouts and backoffs of admin clients must not be measured


def request(address: tuple[str, int], key: int, version: int, body: dict[str, object]) -> Any:
    api = by_key(key)
    assert isinstance(api, Api)
    frame = encode_request_header(api, version, 1, "bench") + api.encode_request(version, body)
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        with connection.makefile("rb") as stream:
            size = stream.read(4)
            response = stream.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
    if not response:
        raise ConnectionError("closed")
    return api.decode_response(version, response, decode_response_header(api, version, response)[1])


def responds_to_api_versions(address: tuple[str, int]) -> bool:
    """Whether the broker responds to ApiVersions."""
    try:
        return bool(request(address, 18, 0, {}).error_code == 0)
    except OSError:
        return False


def acknowledges(address: tuple[str, int], topic: str) -> bool:
    """Whether one record is appended and acknowledged with acks=1."""
    partition = {
        "index": 0,
        "records": build_batch([(None, b"first")], timestamp=int(time.time() * 1000)),
    }
    try:
        response = request(
            address,
            0,
            9,
            {
                "acks": 1,
                "timeout_ms": 5000,
                "topic_data": [{"name": topic, "partition_data": [partition]}],
            },
        )
    except OSError:
        return False
    return bool(response.responses[0].partition_responses[0].error_code == 0)


# -- brokers that this process can start


def mqd(
    directory: Path, security: ClusterSecurity | None = None, options: Sequence[str] = ()
) -> Broker:
    """A single mqd node on free loopback ports, data under `directory`. With `security`, it has a
    second listener. `options`: KEY=VALUE.
    """
    port, peer_port, secured_port = free_port(), free_port(), free_port()
    directory.mkdir(parents=True, exist_ok=True)
    peers = directory / "peers.toml"
    peers.write_text(
        f'cluster_id = "{CLUSTER_ID}"\n\n[[node]]\nid = 1\nhost = "127.0.0.1"\nport = '
        f"{port}\npeer_port = {peer_port}\n"
    )
    command = [
        sys.executable,
        "-m",
        "mqd",
        "start",
        "--peers",
        str(peers),
        "--node",
        "1",
        "--data",
        str(directory / "data"),
    ]
    if security is not None:
        for option in security.node_options("mqd", 1, CLUSTER_ID, port, secured_port):
            command += ["-o", option]
    for option in options:
        command += ["-o", option]
    log = directory / "log"

    def launch() -> subprocess.Popen[bytes]:
        with log.open("ab") as stream:
            return subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)

    return Broker(
        "mqd",
        ("127.0.0.1", port),
        launch=launch,
        security=security,
        secured_port=secured_port,
    )


def kafka(
    directory: Path, security: ClusterSecurity | None = None, options: Sequence[str] = ()
) -> Broker:
    """A single Apache Kafka node from scripts/kafka.sh, data under `directory`. With `security`, it
    has a second listener. `options`: KEY=VALUE.
    """
    port, secured_port = free_port(), free_port()
    environment = dict(os.environ)
    if security is not None:
        options = (
            *options,
            *security.node_options("kafka", 1, CLUSTER_ID, port, secured_port),
        )
        if security.java_options:
            environment["JAVA_TOOL_OPTIONS"] = security.java_options
    script = str(ROOT / "scripts" / "kafka.sh")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "script.log"

    def launch() -> subprocess.Popen[bytes]:
        with log.open("ab") as stream:
            return subprocess.Popen(
                ["bash", script, "start", "1", str(port), str(directory), *options],
                stdout=stream,
                stderr=stream,
                env=environment,
            )

    def find_pid() -> int:
        return int((directory / "1" / "pid").read_text())

    def halt() -> None:
        subprocess.run(
            ["bash", script, "stop", str(directory)],
            capture_output=True,
            check=False,
            timeout=STOP_SECONDS_MAX * 2,
        )

    fetched = subprocess.run(["bash", script, "fetch"], capture_output=True, text=True)
    if fetched.returncode:
        raise BenchError(f"Apache Kafka cannot be fetched: {fetched.stderr.strip()}")
    return Broker(
        "kafka",
        ("127.0.0.1", port),
        launch=launch,
        find_pid=find_pid,
        halt=halt,
        security=security,
        secured_port=secured_port,
    )


def free_port() -> int:
    """A loopback port that is free now; the next port is free, too (for Kafka's controller)."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
    raise BenchError("no two neighbouring ports are free on 127.0.0.1")
