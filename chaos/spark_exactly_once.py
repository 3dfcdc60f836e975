"""Exactly once under fire: a streaming query whose driver, tasks and brokers die.

    python -m chaos.spark_exactly_once --mode exactly-once|atomic-batch [--kills 12]
        [--fail-percent 5] [--rows 12000] [--seed 1] [--kind mqd|kafka] [--no-broker-faults]

Three nodes, replication factor 3, min.insync.replicas 2. A query (chaos/spark_copy.py) copies a
topic with `deliveryGuarantee` set. Its tasks fail at random. Its driver is killed with SIGKILL
again and again, at random moments; Python workers of the dead driver may continue for a while.
Meanwhile the seed's nemesis kills, freezes and restarts nodes. Then everything is healed, some rows
more are written, the query reads to the end, and it is verified with `read_committed` that

- the copy has every row of the source once, with its value, in order, and nothing else;
- no transaction of the query is open, and every last stable offset is the high watermark.

The seed chooses faults and moments; the interleaving with real processes is not the same in every
run. Exit code 0: everything held; 1: not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from mqd.client import columns as arrow, sync
from mqd.client.descriptions import LATEST
from mqd.client.errors import ClientError
from mqd.types import TopicPartition

from .ensemble import Ensemble, ensemble
from .hands import carry_out
from .nemesis import Target, steps
from .node import NodeFailed, end_on_sigterm
from .spark_copy import FAILED_CODE
from .spark_copy_checker import check_rows

ROOT = Path(__file__).resolve().parent.parent
SOURCE, COPY = "spark-source", "spark-copy"
SOURCE_PARTITIONS, COPY_PARTITIONS = 3, 2
LAST_ROWS = 200
"""Written after the heal, so that the last run has a batch."""
START_S = 180.0
"""Until a driver has started, and until it has completed a batch."""
END_S = 1800.0
STABLE_S = 120.0
MIDWAY_S = (0.0, 4.0)
EARLY_S = (1.0, 15.0)
EARLY_ODDS = 0.25
OPTIONS = (
    "transaction.two.phase.commit.enable=true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
    "offsets.topic.num.partitions=10",
    "transaction.state.log.num.partitions=10",
)
UNSTABLE = {"mqd": (), "kafka": ("unstable.api.versions.enable=true",)}
STOPS = ("cannot be written exactly once", "is not deterministic", "decided transaction")
"""Words of a query that stops because rows would be lost or doubled: wrong in this trial."""


class TrialFailed(Exception):
    """The trial could not be carried out."""


class Driver:
    """One driver process with its JVM, and what it reports."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.batches = 0
        self.last_batch = 0.0
        self.started = False
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.started = True
            if line.startswith(b"batch "):
                self.batches += 1
                self.last_batch = time.monotonic()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.poll() is None

    def kill(self) -> None:
        """SIGKILL to Python and the JVM at once. Python workers are in another process group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Let go of a process that has ended."""
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


