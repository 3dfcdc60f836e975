"""How fast are three nodes with acks=all and three replicas, on this machine, beside three nodes of
Apache Kafka?

    python -m bench.replicated [--peer-kafka] [--only NAME]... [--quick] [--rounds N] [--keep 0.8]
    [--json FILE] [--data DIR] [--list]

The load is that of produce_fetch.py, sent to the leader of one partition with three replicas and
min.insync.replicas 2. Every acknowledgement waits for all in-sync replicas. Both clusters run all
the time and are measured in turn, A B then B A. Four busy processes share the processors
(generator, leader, followers), so the figures show the CPU time of each record. CPU time and memory
are those of all three nodes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench import floors
from bench.benchmarks import Benchmark, Figure, Run, produce, throughput, topic_on
from bench.brokers import Broker
from bench.generators import BenchError, binary, client_load, generate
from bench.produce_fetch import QUICK_PART, describe, measure
from chaos.ensemble import Ensemble, ensemble
from chaos.node import NodeFailed, end_on_sigterm

ALL = -1
"""acks"""


class Cluster(Broker):
    """Three nodes with the interface of one broker. Its address is that of the leader of the newest
    topic.
    """

    def __init__(self, cluster: Ensemble) -> None:
        super().__init__(cluster.kind, ("127.0.0.1", cluster.nodes[1].port))
        self.cluster = cluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def stop(self) -> None:
        with suppress(NodeFailed):
            self.cluster.stop()
        self.cluster.kill()

    def _parts(self) -> list[Broker]:
        return [
            Broker(self.name, self.address, pid=node.pid) for node in self.cluster.nodes.values()
        ]

    def cpu_seconds(self) -> float | None:
        return sum(part.cpu_seconds() or 0.0 for part in self._parts())

    def resident_mb(self) -> float | None:
        return sum(part.resident_mb() or 0.0 for part in self._parts())

    def make_topic(self, label: str) -> str:
        """Create a topic with one partition and three replicas. The nodes lead such topics in
        turn.
        """
        self.topics_made += 1
        name = f"replicated-{self.topics_made}-{label}"
        first = self.topics_made % 3 + 1
        replicas = [first, *(node_id for node_id in self.cluster.nodes if node_id != first)]
        try:
            self.cluster.create_topic(
                name, assignment={0: replicas}, configs={"file.delete.delay.ms": "1000"}
            )
        except NodeFailed as error:
            raise BenchError(str(error)) from None
        self.address = ("127.0.0.1", self.cluster.nodes[first].port)
        return name

    def drop_topic(self, name: str) -> None:
        with suppress(OSError):
            self.cluster.request(
                1, "delete_topics", 5, {"topic_names": [name], "timeout_ms": 10_000}, timeout_s=15
            )


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Register a benchmark under its name."""

    def register(function: Benchmark) -> Benchmark:
        BENCHMARKS[name] = function
        return function

    return register


@benchmark("replicated-1m-batches")
def one_megabyte(broker: Broker, run: Run) -> list[Figure]:
    """1-KiB messages in batches of a megabyte, four in flight."""
    return produce(broker, run, records=1000, value_bytes=1024, depth=4, requests=1_500, acks=ALL)


@benchmark("replicated-100b")
def hundred_bytes(broker: Broker, run: Run) -> list[Figure]:
    """100-byte messages in batches of 1,000, four in flight."""
    return produce(broker, run, records=1000, value_bytes=100, depth=4, requests=6_000, acks=ALL)


@benchmark("replicated-16k-batches")
def sixteen_kilobytes(broker: Broker, run: Run) -> list[Figure]:
    """1-KiB messages in 16-KB batches, the default of Java's producer, five in flight."""
    return produce(broker, run, records=16, value_bytes=1024, depth=5, requests=15_000, acks=ALL)


