"""What does TLS cost, beside Apache Kafka in the same run?

    python -m bench.secure [--only NAME]... [--rounds N] [--quick] [--json FILE]

    produce        librdkafka produces records of 1 KiB over TLS 1.3: MB
    fetch          librdkafka reads them: MB
    handshakes     new connections, each with a full handshake, an ECDSA certificate: handshakes
    requests       500 TLS connections, each with one unbatched Produce request at a time: requests
    metadata       the same with Metadata requests, which no client sends often: requests

All figures are per second of the broker's CPU time, because the clients share the processors with
the broker. Each benchmark runs on both brokers in turn, A B then B A, and the medians are compared.
A ratio is mqd's figure divided by that of Apache Kafka. The figures without TLS are printed, too.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer

from bench import brokers
from bench.brokers import Broker
from bench.generators import BenchError
from chaos.client_security import librdkafka_options
from chaos.cluster_security import PLAIN, ClusterSecurity
from mqd.protocol.apis import by_key
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.schema import encode_request_header

RECORD_BYTES = 1024
MEGABYTES = 400
HANDSHAKES = 2000
CONNECTIONS = 500
REQUESTS = 100_000
WARM_UP_PART = 0.25
SECONDS_MAX = 300
PRODUCE, METADATA, API_VERSIONS = 0, 3, 18


def client_config(broker: Broker, tls: bool) -> dict[str, object]:
    assert broker.security is not None
    if not tls:
        return {"bootstrap.servers": broker.bootstrap}
    host, port = broker.client_address
    return {
        "bootstrap.servers": f"{host}:{port}",
        **librdkafka_options(broker.security.client()),
    }


def context_of(broker: Broker) -> ssl.SSLContext:
    assert broker.security is not None
    return ssl.create_default_context(cafile=str(broker.security.client().ca))


# -- benchmarks: each returns (amount, seconds of the broker's CPU)


def cpu_of(broker: Broker, work: Callable[[], float]) -> tuple[float, float]:
    before = broker.cpu_seconds()
    amount = work()
    after = broker.cpu_seconds()
    assert before is not None and after is not None
    return amount, max(after - before, 0.01)


def produce(broker: Broker, part: float, tls: bool) -> tuple[float, float]:
    topic = broker.make_topic("secure")
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    def work() -> float:
        producer = Producer(
            {
                **client_config(broker, tls),
                "linger.ms": 5,
                "batch.size": 1 << 20,
                "acks": "1",
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        value = bytes(range(256)) * (RECORD_BYTES // 256)
        count = int(MEGABYTES * part * 1e6 / RECORD_BYTES)
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number % 1000:
                producer.poll(0)
        if producer.flush(SECONDS_MAX) or failed:
            raise BenchError(f"{broker.name} did not acknowledge all records: {failed[:1]}")
        return count * RECORD_BYTES / 1e6

    try:
        return cpu_of(broker, work)
    finally:
        broker.drop_topic(topic)


def fetch(broker: Broker, part: float, tls: bool) -> tuple[float, float]:
    topic = broker.make_topic("secure")
    producer = Producer({**client_config(broker, False), "linger.ms": 5, "acks": "1"})
    value = bytes(range(256)) * (RECORD_BYTES // 256)
    count = int(MEGABYTES * part * 1e6 / RECORD_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1000:
            producer.poll(0)
    if producer.flush(SECONDS_MAX):
        raise BenchError(f"{broker.name} did not acknowledge all records")

    def work() -> float:
        consumer = Consumer(
            {
                **client_config(broker, tls),
                "group.id": f"secure-{time.monotonic_ns()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "check.crcs": False,
            }
        )
        consumer.subscribe([topic])
        left, deadline = count, time.monotonic() + SECONDS_MAX
        while left > 0:
            left -= len(consumer.consume(10_000, 1.0))
            if time.monotonic() > deadline:
                raise BenchError(f"{broker.name}: {left} records were not fetched in time")
        consumer.close()
        return count * RECORD_BYTES / 1e6

    try:
        return cpu_of(broker, work)
    finally:
        broker.drop_topic(topic)


def request_frame(key: int, version: int, body: dict[str, object]) -> bytes:
    api = by_key(key)
    assert api is not None
    frame = encode_request_header(api, version, 1, "bench") + api.encode_request(version, body)
    return len(frame).to_bytes(4, "big") + frame


def handshakes(broker: Broker, part: float, tls: bool) -> tuple[float, float]:
    """Each connection sends one ApiVersions request, so that the handshake is complete."""
    count = int(HANDSHAKES * part)
    frame = request_frame(API_VERSIONS, 0, {})

    def work() -> float:
        for _ in range(count):
            # a new context has no session to resume
            with context_of(broker).wrap_socket(
                socket.create_connection(broker.client_address, timeout=10),
                server_hostname="127.0.0.1",
            ) as connection:
                connection.sendall(frame)
                if not connection.recv(4):
                    raise BenchError(f"{broker.name} closed a connection")
        return float(count)

    return cpu_of(broker, work)


def requests(broker: Broker, part: float, tls: bool) -> tuple[float, float]:
    """One record of 100 bytes in each request, as `small-500` of bench.produce_fetch."""
    topic = broker.make_topic("secure")
    batch = build_batch([(None, bytes(100))], timestamp=int(time.time() * 1000))
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    body: dict[str, object] = {"transactional_id": None, "acks": 1, "timeout_ms": 30_000}
    body["topic_data"] = rows
    try:
        return round_trips(broker, part, tls, request_frame(PRODUCE, 9, body))
    finally:
        broker.drop_topic(topic)


def metadata(broker: Broker, part: float, tls: bool) -> tuple[float, float]:
    body: dict[str, object] = {"topics": [], "allow_auto_topic_creation": False}
    return round_trips(broker, part, tls, request_frame(METADATA, 9, body))


def round_trips(broker: Broker, part: float, tls: bool, frame: bytes) -> tuple[float, float]:
    """Send the request on each connection, and again after each response."""
    count = int(REQUESTS * part)
    address = broker.client_address if tls else broker.address
    context = context_of(broker)
    connections: dict[int, socket.socket] = {}
    poller = select.epoll()
    for _ in range(CONNECTIONS):
        plain = socket.create_connection(address, timeout=10)
        connection = context.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        poller.register(connection.fileno(), select.EPOLLIN)

    def work() -> float:
        waiting = dict.fromkeys(connections, b"")
        for connection in connections.values():
            connection.send(frame)
        left, sent = count, len(connections)
        deadline = time.monotonic() + SECONDS_MAX
        while left > 0:
            if time.monotonic() > deadline:
                raise BenchError(f"{broker.name}: {left} responses did not arrive in time")
            for descriptor, _ in poller.poll(1.0):
                connection = connections[descriptor]
                try:
                    data = connection.recv(65536)
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue
                if not data:
                    raise BenchError(f"{broker.name} closed a connection")
                found = waiting[descriptor] + data
                if len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
                    waiting[descriptor] = found
                    continue
                waiting[descriptor] = b""
                left -= 1
                if sent < count:
                    connection.send(frame)
                    sent += 1
        return float(count)

    try:
        return cpu_of(broker, work)
    finally:
        for connection in connections.values():
            connection.close()
        poller.close()


@dataclass(frozen=True)
class Benchmark:
    run: Callable[[Broker, float, bool], tuple[float, float]]
    unit: str
    has_plaintext: bool = True


BENCHMARKS = {
    "produce": Benchmark(produce, "MB"),
    "fetch": Benchmark(fetch, "MB"),
    "handshakes": Benchmark(handshakes, "handshakes", has_plaintext=False),
    "requests": Benchmark(requests, "requests"),
    "metadata": Benchmark(metadata, "requests"),
}


# -- the run


def main() -> int:
    options = parse()
    part = 0.02 if options.quick else 1.0
    rounds = options.rounds or (1 if options.quick else 3)
    directory = Path(tempfile.mkdtemp(prefix="mqd-secure-", dir=options.data))
    started: list[Broker] = []
    rows: list[dict[str, object]] = []
    try:
        security = ClusterSecurity.create(directory / "security", "SSL", PLAIN)
        makers = (brokers.mqd,) if options.no_kafka else (brokers.mqd, brokers.kafka)
        for make in makers:
            started.append(make(directory / make.__name__, security))
            started[-1].start()
        print(f"{'':28} {'mqd':>12} {'kafka':>12} {'ratio':>7}   per second of the broker's CPU")
        for name in options.only or list(BENCHMARKS):
            benchmark = BENCHMARKS[name]
            for tls in (True, False) if benchmark.has_plaintext else (True,):
                label = f"{name} {'TLS' if tls else 'plaintext'}"
                rows.append(measure(label, benchmark, started, tls, part, rounds))
    except BenchError as error:
        print(f"bench.secure: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in started:
            broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"rounds": rounds, "rows": rows}, indent=1))
    return 0


def measure(
    label: str, benchmark: Benchmark, started: list[Broker], tls: bool, part: float, rounds: int
) -> dict[str, object]:
    """The medians of all rounds, printed."""
    for broker in started:
        benchmark.run(broker, part * WARM_UP_PART, tls)
    figures: dict[str, list[float]] = {broker.name: [] for broker in started}
    for number in range(rounds):
        for broker in started if number % 2 == 0 else reversed(started):
            amount, cpu_seconds = benchmark.run(broker, part, tls)
            figures[broker.name].append(amount / cpu_seconds)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    ratio = medians["mqd"] / medians["kafka"] if "kafka" in medians else None
    cells = [f"{medians.get(name, 0):>12.1f}" for name in ("mqd", "kafka")]
    shown = f"{ratio:>7.2f}" if ratio is not None else f"{'':>7}"
    print(f"{label:28} {' '.join(cells)} {shown}   {benchmark.unit}", flush=True)
    return {"benchmark": label, "unit": benchmark.unit, "figures": figures, "ratio": ratio}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(BENCHMARKS),
        metavar="NAME",
        help="run only this; may be repeated",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="[default: 3; 1 with --quick]")
    parser.add_argument(
        "--quick", action="store_true", help="2%% of the load: does it work at all?"
    )
    parser.add_argument("--no-kafka", action="store_true", help="measure only mqd")
    parser.add_argument("--json", metavar="FILE", help="write all figures there, too")
    parser.add_argument("--data", metavar="DIR", help="where data directories are made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
