"""Exactly-once copies under faults: does a `read_committed` consumer of each copy get exactly the
input?

    python -m chaos.exactly_once [--seconds 120] [--seed 1] [--kind mqd|kafka] [--clients \
        confluent,consumer,aiokafka] [--rate 300] [--security sasl_ssl] \
        [--sasl-mechanism SCRAM-SHA-256]

Three nodes, replication factor 3, min.insync.replicas 2. A producer fills a topic. For each kind of
client, a group of worker processes (chaos/copy_worker.py) copies it into a separate topic. They
consume, transform, produce and commit the offsets in one transaction. `confluent`: the classic
protocol, cooperative. `consumer`: KIP-848. `aiokafka`: eager, a transactional id for each
partition.

Meanwhile the nemesis of the seed kills, suspends and restarts nodes, also leaders of the topics and
coordinators of the groups and transactions. Workers are killed during transactions, leave, join,
and restart with the same or another transactional id. So transactions are fenced, aborted, or end
by their timeout. Then all faults end, and the trial verifies that

- each copy has every record of the input once, in order, with its value, and no other record;
- a `read_committed` consumer received during the faults exactly the records of the copy, without a
  gap;
- no transaction hangs: the last stable offset of every partition is its high watermark;
- replicas are identical, and `mqctl log verify` finds no damage.

One bug of a client is handled as an application would, and counted. If Metadata no longer contains
a broker, librdkafka 2.16 does not connect to it. It keeps the broker as the group's coordinator and
waits for the connection. Then `send_offsets_to_transaction` ignores its timeout. It returns only
when another connection of that producer changes its state (confluentinc/librdkafka, issues 5511 and
5456). The same happens with Apache Kafka. With the same broker session timeout, 4 of 13 producers
hung there after their coordinator was killed, and 2 of 11 here. The worker ends its own process
after 30 s, long after its transaction has timed out, and another one is started. If a client hangs
in any other call, the trial fails.

Exit code 0: all checks passed; 1: a check failed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from . import cluster_security
from .cluster import HEAL_TIMEOUT_S, PATIENT, verify_files
from .copy_checker import check_copy
from .copy_group import COPY_PARTITIONS, INPUT, TRANSACTION_MS, CopyGroup
from .copy_reading import read_copy
from .copy_worker import SESSION_MS, WORK
from .ensemble import Ensemble, ensemble
from .fault_injector import inject_fault
from .history import Key, Reads
from .nemesis import Step, Target, steps
from .node import NodeFailed, end_on_sigterm
from .program import SHOWN_MAX, add_keep, conclude, directory_of, failed
from .replicas import differences
from .workload import Producer, Reader, TrialFailed, read_all

PARTITIONS = 6
SEGMENT_BYTES = 1024 * 1024
AT_FIRST = 2
STUCK_S = 120.0
"""The trial fails if a group commits no transaction for this time while there is no fault."""
COORDINATOR_PARTITIONS = 10
OPTIONS = (
    f"offsets.topic.num.partitions={COORDINATOR_PARTITIONS}",
    f"transaction.state.log.num.partitions={COORDINATOR_PARTITIONS}",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.consumer.min.heartbeat.interval.ms=1000",
    "group.consumer.heartbeat.interval.ms=1000",
)
ONE_AT_A_TIME = {"max.in.flight": 1}
"""Options of the producer that fills the source in Apache Kafka, whose producer snapshots have only
the last batch of each producer. A retry of the first of two unanswered batches, after a clean
restart of all nodes, fails there with OUT_OF_ORDER_SEQUENCE_NUMBER. Then librdkafka fails. Workers
can recover from that, but the source must be complete.
"""
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""


@dataclass
class Trial:
    """One seeded run; `run` fills in the results."""

    cluster: Ensemble
    seed: int
    seconds: float
    clients: list[str]
    rate: float
    quiet: bool = False
    silences: dict[str, list[float]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    copies: list[CopyGroup] = field(default_factory=list)
    records: int = 0
    uncommitted: dict[str, int] = field(default_factory=dict)
    load_s: float = 0.0
    tail_s: float = 0.0

    def run(self) -> None:
        """Run the whole trial. Raises TrialFailed and NodeFailed."""
        random_source = random.Random(self.seed * 7919)
        self.cluster.start()
        configs = {"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
        self.cluster.create_topic(INPUT, PARTITIONS, configs=configs)
        self.copies = [CopyGroup(client, self.cluster, random_source) for client in self.clients]
        for copy in self.copies:
            self.cluster.create_topic(copy.topic, COPY_PARTITIONS, configs=configs)
        keys = [(INPUT, partition) for partition in range(PARTITIONS)]
        security = self.cluster.client_options
        options = PATIENT | security
        if self.cluster.kind == "kafka":
            options |= ONE_AT_A_TIME
        producer = Producer(
            1, self.cluster.bootstrap, keys, self.seed, rate=self.rate, options=options
        )
        producer.start()
        started_at = time.monotonic()
        try:
            for copy in self.copies:
                copy.reader = Reader(
                    1,
                    self.cluster.bootstrap,
                    copy.keys,
                    options={"isolation.level": "read_committed"} | security,
                )
                copy.reader.start()
                for slot in range(AT_FIRST):
                    copy.start_worker(slot)
            self._wait_for_commits(started_at)
            self._inject_faults(random_source, time.monotonic() + self.seconds)
            self.load_s = time.monotonic() - started_at
            for node in self.cluster.nodes.values():
                node.wait_ready()
            producer.finish()
            self._wait_until_copied(producer.acknowledged)
            self.tail_s = time.monotonic() - started_at - self.load_s
            for copy in self.copies:
                copy.finish()
        except BaseException:
            producer.abandon()
            raise
        finally:
            for copy in self.copies:
                copy.kill()
                if copy.reader is not None:
                    copy.reader.finish()
        self.records = producer.acknowledged
        self._judge(read_all(self.cluster.bootstrap, keys, options=security))

    def _judge(self, source: dict[Key, Reads]) -> None:
        by_partition = {partition: reads for (_, partition), reads in source.items()}
        topics = {INPUT: PARTITIONS} | {copy.topic: COPY_PARTITIONS for copy in self.copies}
        self.cluster.wait_until(
            lambda: self.cluster.is_whole(topics),
            "a full ISR of every partition, as every node reports it",
            HEAL_TIMEOUT_S,
        )
        self._wait_for_stability([key for copy in self.copies for key in copy.keys])
        ends = {key: len(reads.offsets) for key, reads in source.items()}
        security = self.cluster.client_options
        for copy in self.copies:
            place = self.cluster.bootstrap, copy.keys
            committed, _ = read_copy(*place, "read_committed", security)
            everything, last = read_copy(*place, "read_uncommitted", security)
            ends |= last
            count = sum(len(rows.offsets) for rows in committed.values())
            self.uncommitted[copy.client] = (
                sum(len(rows.offsets) for rows in everything.values()) - count
            )
            assert copy.reader is not None
            self.violations += [
                str(one)
                for one in check_copy(copy.topic, by_partition, committed, copy.reader.reads)
            ]
            self.violations += [
                f"the reader of {copy.topic} received an error: {error}"
                for error in copy.reader.errors
            ]
        self.cluster.stop()
        directories = {node_id: node.data_directory for node_id, node in self.cluster.nodes.items()}
        for key, end in ends.items():
            self.violations += differences(directories, key, end)
        for directory in directories.values():
            self.violations += verify_files(directory)

    # -- faults

    def _inject_faults(self, random_source: random.Random, deadline: float) -> None:
        for step in steps(self.seed, self.cluster.session_ms / 1000):
            if time.monotonic() + step.before_s + step.down_s > deadline:
                return
            time.sleep(step.before_s)
            started_at = time.monotonic()
            words = random_source.choice(self.copies).change()
            self.changes[words.partition(" ")[2]] += 1
            victims, role = self._victims(step)
            inject_fault(self.cluster, step, victims)
            self.done[step.name] += 1
            done = (
                f"{words}; {step.name} (node {', '.join(map(str, victims))}{role}, away "
                f"{step.down_s:.1f} s)"
            )
            if step.hurry:
                self._say(f"{done}: the next fault follows at once")
                continue
            silence = self._wait_for_commits(time.monotonic()) - started_at
            self.silences.setdefault(step.name, []).append(silence)
            self._say(f"{done}: every group commits again {silence:.1f} s after it began")

    def _victims(self, step: Step) -> tuple[list[int], str]:
        """Victims with the reason: leaders of topics, and coordinators."""
        running = self.cluster.running
        if step.target is Target.ALL:
            return running, ""
        named: set[int | None] = set()
        role = ""
        if step.target in (Target.LEADER, Target.LEADER_AND_CONTROLLER):
            led = self._led()
            role, leader = led[int(step.choice * len(led))]
            named.add(leader)
        if step.target in (Target.CONTROLLER, Target.LEADER_AND_CONTROLLER):
            named.add(self.cluster.controller())
        found = sorted(
            node_id
            for node_id in named
            if node_id is not None and self.cluster.nodes[node_id].running
        )
        return (
            (found, f": {role}" if role else "")
            if found
            else ([running[int(step.choice * len(running))]], "")
        )

    def _led(self) -> list[tuple[str, int | None]]:
        led: list[tuple[str, int | None]] = [("leads the input", self.cluster.leader(INPUT))]
        for copy in self.copies:
            led.append((f"leads {copy.topic}", self.cluster.leader(copy.topic)))
            led.append((f"coordinates {copy.group}", self._coordinator(copy.group, GROUP)))
            ids = (
                [f"{copy.group}-{INPUT}-0"]
                if copy.client == "aiokafka"
                else [copy.name(slot) for slot in sorted(copy.workers)]
            )
            led += [
                (f"coordinates transactions of {name}", self._coordinator(name, TRANSACTION))
                for name in ids
            ]
        return led

    def _coordinator(self, key: str, key_type: int) -> int | None:
        for node_id in self.cluster.running:
            with suppress(OSError):
                body = {"key_type": key_type, "coordinator_keys": [key]}
                (row,) = self.cluster.request(
                    node_id, "find_coordinator", 4, body, timeout_s=2.0
                ).coordinators
                if row.error_code == 0:
                    return int(row.node_id)
        return None

    # -- waiting

    def _wait_for_commits(self, since: float) -> float:
        """Wait until every group has committed a transaction after that time; returns when. Raises
        TrialFailed and NodeFailed.
        """
        deadline = time.monotonic() + STUCK_S
        while late := [copy for copy in self.copies if copy.last_commit <= since]:
            self._check_alive()
            if time.monotonic() > deadline:
                raise TrialFailed(
                    f"no transaction was committed for {STUCK_S:.0f} s:\n{self._state(late)}"
                )
            time.sleep(0.02)
        return time.monotonic()

    def _wait_until_copied(self, count: int) -> None:
        """Wait until the consumers of each copy have as many records as the input. Raises
        TrialFailed and NodeFailed.
        """
        seen, deadline = -1, 0.0
        while True:
            counts = [copy.reader.count for copy in self.copies if copy.reader is not None]
            if min(counts) >= count:
                return
            if sum(counts) > seen:
                seen, deadline = sum(counts), time.monotonic() + STUCK_S
            if time.monotonic() > deadline:
                late = [
                    copy
                    for copy in self.copies
                    if copy.reader is not None and copy.reader.count < count
                ]
                self.violations.append(
                    f"copies stay behind: {counts} of {count} records committed, nothing new "
                    f"for {STUCK_S:.0f} s"
                )
                self._say(self._state(late))
                return
            self._check_alive()
            time.sleep(0.05)

    def _wait_for_stability(self, keys: list[Key]) -> None:
        """Wait until the timeout has ended every abandoned transaction."""
        deadline = time.monotonic() + TRANSACTION_MS / 1000 + STUCK_S
        while True:
            ends = {key: self._ends(key) for key in keys}
            hanging = [
                f"{topic}-{partition} from {stable} to {end}"
                for (topic, partition), (stable, end) in ends.items()
                if stable != end
            ]
            if not hanging:
                return
            if time.monotonic() > deadline:
                self.violations.append(f"transactions hang in {', '.join(hanging)}")
                return
            time.sleep(0.2)

    def _ends(self, key: Key) -> tuple[int, int]:
        """The last stable offset and the high watermark that the leader reports; (-1, 0) without a
        leader.
        """
        found = []
        for isolation in (1, 0):
            rows = [{"partition_index": key[1], "current_leader_epoch": -1, "timestamp": -1}]
            body = {
                "replica_id": -1,
                "isolation_level": isolation,
                "topics": [{"name": key[0], "partitions": rows}],
            }
            leader = self.cluster.leader(*key)
            with suppress(OSError):
                if leader is not None:
                    (row,) = (
                        self.cluster.request(leader, "list_offsets", 5, body).topics[0].partitions
                    )
                    if row.error_code == 0:
                        found.append(int(row.offset))
        return (found[0], found[1]) if len(found) == 2 else (-1, 0)

    def _check_alive(self) -> None:
        for node in self.cluster.nodes.values():
            node.check_alive()
        for copy in self.copies:
            copy.restart_hung()
            for worker in copy.workers.values():
                worker.check_alive()

    # -- output

    def _state(self, late: Iterable[CopyGroup]) -> str:
        lines = []
        for copy in late:
            ends = {partition: self._ends((topic, partition)) for topic, partition in copy.keys}
            lines.append(f"{copy.client}: (stable, end) of the copy's partitions {ends}")
            lines.append(f"  group coordinated by {self._coordinator(copy.group, GROUP)}")
            for worker in copy.workers.values():
                lines.append(
                    f"  {worker.name}: {dict(worker.counts)} {worker.reasons.most_common(5)}"
                )
        return "\n".join(lines)

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(f"  {text}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """The result of the trial with its counts."""
        lines = [
            f"{'faults of nodes':34}{'count':>7}{'p50':>11}{'worst':>9}   until every group "
            "commits again"
        ]
        for name, count in sorted(self.done.items()):
            rows = self.silences.get(name, [])
            shown = (
                f"{statistics.median(rows):9.1f} s{max(rows):7.1f} s"
                if rows
                else f"{'-':>11}{'-':>9}"
            )
            lines.append(f"{name:34}{count:>7}{shown}")
        lines += [f"{what:34}{count:>7}" for what, count in sorted(self.changes.items())]
        for copy in self.copies:
            counts = copy.counts
            lines.append(
                f"{copy.client}: {counts['committed']} transactions of {counts['records']} "
                f"records committed, {counts['aborted']} "
                f"aborted by workers, {counts['restarted']} times restarted, {counts['hung']} "
                "processes restarted because the client hung, "
                f"{self.uncommitted.get(copy.client, 0)} aborted records in the log"
            )
        lines.append(
            f"{self.cluster.kind}: {sum(self.done.values())} faults and "
            f"{sum(self.changes.values())} changes of members in "
            f"{self.load_s:.0f} s; input of {self.records} records, copied {self.tail_s:.1f} "
            "s after the heal; "
            f"violations {len(self.violations)}"
        )
        return "\n".join(lines)

    def reasons(self) -> str:
        """The reasons of aborts and restarts, the most frequent first."""
        return "\n".join(
            f"  {copy.client}: {count} times {reason}"
            for copy in self.copies
            for reason, count in copy.reasons.most_common(SHOWN_MAX)
        )


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.exactly_once", description="exactly-once copies under faults"
    )
    parser.add_argument("--nodes", type=int, default=3, help="nodes (3)")
    parser.add_argument("--seconds", type=float, default=120, help="of faults (120)")
    parser.add_argument("--seed", type=int, default=1, help="of faults, members and payloads (1)")
    parser.add_argument(
        "--session-ms",
        type=int,
        default=3000,
        help="broker session timeout, with six heartbeats in it (3000)",
    )
    parser.add_argument("--kind", choices=("mqd", "kafka"), default="mqd", help="whose nodes (mqd)")
    parser.add_argument(
        "--clients",
        default=",".join(WORK),
        help=f"kinds of workers, with commas ({','.join(WORK)})",
    )
    parser.add_argument(
        "--rate", type=float, default=300, help="records of the input a second (300)"
    )
    add_keep(parser)
    cluster_security.add_arguments(parser)
    arguments = parser.parse_args()
    clients = arguments.clients.split(",")
    if not clients or set(clients) - set(WORK):
        parser.error(f"--clients takes some of {', '.join(WORK)}")
    replay = (
        f"python -m chaos.exactly_once --nodes {arguments.nodes} --seconds "
        f"{arguments.seconds:g} --seed {arguments.seed}"
    )
    replay += (
        f" --session-ms {arguments.session_ms} --kind {arguments.kind} --clients "
        f"{arguments.clients} --rate {arguments.rate:g}{cluster_security.shown(arguments)}"
    )
    end_on_sigterm()
    with directory_of(arguments.keep, "exactly-once-") as directory:
        cluster: Ensemble | None = None
        trial: Trial | None = None
        try:
            cluster = ensemble(
                arguments.kind,
                directory,
                arguments.nodes,
                session_ms=arguments.session_ms,
                options=OPTIONS,
                security=cluster_security.from_arguments(arguments, directory / "security"),
            )
            trial = Trial(cluster, arguments.seed, arguments.seconds, clients, arguments.rate)
            trial.run()
        except (TrialFailed, NodeFailed) as error:
            return failed(error, reasons="" if trial is None else trial.reasons(), again=replay)
        finally:
            if cluster is not None:
                cluster.kill()
    return conclude(trial.summary(), trial.violations, reasons=trial.reasons(), again=replay)


if __name__ == "__main__":
    sys.exit(main())
