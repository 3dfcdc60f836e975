"""How fast does mqd produce and fetch, beside the limits of this machine and beside another broker?

    python bench/produce_fetch.py [--only NAME]... [--quick]    against an mqd that it starts itself
        [--broker HOST:PORT [--broker-pid PID]]
        [--peer HOST:PORT [--peer-pid PID] [--peer-topic T] | --peer-kafka]
        [--security sasl_ssl] [--sasl-mechanism SCRAM-SHA-256]
        [--keep 0.8] [--rounds N] [--json FILE] [--data DIR] [--list]

Every benchmark runs on both brokers in turn, A B then B A, and the medians are compared. A ratio is
mqd's figure divided by the peer's. Compare ratios: absolute figures depend on the machine. The
generators share the processors with the broker. Floors are the best of the rounds. A quick run is
too short for the JIT compiler of a JVM: its ratios to Kafka are meaningless.

With --security, only the benchmarks of librdkafka's clients run: the C generators have no TLS.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import brokers, floors  # noqa: E402
from bench.benchmarks import (  # noqa: E402
    BENCHMARKS,
    FLOORS,
    SECURED,
    Benchmark,
    Figure,
    Run,
    warm_up,
)
from bench.brokers import Broker  # noqa: E402
from bench.generators import BenchError, binary  # noqa: E402
from chaos import cluster_security  # noqa: E402

QUICK_PART = 0.05


def main() -> int:
    options = parse()
    if options.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:24} {benchmark.__doc__}")
        return 0
    run = Run(part=QUICK_PART if options.quick else 1.0)
    rounds = options.rounds or (1 if options.quick else 3)
    directory = Path(tempfile.mkdtemp(prefix="mqd-bench-", dir=options.data))
    tested: list[Broker] = []
    try:
        for name in ("load", "drain"):
            binary(name)
        tested = choose(options, directory)
        for broker in tested:
            if broker.launch is not None:
                broker.start()
                run.idle_mb[broker.name] = broker.resident_mb() or 0.0
        machine = floors.machine(directory)
        print(describe(machine, tested, rounds, run))
        rows = measure(
            options.only or list(available(options)), tested, run, rounds, directory, options.keep
        )
    except BenchError as error:
        print(f"produce_fetch: {error}", file=sys.stderr)
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        type=address,
        help="an mqd that runs already; without it one is started",
    )
    parser.add_argument(
        "--broker-pid", type=int, metavar="PID", help="its process, for CPU time and memory"
    )
    parser.add_argument(
        "--broker-topic",
        metavar="TOPIC",
        help="use this topic of one partition instead of creating topics",
    )
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument(
        "--peer", metavar="HOST:PORT", type=address, help="another broker to measure"
    )
    peers.add_argument(
        "--peer-kafka",
        action="store_true",
        help="start Apache Kafka through scripts/kafka.sh and measure it, too",
    )
    parser.add_argument("--peer-pid", type=int, metavar="PID")
    parser.add_argument("--peer-topic", metavar="TOPIC")
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
    cluster_security.add_arguments(parser)
    options = parser.parse_args()
    if options.security != "plaintext" and (options.broker or options.peer):
        parser.error("--security needs brokers that this program starts: omit --broker and --peer")
    if unsecured := set(options.only or ()) - set(available(options)):
        parser.error(
            f"{', '.join(sorted(unsecured))}: the C generators have no TLS and no SASL. With "
            f"--security, choose from {', '.join(SECURED)}"
        )
    return options


def available(options: argparse.Namespace) -> tuple[str, ...]:
    """The benchmarks that can run with this security."""
    return tuple(BENCHMARKS) if options.security == "plaintext" else SECURED


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def choose(options: argparse.Namespace, directory: Path) -> list[Broker]:
    """The brokers to compare: mqd first, then the peer."""
    security = cluster_security.from_arguments(options, directory / "security")
    if options.broker:
        chosen = [
            Broker(
                "broker", options.broker, pid=options.broker_pid, fixed_topic=options.broker_topic
            )
        ]
    else:
        chosen = [brokers.mqd(directory / "mqd", security)]
    if options.peer:
        chosen.append(
            Broker("peer", options.peer, pid=options.peer_pid, fixed_topic=options.peer_topic)
        )
    elif options.peer_kafka:
        chosen.append(brokers.kafka(directory / "kafka", security))
    return chosen


def measure(
    names: list[str],
    tested: list[Broker],
    run: Run,
    rounds: int,
    directory: Path,
    keep: float,
    benchmarks: dict[str, Benchmark] = BENCHMARKS,
    warm_up: Callable[[Broker, Run], None] = warm_up,
) -> list[dict[str, Any]]:
    """Run all benchmarks, and print the figures of each one at once."""
    print(
        f"{'benchmark':24}{'figure':22}{'unit':>7}",
        *(f"{broker.name:>12}" for broker in tested),
        end="",
    )
    print(
        f"{'ratio':>8}  {'goal':8}{'floor of the machine':>40}\n"
        if len(tested) > 1
        else f"{'floor of the machine':>40}\n"
    )
    rows: list[dict[str, Any]] = []
    known_floors: dict[str, float] = {}
    warm = False
    for name in sorted(names, key=list(benchmarks).index):
        if name != "start" and not warm:
            for broker in tested:
                warm_up(broker, run)
            warm = True
        figures_of: dict[str, list[list[Figure]]] = {broker.name: [] for broker in tested}
        failed: dict[str, str] = {}
        for turn in range(rounds):
            for broker in tested if turn % 2 == 0 else tested[::-1]:
                try:
                    figures_of[broker.name].append(benchmarks[name](broker, run))
                except BenchError as error:
                    failed[broker.name] = str(error)
        for broker_name, reason in failed.items():
            print(f"{name:24}{broker_name} failed: {reason}")
            rows.append({"benchmark": name, "broker": broker_name, "failed": reason})
        for row in compare(name, [figures_of[broker.name] for broker in tested], keep):
            floor = row["floor"]
            if floor is not None and floor not in known_floors:
                measured = [FLOORS[floor](run, directory) for _ in range(rounds)]
                known_floors[floor] = max(measured) if row["more_is_better"] else min(measured)
            row["floor_value"] = known_floors.get(floor) if floor is not None else None
            rows.append(row)
            print(render(row), flush=True)
    return rows


def compare(name: str, figures_of: list[list[list[Figure]]], keep: float) -> list[dict[str, Any]]:
    """For each figure, the median of all rounds of each broker."""
    shapes = [rounds[0] for rounds in figures_of if rounds]
    if not shapes:
        return []
    rows = []
    for shape in max(shapes, key=len):
        values = []
        for rounds in figures_of:
            seen = [
                figure.value
                for figures in rounds
                for figure in figures
                if figure.name == shape.name
            ]
            values.append(statistics.median(seen) if seen else None)
        ratio = (
            values[0] / values[1]
            if len(values) > 1 and values[0] is not None and values[1]
            else None
        )
        goal = shape.goal if shape.goal != 1.0 else keep if shape.more_is_better else 1 / keep
        met = None if ratio is None else ratio >= goal if shape.more_is_better else ratio <= goal
        rows.append(
            {
                "benchmark": name,
                "figure": shape.name,
                "unit": shape.unit,
                "values": values,
                "ratio": ratio,
                "goal": goal,
                "more_is_better": shape.more_is_better,
                "met": met,
                "floor": shape.floor,
            }
        )
    return rows


def render(row: dict[str, Any]) -> str:
    text = f"{row['benchmark']:24}{row['figure']:22}{row['unit']:>7} " + " ".join(
        f"{number(value):>12}" for value in row["values"]
    )
    if len(row["values"]) > 1:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        verdict = (
            ""
            if row["met"] is None
            else "ok"
            if row["met"]
            else f"{'>=' if row['more_is_better'] else '<='} {row['goal']:.2g}!"
        )
        text += f"{ratio:>8}  {verdict:8}"
    if row["floor_value"] is not None:
        text += f"{row['floor'] + ' ' + number(row['floor_value']):>40}"
    return text


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe(machine: dict[str, str], tested: list[Broker], rounds: int, run: Run) -> str:
    lines = [f"{key}: {value}" for key, value in machine.items()]
    lines.append(
        "brokers: " + ", ".join(f"{broker.name} at {broker.bootstrap}" for broker in tested)
    )
    lines.append(
        f"rounds: {rounds}, load: {run.part:.0%}, medians"
        + (" (quick: mind no ratio)" if run.part < 1 else "")
        + "\n"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
