"""kill -9 under a producing client, again and again: is every acknowledged record there, once, where it was promised?

    python -m chaos.kill9 --rounds 50 --seed 1

A real `mqd start` of one node; one confluent-kafka producer (idempotent, acks=all) that lives through every restart and
produces numbered records at full speed to several partitions. At seeded random times the broker's process is killed and
started again on the same data; some kills hit it while it is still recovering. At the end everything is read back and
held against what the producer was told (chaos/history.py), and `mqctl log verify` holds indexes against logs.

The page cache outlives a killed process, so this is about processes, not about power. Exit code 0: no anomaly; 1: anomalies.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from .history import NOT_ACKED, Anomaly, check
from .node import Node, NodeFailed

TOPIC = "kill9"
NUMBER = struct.Struct(">q")
SEGMENT_BYTES = 4 * 1024 * 1024
"""Small, so that segments roll and recovery meets several of them."""
LIFE_S = (0.0, 0.8)
"""Between the first acknowledgement of a life and its end: every kill hits a producing client."""
RECOVERY_LIFE_S = (0.0, 0.6)
"""Between start and kill, where a kill comes early."""
EARLY_KILL_ODDS = 0.25
SETTLE_TIMEOUT_S = 120.0
READ_TIMEOUT_S = 60.0
"""Without a single new record."""


class TrialFailed(Exception):
    """The trial could not be carried out: the producer gave up, or the records cannot be read."""


@dataclass
class Producer:
    """One idempotent producer on a thread of its own, as fast as it goes, until told to stop."""

    address: str
    partitions: int
    dice: random.Random
    acked: dict[int, array[int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    settled: int = 0

    def __post_init__(self) -> None:
        self.acked = {partition: array("q") for partition in range(self.partitions)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "compression.type": self.dice.choice(["none", "lz4", "zstd"]),
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": 0,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def wait_for_acknowledgement(self) -> None:
        """Wait until something more is acknowledged than is now. Raises TrialFailed."""
        before, deadline = self.settled, time.monotonic() + SETTLE_TIMEOUT_S
        while self.settled == before:
            if self.errors or time.monotonic() > deadline:
                raise TrialFailed(f"nothing acknowledged within {SETTLE_TIMEOUT_S:.0f} s {self.errors[:1]}")
            time.sleep(0.002)

    def finish(self) -> None:
        """Stop producing and wait until everything sent is settled. Raises TrialFailed."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(SETTLE_TIMEOUT_S)
        if self.errors:
            raise TrialFailed(f"the producer gave up: {self.errors[0]} (and {len(self.errors) - 1} more)")
        if left:
            raise TrialFailed(f"{left} records not settled within {SETTLE_TIMEOUT_S:.0f} s")

    def abandon(self) -> None:
        """Stop producing; whatever is not settled is dropped."""
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.errors.append(str(error))

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        (number,) = NUMBER.unpack_from(message.value())
        self.acked[message.partition()][number] = message.offset()
        self.settled += 1

    def _run(self) -> None:
        padding = [self.dice.randbytes(self.dice.randrange(300)) for _ in range(64)]
        turn = 0
        while not self._stop.is_set() and not self.errors:
            partition = self.dice.randrange(self.partitions)
            for _ in range(self.dice.randrange(1, 100)):
                turn += 1
                rows = self.acked[partition]
                value = NUMBER.pack(len(rows)) + padding[turn % 64]
                try:
                    self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_delivery)
                except BufferError:
                    self._producer.poll(0.01)
                    break
                rows.append(NOT_ACKED)
            self._producer.poll(0)


def read_all(address: str, partitions: int) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of every record, per partition, in the consumer's order."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": TOPIC, "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True}
    )
    try:
        ends = {}
        for partition in range(partitions):
            _, ends[partition] = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, partition), 10)
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
        log: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(partitions)}
        reading = {partition for partition, end in ends.items() if end > 0}
        deadline = time.monotonic() + READ_TIMEOUT_S
        while reading:
            messages = consumer.consume(10_000, 1.0)
            for message in messages:
                if message.error() is not None:
                    raise TrialFailed(f"reading back: {message.error()}")
                home, offset, value = message.partition(), message.offset(), message.value()
                assert home is not None and offset is not None and value is not None, "a stored record has all three"
                log[home].append((offset, NUMBER.unpack_from(value)[0]))
                if offset + 1 >= ends[home]:
                    reading.discard(home)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise TrialFailed(f"no record for {READ_TIMEOUT_S:.0f} s; partitions {sorted(reading)} are not at their ends {ends}")
        return log
    finally:
        consumer.close()


