"""The shares of the memory of a machine."""

from __future__ import annotations

import pytest

from mqd.config import NodeConfig
from mqd.limits import MIB
from mqd.memory_plan import SHARE_BYTES_MIN, MemoryPlan


def config(**chosen: int) -> dict[str, object]:
    defaults: dict[str, object] = dict(NodeConfig({}, {}))
    return defaults | {name.replace("_", "."): size for name, size in chosen.items()}


@pytest.mark.parametrize("machine", [128 * MIB, 512 * MIB, 1024 * MIB, 65_536 * MIB])
def test_the_shares_fit_seven_eighths_of_any_machine(machine: int) -> None:
    plan = MemoryPlan.of(config(), machine)
    assert plan.total - plan.metadata - plan.batches <= machine * 7 // 8
    assert min(plan[1:]) >= SHARE_BYTES_MIN


def test_the_defaults_on_a_machine_of_one_gibibyte() -> None:
    plan = MemoryPlan.of(config(), 1024 * MIB)
    assert str(plan) == (
        "total=1024 machine=1024 connections=256 groups=128 members=64 transactions=64 "
        "share_states=32 share_partitions=32 producers=64 topics=64 metadata=256 batches=64"
    )
    assert not plan.is_too_large
    assert MemoryPlan.of(config(), 512 * MIB).is_too_large


def test_options_replace_shares() -> None:
    chosen = config(memory_budget_bytes=7, group_members_memory_bytes=1024 * MIB)
    plan = MemoryPlan.of(chosen, 1024 * MIB)
    assert (plan.connections, plan.members) == (7, 1024 * MIB)
    assert MemoryPlan.of(config(), 65_536 * MIB).members == 512 * MIB