@benchmark("replicated-client-100b")
def client_produce(broker: Broker, run: Run) -> list[Figure]:
    """confluent-kafka's producer, 100-byte messages, linger 5 ms."""
    with topic_on(broker, "client") as topic:
        count = run.count(1_500_000, 10_000)
        client_load("produce", broker.address, topic, max(10_000, count // 10), 100, acks=ALL)
        return throughput(
            broker,
            lambda: client_load("produce", broker.address, topic, count, 100, acks=ALL),
            "page-cache write",
        )


@benchmark("replicated-small-16")
def small(broker: Broker, run: Run) -> list[Figure]:
    """Requests of one 100-byte record over 16 connections, one in flight on each."""
    with topic_on(broker, "small") as topic:
        generate("load", broker.address, topic, c=16, a=ALL, n=run.count(6_000))
        result = generate("load", broker.address, topic, c=16, a=ALL, n=run.count(40_000, 2_000))
    return [
        Figure(
            "requests",
            "req/s",
            result["requests"] / result["seconds"],
            floor="Trio echo, 16 connections",
        )
    ]


@benchmark("replicated-latency")
def latency(broker: Broker, run: Run) -> list[Figure]:
    """The time from when a message was due to its acknowledgement, 1,000 messages/s, 4
    connections.
    """
    with topic_on(broker, "latency") as topic:
        generate("load", broker.address, topic, r=1000, t=2, c=4, a=ALL)
        result = generate("load", broker.address, topic, r=1000, t=run.latency_seconds, c=4, a=ALL)
    return [
        Figure(name, "us", result[f"{name}_us"], more_is_better=False, floor=f"Trio echo, {name}")
        for name in ("p50", "p99", "p999")
    ]


@benchmark("replicated-memory")
def memory(broker: Broker, _run: Run) -> list[Figure]:
    """Resident memory of the three nodes after all previous benchmarks."""
    return [Figure("loaded", "MB", broker.resident_mb() or 0.0, goal=0.2, more_is_better=False)]


def warm_up(broker: Broker, run: Run) -> None:
    """Run the code paths, so that the JIT compiler of Kafka's JVM has compiled them. Measures
    nothing.
    """
    with topic_on(broker, "warm-up") as topic:
        generate("load", broker.address, topic, c=16, a=ALL, n=run.count(30_000))
        generate("load", broker.address, topic, R=16, s=1024, d=5, a=ALL, n=run.count(8_000))
        generate("load", broker.address, topic, R=1000, s=100, d=4, a=ALL, n=run.count(3_000))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replicated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peer-kafka",
        action="store_true",
        help="start three nodes of Apache Kafka and measure them, too",
    )
    parser.add_argument(
        "--kind", choices=("mqd", "kafka"), default="mqd", help="which runs first (mqd)"
    )
    parser.add_argument(
        "--keep",
        type=float,
        default=1.0,
        metavar="PART",
        help="this part of the peer's speed is good enough (1.0)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(BENCHMARKS),
        metavar="NAME",
        help="run only this; may be repeated",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_PART:.0%}% of the load, one round: does it work at all?",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="runs of each benchmark (3; 1 with --quick)"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there, too")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where data directories are made (the system's temporary directory)",
    )
    parser.add_argument("--list", action="store_true", help="print the benchmarks")
    options = parser.parse_args()
    if options.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:24} {benchmark.__doc__}")
        return 0
    run = Run(part=QUICK_PART if options.quick else 1.0)
    rounds = options.rounds or (1 if options.quick else 3)
    end_on_sigterm()
    directory = Path(tempfile.mkdtemp(prefix="replicated-", dir=options.data))
    tested: list[Broker] = []
    try:
        binary("load")
        for kind in [
            options.kind,
            *(["kafka"] if options.peer_kafka and options.kind != "kafka" else []),
        ]:
            cluster = ensemble(kind, directory / kind)
            tested.append(Cluster(cluster))
            print(f"three nodes of {kind} ready after {cluster.start():.1f} s")
        machine = floors.machine(directory)
        print(describe(machine, tested, rounds, run))
        rows = measure(
            options.only or list(BENCHMARKS),
            tested,
            run,
            rounds,
            directory,
            options.keep,
            BENCHMARKS,
            warm_up,
        )
    except (BenchError, NodeFailed) as error:
        print(f"replicated: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in tested:
            broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        Path(options.json).write_text(
            json.dumps(
                {"machine": machine, "rounds": rounds, "quick": options.quick, "rows": rows},
                indent=1,
            )
        )
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