@dataclass
class Trial:
    """One seeded run."""

    cluster: Ensemble
    directory: Path
    arguments: argparse.Namespace
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    driver: Driver | None = None

    def run(self) -> None:
        """The whole trial. Raises TrialFailed and NodeFailed."""
        begun = time.monotonic()
        self.cluster.start()
        self.cluster.create_topic(SOURCE, SOURCE_PARTITIONS, configs={"retention.ms": "-1"})
        self.cluster.create_topic(COPY, COPY_PARTITIONS, configs={"retention.ms": "-1"})
        self._fill(self.arguments.rows)
        over = threading.Event()
        failures: list[Exception] = []
        nemesis = threading.Thread(target=self._torment, args=(over, failures))
        if not self.arguments.no_broker_faults:
            nemesis.start()
        try:
            self._kill_drivers(failures)
        finally:
            over.set()
            if nemesis.ident is not None:
                nemesis.join()
        if failures:
            raise failures[0]
        for node in self.cluster.nodes.values():
            node.wait_ready()
        self._fill(LAST_ROWS)
        self._finish()
        self._judge()
        self.seconds = time.monotonic() - begun

    # -- rows

    def _fill(self, count: int) -> None:
        with sync.connect(self.cluster.bootstrap) as client, client.producer() as producer:
            for number in range(self.rows, self.rows + count):
                producer.enqueue(
                    SOURCE,
                    b"value-%d" % number,
                    key=b"key-%d" % (number % 97),
                    partition=number % SOURCE_PARTITIONS,
                )
            producer.flush()
        self.rows += count

    # -- the driver

    def _driver(self, *, last: bool) -> Driver:
        given = self.arguments
        command = [sys.executable, "-m", "chaos.spark_copy", "--bootstrap", self.cluster.bootstrap]
        command += ["--source", SOURCE, "--target", COPY, "--mode", given.mode]
        command += ["--checkpoint", str(self.directory / "checkpoint")]
        command += ["--rows-per-batch", str(given.rows_per_batch)]
        command += ["--until-end"] if last else ["--fail-percent", str(given.fail_percent)]
        self.driver = Driver(command, self.directory / "driver.log")
        return self.driver

    def close(self) -> None:
        """End the driver that is left when a trial breaks off."""
        if self.driver is not None and self.driver.running:
            self.driver.kill()

    def _kill_drivers(self, failures: list[Exception]) -> None:
        dice = random.Random(self.arguments.seed * 7919)
        for number in range(self.arguments.kills):
            if failures:
                return
            driver = self._driver(last=False)
            early = dice.random() < EARLY_ODDS
            driver = self._wait(driver, early=early, restarts=True)
            time.sleep(dice.uniform(*(EARLY_S if early else MIDWAY_S)))
            code = driver.poll()
            if code is None:
                driver.kill()
                self.ended["killed"] += 1
            else:
                driver.close()
                self._note_end(code)
            self.batches += driver.batches
            when = "early" if early else f"after {driver.batches} batches"
            self._say(f"driver {number + 1} of {self.arguments.kills} killed {when}")

    def _wait(self, driver: Driver, *, early: bool, restarts: bool) -> Driver:
        """Until it has started, or has completed a batch; one that fails is started again."""
        deadline = time.monotonic() + START_S
        while not (driver.started if early else driver.batches):
            code = driver.poll()
            if code is not None:
                driver.close()
                self._note_end(code)
                if not restarts:
                    raise TrialFailed(
                        f"the driver ended with exit code {code}:\n{self._log_tail()}"
                    )
                driver = self._driver(last=False)
            if time.monotonic() > deadline:
                self._say(f"no batch for {START_S:.0f} s: the driver is killed anyway")
                return driver
            time.sleep(0.05)
        return driver

    def _note_end(self, code: int) -> None:
        self.ended["failed" if code == FAILED_CODE else f"exit code {code}"] += 1
        tail = self._log_tail()
        for words in STOPS:
            if words in tail and not any(words in each for each in self.violations):
                self.violations.append(f"the query stopped: {words}:\n{tail}")

    def _finish(self) -> None:
        deadline = time.monotonic() + END_S
        while True:
            driver = self._driver(last=True)
            while (code := driver.poll()) is None:
                if time.monotonic() > deadline:
                    driver.kill()
                    raise TrialFailed(f"the last run took {END_S:.0f} s:\n{self._log_tail()}")
                time.sleep(0.1)
            driver.close()
            self.batches += driver.batches
            if code == 0:
                return
            self._note_end(code)
            if time.monotonic() > deadline or self.violations:
                raise TrialFailed(f"the last run fails:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        path = self.directory / "driver.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    # -- the brokers

    def _torment(self, over: threading.Event, failures: list[Exception]) -> None:
        try:
            for step in steps(self.arguments.seed, self.cluster.session_ms / 1000):
                if over.wait(step.before_s * 3):
                    return
                victims = self._victims(step.target, step.choice)
                carry_out(self.cluster, step, victims)
                self.faults[step.name] += 1
                for node_id in victims:
                    self.cluster.nodes[node_id].wait_ready()
        except Exception as error:
            failures.append(error)

    def _victims(self, target: Target, choice: float) -> list[int]:
        running = self.cluster.running
        if target is Target.ALL:
            return running
        found: set[int | None] = set()
        if target in (Target.LEADER, Target.LEADER_AND_CONTROLLER):
            found.add(self.cluster.leader(COPY, int(choice * COPY_PARTITIONS)))
        if target in (Target.CONTROLLER, Target.LEADER_AND_CONTROLLER):
            found.add(self.cluster.controller())
        named = sorted(each for each in found if each in running)
        return [each for each in named if each is not None] or [running[int(choice * len(running))]]

    # -- the verdict

    def _judge(self) -> None:
        with sync.connect(self.cluster.bootstrap) as client:
            source = _rows(client, SOURCE, SOURCE_PARTITIONS)
            deadline = time.monotonic() + STABLE_S
            while open_now := self._open(client):
                if time.monotonic() > deadline:
                    self.violations.append(f"still open: {', '.join(open_now)}")
                    break
                time.sleep(0.2)
            copy = _rows(client, COPY, COPY_PARTITIONS)
        self.violations += [str(each) for each in check_rows(source, copy)]

    def _open(self, client: sync.BlockingClient) -> list[str]:
        """Transactions of the query, and partitions that wait for one."""
        listed = client.admin.list_transactions(["Ongoing"])
        names = [f"transactional id {each.transactional_id}" for each in listed]
        stable = _ends(client, COPY, COPY_PARTITIONS, committed=True)
        ends = _ends(client, COPY, COPY_PARTITIONS, committed=False)
        return names + [f"{tp} from {stable[tp]}" for tp in ends if stable[tp] != ends[tp]]

    def _say(self, text: str) -> None:
        if not self.arguments.quiet:
            print(f"  {text}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """What happened, and the verdict."""
        lines = [f"{name:34}{count:>5}" for name, count in sorted(self.faults.items())]
        lines += [f"driver {name:27}{count:>5}" for name, count in sorted(self.ended.items())]
        lines.append(
            f"{self.cluster.kind}, {self.arguments.mode}: {self.rows} rows, {self.batches} batches "
            f"seen, {self.seconds:.0f} s; violations {len(self.violations)}"
        )
        return "\n".join(lines)


def _ends(
    client: sync.BlockingClient, topic: str, partitions: int, *, committed: bool
) -> dict[TopicPartition, int]:
    wanted = {TopicPartition(topic, partition): LATEST for partition in range(partitions)}
    found = client.admin.list_offsets(wanted, read_committed=committed)
    ends = {}
    for tp, outcome in found.items():
        if isinstance(outcome, ClientError):
            raise outcome
        ends[tp] = outcome.offset
    return ends


def _rows(client: sync.BlockingClient, topic: str, partitions: int) -> dict[int, list[bytes]]:
    """Partition -> all values that `read_committed` sees."""
    found: dict[int, list[bytes]] = {}
    for tp, end in _ends(client, topic, partitions, committed=True).items():
        rows = found.setdefault(tp.partition, [])
        with client.range_reader(tp, 0, end, read_committed=True) as reader:
            for fetched in reader:
                for batch in arrow.decode(
                    fetched.data,
                    topic,
                    tp.partition,
                    start=fetched.start,
                    end=fetched.next_offset,
                    columns=("value",),
                    aborted=[arrow.Aborted(*each) for each in fetched.aborted],
                    read_committed=True,
                ):
                    rows += batch.column(0).to_pylist()
    return found


def main() -> int:
    """Parse the command line, run the trial, print how it went."""
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
    parser.add_argument("--no-broker-faults", action="store_true", help="let brokers live")
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="use this directory and leave it")
    arguments = parser.parse_args()
    replay = (
        f"python -m chaos.spark_exactly_once --mode {arguments.mode} --kills {arguments.kills} "
        f"--fail-percent {arguments.fail_percent:g} --rows {arguments.rows} "
        f"--rows-per-batch {arguments.rows_per_batch} --seed {arguments.seed} "
        f"--session-ms {arguments.session_ms} --kind {arguments.kind}"
        + (" --no-broker-faults" if arguments.no_broker_faults else "")
    )
    end_on_sigterm()
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="spark-exactly-once-"))
    directory.mkdir(parents=True, exist_ok=True)
    options = OPTIONS + UNSTABLE[arguments.kind]
    cluster = ensemble(
        arguments.kind, directory / "nodes", session_ms=arguments.session_ms, options=options
    )
    trial = Trial(cluster, directory, arguments)
    try:
        trial.run()
    except (TrialFailed, NodeFailed, ClientError) as error:
        print(f"{trial.summary()}\nchaos: FAILED: {error}", file=sys.stderr)
        for violation in trial.violations:
            print(violation, file=sys.stderr)
        print(f"again: {replay}", file=sys.stderr)
        return 1
    finally:
        trial.close()
        cluster.kill()
        if arguments.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    print(trial.summary())
    for violation in trial.violations:
        print(violation, file=sys.stderr)
    print(f"chaos: {'FAILED' if trial.violations else 'everything held'}\nagain: {replay}")
    return 1 if trial.violations else 0


if __name__ == "__main__":
    sys.exit(main())
