"""Rare events are counted; a range of seeds that never reaches one of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mqd.testing.__main__ import Totals, main
from mqd.testing.coverage import EVENTS
from mqd.testing.runner import run_seed
from mqd.testing.settings import Result, Settings


@pytest.mark.parametrize("missing", [None, *EVENTS])
def test_an_event_that_never_happened_fails_the_range(
    missing: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(settings: Sequence[Settings], jobs: int, trace: Path | None) -> Iterator[Result]:
        for one, event in zip(settings, EVENTS, strict=True):
            yield Result(one, counts=Counter({event: 3} if event != missing else {}))

    monkeypatch.setattr("mqd.testing.__main__.results", ran)
    seeds = ["--seeds", f"0-{len(EVENTS) - 1}"]
    assert main([*seeds, "--require-coverage"]) == (missing is not None)
    assert (f"of 50 seeds: {missing};" in capsys.readouterr().err) == (missing is not None)
    assert main(seeds) == 0


def test_more_seeds_must_reach_an_event_more_often() -> None:
    totals = Totals()
    for seed in range(150):
        counts = Counter(EVENTS if seed < 3 else EVENTS[1:])
        totals.add(Result(Settings(seed), counts=counts))
    assert not totals.rare_events()
    for seed in range(50):
        totals.add(Result(Settings(seed), counts=Counter(EVENTS[1:])))
    assert totals.rare_events() == [EVENTS[0]]


def test_a_file_has_several_ranges_of_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Settings] = []

    def run(settings: Sequence[Settings], jobs: int, trace: Path | None) -> Iterator[Result]:
        ran.extend(settings)
        return (Result(one, real_seconds=2.0) for one in settings)

    monkeypatch.setattr("mqd.testing.__main__.results", run)
    runs = tmp_path / "runs"
    runs.write_text("plain 5 0-1 plaintext\ncopy 3 7 sasl_ssl\n")
    assert main(["--runs", str(runs)]) == 0
    assert ran == [
        Settings(0, 5, load="plain"),
        Settings(1, 5, load="plain"),
        Settings(7, 3, load="copy", security="SASL_SSL"),
    ]
    shown = "3 seeds (plain, 5 nodes: 4 s; copy, 3 nodes, SASL_SSL: 2 s):"
    assert shown in capsys.readouterr().out


def test_a_hostile_client_exhausts_small_limits() -> None:
    """One seed does not reach all of them; the ranges of CI and of docs/HACKING.md do, with
    `--require-coverage`.
    """
    counts: Counter[str] = Counter()
    for seed in (2, 7):
        result = run_seed(Settings(seed, load="hostile", seconds=4.0))
        assert not result.violations, (result.violations, result.settings.command)
        counts.update(result.counts)
    assert counts["hostile_attacks"] > 20 and counts["acknowledged"] > 100
    assert (
        sum(
            counts[event] > 0
            for event in (
                "memory_waits",
                "evicted_connections",
                "stalled_connections",
                "metadata_refusals",
            )
        )
        >= 2
    )
