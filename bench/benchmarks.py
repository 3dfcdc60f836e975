"""The benchmarks of one broker: each is a short function that returns figures.

Every broker runs each benchmark in turn, for several rounds; the caller takes medians. Each run
creates its topics and deletes them. Sizes are for a run of some minutes; `run.part` shrinks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import floors
from bench.brokers import Broker, acknowledges, wait_until
from bench.generators import client_load, generate


@dataclass(frozen=True)
class Figure:
    """One number. `goal`: the required ratio to the peer, a minimum if more is better, otherwise a
    maximum.

    `floor` names one of FLOORS.
    """

    name: str
    unit: str
    value: float
    goal: float = 1.0
    more_is_better: bool = True
    floor: str | None = None


@dataclass
class Run:
    """`part`: the share of a whole run, 1.0 at most. `idle_mb`: memory of each broker right after
    its start.
    """

    part: float
    idle_mb: dict[str, float] = field(default_factory=dict)

    def count(self, whole: int, least: int = 200) -> int:
        return max(least, int(whole * self.part))

    @property
    def latency_seconds(self) -> float:
        return max(2.0, 8.0 * self.part)


Benchmark = Callable[[Broker, Run], list[Figure]]
BENCHMARKS: dict[str, Benchmark] = {}
SECURED = ("client-produce-100b", "client-produce-1k", "client-consume-1k")
"""Benchmarks whose load is librdkafka, which has TLS and SASL. The C generators have neither."""


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    def register(function: Benchmark) -> Benchmark:
        BENCHMARKS[name] = function
        return function

    return register


Floor = Callable[[Run, Path], float]


def _echo_requests(connections: int, depth: int) -> Floor:
    return lambda run, _directory: floors.echo_requests(
        connections, depth, run.count(60_000, 2_000)
    )


def _echo_latency(percentile: str) -> Floor:
    return lambda run, _directory: floors.echo_latency(
        f"{percentile}_us", 1000, run.latency_seconds
    )


FLOORS: dict[str, Floor] = {
    "loopback stream": lambda run, _directory: floors.loopback_stream(
        run.count(4 << 30, 256 << 20)
    ),
    "page-cache write": lambda run, directory: floors.page_cache_write(
        directory, run.count(2 << 30, 256 << 20)
    ),
    **{
        f"Trio echo, {connections} connections": _echo_requests(connections, 1)
        for connections in (1, 16, 100, 500)
    },
    "Trio echo, 64 in flight": _echo_requests(1, 64),
    **{
        f"Trio echo, {percentile}": _echo_latency(percentile)
        for percentile in ("p50", "p99", "p999")
    },
}


@contextmanager
def topic_on(broker: Broker, label: str) -> Iterator[str]:
    name = broker.make_topic(label)
    try:
        yield name
    finally:
        broker.drop_topic(name)


def throughput(broker: Broker, transfer: Callable[[], dict[str, Any]], floor: str) -> list[Figure]:
    """MB/s and messages/s of `transfer`, and the broker's CPU seconds for each GB of it."""
    before = broker.cpu_seconds()
    result = transfer()
    after = broker.cpu_seconds()
    figures = [
        Figure("bytes", "MB/s", result["bytes"] / result["seconds"] / 1e6, floor=floor),
        Figure("messages", "msg/s", result["records"] / result["seconds"]),
    ]
    if before is not None and after is not None:
        figures.append(
            Figure(
                "broker CPU",
                "s/GB",
                (after - before) / (result["bytes"] / 1e9),
                more_is_better=False,
            )
        )
    return figures


# -- starting: runs first, while the data directories are small


@benchmark("start")
def start(broker: Broker, run: Run) -> list[Figure]:
    """The time from process start to the first response, and to the first acknowledged record."""
    if broker.launch is None:
        return []
    with topic_on(broker, "start") as topic:
        wait_until(
            lambda: acknowledges(broker.address, topic), "an acknowledgement before the restart"
        )
        broker.stop()
        ready_seconds, started_at = broker.start()
        acknowledged = wait_until(
            lambda: acknowledges(broker.address, topic), "the first acknowledgement", broker.process
        )
    run.idle_mb[broker.name] = broker.resident_mb() or 0.0
    return [
        Figure("ready", "ms", ready_seconds * 1e3, goal=0.3, more_is_better=False),
        Figure(
            "first acknowledgement",
            "ms",
            (acknowledged - started_at) * 1e3,
            goal=0.3,
            more_is_better=False,
        ),
    ]


