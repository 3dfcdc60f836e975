"""Exactly-once copies under fire: is what `read_committed` sees of a copy its input, no more, no
less?

    python -m chaos.exactly_once [--seconds 120] [--seed 1] [--kind mqd|kafka] [--clients \
        confluent,consumer,aiokafka] [--rate 300]

Three nodes, replication factor 3, min.insync.replicas 2. A producer fills a topic; for each kind of
client a group of workers (chaos/copy_worker.py, each a process) copies it into a topic of its own:
consume, transform, produce and commit the offsets in one transaction. `confluent`: the classic
protocol, cooperative; `consumer`: KIP-848; `aiokafka`: eager, a transactional id a partition.
Meanwhile the seed's nemesis kills, freezes and restarts nodes, among them those that lead the
topics, coordinate the groups or the transactions; workers are killed amid transactions, leave,
join, and come back with their transactional id or with another, so that transactions are fenced,
aborted, and left behind for their time-out. Then everything is healed, and it is verified that

- each copy has every record of the input once, in order, with its value, and nothing else;
- what a consumer with `read_committed` saw while the faults went on is there, and it missed
  nothing;
- no hanging transactions: every partition's last stable offset is its high watermark;
- replicas are byte for byte the same, and `mqctl log verify` finds nothing.

One failure of a client is dealt with as an application would, and counted: librdkafka 2.16 takes a
broker that Metadata no longer names out of service, keeps it as the coordinator that it remembers
of the group, and waits for its connection. Its `send_offsets_to_transaction` then comes back when
another connection of that producer changes its state, else never, whatever its time-out
(confluentinc/librdkafka, issues 5511 and 5456). Beside Apache Kafka it does the same: of producers
whose coordinator was killed, 4 of 13 hung there and 2 of 11 here, with the same broker session
timeout. The worker's own watch ends its process after 30 s, when its transaction has timed out long
ago, and another is started. A client that hangs in any other call fails the trial.

Exit code 0: everything held; 1: not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from .cluster import HEAL_TIMEOUT_S, PATIENT, SHOWN_MAX, verify_files
from .copy_checker import Copy, check_copy
from .copy_worker import COPY, HUNG_CODE, KNOWN_HANGS_S, SESSION_MS, WORK
from .ensemble import Ensemble, ensemble
from .hands import carry_out
from .history import Key, Reads
from .nemesis import Step, Target, steps
from .node import NodeFailed, end_on_sigterm
from .replicas import differences
from .workload import READ_TIMEOUT_S, Producer, Reader, TrialFailed, read_all

INPUT = "eos-input"
PARTITIONS = 6
COPY_PARTITIONS = 4
SEGMENT_BYTES = 1024 * 1024
SLOTS = 3
"""Workers of a group at most; at least one works."""
AT_FIRST = 2
TRANSACTION_MS = 10_000
STUCK_S = 120.0
"""Without a committed transaction of a group, while no fault goes on."""
WORKER_END_S = 60.0
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
"""For the input beside Apache Kafka, whose snapshots of producers have the last batch of each: when
all nodes are restarted cleanly and the answers to two batches are lost, the first of them is not
known again (OUT_OF_ORDER_SEQUENCE_NUMBER), and librdkafka gives up. Workers get over that; the
input must be whole.
"""
GROUP, TRANSACTION = 0, 1
"""Types of keys that FindCoordinator knows."""


class Worker:
    """One worker process, and what it says."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self.told: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.last_commit = 0.0
        self._hung_in = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "committed":
                self.last_commit = time.monotonic()
                self.told["records"] += int(rest)
            elif what == "hung":
                self._hung_in = rest
            else:
                self.reasons[f"{what}: {rest}"] += 1
            self.told[what] += 1

    @property
    def hung(self) -> bool:
        """Whether it ended because its client did not come back from a call that is known
        for it.
        """
        return self._process.poll() == HUNG_CODE and self._call() in KNOWN_HANGS_S

    def _call(self) -> str:
        """The call in which the client of a worker that has ended hung, or nothing."""
        self._thread.join()
        return self._hung_in

    def check_alive(self) -> None:
        """Raises TrialFailed if it ended by itself, unless in a known way."""
        if self._process.poll() is not None and not self.hung:
            self._errors.seek(0)
            tail = self._errors.read().decode(errors="replace")[-3000:]
            where = f", hung in {self._call()}" if self._call() else ""
            raise TrialFailed(
                f"worker {self.name} ended with exit code {self._process.returncode}{where}\n{tail}"
            )

    def ask_to_end(self) -> None:
        """Let it leave its group; does not wait."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait_ended(self) -> None:
        """Raises TrialFailed."""
        try:
            code = self._process.wait(WORKER_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TrialFailed(
                f"worker {self.name} did not end within {WORKER_END_S:.0f} s of being asked to"
            ) from None
        self._thread.join()
        if code:
            self.check_alive()

    def kill(self) -> None:
        """SIGKILL, in whatever it does."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def close(self) -> None:
        """Let go of a process that has ended."""
        self.ask_to_end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class Copying:
    """One kind of client, its group, and its copy."""

    def __init__(self, client: str, bootstrap: str, dice: random.Random) -> None:
        self.client = client
        self.group = f"eos-{client}"
        self.topic = f"eos-copy-{client}"
        self.workers: dict[int, Worker] = {}
        self.told: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.reader: Reader | None = None
        self._names = {slot: f"{self.group}-{slot}" for slot in range(SLOTS)}
        self._bootstrap = bootstrap
        self._dice = dice
        self._launched = 0

    @property
    def keys(self) -> list[Key]:
        return [(self.topic, partition) for partition in range(COPY_PARTITIONS)]

    def name(self, slot: int) -> str:
        """The transactional id of a confluent-kafka worker."""
        return self._names[slot]

    def start_worker(self, slot: int, *, renamed: bool = False) -> None:
        """A new process, with the transactional id of the slot's former one or with a new one."""
        self._launched += 1
        if renamed:
            self._names[slot] = f"{self.group}-{slot}-{self._launched}"
        command = [
            sys.executable,
            "-m",
            "chaos.copy_worker",
            "--client",
            self.client,
            "--bootstrap",
            self._bootstrap,
        ]
        command += [
            "--group",
            self.group,
            "--source",
            INPUT,
            "--target",
            self.topic,
            "--targets",
            str(COPY_PARTITIONS),
        ]
        command += [
            "--name",
            self._names[slot],
            "--seed",
            str(self._dice.randrange(2**31)),
            "--transaction-ms",
            str(TRANSACTION_MS),
        ]
        self.workers[slot] = Worker(command, self._names[slot])

    def change(self) -> str:
        """A worker joins, leaves, or dies and comes back: the dice decide. Returns it in words."""
        free = [slot for slot in range(SLOTS) if slot not in self.workers]
        busy = sorted(self.workers)
        if free and (len(busy) <= 1 or self._dice.random() < 0.4):
            slot = self._dice.choice(free)
            self.start_worker(slot)
            return f"{self.client} worker joins"
        slot = self._dice.choice(busy)
        worker = self.workers.pop(slot)
        fate = self._dice.choice(
            ("leaves", "dies", "dies and comes back", "dies and comes back with another id")
        )
        if fate == "leaves":
            worker.ask_to_end()
            worker.wait_ended()
        else:
            worker.kill()
        self._remember(worker)
        if "back" in fate:
            self.start_worker(slot, renamed=fate.endswith("id"))
        return f"{self.client} worker {fate}"

    def revive(self) -> None:
        """Start anew whoever hung in a known way."""
        for slot in [slot for slot, worker in self.workers.items() if worker.hung]:
            self._remember(self.workers.pop(slot))
            self.start_worker(slot)

    def finish(self) -> None:
        """Let all workers leave. Raises TrialFailed."""
        for worker in self.workers.values():
            worker.ask_to_end()
        for worker in self.workers.values():
            worker.wait_ended()
            self._remember(worker)
        self.workers.clear()

    def kill(self) -> None:
        """End whatever still runs."""
        for worker in self.workers.values():
            worker.kill()
            self._remember(worker)
        self.workers.clear()

    def _remember(self, worker: Worker) -> None:
        self.told += worker.told
        self.reasons += worker.reasons
        worker.close()

    @property
    def last_commit(self) -> float:
        """Monotonic time of the last transaction that a living worker committed."""
        return max((worker.last_commit for worker in self.workers.values()), default=0.0)


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
    copies: list[Copying] = field(default_factory=list)
    records: int = 0
    uncommitted: dict[str, int] = field(default_factory=dict)
    load_s: float = 0.0
    tail_s: float = 0.0

    def run(self) -> None:
        """The whole trial. Raises TrialFailed and NodeFailed."""
        dice = random.Random(self.seed * 7919)
        self.cluster.start()
        configs = {"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
        self.cluster.create_topic(INPUT, PARTITIONS, configs=configs)
        self.copies = [Copying(client, self.cluster.bootstrap, dice) for client in self.clients]
        for copy in self.copies:
            self.cluster.create_topic(copy.topic, COPY_PARTITIONS, configs=configs)
        keys = [(INPUT, partition) for partition in range(PARTITIONS)]
        options = PATIENT | ONE_AT_A_TIME if self.cluster.kind == "kafka" else PATIENT
        producer = Producer(
            1, self.cluster.bootstrap, keys, self.seed, rate=self.rate, options=options
        )
        producer.start()
        begun = time.monotonic()
        try:
            for copy in self.copies:
                copy.reader = Reader(
                    1,
                    self.cluster.bootstrap,
                    copy.keys,
                    options={"isolation.level": "read_committed"},
                )
                copy.reader.start()
                for slot in range(AT_FIRST):
                    copy.start_worker(slot)
            self._wait_for_commits(begun)
            self._torment(dice, time.monotonic() + self.seconds)
            self.load_s = time.monotonic() - begun
            for node in self.cluster.nodes.values():
                node.wait_ready()
            producer.finish()
            self._wait_until_copied(producer.settled)
            self.tail_s = time.monotonic() - begun - self.load_s
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
        self.records = producer.settled
        self._judge(read_all(self.cluster.bootstrap, keys))

    def _judge(self, source: dict[Key, Reads]) -> None:
        by_partition = {partition: reads for (_, partition), reads in source.items()}
        topics = {INPUT: PARTITIONS} | {copy.topic: COPY_PARTITIONS for copy in self.copies}
        self.cluster.wait_until(
            lambda: self.cluster.is_whole(topics),
            "a full ISR of every partition, as every node says",
            HEAL_TIMEOUT_S,
        )
        self._wait_for_stability([key for copy in self.copies for key in copy.keys])
        ends = {key: len(reads.offsets) for key, reads in source.items()}
        for copy in self.copies:
            committed, _ = read_copy(self.cluster.bootstrap, copy.keys, "read_committed")
            everything, last = read_copy(self.cluster.bootstrap, copy.keys, "read_uncommitted")
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
                f"the reader of {copy.topic} was told: {error}" for error in copy.reader.errors
            ]
        self.cluster.stop()
        directories = {node_id: node.data_directory for node_id, node in self.cluster.nodes.items()}
        for key, end in ends.items():
            self.violations += differences(directories, key, end)
        for directory in directories.values():
            self.violations += verify_files(directory)

    # -- faults

    def _torment(self, dice: random.Random, deadline: float) -> None:
        for step in steps(self.seed, self.cluster.session_ms / 1000):
            if time.monotonic() + step.before_s + step.down_s > deadline:
                return
            time.sleep(step.before_s)
            begun = time.monotonic()
            words = dice.choice(self.copies).change()
            self.changes[words.partition(" ")[2]] += 1
            victims, role = self._victims(step)
            carry_out(self.cluster, step, victims)
            self.done[step.name] += 1
            told = (
                f"{words}; {step.name} (node {', '.join(map(str, victims))}{role}, away "
                f"{step.down_s:.1f} s)"
            )
            if step.hurry:
                self._say(f"{told}: and on at once")
                continue
            silence = self._wait_for_commits(time.monotonic()) - begun
            self.silences.setdefault(step.name, []).append(silence)
            self._say(f"{told}: every group commits again {silence:.1f} s after it began")

    def _victims(self, step: Step) -> tuple[list[int], str]:
        """Nodes, and why these. Who leads is asked of topics and of coordinators alike."""
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
                (row,) = self.cluster.ask(
                    node_id, "find_coordinator", 4, body, timeout_s=2.0
                ).coordinators
                if row.error_code == 0:
                    return int(row.node_id)
        return None

    # -- waiting

    def _wait_for_commits(self, since: float) -> float:
        """Until every group has committed a transaction after that moment; returns when.

        Raises TrialFailed and NodeFailed.
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
        """Until those that read along have seen as many records as the input has.

        Raises TrialFailed and NodeFailed.
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
        """Every transaction that was left behind ends by its time-out."""
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
        """Last stable offset and high watermark, as the leader says; (-1, 0) while nobody does."""
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
                    (row,) = self.cluster.ask(leader, "list_offsets", 5, body).topics[0].partitions
                    if row.error_code == 0:
                        found.append(int(row.offset))
        return (found[0], found[1]) if len(found) == 2 else (-1, 0)

    def _check_alive(self) -> None:
        for node in self.cluster.nodes.values():
            node.check_alive()
        for copy in self.copies:
            copy.revive()
            for worker in copy.workers.values():
                worker.check_alive()

    # -- words

    def _state(self, late: Iterable[Copying]) -> str:
        lines = []
        for copy in late:
            ends = {partition: self._ends((topic, partition)) for topic, partition in copy.keys}
            lines.append(f"{copy.client}: (stable, end) of the copy's partitions {ends}")
            lines.append(f"  group coordinated by {self._coordinator(copy.group, GROUP)}")
            for worker in copy.workers.values():
                lines.append(
                    f"  {worker.name}: {dict(worker.told)} {worker.reasons.most_common(5)}"
                )
        return "\n".join(lines)

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(f"  {text}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """The verdict with its counts."""
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
            told = copy.told
            lines.append(
                f"{copy.client}: {told['committed']} transactions of {told['records']} "
                f"records committed, {told['gave-up']} "
                f"aborted by workers, {told['began-anew']} times anew, {told['hung']} "
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
        """Why workers aborted or began anew, the most frequent first."""
        return "\n".join(
            f"  {copy.client}: {count} times {reason}"
            for copy in self.copies
            for reason, count in copy.reasons.most_common(SHOWN_MAX)
        )


def read_copy(
    bootstrap: str, keys: list[Key], isolation: str
) -> tuple[dict[Key, Copy], dict[Key, int]]:
    """Every record of a copy up to where this isolation level ends, and those ends.

    Raises TrialFailed.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    settings |= {
        "auto.offset.reset": "error",
        "check.crcs": True,
        "isolation.level": isolation,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    copies, ends = {key: Copy() for key in keys}, dict.fromkeys(keys, -1)
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for topic, partition in keys]
        )
        deadline = time.monotonic() + READ_TIMEOUT_S
        while min(ends.values()) < 0:
            message: Any
            for message in consumer.consume(10_000, 0.5):
                deadline = time.monotonic() + READ_TIMEOUT_S
                key, error = (message.topic(), message.partition()), message.error()
                if error is None:
                    copies[key].add_copy(message.offset(), *COPY.unpack_from(message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends[key] = message.offset()
                else:
                    raise TrialFailed(f"reading {key} back: {error}")
            if time.monotonic() > deadline:
                raise TrialFailed(f"no record for {READ_TIMEOUT_S:.0f} s; ends so far {ends}")
        return copies, ends
    finally:
        consumer.close()


def main() -> int:
    """Parse the command line, run the trial, say how it went."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.exactly_once", description="exactly-once copies under fire"
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
    parser.add_argument(
        "--keep",
        type=Path,
        default=None,
        metavar="DIR",
        help="use this directory and leave it there",
    )
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
        f"{arguments.clients} --rate {arguments.rate:g}"
    )
    end_on_sigterm()
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="exactly-once-"))
    cluster: Ensemble | None = None
    trial: Trial | None = None
    try:
        cluster = ensemble(
            arguments.kind,
            directory,
            arguments.nodes,
            session_ms=arguments.session_ms,
            options=OPTIONS,
        )
        trial = Trial(cluster, arguments.seed, arguments.seconds, clients, arguments.rate)
        trial.run()
    except (TrialFailed, NodeFailed) as error:
        print(f"chaos: FAILED: {error}", file=sys.stderr)
        if trial is not None:
            print(trial.reasons(), file=sys.stderr)
        print(f"again: {replay}", file=sys.stderr)
        return 1
    finally:
        if cluster is not None:
            cluster.kill()
        if arguments.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    print(trial.summary())
    for violation in trial.violations[:SHOWN_MAX]:
        print(violation, file=sys.stderr)
    if trial.violations:
        print(trial.reasons(), file=sys.stderr)
    print(f"chaos: {'FAILED' if trial.violations else 'everything held'}\nagain: {replay}")
    return 1 if trial.violations else 0


if __name__ == "__main__":
    sys.exit(main())
