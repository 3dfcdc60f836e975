"""Simulate clusters under faults, one run for each seed.

Many seeds; stop at the first violation, with exit code 1:

    python -m mqd.testing --seeds 0-999 --nodes 5 --jobs 2

All seeds, also after a violation; with a node that does not vote:

    python -m mqd.testing --seeds 0-999 --nodes 5 --keep-going
    python -m mqd.testing --seeds 0-99 --nodes 3 --observers 1

Repeat one seed, with every event in a file:

    python -m mqd.testing --seeds 42 --nodes 3 --trace trace.txt

Several ranges of seeds at once, a line for each; "-" is the standard input:

    echo "plain 3 0-29 plaintext" | python -m mqd.testing --runs - --jobs 2

List the bugs that can be planted; plant one, and stop at the first seed that finds it:

    python -m mqd.testing --list-bugs
    python -m mqd.testing --seeds 0-149 --bug NAME

The planted bugs are part of the tests: run `--bug` and `--list-bugs` from the root of a source
tree.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from mqd.security.client_listeners import SecurityProtocol
from mqd.testing.coverage import EVENTS
from mqd.testing.faults.plots import PLOTS
from mqd.testing.jobs import bugs, results
from mqd.testing.settings import LOADS, SECONDS_OF_SAFETY, Result, Settings

SEEDS_FOR_EACH_EVENT = 50
SHOWN = (
    "acknowledged",
    "read",
    "elections",
    "leader_changes",
    "isr_changes",
    "truncations",
    "kill",
    "power",
    "stop",
    "pause",
    "partition",
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list_bugs:
        for name, bug in bugs().items():
            print(f"{name}: {bug.meaning}")
        return 0
    if options.bug is not None and options.bug not in bugs():
        print(f"there is no bug {options.bug!r}; --list-bugs names them", file=sys.stderr)
        return 2
    if options.runs is not None:
        text = sys.stdin.read() if options.runs == "-" else Path(options.runs).read_text()
        settings = [one for line in text.splitlines() for one in _settings_of(line)]
    else:
        settings = _settings(options)
    if options.trace is not None and len(settings) > 1:
        print("--trace takes one seed", file=sys.stderr)
        return 2
    began = time.perf_counter()
    totals, bad = Totals(), []
    for result in results(settings, options.jobs, options.trace):
        totals.add(result)
        if result.violations:
            bad.append(result)
            _print_violations(result)
            if not options.keep_going:
                break
        elif options.verbose:
            print(
                f"seed {result.settings.seed}: {result.real_seconds:.1f} s, {result.digest}, "
                f"{dict(result.counts)}",
                flush=True,
            )
        if sys.stderr.isatty():
            print(f"\r{totals.seeds} of {len(settings)} seeds", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    print(totals.text(time.perf_counter() - began))
    print(totals.coverage())
    if bad:
        print(
            f"violations in {len(bad)} of {totals.seeds} seeds, by number: "
            f"{' '.join(str(result.settings.seed) for result in bad[:50])}"
        )
    rare = totals.rare_events()
    if options.require_coverage and rare:
        print(
            f"events in fewer than one of {SEEDS_FOR_EACH_EVENT} seeds: {', '.join(rare)}; run "
            "more seeds, or look at mqd/testing/thresholds.py",
            file=sys.stderr,
        )
        return 1
    return int(bool(bad))


def _settings(options: argparse.Namespace) -> list[Settings]:
    bug = None if options.bug is None else bugs()[options.bug]
    nodes = options.nodes or (3 if bug is None else bug.nodes)
    security = options.security or ("PLAINTEXT" if bug is None else bug.security)
    return [
        Settings(
            seed,
            nodes,
            options.observers,
            options.seconds,
            options.bug,
            options.plot,
            options.load,
            security.upper(),
        )
        for seed in _seeds(options.seeds)
    ]


def _settings_of(line: str) -> list[Settings]:
    """A line of --runs: load, nodes, seeds and security."""
    load, nodes, seeds, security = line.split()
    return [
        Settings(seed, int(nodes), load=load, security=security.upper()) for seed in _seeds(seeds)
    ]


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


class Totals:
    """Totals over all seeds."""

    def __init__(self) -> None:
        self.runs: dict[str, float] = {}
        """The real seconds of each kind of run."""
        self.seeds = self.events = 0
        self.simulated_seconds = 0.0
        self.converged: list[float] = []
        self.counts: Counter[str] = Counter()
        self.seeds_with: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        kind = _kind(result.settings)
        self.runs[kind] = self.runs.get(kind, 0.0) + result.real_seconds
        self.seeds += 1
        self.events += result.events
        self.simulated_seconds += result.simulated_seconds
        self.counts.update(result.counts)
        self.seeds_with.update(event for event in EVENTS if result.counts[event])
        if not result.violations:
            self.converged.append(result.converged_after)

    def coverage(self) -> str:
        """The table of rare events: how often each one happened, and in how many seeds."""
        rows = [
            f"  {event.replace('_', ' '):<20} {self.counts[event]:>8} {self.seeds_with[event]:>8}"
            for event in EVENTS
        ]
        return "\n".join([f"  {'event':<20} {'times':>8} {'seeds':>8}", *rows])

    def rare_events(self) -> list[str]:
        """Events that happen less often than the tests of them need."""
        return [
            event
            for event in EVENTS
            if self.seeds_with[event] < max(1, self.seeds // SEEDS_FOR_EACH_EVENT)
        ]

    def text(self, real_seconds: float) -> str:
        kinds = [f"{kind}: {seconds:.0f} s" for kind, seconds in self.runs.items()]
        shown = ", ".join(f"{name.replace('_', ' ')} {self.counts[name]}" for name in SHOWN)
        converged = sorted(self.converged)
        half = (
            f", whole again after {converged[len(converged) // 2]:.1f} s (median), "
            f"{converged[-1]:.1f} s (longest)"
            if converged
            else ""
        )
        return (
            f"{self.seeds} seeds ({'; '.join(kinds)}): {self.events} events, "
            f"{self.simulated_seconds / 3600:.2f} simulated hours "
            f"in {real_seconds:.0f} s "
            f"({self.simulated_seconds / max(real_seconds, 0.001):.1f} times real "
            f"time){half}\n{shown}"
        )


def _kind(settings: Settings) -> str:
    """What runs have in common, without their seeds."""
    observers = settings.observers
    parts = [
        settings.load or "",
        f"{settings.nodes} nodes" + (f" and {observers} that do not vote" if observers else ""),
        settings.security if settings.security != "PLAINTEXT" else "",
    ]
    return ", ".join(part for part in parts if part)


def _print_violations(result: Result) -> None:
    print(f"seed {result.settings.seed}:")
    for violation in result.violations[:10]:
        print(f"  {violation}")
    for line in result.tail[-20:]:
        print(f"    {line}")
    print(f"  again: {result.settings.command}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mqd.testing", description="Simulate clusters under faults, one run a seed."
    )
    parser.add_argument("--seeds", default="0-9", help="first-last, or one")
    parser.add_argument(
        "--runs",
        help="a file with one range of seeds in each line: LOAD NODES FIRST-LAST SECURITY",
    )
    parser.add_argument(
        "--nodes", type=int, help="[default: 3, or as many as the planted defect names]"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_OF_SAFETY, help="of virtual time under faults"
    )
    parser.add_argument(
        "--observers", type=int, default=0, help="nodes beside them that do not vote"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--require-coverage",
        action="store_true",
        help="fail if an event of the coverage table never happened, or in fewer than one of "
        f"{SEEDS_FOR_EACH_EVENT} seeds",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="do not end at the first seed with a violation"
    )
    parser.add_argument("--bug", help="plant this defect: how many seeds until it is found")
    parser.add_argument(
        "--plot",
        choices=sorted(PLOTS),
        help="play this sequence of faults, whatever the seed would",
    )
    parser.add_argument("--load", choices=LOADS, help="what clients do, whatever the seed would")
    parser.add_argument(
        "--security",
        choices=[name.lower() for name in SecurityProtocol.__members__],
        default=None,
        help="of clients; with TLS, nodes use it between them, too "
        "[default: plaintext, or that of the planted defect]",
    )
    parser.add_argument("--list-bugs", action="store_true")
    parser.add_argument("--trace", type=Path, help="write every event of the one seed to this file")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
