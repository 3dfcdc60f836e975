"""Repeated kill -9 under a producing client: is every acknowledged record in the log, once, at its
acknowledged offset?

    python -m chaos.kill9 --rounds 50 --seed 1 [--security sasl_ssl] [--sasl-mechanism PLAIN]

One `mqd start` process, and one confluent-kafka producer (idempotent, acks=all), which continues
through every restart and sends numbered records at full speed to several partitions. At random
times from the seed, the broker is killed and started again on the same data; some kills are during
its recovery. At the end, all records are read and compared with the acknowledgements
(chaos/checker.py), and `mqctl log verify` compares indexes with logs. A killed process does not
lose the page cache, so this tests process crashes, not power failures. Exit code 0: no anomaly; 1:
anomalies.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

from . import cluster_security
from .checker import Anomaly, check
from .ensemble import Ensemble, mqd_ensemble
from .node import NodeFailed, Process, end_on_sigterm
from .program import add_keep, conclude, directory_of, failed
from .workload import Producer, TrialFailed, gather, read_all

TOPIC = "kill9"
SEGMENT_BYTES = 4 * 1024 * 1024
"""Small, so that segments roll and recovery has several of them."""
LIFE_S = (0.0, 0.8)
"""The time from a run's first acknowledgement to its kill, so that each kill is under a producing
client.
"""
RECOVERY_LIFE_S = (0.0, 0.6)
"""The time from the start to an early kill."""
EARLY_KILL_ODDS = 0.25
QUICK = {
    "linger.ms": 2,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "message.timeout.ms": 0,
}
"""Options for a client that reconnects before the next kill."""


@dataclass
class Trial:
    """One seeded run. `early_kills`: the number of kills during recovery."""

    cluster: Ensemble
    """A cluster of one node."""
    rounds: int
    seed: int
    partitions: int
    restarts_s: list[float] = field(default_factory=list)
    early_kills: int = 0
    acked: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    findings: str = ""

    @property
    def node(self) -> Process:
        (node,) = self.cluster.nodes.values()
        return node

    def run(self) -> None:
        """Run the whole trial, and set the results. Raises TrialFailed and NodeFailed."""
        random_source = random.Random(self.seed)
        self.cluster.start()
        self._create_topic()
        bootstrap, security = self.cluster.bootstrap, self.cluster.client_options
        keys = [(TOPIC, partition) for partition in range(self.partitions)]
        producer = Producer(0, bootstrap, keys, random_source.random(), options=QUICK | security)
        producer.start()
        try:
            for _ in range(self.rounds):
                self._round(random_source, producer)
        except BaseException:
            producer.abandon()
            raise
        producer.finish()
        self.node.stop()
        self.node.start()
        history = gather([producer], [], read_all(bootstrap, keys, options=security))
        self.node.stop()
        self.acked = history.acked
        self.anomalies = check(history)
        self._verify_files()

    def _round(self, random_source: random.Random, producer: Producer) -> None:
        producer.wait_for_acknowledgement()
        time.sleep(random_source.uniform(*LIFE_S))
        self.node.kill()
        while random_source.random() < EARLY_KILL_ODDS:
            self.node.launch()
            time.sleep(random_source.uniform(*RECOVERY_LIFE_S))
            self.node.kill()
            self.early_kills += 1
        self.restarts_s.append(self.node.start())

    def _create_topic(self) -> None:
        configs = {"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
        self.cluster.create_topic(TOPIC, self.partitions, configs=configs)

    def _verify_files(self) -> None:
        command = [sys.executable, "-m", "mqctl", "log", "verify", str(self.node.data_directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.findings = (
                done.stdout + done.stderr
            ).strip() or f"mqctl log verify ended with exit code {done.returncode}"

    def summary(self) -> str:
        """The result in one line."""
        count = {
            kind: sum(a.count for a in self.anomalies if a.kind == kind)
            for kind in ("doubled", "lost")
        }
        p50 = statistics.median(self.restarts_s) if self.restarts_s else 0.0
        worst = max(self.restarts_s, default=0.0)
        return (
            f"kill9: rounds {self.rounds}, kills in recovery {self.early_kills}, acked "
            f"{self.acked}, doubled {count['doubled']}, "
            f"missing {count['lost']}, other anomalies "
            f"{sum(a.count for a in self.anomalies) - sum(count.values())}, "
            f"file findings {len(self.findings.splitlines())}, restart p50 {p50:.2f} s, max "
            f"{worst:.2f} s, seed {self.seed}"
        )


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.kill9", description="kill -9 under a producing client"
    )
    parser.add_argument("--rounds", type=int, default=50, help="kills (50)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of kill times, partitions and payloads (1)"
    )
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (4)")
    add_keep(parser)
    cluster_security.add_arguments(parser)
    arguments = parser.parse_args()
    replay = (
        f"python -m chaos.kill9 --rounds {arguments.rounds} --seed {arguments.seed} "
        f"--partitions {arguments.partitions}{cluster_security.shown(arguments)}"
    )
    end_on_sigterm()
    with directory_of(arguments.keep, "mqd-kill9-") as directory:
        security = cluster_security.from_arguments(arguments, directory / "security")
        cluster = mqd_ensemble(directory, 1, security=security)
        trial = Trial(cluster, arguments.rounds, arguments.seed, arguments.partitions)
        try:
            trial.run()
        except (TrialFailed, NodeFailed) as error:
            return failed(error, again=replay)
        finally:
            cluster.kill()
    violations: list[object] = [*trial.anomalies]
    if trial.findings:
        violations.append(trial.findings)
    return conclude(trial.summary(), violations, again=replay)


if __name__ == "__main__":
    sys.exit(main())
