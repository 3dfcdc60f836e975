"""A few seeds on every run; thousands: `python -m mqd.testing --seeds 0-1999 --nodes 3
--jobs 2`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from mqd.testing.__main__ import main
from mqd.testing.faults.plan import FaultPlan, Mode
from mqd.testing.jobs import results
from mqd.testing.runner import _Run, run_seed
from mqd.testing.settings import LOADS, Result, Settings

FOUND_AT_ONCE = "raft-answers-before-fsync"
SEEDS = {3: range(2), 5: range(1)}


@pytest.mark.parametrize(
    ("nodes", "seed"), [(nodes, seed) for nodes, seeds in SEEDS.items() for seed in seeds]
)
def test_seeds(nodes: int, seed: int) -> None:
    settings = Settings(seed=seed, nodes=nodes, seconds=4.0, load="plain")
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert result.counts["acknowledged"] > 50 and result.counts["read"] > 50


def test_a_seed_with_tls_and_logins() -> None:
    """`tests/testing/test_secure_cluster.py` requires that it repeats."""
    settings = Settings(seed=1, seconds=1.0, load="plain", security="SASL_SSL")
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert result.counts["acknowledged"] > 20
    assert "--security sasl_ssl" in settings.command


@pytest.mark.parametrize(
    ("load", "seed", "seconds", "counts", "least"),
    [
        ("copy", 1, 3.0, ("committed_transactions", "read_committed"), 10),
        ("groups", 1, 3.0, ("offset_commits",), 10),
        ("share", 2, 3.0, ("share_confirmed",), 10),
        ("queues", 1, 2.0, ("owner_commits", "memory_acknowledged", "memory_read"), 5),
        ("delay", 1, 2.0, ("delayed", "relayed"), 5),
        ("prepare", 3, 4.0, ("prepared_transactions", "driven_transactions"), 2),
    ],
)
def test_seeds_with_coordinators(
    load: str, seed: int, seconds: float, counts: tuple[str, ...], least: int
) -> None:
    settings = Settings(seed=seed, seconds=seconds, load=load)
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert all(result.counts[name] > least for name in counts)


def test_half_of_the_seeds_have_groups_or_transactions() -> None:
    drawn = [_Run(Settings(seed), Result(Settings(seed)), None).load for seed in range(200)]
    assert {load: drawn.count(load) > 10 for load in LOADS} == dict.fromkeys(LOADS, True)
    assert 60 < drawn.count("plain") < 110


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_seed_replays_byte_for_byte_with_any_hash_seed() -> None:
    """The order of sets depends on PYTHONHASHSEED, the order of objects on their addresses: here
    and elsewhere.
    """
    settings = Settings(seed=7, seconds=2.0, plot="deposed", load="all")
    script = (
        "from mqd.testing.runner import run_seed; from mqd.testing.settings import Settings; "
        f"print(run_seed({settings}).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == run_seed(settings).digest + "\n" != "\n"


def test_no_plan_has_a_power_failure_where_only_kills_are_allowed() -> None:
    import random

    plans = [FaultPlan.draw(random.Random(seed)) for seed in range(200)]
    assert {plan.mode for plan in plans} == set(Mode)
    for plan in plans:
        assert ("power" in plan.families) == (plan.mode is not Mode.KILL)
        assert plan.mode is Mode.KILL or "corrupt" not in plan.families


def test_the_command_line_prints_totals_and_the_command_for_a_bad_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "0-9", "--bug", FOUND_AT_ONCE, "--seconds", "1"]) == 1
    output = capsys.readouterr().out
    assert "again: python -m mqd.testing --seeds " in output and f"--bug {FOUND_AT_ONCE}" in output
    assert "simulated hours" in output and "violations in 1 of " in output


@pytest.mark.slow
def test_jobs_share_the_seeds_and_closing_the_results_ends_them() -> None:
    """In spawned processes: they must find their functions by name."""
    settings = [Settings(seed=seed, seconds=0.25, load="plain") for seed in (1, 2)]
    digests = [run_seed(one).digest for one in settings]
    assert digests[0] != digests[1], "another seed is another run"
    settings += [Settings(seed=seed, seconds=1.0, bug=FOUND_AT_ONCE) for seed in range(2000)]
    with closing(results(settings, 2)) as ran:  # type: ignore[type-var]  # results is a generator
        found = list(islice(ran, 3))
    assert [one.settings.seed for one in found] == [1, 2, 0] and [
        one.digest for one in found[:2]
    ] == digests
    assert [bool(one.violations) for one in found] == [False, False, True]


def test_the_command_line_ends_jobs_at_the_first_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = []

    def ran(settings: Sequence[Settings], jobs: int, trace: Path | None) -> Iterator[Result]:
        requested.append((len(settings), jobs))
        yield Result(settings[0])
        yield Result(settings[1], violations=["this"])
        raise AssertionError("it went on")

    monkeypatch.setattr("mqd.testing.__main__.results", ran)
    assert main(["--seeds", "0-99", "--jobs", "2"]) == 1
    assert (
        requested == [(100, 2)]
        and "violations in 1 of 2 seeds, by number: 1\n" in capsys.readouterr().out
    )


def test_bugs_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-bugs"]) == 0
    assert "acks-all-at-append: " in capsys.readouterr().out
    assert main(["--bug", "none"]) == 2
