"""Rare events are counted; a range of seeds that never reaches one of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mqd.testing.__main__ import main
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
    assert ("events that never happened: " in capsys.readouterr().err) == (missing is not None)
    assert main(seeds) == 0


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
