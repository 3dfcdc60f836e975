"""A cluster under load and faults: does every replica have every acknowledged record, once and in
order?

    python -m chaos.cluster --nodes 3 --seconds 180 --seed 1 [--session-ms 3000] \
        [--kind mqd|kafka] [--cuts] [--security sasl_ssl] [--sasl-mechanism SCRAM-SHA-256]

Real processes, replication factor 3, min.insync.replicas 2. confluent-kafka producers (idempotent,
acks=all, full speed) and consumers run while the nemesis injects the faults of the seed. It kills
any node, leaders, the controller, both at once, a node in recovery, or all nodes with kill -9. It
suspends nodes with SIGSTOP, and restarts them cleanly. Then all faults end, and the trial verifies
that

- every node reports a full ISR of every partition;
- no acknowledged record is lost, duplicated or out of order, each one is at its acknowledged
  offset, and consumers received the same;
- after the stop, replicas are identical below the high watermark, and `mqctl log verify` finds no
  damage.

A killed process does not lose the page cache, so this tests process crashes, not power failures.
Exit code 0: all checks passed; 1: a check failed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import cluster_security, history_lines
from .checker import check
from .ensemble import Ensemble, ensemble, mqd_ensemble
from .fault_injector import inject_fault
from .history import History, Key
from .links import Links
from .nemesis import Step, Target, steps
from .node import NodeFailed, end_on_sigterm
from .program import add_keep, conclude, directory_of, failed
from .replicas import differences
from .workload import Producer, Reader, TrialFailed, gather, read_all

TOPICS = {"chaos-a": 4, "chaos-b": 2, "chaos-c": 1}
SEGMENT_BYTES = 8 * 1024 * 1024
"""Small, so that segments roll and recovery has several of them."""
PRODUCERS = 2
READERS = 1
HEAL_TIMEOUT_S = 90.0
PATIENT = {"message.timeout.ms": 0}
"""A producer never gives up: a record without an acknowledgement at the end is an anomaly."""


@dataclass
class Trial:
    """One seeded run; `run` fills in the results."""

    cluster: Ensemble
    seed: int
    seconds: float
    links: Links | None = None
    quiet: bool = False
    silences: dict[str, list[float]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    acked: int = 0
    read_along: int = 0
    load_s: float = 0.0
    whole_s: float = 0.0

    @property
    def keys(self) -> list[Key]:
        return [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]

    def run(self) -> None:
        """Run the whole trial. Raises TrialFailed and NodeFailed."""
        self.cluster.start()
        for topic, count in TOPICS.items():
            self.cluster.create_topic(
                topic, count, configs={"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
            )
        bootstrap, options = self.cluster.bootstrap, self.cluster.client_options
        producers = [
            Producer(i, bootstrap, self.keys, self.seed * 1000 + i, options=PATIENT | options)
            for i in range(PRODUCERS)
        ]
        readers = [Reader(i, bootstrap, self.keys, options=options) for i in range(READERS)]
        for producer in producers:
            producer.start()
        for reader in readers:
            reader.start()
        started_at = time.monotonic()
        try:
            self._wait_for_acknowledgements(producers, started_at)
            self._inject_faults(producers, started_at + self.seconds)
            self._heal()
            for producer in producers:
                producer.stop_sending()
            self.load_s = time.monotonic() - started_at
            for producer in producers:
                producer.finish()
        except BaseException:
            for producer in producers:
                producer.abandon()
            raise
        finally:
            for reader in readers:
                reader.finish()
        final = read_all(bootstrap, self.keys, options=options)
        self.cluster.wait_until(
            lambda: self.cluster.is_whole(TOPICS),
            "a full ISR of every partition, as every node reports it",
            HEAL_TIMEOUT_S,
        )
        self.cluster.stop()
        self.history = history = gather(producers, readers, final)
        self.acked, self.read_along = history.acked, sum(reader.count for reader in readers)
        self.violations += [str(anomaly) for anomaly in check(history)]
        self.violations += [
            f"reader {reader.number} received an error: {error}"
            for reader in readers
            for error in reader.errors
        ]
        refusals = [refusal for producer in producers for refusal in producer.refusals]
        refusals += [refusal for reader in readers for refusal in reader.refusals]
        self.violations += [f"a client was refused: {refusal}" for refusal in refusals]
        directories = {node_id: node.data_directory for node_id, node in self.cluster.nodes.items()}
        for key in self.keys:
            self.violations += differences(directories, key, len(final[key].offsets))
        for directory in directories.values():
            self.violations += verify_files(directory)

    # -- faults

    def _inject_faults(self, producers: list[Producer], deadline: float) -> None:
        for step in steps(self.seed, self.cluster.session_ms / 1000, cuts=self.links is not None):
            if time.monotonic() + step.before_s + step.down_s > deadline:
                return
            time.sleep(step.before_s)
            for producer in producers:
                producer.silence.reset()
            victims = self._victims(step)
            started_at = time.monotonic()
            inject_fault(self.cluster, step, victims, self.links)
            self.done[step.name] += 1
            if step.hurry:
                self._say(step, victims, "the next fault follows at once")
                continue
            self._wait_for_acknowledgements(producers, time.monotonic())
            silence = max(producer.silence.reset() for producer in producers)
            self.silences.setdefault(step.name, []).append(silence)
            self._say(
                step,
                victims,
                f"back after {time.monotonic() - started_at:.1f} s, "
                f"longest silence {silence:.2f} s",
            )

    def _victims(self, step: Step) -> list[int]:
        running = self.cluster.running
        topic, partition = self.keys[int(step.choice * len(self.keys))]
        any_one = running[int(step.choice * len(running))]
        leader = (
            self.cluster.leader(topic, partition)
            if step.target in (Target.LEADER, Target.LEADER_AND_CONTROLLER)
            else None
        )
        controller = (
            self.cluster.controller()
            if step.target in (Target.CONTROLLER, Target.LEADER_AND_CONTROLLER)
            else None
        )
        if step.target is Target.ALL:
            return running
        named = {
            node_id
            for node_id in (leader, controller)
            if node_id is not None and self.cluster.nodes[node_id].running
        }
        return sorted(named) or [any_one]

    def _heal(self) -> None:
        started_at = time.monotonic()
        for node in self.cluster.nodes.values():
            node.wait_ready()
        until = self.cluster.wait_until(
            lambda: self.cluster.is_whole(TOPICS), "a full ISR after the heal", HEAL_TIMEOUT_S
        )
        self.whole_s = until - started_at

    def _wait_for_acknowledgements(self, producers: list[Producer], since: float) -> None:
        """Wait until each partition has acknowledged a record after that time. Raises TrialFailed
        and NodeFailed.
        """
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while True:
            late = [
                key
                for key in self.keys
                if all(producer.silence.last.get(key, 0.0) < since for producer in producers)
            ]
            if not late:
                return
            for producer in producers:
                if producer.errors:
                    raise TrialFailed(f"producer {producer.number} gave up: {producer.errors[0]}")
            for node in self.cluster.nodes.values():
                node.check_alive()
            if time.monotonic() > deadline:
                views = {
                    node_id: self.cluster.view(node_id, TOPICS) for node_id in self.cluster.nodes
                }
                reported = "\n".join(
                    f"node {node_id} reports for {late[0]}: {view.get(late[0])}"
                    for node_id, view in views.items()
                )
                raise TrialFailed(
                    f"no acknowledgement for {HEAL_TIMEOUT_S:.0f} s from {late}\n{reported}"
                )
            time.sleep(0.005)

    # -- output

    def _say(self, step: Step, victims: list[int], outcome: str) -> None:
        if not self.quiet:
            print(
                f"  {step.name} (node {', '.join(map(str, victims))}, away {step.down_s:.1f} "
                f"s): {outcome}",
                file=sys.stderr,
                flush=True,
            )

    def summary(self) -> str:
        """The result of the trial with its counts."""
        lines = [f"{'faults':34}{'count':>7}{'silence p50':>13}{'worst':>9}"]
        for name, count in sorted(self.done.items()):
            rows = self.silences.get(name, [])
            shown = (
                f"{statistics.median(rows):11.2f} s{max(rows):7.2f} s"
                if rows
                else f"{'-':>13}{'-':>9}"
            )
            lines.append(f"{name:34}{count:>7}{shown}")
        every = sorted(gap for rows in self.silences.values() for gap in rows)
        if every:
            p99 = every[min(len(every) - 1, int(len(every) * 0.99))]
            lines.append(
                f"failover silence p50 {statistics.median(every):.2f} s, p99 {p99:.2f} s, "
                f"worst {every[-1]:.2f} s of {len(every)}"
            )
        lines.append(
            f"{self.cluster.kind}: {sum(self.done.values())} faults in {self.load_s:.0f} s at "
            f"a session of {self.cluster.session_ms} ms; "
            f"acknowledged {self.acked} ({self.acked / max(self.load_s, 1e-9):,.0f}/s), read "
            f"along {self.read_along}; "
            f"full ISR {self.whole_s:.1f} s after the heal; violations {len(self.violations)}"
        )
        return "\n".join(lines)


def verify_files(directory: Path) -> list[str]:
    """The findings of `mqctl log verify` for the directory of a stopped node; empty if it is
    intact.
    """
    command = [sys.executable, "-m", "mqctl", "log", "verify", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return [
        f"{directory.parent.name}: {line}"
        for line in (done.stdout + done.stderr).strip().splitlines()
    ] or [f"exit code {done.returncode}"]


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.cluster", description="a cluster under load and faults"
    )
    parser.add_argument("--nodes", type=int, default=3, help="nodes (3)")
    parser.add_argument("--seconds", type=float, default=180, help="of faults (180)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of faults, partitions and payloads (1)"
    )
    parser.add_argument(
        "--session-ms",
        type=int,
        default=3000,
        help="broker session timeout, with six heartbeats in it (3000)",
    )
    parser.add_argument("--kind", choices=("mqd", "kafka"), default="mqd", help="whose nodes (mqd)")
    parser.add_argument(
        "--cuts",
        action="store_true",
        help="peers talk through proxies, and the nemesis cuts nodes off, too (mqd only)",
    )
    add_keep(parser)
    parser.add_argument(
        "--history",
        type=Path,
        default=None,
        metavar="DIR",
        help="write history.jsonl and log.jsonl for `mqd-spark audit`",
    )
    cluster_security.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.cuts and arguments.kind != "mqd":
        parser.error("--cuts works through mqd's peers file: not with --kind kafka")
    replay = (
        f"python -m chaos.cluster --nodes {arguments.nodes} --seconds "
        f"{arguments.seconds:g} --seed {arguments.seed}"
    )
    replay += f" --session-ms {arguments.session_ms} --kind {arguments.kind}" + (
        " --cuts" if arguments.cuts else ""
    )
    replay += cluster_security.shown(arguments)
    end_on_sigterm()
    with directory_of(arguments.keep, "chaos-") as directory:
        links: Links | None = None
        cluster: Ensemble | None = None
        try:
            security = cluster_security.from_arguments(arguments, directory / "security")
            chosen = {"session_ms": arguments.session_ms, "security": security}
            if arguments.cuts:
                links = Links()
                cluster = mqd_ensemble(directory, arguments.nodes, links=links, **chosen)
            else:
                cluster = ensemble(arguments.kind, directory, arguments.nodes, **chosen)
            trial = Trial(cluster, arguments.seed, arguments.seconds, links)
            trial.run()
        except (TrialFailed, NodeFailed) as error:
            return failed(error, again=replay)
        finally:
            if cluster is not None:
                cluster.kill()
            if links is not None:
                links.close()
    if arguments.history is not None:
        history_lines.write(trial.history, arguments.history)
    return conclude(trial.summary(), trial.violations, again=replay)


if __name__ == "__main__":
    sys.exit(main())
