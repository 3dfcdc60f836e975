"""Each planted defect is found: a simulator that finds nothing planted proves nothing.

`FOUND` says where each was found when it was planted last, as (nodes, seed, seconds under faults): a change of the product moves
these, so the test goes on from there for up to `SEEDS_MAX` seeds. All of them take minutes: `MQD_SIM_BUGS=all pytest tests/sim`;
otherwise those in `QUICK` are.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from mqd.testing.runner import Settings, run_seed
from tests.sim.bugs import BUGS

SEEDS_MAX = 25
FOUND: dict[str, tuple[int, int, float]] = {
    "acks-all-at-append": (3, 0, 6.0),
    "alter-partition-without-comparing": (3, 0, 8.0),
    "deletion-not-carried-out": (3, 0, 8.0),
    "flush-before-ack-ignored": (3, 0, 8.0),
    "follower-claims-what-is-not-synced": (3, 0, 8.0),
    "followers-forget-producers": (3, 0, 6.0),
    "high-watermark-ignores-a-member": (3, 0, 6.0),
    "high-watermark-moves-below-min-isr": (3, 0, 8.0),
    "joins-without-catching-up": (3, 2, 8.0),
    "keeps-what-differs": (3, 0, 8.0),
    "no-deduplication": (3, 1, 6.0),
    "old-broker-epoch-accepted": (3, 0, 8.0),
    "raft-answers-before-fsync": (3, 0, 6.0),
    "raft-believes-previous": (3, 0, 8.0),
    "raft-counts-unsynced": (3, 0, 6.0),
    "serves-uncommitted": (3, 0, 6.0),
    "stale-leader-epoch-accepted": (3, 0, 8.0),
    "truncates-to-high-watermark": (3, 8, 8.0),
    "unclean-elections": (3, 2, 8.0),
    "unclean-registration-ignored": (3, 0, 8.0),
}
QUICK = (
    "acks-all-at-append",
    "followers-forget-producers",
    "high-watermark-ignores-a-member",
    "raft-counts-unsynced",
    "serves-uncommitted",
)


def test_there_are_twelve_and_each_has_its_place() -> None:
    assert len(BUGS) >= 12
    assert set(FOUND) == set(BUGS)


@pytest.mark.parametrize("name", sorted(BUGS) if os.environ.get("MQD_SIM_BUGS") == "all" else QUICK)
def test_planted_bugs_are_found(name: str) -> None:
    nodes, first, seconds = FOUND[name]
    settings = Settings(seed=first, nodes=nodes, seconds=seconds, bug=name)
    with BUGS[name].planted():
        for seed in range(first, first + SEEDS_MAX):
            if run_seed(replace(settings, seed=seed)).violations:
                return
    pytest.fail(f"{name} ({BUGS[name].meaning}) was not found in {SEEDS_MAX} seeds from {first} on")
