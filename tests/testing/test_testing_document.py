"""docs/TESTING.md: its example runs, and everything that it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mqd.testing import Cluster, ClusterNetwork, MemoryDisk, SimulatedNode, run

PAPER = (Path(__file__).parents[2] / "docs" / "TESTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAPER.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.slow
def test_the_example_runs() -> None:
    names: dict[str, Any] = {}
    exec(section("An example").split("```python\n")[1].split("```")[0], names)
    names["test_every_order_is_billed_once"](seed=0)


def test_what_can_happen_is_there() -> None:
    faces = (Cluster, SimulatedNode, ClusterNetwork, MemoryDisk)
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section("What can happen"), re.MULTILINE)
    called = {name for row in rows for name in re.findall(r"`[^`]*?\b(\w+)\([^`]*`", " ".join(row))}
    assert len(called) > 20
    assert [name for name in sorted(called) if not any(hasattr(face, name) for face in faces)] == []


def test_the_world_is_there() -> None:
    async def look() -> None:
        async with Cluster(nodes=1) as cluster:
            for name in re.findall(r"\bcluster\.((?:world\.)?\w+)", section("The world")):
                face: Any = cluster
                for part in name.split("."):
                    face = getattr(face, part)

    run(look)
