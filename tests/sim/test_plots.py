"""Directed faults: drawn from the seed, only where they are allowed, and each completes in a
cluster without defects.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.client.cluster import ClusterClient
from mqd.testing.faults.administration import Administration
from mqd.testing.faults.plan import Mode
from mqd.testing.faults.plots import PLOTS, draw_plot
from mqd.testing.runner import run_seed
from mqd.testing.settings import Settings

PLAYED = {
    "deposed": 100,
    "late-isr-change": 100,
}
"""Plot -> a seed in which it completes within seconds.

Plots that need a power failure: `make simulate`.
"""


def test_each_mode_plays_exactly_its_allowed_plots() -> None:
    for mode in Mode:
        drawn = Counter(draw_plot(mode, random.Random(seed)) for seed in range(400))
        assert set(drawn) - {None} == {name for name, modes in PLOTS.items() if mode in modes}
        assert drawn[None] > 50, "seeds with random faults only"


@pytest.mark.parametrize("name", PLAYED)
def test_a_plot_completes_without_violations(name: str) -> None:
    settings = Settings(seed=PLAYED[name], plot=name, seconds=4.0, load="plain")
    result = run_seed(settings)
    assert not result.violations, (result.violations, settings.command)
    assert result.counts[f"plot {name}"] >= 1


async def test_a_plot_deletes_no_growing_topic() -> None:
    """Otherwise its growth would be recorded as if the topic existed."""
    unused: Any = SimpleNamespace()  # no plan is needed here
    client: Any = object.__new__(ClusterClient)  # it sends nothing
    administration = Administration(client, unused, random.Random(1), [1, 2, 3], [], lambda: 0)
    administration.created["x1"] = 2

    async def add_partitions(growth: dict[str, int]) -> dict[str, None]:
        assert growth == {"x1": 3} and "x1" not in administration.created
        return {"x1": None}

    administration._admin = SimpleNamespace(add_partitions=add_partitions)  # type: ignore[assignment]  # a fake with one call
    await administration._grow()
    assert administration.created == {"x1": 3}
