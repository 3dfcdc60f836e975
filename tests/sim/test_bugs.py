"""Each planted defect is found: a simulator that finds nothing planted proves nothing.

`FOUND` says in which seed each was found when it was planted last (three nodes, eight seconds under faults): a change of the product
moves these, so the test goes on from there for up to `SEEDS_MAX` seeds. All of them: `make simulate-bugs`, some minutes;
those in `QUICK` are found within a second of processor time each, all of them within six.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from mqd.testing.runner import Settings, run_seed
from tests.sim.bugs import BUGS

SEEDS_MAX = 50
FOUND: dict[str, int] = {
    "aborted-transactions-not-synced": 18,
    "acks-all-at-append": 0,
    "alter-partition-without-comparing": 25,
    "commit-of-an-aborted-transaction-accepted": 0,
    "coordinator-answers-before-the-commit": 8,
    "deletion-not-carried-out": 1,
    "flush-before-ack-ignored": 20,
    "follower-claims-what-is-not-synced": 2,
    "followers-forget-producers": 0,
    "generations-begin-anew": 1,
    "high-watermark-ignores-a-member": 0,
    "high-watermark-moves-below-min-isr": 3,
    "joins-without-catching-up": 8,
    "keeps-what-differs": 0,
    "kept-transaction-is-aborted": 0,
    "marker-left-out": 0,
    "marker-not-waited-for": 27,
    "no-deduplication": 0,
    "offsets-count-before-the-commit": 0,
    "offsets-of-aborted-transactions-count": 0,
    "old-broker-epoch-accepted": 30,
    "old-generation-accepted": 0,
    "preparation-forgotten": 0,
    "prepared-transaction-times-out": 0,
    "raft-answers-before-fsync": 0,
    "raft-believes-previous": 0,
    "raft-counts-unsynced": 0,
    "repeated-decision-refused": 0,
    "replaced-producer-may-commit": 1,
    "revoked-partition-handed-out-early": 0,
    "seal-left-out": 0,
    "seal-not-replicated": 0,
    "serves-uncommitted": 0,
    "stable-offset-ignores-transactions": 0,
    "stable-offset-overlooks-a-transaction": 0,
    "stale-leader-epoch-accepted": 0,
    "truncates-to-high-watermark": 0,
    "unclean-elections": 19,
    "unclean-registration-ignored": 54,
    "writer-ends-what-is-prepared": 0,
}
QUICK = (
    "alter-partition-without-comparing",
    "flush-before-ack-ignored",
    "follower-claims-what-is-not-synced",
    "followers-forget-producers",
    "high-watermark-ignores-a-member",
    "prepared-transaction-times-out",
    "raft-answers-before-fsync",
    "raft-believes-previous",
    "raft-counts-unsynced",
    "revoked-partition-handed-out-early",
    "seal-left-out",
    "stable-offset-ignores-transactions",
    "unclean-elections",
    "unclean-registration-ignored",
)


def test_every_bug_has_its_seed() -> None:
    assert FOUND.keys() == BUGS.keys()
    assert len(set(QUICK)) >= 12 and set(QUICK) <= FOUND.keys()
    assert max(FOUND.values()) + SEEDS_MAX <= 105, "docs/HACKING.md and mqd/testing/__main__.py name the seeds 0-104"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(FOUND) if os.environ.get("MQD_SIM_BUGS") == "all" else QUICK)
def test_planted_bugs_are_found(name: str) -> None:
    settings = Settings(seed=FOUND[name], bug=name, load=BUGS[name].load)
    with BUGS[name].planted():
        for seed in range(settings.seed, settings.seed + SEEDS_MAX):
            if run_seed(replace(settings, seed=seed)).violations:
                return
    pytest.fail(f"{name} ({BUGS[name].meaning}) was not found in {SEEDS_MAX} seeds from {settings.seed} on")