def warm_up(broker: Broker, run: Run) -> None:
    """Run every code path for some seconds, so that the JIT compiler of Kafka's JVM has compiled
    it. Measures nothing.
    """
    with topic_on(broker, "warm-up") as topic:
        generate("load", broker.address, topic, c=16, n=run.count(60_000))
        generate("load", broker.address, topic, R=16, s=1024, d=5, n=run.count(30_000))
        generate("load", broker.address, topic, R=1000, s=100, d=4, n=run.count(6_000))
        generate("drain", broker.address, topic, n=run.count(4 << 30))


# -- producing


def produce(
    broker: Broker,
    run: Run,
    *,
    records: int,
    value_bytes: int,
    depth: int,
    requests: int,
    acks: int | None = None,
) -> list[Figure]:
    """Produce with the C generator on one connection, after a warm-up of a tenth of the load;
    acks=1 by default.
    """
    with topic_on(broker, "produce") as topic:
        options = {"R": records, "s": value_bytes, "d": depth} | (
            {} if acks is None else {"a": acks}
        )
        generate("load", broker.address, topic, n=run.count(requests) // 10, **options)
        return throughput(
            broker,
            lambda: generate("load", broker.address, topic, n=run.count(requests), **options),
            "page-cache write",
        )


@benchmark("produce-100b")
def produce_100b(broker: Broker, run: Run) -> list[Figure]:
    """100-byte messages in batches of 1,000."""
    return produce(broker, run, records=1000, value_bytes=100, depth=4, requests=12_000)


@benchmark("produce-1k")
def produce_1k(broker: Broker, run: Run) -> list[Figure]:
    """1-KiB messages in batches of a megabyte."""
    return produce(broker, run, records=1000, value_bytes=1024, depth=4, requests=3_000)


@benchmark("produce-1k-16k-batches")
def produce_16k(broker: Broker, run: Run) -> list[Figure]:
    """1-KiB messages in 16-KB batches, the default of Java's producer, five in flight."""
    return produce(broker, run, records=16, value_bytes=1024, depth=5, requests=60_000)


def client_produce(broker: Broker, run: Run, value_bytes: int, messages: int) -> list[Figure]:
    address, config = broker.client_address, broker.command_config
    with topic_on(broker, "client") as topic:
        count = run.count(messages, 10_000)
        first = max(10_000, count // 10)
        client_load("produce", address, topic, first, value_bytes, command_config=config)
        return throughput(
            broker,
            lambda: client_load(
                "produce", address, topic, count, value_bytes, command_config=config
            ),
            "page-cache write",
        )


@benchmark("client-produce-100b")
def client_produce_100b(broker: Broker, run: Run) -> list[Figure]:
    """confluent-kafka's producer, 100-byte messages, linger 5 ms, acks=1."""
    return client_produce(broker, run, 100, 5_000_000)


@benchmark("client-produce-1k")
def client_produce_1k(broker: Broker, run: Run) -> list[Figure]:
    """confluent-kafka's producer, 1-KiB messages."""
    return client_produce(broker, run, 1024, 2_000_000)


# -- requests without batching


def small(broker: Broker, run: Run, *, connections: int, depth: int, floor: str) -> list[Figure]:
    """Requests of one 100-byte record."""
    with topic_on(broker, "small") as topic:
        generate("load", broker.address, topic, c=connections, d=depth, n=run.count(6_000))
        result = generate(
            "load", broker.address, topic, c=connections, d=depth, n=run.count(60_000, 2_000)
        )
    return [Figure("requests", "req/s", result["requests"] / result["seconds"], floor=floor)]


def _small_benchmark(connections: int) -> None:
    @benchmark(f"small-{connections}")
    def measure(broker: Broker, run: Run) -> list[Figure]:
        return small(
            broker,
            run,
            connections=connections,
            depth=1,
            floor=f"Trio echo, {connections} connections",
        )

    measure.__doc__ = f"Unbatched requests over {connections} connections, one in flight on each."


for _connections in (1, 16, 100, 500):
    _small_benchmark(_connections)


@benchmark("small-pipelined")
def small_pipelined(broker: Broker, run: Run) -> list[Figure]:
    """Unbatched requests, 64 in flight on one connection."""
    return small(broker, run, connections=1, depth=64, floor="Trio echo, 64 in flight")


# -- latency


def latency(broker: Broker, run: Run, **options: object) -> list[Figure]:
    """Latency at a fixed rate of 1,000 messages/s, after a warm-up of two seconds."""
    with topic_on(broker, "latency") as topic:
        generate("load", broker.address, topic, r=1000, t=2, **options)
        result = generate("load", broker.address, topic, r=1000, t=run.latency_seconds, **options)
    return [
        Figure(name, "us", result[f"{name}_us"], more_is_better=False, floor=f"Trio echo, {name}")
        for name in ("p50", "p99", "p999")
    ]


@benchmark("latency")
def acknowledgement_latency(broker: Broker, run: Run) -> list[Figure]:
    """The time from when a message was due to its acknowledgement, on 4 connections."""
    return latency(broker, run, c=4)


@benchmark("end-to-end")
def end_to_end_latency(broker: Broker, run: Run) -> list[Figure]:
    """The time from when a message was due to its arrival at a consumer."""
    return latency(broker, run, c=1, e=True)


# -- fetching


def fetch(
    broker: Broker, run: Run, *, max_bytes: int, total_bytes: int, records: int
) -> list[Figure]:
    """The C drain over 256 MB of 1-KiB messages."""
    with topic_on(broker, "fetch") as topic:
        generate(
            "load", broker.address, topic, R=records, s=1024, d=4, n=run.count(256_000) // records
        )
        generate("drain", broker.address, topic, m=max_bytes, n=run.count(total_bytes) // 10)
        return throughput(
            broker,
            lambda: generate("drain", broker.address, topic, m=max_bytes, n=run.count(total_bytes)),
            "loopback stream",
        )


@benchmark("fetch-1m")
def fetch_1m(broker: Broker, run: Run) -> list[Figure]:
    """Fetches of one megabyte."""
    return fetch(broker, run, max_bytes=1 << 20, total_bytes=4 << 30, records=500)


@benchmark("fetch-64k")
def fetch_64k(broker: Broker, run: Run) -> list[Figure]:
    """Fetches of 64 KiB, with batches of 16 KB."""
    return fetch(broker, run, max_bytes=64 << 10, total_bytes=1 << 30, records=16)


@benchmark("client-consume-1k")
def client_consume(broker: Broker, run: Run) -> list[Figure]:
    """confluent-kafka's consumer, 1-KiB messages."""
    with topic_on(broker, "consume") as topic:
        count = run.count(1_000_000, 20_000)
        generate("load", broker.address, topic, R=500, s=1024, d=4, n=-(-count // 500))
        return throughput(
            broker,
            lambda: client_load(
                "consume",
                broker.client_address,
                topic,
                count,
                1024,
                command_config=broker.command_config,
            ),
            "loopback stream",
        )


# -- memory: runs last


@benchmark("memory")
def memory(broker: Broker, run: Run) -> list[Figure]:
    """Resident memory after the start, and after all previous benchmarks and a load of its own."""
    if broker.pid is None:
        return []
    with topic_on(broker, "memory") as topic:
        generate("load", broker.address, topic, c=16, d=4, R=16, s=1024, n=run.count(20_000))
        generate("drain", broker.address, topic, m=1 << 20, n=run.count(1 << 30))
        loaded = broker.resident_mb()
    figures = [Figure("loaded", "MB", loaded or 0.0, goal=0.2, more_is_better=False)]
    if broker.name in run.idle_mb:
        figures.insert(
            0, Figure("idle", "MB", run.idle_mb[broker.name], goal=0.2, more_is_better=False)
        )
    return figures
