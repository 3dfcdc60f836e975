"""Each planted defect is found: a simulator that misses a planted defect proves nothing.

`FOUND` (found.py) has the first seed that found each defect at the last count (`make
simulate-bugs-count`; eight seconds under faults, with the defect's load and nodes). A change of the
product changes these seeds, so the test continues from there for up to `SEEDS_MAX` seeds. All of
them: `make simulate-bugs`, minutes; those in `QUICK` are found within a second of processor time
each, those in `SLOWER` within a few (`make slow`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mqd.testing.runner import run_seed
from mqd.testing.settings import LOADS, Settings
from tests.seeds import slow
from tests.sim.bugs import BUGS
from tests.sim.found import FOUND

SEEDS_MAX = 50
LAST_SEED = 99
"""The last seed of the count (count_bugs.py)."""
CLASSES = {
    "recovery": (
        "torn-tail-left-in-the-file",
        "crash-taken-for-a-clean-shutdown",
        "checksums-not-read",
    ),
    "compaction": (
        "keys-without-news-dropped",
        "aborted-records-count-as-newest",
        "markers-go-early",
        "cleaned-segment-not-synced",
    ),
    "retention": (
        "retention-beyond-the-high-watermark",
        "no-limit-is-a-limit",
    ),
    "DeleteRecords": (
        "followers-ignore-the-log-start",
        "delete-records-beyond-the-high-watermark",
    ),
    "reassignment": (
        "move-completed-early",
        "moved-replica-stays-in-sync",
        "moved-replica-keeps-its-log",
    ),
    "metadata snapshots": (
        "snapshot-lacks-producer-ids",
        "snapshot-lacks-configs",
        "snapshot-lacks-eligible-replicas",
        "snapshot-index-taken-late",
        "journal-cut-without-its-snapshot",
    ),
    "InstallSnapshot": (
        "restore-merges",
        "installed-snapshot-not-restored",
        "installed-snapshot-not-written",
    ),
    "budgets": (
        "responses-are-sent-as-they-are-ready",
        "deleted-topics-are-counted",
        "ended-offsets-are-counted",
        "closed-connection-keeps-its-unsent-bytes",
    ),
}
"""Defects in rare events; CI finds at least two of each class."""
QUICK = (
    "ended-offsets-are-counted",
    "follower-claims-what-is-not-synced",
    "followers-forget-producers",
    "high-watermark-ignores-a-member",
    "joins-without-catching-up",
    "raft-answers-before-fsync",
    "raft-believes-previous",
    "raft-counts-unsynced",
    "revoked-partition-handed-out-early",
    "seal-not-replicated",
    "snapshot-lacks-configs",
    "snapshot-lacks-producer-ids",
    "stable-offset-ignores-transactions",
    "torn-tail-left-in-the-file",
)
SLOWER = (
    "move-completed-early",
    "moved-replica-keeps-its-log",
    "prepared-transaction-times-out",
    "seal-left-out",
)


LONGER_RING = {
    "alter-partition-without-comparing",
    "former-leader-may-write",
    "old-broker-epoch-accepted",
    "unclean-registration-ignored",
}
"""Defects that need more seeds than CI has: `make simulate-bugs` finds them."""


def ci_seeds() -> dict[tuple[str, int, str], int]:
    """(load, nodes, security) -> the number of seeds that CI simulates, from 0 on."""
    text = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    return {
        (load, int(nodes), security.upper()): int(last) + 1
        for load, nodes, last, security in re.findall(r"^(\w+) ([35]) 0-(\d+) (\w+)$", text, re.M)
    }


def found_by_ci(name: str) -> bool:
    bug = BUGS[name]
    return FOUND[name] < ci_seeds().get((bug.load, bug.nodes, bug.security), 0)


def test_every_bug_has_its_seed() -> None:
    assert FOUND.keys() == BUGS.keys()
    assert len(set(QUICK)) >= 12 and {*QUICK, *SLOWER} <= FOUND.keys()
    assert max(FOUND[name] for name in (*QUICK, *SLOWER)) <= 5, (
        "a change of the product changes the seeds of rare ones a lot"
    )
    assert max(FOUND.values()) <= LAST_SEED
    assert LAST_SEED + SEEDS_MAX == 149, (
        "docs/HACKING.md and mqd/testing/__main__.py name the seeds 0-149"
    )


def test_ci_simulates_every_load() -> None:
    assert {load for load, _, _ in ci_seeds()} == set(LOADS)


@pytest.mark.parametrize("subject", CLASSES)
def test_ci_finds_bugs_of_each_class(subject: str) -> None:
    late = {name: FOUND[name] for name in CLASSES[subject] if not found_by_ci(name)}
    assert len(CLASSES[subject]) - len(late) >= 2, late


def test_ci_finds_all_but_these() -> None:
    assert {name for name in FOUND if not found_by_ci(name)} <= LONGER_RING


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name",
    sorted(FOUND) if os.environ.get("MQD_SIM_BUGS") == "all" else [*QUICK, *map(slow, SLOWER)],
)
def test_planted_bugs_are_found(name: str) -> None:
    bug = BUGS[name]
    settings = Settings(
        FOUND[name], bug=name, load=bug.load, nodes=bug.nodes, security=bug.security
    )
    with bug.planted():
        for seed in range(settings.seed, settings.seed + SEEDS_MAX):
            if run_seed(replace(settings, seed=seed)).violations:
                return
    pytest.fail(
        f"{name} ({bug.meaning}) was not found in {SEEDS_MAX} seeds from {settings.seed} on"
    )
