"""How long does a partition have no consumer when a member joins, leaves, or dies?

    python -m bench.rebalance [--members 10] [--members 100] [--rounds 3] [--peer-kafka] \
        [--only eager|cooperative|consumer] [--security sasl_ssl] [--json FILE]

One node. A topic has twice as many partitions as members. Each partition gets 20 records a second,
or fewer, so that all get at most 1,000. The members are confluent-kafka consumers; all but one
share a few processes. When all partitions are consumed steadily, the last member, in its own
process, joins, closes, joins again, and is killed.

The *gap* of a partition is the longest time without a record of it at any consumer, from the event
until consumption is steady again. `worst` is the longest gap of all partitions. `median` is that of
the median partition: it shows whether all partitions paused or only the moved ones. A gap below 50
ms with 10 members, or 200 ms with 100, is no longer than the usual interval between records.

`eager`: the classic protocol with `range`; `cooperative`: the classic protocol with
`cooperative-sticky`; `consumer`: KIP-848. The session timeout is 6 s, the heartbeat interval 1 s,
for all protocols and brokers; group.initial.rebalance.delay.ms is 0. With --peer-kafka, the rounds
alternate between mqd and a node of Apache Kafka.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from bench import floors
from chaos import cluster_security
from chaos.client_security import librdkafka_options, load
from chaos.ensemble import Ensemble, ensemble
from chaos.node import NodeFailed, end_on_sigterm

PROTOCOLS = ("eager", "cooperative", "consumer")
EVENTS = ("join", "leave", "die")
SESSION_MS, HEARTBEAT_MS = 6000, 1000
RATE_MAX = 20.0
"""The maximum number of records per second in each partition."""
RATE_MAX_IN_ALL = 1000.0
PARTITIONS_PER_MEMBER = 2
MEMBERS_PER_PROCESS = 25
STEADY_S = 2.0
"""An event is over when every partition was consumed in each half second for this time."""
HALF_S = 0.5
STABLE_TIMEOUT_S = 180.0
FLUSH_S = 0.1
OPTIONS = (
    "group.initial.rebalance.delay.ms=0",
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    f"group.consumer.min.heartbeat.interval.ms={HEARTBEAT_MS}",
    f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}",
)


# -- processes with members


def host(
    bootstrap: str, command_config: str, group: str, topic: str, protocol: str, count: int
) -> None:
    """Run some members: they join at the first line of standard input, and leave at its end.

    Writes lines of JSON to standard output. Each line has the partitions that were consumed since
    the previous line. For each, it has the time of the first and of the last record, and the
    longest gap, in seconds of CLOCK_MONOTONIC.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": True,
        "log_level": 0,
    }
    settings |= librdkafka_options(load(Path(command_config) if command_config else None))
    settings |= {
        "auto.offset.reset": "latest",
        "fetch.wait.max.ms": 50,
        "auto.commit.interval.ms": 1000,
    }
    if protocol == "consumer":
        settings |= {"group.protocol": "consumer"}
    else:
        assignor = "cooperative-sticky" if protocol == "cooperative" else "range"
        settings |= {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": assignor,
        }
    members = [confluent_kafka.Consumer(settings) for _ in range(count)]
    print(json.dumps("ready"), flush=True)
    if not sys.stdin.readline():
        return
    for member in members:
        member.subscribe([topic])
    seen: dict[int, list[float]] = {}
    flushed = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        idle = True
        for member in members:
            while (message := member.poll(0)) is not None:
                if message.error() is not None:
                    continue
                idle, now = False, time.monotonic()
                partition = message.partition()
                assert partition is not None
                row = seen.setdefault(partition, [now, now, 0.0])
                row[2] = max(row[2], now - row[1])
                row[1] = now
        if time.monotonic() - flushed > FLUSH_S:
            print(json.dumps(seen), flush=True)
            seen, flushed = {}, time.monotonic()
        if idle:
            time.sleep(0.005)
    print(json.dumps(seen), flush=True)
    for member in members:
        member.close()


class Consumed:
    """When each partition was consumed by any member: its longest gap since the last event."""

    def __init__(self, partitions: int) -> None:
        self.last = dict.fromkeys(range(partitions), 0.0)
        self.gaps = dict.fromkeys(range(partitions), 0.0)
        self._lock = threading.Lock()

    def add(self, rows: dict[str, tuple[float, float, float]]) -> None:
        """Add a line of a process. When a partition moves, the lines of two processes may overlap;
        then there is no gap.
        """
        with self._lock:
            for name, (first, last, inner) in rows.items():
                partition = int(name)
                before = self.last[partition]
                self.gaps[partition] = max(
                    self.gaps[partition], inner, first - before if before else 0.0
                )
                self.last[partition] = max(before, last)

    def begin(self) -> None:
        """An event begins: reset the gaps."""
        with self._lock:
            self.gaps = dict.fromkeys(self.gaps, 0.0)

    def is_flowing(self) -> bool:
        """Whether every partition was consumed in the last half second."""
        oldest = min(self.last.values())
        return time.monotonic() - oldest < HALF_S + FLUSH_S

    def take(self) -> list[float]:
        """Gaps of all partitions, sorted."""
        with self._lock:
            return sorted(self.gaps.values())


