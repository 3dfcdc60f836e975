"""A few seeds on every run; thousands: `python -m mqd.testing --seeds 0-1999 --nodes 3 --jobs 2`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mqd.testing.__main__ import main
from mqd.testing.faults import Mode, Plan
from mqd.testing.runner import LOADS, Result, Settings, _Run, run_seed

SEEDS = {3: range(3), 5: range(1)}


@pytest.mark.parametrize(("nodes", "seed"), [(nodes, seed) for nodes, seeds in SEEDS.items() for seed in seeds])
def test_seeds(nodes: int, seed: int) -> None:
    settings = Settings(seed=seed, nodes=nodes, seconds=6.0, load="plain")
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert result.counts["acknowledged"] > 50 and result.counts["read"] > 50


@pytest.mark.parametrize(("load", "counts"), [("copy", ("committed_transactions", "read_committed")), ("groups", ("offset_commits",))])
def test_seeds_with_coordinators(load: str, counts: tuple[str, ...]) -> None:
    settings = Settings(seed=0, seconds=5.0, load=load)
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert all(result.counts[name] > 10 for name in counts)


def test_half_of_the_seeds_have_groups_or_transactions() -> None:
    drawn = [_Run(Settings(seed), Result(Settings(seed)), None).load for seed in range(200)]
    assert {load: drawn.count(load) > 10 for load in LOADS} == dict.fromkeys(LOADS, True)
    assert 80 < drawn.count("plain") < 120


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "load"), [(3, "plain"), (7, "all")])
def test_a_seed_replays_byte_for_byte_whatever_the_hashes_are(seed: int, load: str) -> None:
    """Sets are iterated in an order that hangs on PYTHONHASHSEED, objects in one that hangs on their addresses."""
    settings = f"Settings(seed={seed}, seconds=2.0, plot='deposed', load={load!r})"
    script = f"from mqd.testing.runner import *; print(run_seed({settings}).digest)"
    digests = set()
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=120)
        digests.add(done.stdout)
    assert len(digests) == 1 and digests != {"\n"}


def test_another_seed_is_another_run() -> None:
    assert run_seed(Settings(seed=4, seconds=1.0)).digest != run_seed(Settings(seed=5, seconds=1.0)).digest


def test_no_plan_cuts_the_power_where_a_kill_is_all_that_may_happen() -> None:
    import random

    plans = [Plan.draw(random.Random(seed)) for seed in range(200)]
    assert {plan.mode for plan in plans} == set(Mode)
    for plan in plans:
        assert ("power" in plan.families) == (plan.mode is not Mode.KILL)
        assert plan.mode is Mode.KILL or "corrupt" not in plan.families


def test_the_command_line_tells_totals_and_how_to_run_a_bad_seed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0-9", "--bug", "serves-uncommitted", "--seconds", "4"]) == 1
    told = capsys.readouterr().out
    assert "again: python -m mqd.testing --seeds " in told and "--bug serves-uncommitted" in told
    assert "simulated hours" in told and "1 seed(s) with violations" in told


def test_jobs_share_the_seeds_and_the_first_violation_ends_them(capsys: pytest.CaptureFixture[str]) -> None:
    """In processes that are spawned: whatever they run must be found there by its name."""
    from mqd.testing.jobs import results

    settings = [Settings(seed=seed, seconds=0.5) for seed in (1, 2, 3)]
    assert [(one.settings.seed, one.digest) for one in results(settings, 2)] == [(one.seed, run_seed(one).digest) for one in settings]
    assert main(["--seeds", "0-99", "--bug", "serves-uncommitted", "--seconds", "4", "--jobs", "2"]) == 1
    assert "1 seed(s) with violations" in capsys.readouterr().out


def test_bugs_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-bugs"]) == 0
    assert "acks-all-at-append: " in capsys.readouterr().out
    assert main(["--bug", "none"]) == 2
