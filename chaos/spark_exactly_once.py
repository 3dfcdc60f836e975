"""Exactly-once writes of a streaming query whose driver, tasks and brokers fail.

    python -m chaos.spark_exactly_once --mode exactly-once|atomic-batch [--kills 12]
        [--fail-percent 5] [--rows 12000] [--seed 1] [--kind mqd|kafka] [--no-broker-faults]
        [--security sasl_ssl] [--sasl-mechanism SCRAM-SHA-256]

Three nodes, replication factor 3, min.insync.replicas 2. A query (chaos/spark_copy.py) copies a
topic with `deliveryGuarantee` set. Its tasks fail at random. Its driver is repeatedly killed with
SIGKILL at random times; Python workers of the killed driver may continue for a while. Meanwhile the
nemesis of the seed kills, suspends and restarts nodes. Then all faults end, more rows are written,
and the query reads to the end. The trial verifies with `read_committed` that

- the copy has every row of the source once, with its value, in order, and no other row;
- no transaction of the query is open, and every last stable offset equals the high watermark.

The seed determines the faults and their times, but not the interleaving of the real processes. Exit
code 0: all checks passed; 1: a check failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from mqd.client import sync
from mqd.client.errors import ClientError

from . import cluster_security
from .ensemble import Ensemble, ensemble
from .node import NodeFailed, end_on_sigterm
from .program import add_keep, conclude, directory_of, failed
from .spark_driver import Drivers, TrialFailed
from .spark_faults import BrokerFaults
from .spark_verdict import Topic, judge

SOURCE, COPY = Topic("spark-source", 3), Topic("spark-copy", 2)
LAST_ROWS = 200
"""The rows that are written after the faults, so that the last run has a micro-batch."""
OPTIONS = (
    "transaction.two.phase.commit.enable=true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
    "offsets.topic.num.partitions=10",
    "transaction.state.log.num.partitions=10",
)
UNSTABLE = {"mqd": (), "kafka": ("unstable.api.versions.enable=true",)}
"""Apache Kafka 4.3.1 has InitProducerId 6 (KIP-939) among its unstable versions."""


class Trial:
    """One seeded run."""

    def __init__(self, cluster: Ensemble, directory: Path, arguments: argparse.Namespace) -> None:
        self._wrong: list[str] = []
        self._cluster = cluster
        self._arguments = arguments
        self._rows = 0
        self._seconds = 0.0
        self._faults = BrokerFaults(cluster, COPY, arguments.seed)
        command = ["--bootstrap", cluster.bootstrap, "--source", SOURCE.name]
        command += ["--target", COPY.name, "--mode", arguments.mode]
        command += ["--checkpoint", str(directory / "checkpoint")]
        command += ["--rows-per-batch", str(arguments.rows_per_batch)]
        if cluster.command_config is not None:
            command += ["--command-config", str(cluster.command_config)]
        log = directory / "driver.log"
        self._drivers = Drivers(
            command, fail_percent=arguments.fail_percent, log=log, report=self._say
        )

    @property
    def violations(self) -> list[str]:
        """All violations that the trial has found."""
        return self._drivers.stops + self._wrong

    def run(self) -> None:
        """Run the whole trial. Raises TrialFailed, NodeFailed and ClientError."""
        started_at = time.monotonic()
        self._cluster.start()
        for topic in (SOURCE, COPY):
            self._cluster.create_topic(topic.name, topic.partitions, configs={"retention.ms": "-1"})
        self._fill(self._arguments.rows)
        if not self._arguments.no_broker_faults:
            self._faults.start()
        try:
            self._kill_drivers()
        finally:
            self._faults.stop()
        for node in self._cluster.nodes.values():
            node.wait_ready()
        self._fill(LAST_ROWS)
        self._drivers.run_to_end()
        self._wrong = judge(self._cluster.bootstrap, SOURCE, COPY, self._cluster.client_security)
        self._seconds = time.monotonic() - started_at

    def close(self) -> None:
        """End every process of the trial."""
        self._drivers.close()
        self._cluster.kill()

    def _kill_drivers(self) -> None:
        random_source = random.Random(self._arguments.seed * 7919)
        kills = self._arguments.kills
        for number in range(1, kills + 1):
            if self._faults.failure is not None:
                return
            when = self._drivers.kill_one(random_source)
            self._say(f"driver {number} of {kills} killed {when}")

    def _fill(self, count: int) -> None:
        security = self._cluster.client_security
        with (
            sync.connect(self._cluster.bootstrap, security=security) as client,
            client.producer() as producer,
        ):
            for number in range(self._rows, self._rows + count):
                producer.enqueue(
                    SOURCE.name,
                    b"value-%d" % number,
                    key=b"key-%d" % (number % 97),
                    partition=number % SOURCE.partitions,
                )
            producer.flush()
        self._rows += count

    def _say(self, text: str) -> None:
        if not self._arguments.quiet:
            print(f"  {text}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """The events of the trial, and its result."""
        counts = sorted(self._faults.done.items())
        counts += [(f"driver {name}", count) for name, count in sorted(self._drivers.ended.items())]
        counts.append(("task failed", self._drivers.failed_tasks()))
        lines = [f"{name:34}{count:>5}" for name, count in counts]
        lines.append(
            f"{self._cluster.kind}, {self._arguments.mode}: {self._rows} rows, "
            f"{self._drivers.batches} batches seen, {self._seconds:.0f} s; "
            f"violations {len(self.violations)}"
        )
        return "\n".join(lines)


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    arguments = _arguments()
    end_on_sigterm()
    with directory_of(arguments.keep, "spark-exactly-once-") as directory:
        directory.mkdir(parents=True, exist_ok=True)
        options = OPTIONS + UNSTABLE[arguments.kind]
        cluster = ensemble(
            arguments.kind,
            directory / "nodes",
            session_ms=arguments.session_ms,
            options=options,
            security=cluster_security.from_arguments(arguments, directory / "security"),
        )
        trial = Trial(cluster, directory, arguments)
        failure: Exception | None = None
        try:
            trial.run()
        except (TrialFailed, NodeFailed, ClientError) as error:
            failure = error
        finally:
            trial.close()
        summary = trial.summary()
    if failure is not None:
        print(summary)
        return failed(failure, trial.violations, again=_again(arguments))
    return conclude(summary, trial.violations, again=_again(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.spark_exactly_once", description="a streaming query under fire"
    )
    modes = ("exactly-once", "atomic-batch")
    parser.add_argument("--mode", choices=modes, default=modes[0], help=f"({modes[0]})")
    parser.add_argument("--kills", type=int, default=12, help="of the driver (12)")
    parser.add_argument("--fail-percent", type=float, default=5, help="of tasks that fail (5)")
    parser.add_argument("--rows", type=int, default=12_000, help="of the source (12000)")
    parser.add_argument("--rows-per-batch", type=int, default=200, help="at most (200)")
    parser.add_argument("--seed", type=int, default=1, help="of faults and moments (1)")
    parser.add_argument("--session-ms", type=int, default=3000, help="of brokers (3000)")
    parser.add_argument("--kind", choices=("mqd", "kafka"), default="mqd", help="nodes (mqd)")
    cluster_security.add_arguments(parser)
    parser.add_argument("--no-broker-faults", action="store_true", help="let brokers live")
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    add_keep(parser)
    return parser.parse_args()


def _again(arguments: argparse.Namespace) -> str:
    return (
        f"python -m chaos.spark_exactly_once --mode {arguments.mode} --kills {arguments.kills} "
        f"--fail-percent {arguments.fail_percent:g} --rows {arguments.rows} "
        f"--rows-per-batch {arguments.rows_per_batch} --seed {arguments.seed} "
        f"--session-ms {arguments.session_ms} --kind {arguments.kind}"
        + cluster_security.shown(arguments)
        + (" --no-broker-faults" if arguments.no_broker_faults else "")
    )


if __name__ == "__main__":
    sys.exit(main())