class Members:
    """A process with some members."""

    def __init__(
        self,
        consumed: Consumed,
        cluster: Ensemble,
        group: str,
        topic: str,
        protocol: str,
        count: int,
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.rebalance",
            "--host",
            cluster.bootstrap,
            str(cluster.command_config or ""),
            group,
            topic,
            protocol,
            str(count),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ready = threading.Event()
        self._consumed = consumed
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            received = json.loads(line)
            if received == "ready":
                self._ready.set()
            else:
                self._consumed.add(received)

    def join(self) -> None:
        """Let the members subscribe. The start of the process is over before and does not count."""
        if not self._ready.wait(STABLE_TIMEOUT_S):
            raise NodeFailed("a process of members did not start")
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        """Let the members close; does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._thread.join()


# -- the rounds


@dataclass
class Results:
    """The gaps of one cluster in seconds: (members, protocol, event) -> (worst, median) of each
    round.
    """

    worst: dict[tuple[int, str, str], list[float]] = field(default_factory=dict)
    median: dict[tuple[int, str, str], list[float]] = field(default_factory=dict)


class Round:
    """One group, from the join of its first member to the kill of its last one."""

    def __init__(self, cluster: Ensemble, protocol: str, members: int, number: int) -> None:
        self.partitions = PARTITIONS_PER_MEMBER * members
        self.topic = f"rebalance-{protocol}-{members}-{number}"
        self.consumed = Consumed(self.partitions)
        self._cluster = cluster
        self._protocol = protocol
        self._members = members
        self._hosts: list[Members] = []
        self._stop = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        cluster.create_topic(self.topic, self.partitions)

    def run(self) -> dict[str, list[float]]:
        """Returns event -> sorted gaps of all partitions; of two joins, the one with the longer
        worst gap. Raises NodeFailed.
        """
        self._feeder.start()
        try:
            others = self._members - 1
            for first in range(0, others, MEMBERS_PER_PROCESS):
                self._host(min(MEMBERS_PER_PROCESS, others - first)).join()
            self._wait_until_stable("the group is complete")
            last = self._host(1)
            joined = [self._event(last.join, "a member joins")]
            left = self._event(last.leave, "a member leaves")
            last = self._host(1)
            joined.append(self._event(last.join, "a member joins"))
            died = self._event(last.kill, "a member dies", at_least_s=SESSION_MS / 1000)
            return {"join": max(joined, key=lambda gaps: gaps[-1]), "leave": left, "die": died}
        finally:
            self._stop.set()
            self._feeder.join()
            for one in self._hosts:
                one.kill()

    def _host(self, count: int) -> Members:
        self._hosts.append(
            Members(self.consumed, self._cluster, self.topic, self.topic, self._protocol, count)
        )
        assert self._hosts[-1]._ready.wait(STABLE_TIMEOUT_S), "a process of members did not start"
        return self._hosts[-1]

    def _event(self, event: Callable[[], None], what: str, at_least_s: float = 0.0) -> list[float]:
        self.consumed.begin()
        event()
        time.sleep(at_least_s)
        self._wait_until_stable(what)
        return self.consumed.take()

    def _wait_until_stable(self, what: str) -> None:
        began = time.monotonic()
        steady_since = time.monotonic()
        while time.monotonic() - steady_since < STEADY_S + (HEARTBEAT_MS / 1000):
            if not self.consumed.is_flowing():
                steady_since = time.monotonic()
            if time.monotonic() - began > STABLE_TIMEOUT_S:
                raise NodeFailed(f"not steady {STABLE_TIMEOUT_S:.0f} s after {what}")
            time.sleep(0.02)

    def _feed(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "linger.ms": 0,
                "log_level": 0,
                **self._cluster.client_options,
            }
        )
        rate = rate_of(self.partitions)
        started_at, turn = time.monotonic(), 0
        while not self._stop.is_set():
            for partition in range(self.partitions):
                with suppress(
                    BufferError
                ):  # the broker does not accept records: `_wait_until_stable` reports it
                    producer.produce(self.topic, b"x", partition=partition)
            turn += 1
            producer.poll(max(0.0, started_at + turn / rate - time.monotonic()))
        producer.purge()
        producer.flush(5)


def rate_of(partitions: int) -> float:
    """Records per second in each partition."""
    return min(RATE_MAX, RATE_MAX_IN_ALL / partitions)


def measure(
    clusters: list[Ensemble], sizes: list[int], protocols: list[str], rounds: int
) -> dict[str, Results]:
    """Run all rounds. The clusters take turns: A B, then B A."""
    results = {cluster.kind: Results() for cluster in clusters}
    for number in range(rounds):
        for members in sizes:
            for protocol in protocols:
                for cluster in clusters if number % 2 == 0 else clusters[::-1]:
                    gaps = Round(cluster, protocol, members, number).run()
                    for event, row in gaps.items():
                        key = members, protocol, event
                        results[cluster.kind].worst.setdefault(key, []).append(row[-1])
                        results[cluster.kind].median.setdefault(key, []).append(
                            statistics.median(row)
                        )
                    shown = ", ".join(
                        f"{event} {row[-1]:.2f} s (median {statistics.median(row):.2f})"
                        for event, row in gaps.items()
                    )
                    print(
                        f"  round {number + 1} {protocol} {members} members {cluster.kind}: "
                        f"{shown}",
                        file=sys.stderr,
                        flush=True,
                    )
    return results


def rows(results: dict[str, Results]) -> list[dict[str, Any]]:
    """One row for each figure: the median of each cluster's rounds, and the ratio of mqd to the
    peer.
    """
    made = []
    keys = next(iter(results.values())).worst
    for members, protocol, event in sorted(
        keys, key=lambda key: (key[0], EVENTS.index(key[2]), PROTOCOLS.index(key[1]))
    ):
        for figure in ("worst", "median"):
            values = [
                statistics.median(getattr(one, figure)[members, protocol, event])
                for one in results.values()
            ]
            ratio = values[0] / values[1] if len(values) > 1 and values[1] else None
            made.append(
                {
                    "benchmark": f"{event}, {members} members, {protocol}",
                    "figure": f"{figure} partition",
                    "values": values,
                    "ratio": ratio,
                }
            )
    return made


def render(row: dict[str, Any]) -> str:
    """One line of the table."""
    text = f"{row['benchmark']:34}{row['figure']:18}{'s':>3}" + "".join(
        f"{value:>10.2f}" for value in row["values"]
    )
    return text + (f"{row['ratio']:>8.2f}" if row["ratio"] is not None else "")


def main() -> int:
    if sys.argv[1:2] == ["--host"]:
        bootstrap, command_config, group, topic, protocol, count = sys.argv[2:]
        host(bootstrap, command_config, group, topic, protocol, int(count))
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m bench.rebalance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--members", type=int, action="append", help="of the group; may be repeated (10 and 100)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each protocol and size (3)")
    parser.add_argument(
        "--peer-kafka", action="store_true", help="measure a node of Apache Kafka in turn"
    )
    parser.add_argument(
        "--kind", choices=("mqd", "kafka"), default="mqd", help="which runs first (mqd)"
    )
    parser.add_argument(
        "--only", action="append", choices=PROTOCOLS, help="only this; may be repeated"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there, too")
    cluster_security.add_arguments(parser)
    options = parser.parse_args()
    sizes = options.members or [10, 100]
    if min(sizes) < 2:
        parser.error("--members: two or more")
    end_on_sigterm()
    directory = Path(tempfile.mkdtemp(prefix="rebalance-"))
    clusters: list[Ensemble] = []
    try:
        for kind in [
            options.kind,
            *(["kafka"] if options.peer_kafka and options.kind != "kafka" else []),
        ]:
            security = cluster_security.from_arguments(options, directory / f"{kind}-security")
            clusters.append(ensemble(kind, directory / kind, 1, options=OPTIONS, security=security))
            clusters[-1].start()
        machine = floors.machine(directory)
        print("\n".join(f"{key}: {value}" for key, value in machine.items()))
        print("brokers: " + ", ".join(f"one node of {one.kind}" for one in clusters))
        rates = ", ".join(
            f"{rate_of(PARTITIONS_PER_MEMBER * size):.0f}/s with {size} members" for size in sizes
        )
        print(
            f"rounds: {options.rounds}, records in each partition: {rates}, session "
            f"{SESSION_MS} ms\n",
            flush=True,
        )
        table = rows(measure(clusters, sizes, options.only or list(PROTOCOLS), options.rounds))
    except NodeFailed as error:
        print(f"rebalance: {error}", file=sys.stderr)
        return 1
    finally:
        for cluster in clusters:
            cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{'longest gap when a member does this':52}{'':3}"
        + "".join(f"{one.kind:>10}" for one in clusters)
        + ("   ratio" if len(clusters) > 1 else "")
    )
    for row in table:
        print(render(row))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": machine, "rounds": options.rounds, "rows": table}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