@dataclass
class Trial:
    """One seeded run. `early_kills` counts those that hit a node in recovery."""

    node: Node
    rounds: int
    seed: int
    partitions: int
    restarts_s: list[float] = field(default_factory=list)
    early_kills: int = 0
    acked: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    findings: str = ""

    def run(self) -> None:
        """The whole trial; fills in the results. Raises TrialFailed and NodeFailed."""
        dice = random.Random(self.seed)
        self.node.start()
        self._create_topic()
        producer = Producer(self.node.address, self.partitions, random.Random(dice.random()))
        producer.start()
        try:
            for _ in range(self.rounds):
                self._round(dice, producer)
        except BaseException:
            producer.abandon()
            raise
        producer.finish()
        self.node.stop()
        self.node.start()
        log = read_all(self.node.address, self.partitions)
        self.node.stop()
        self.acked = sum(len(rows) - rows.count(NOT_ACKED) for rows in producer.acked.values())
        self.anomalies = check(producer.acked, log)
        self._verify_files()

    def _round(self, dice: random.Random, producer: Producer) -> None:
        producer.wait_for_acknowledgement()
        time.sleep(dice.uniform(*LIFE_S))
        self.node.kill()
        while dice.random() < EARLY_KILL_ODDS:
            self.node.launch()
            time.sleep(dice.uniform(*RECOVERY_LIFE_S))
            self.node.kill()
            self.early_kills += 1
        self.restarts_s.append(self.node.start())

    def _create_topic(self) -> None:
        topic = NewTopic(TOPIC, self.partitions, 1, config={"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)})
        admin = AdminClient({"bootstrap.servers": self.node.address})
        admin.create_topics([topic])[TOPIC].result(10)

    def _verify_files(self) -> None:
        command = [sys.executable, "-m", "mqctl", "log", "verify", str(self.node.data_directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.findings = (done.stdout + done.stderr).strip() or f"mqctl log verify ended with exit code {done.returncode}"

    def summary(self) -> str:
        """One line for people."""
        count = {kind: sum(a.count for a in self.anomalies if a.kind == kind) for kind in ("doubled", "lost")}
        p50 = statistics.median(self.restarts_s) if self.restarts_s else 0.0
        worst = max(self.restarts_s, default=0.0)
        return (
            f"kill9: rounds {self.rounds}, kills in recovery {self.early_kills}, acked {self.acked}, doubled {count['doubled']}, "
            f"missing {count['lost']}, other anomalies {sum(a.count for a in self.anomalies) - sum(count.values())}, "
            f"file findings {len(self.findings.splitlines())}, restart p50 {p50:.2f} s, max {worst:.2f} s, seed {self.seed}"
        )


def main() -> int:
    """Parse the command line, run the trial, say how it went."""
    parser = argparse.ArgumentParser(prog="python -m chaos.kill9", description="kill -9 under a producing client")
    parser.add_argument("--rounds", type=int, default=50, help="kills (50)")
    parser.add_argument("--seed", type=int, default=1, help="of kill times, partitions and payloads (1)")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (4)")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="use this directory and leave it there")
    arguments = parser.parse_args()
    replay = f"python -m chaos.kill9 --rounds {arguments.rounds} --seed {arguments.seed} --partitions {arguments.partitions}"
    with tempfile.TemporaryDirectory(prefix="mqd-kill9-") as directory:
        node = Node(arguments.keep or Path(directory))
        trial = Trial(node, arguments.rounds, arguments.seed, arguments.partitions)
        try:
            trial.run()
        except (TrialFailed, NodeFailed) as error:
            print(f"kill9: FAILED: {error}\nagain: {replay}", file=sys.stderr)
            return 1
        finally:
            if node.running:
                node.kill()
    print(trial.summary())
    for anomaly in trial.anomalies:
        print(anomaly, file=sys.stderr)
    if trial.findings:
        print(trial.findings, file=sys.stderr)
    if trial.anomalies or trial.findings:
        print(f"kill9: FAILED\nagain: {replay}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
