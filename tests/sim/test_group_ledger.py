"""The checks of groups: owners, former owners that still read, and offsets as registers."""

from __future__ import annotations

from mqd.client.group_member import GroupMetadata
from mqd.testing.group_ledger import GHOST, GroupLedger
from mqd.types import TopicPartition

A = TopicPartition("a", 0)
G = "g"


def kinds(
    ledger: GroupLedger, offset: int | None, *, metadata: str = "", records: int = 100
) -> set[str]:
    committed = {G: {A: (offset, metadata)} if offset is not None else {}}
    found = ledger.check(committed, {A: range(records)})
    assert all(str(anomaly) for anomaly in found)
    return {anomaly.kind for anomaly in found}


def reading(up_to: int) -> GroupLedger:
    ledger = GroupLedger()
    ledger.given(G, A, range(up_to))
    return ledger


def test_the_offset_is_that_of_the_last_acknowledged_commit() -> None:
    ledger = reading(50)
    for offset in (10, 20):
        ledger.committed(ledger.committing(G, {A: offset}), single=True)
    assert kinds(ledger, 20) == set()
    assert kinds(ledger, 10) == {"commit-lost"}
    assert kinds(ledger, 15) == {"commit-lost", "commit-unknown"}


def test_an_acknowledged_offset_does_not_vanish() -> None:
    assert kinds(reading(50), None) == set()
    ledger = reading(50)
    ledger.committed(ledger.committing(G, {A: 10}), single=True)
    assert kinds(ledger, None) == {"commit-lost"}


def test_commits_of_unknown_outcome_may_apply_late() -> None:
    ledger = reading(50)
    ledger.committing(G, {A: 10})
    ledger.committed(ledger.committing(G, {A: 20}), single=True)
    assert kinds(ledger, 10) == kinds(ledger, 20) == set()
    ledger = reading(50)
    ledger.committed(ledger.committing(G, {A: 10}), single=False)
    ledger.committed(ledger.committing(G, {A: 20}), single=True)
    assert kinds(ledger, 10) == set()


def test_concurrent_commits_may_apply_in_any_order() -> None:
    ledger = reading(50)
    one, other = ledger.committing(G, {A: 10}), ledger.committing(G, {A: 20})
    ledger.committed(one, single=True)
    ledger.committed(other, single=True)
    assert kinds(ledger, 10) == kinds(ledger, 20) == set()


def test_commits_contain_exactly_the_records_that_were_read() -> None:
    ledger = reading(5)
    ledger.committed(ledger.committing(G, {A: 6}), single=True)
    assert kinds(ledger, 6) == {"commit-beyond-read", "group-skip"}
    ledger = GroupLedger()
    ledger.given(G, A, [0, 1, 3, 4])
    ledger.committed(ledger.committing(G, {A: 5}), single=True)
    assert kinds(ledger, 5) == {"group-skip"}


def test_a_partition_has_one_owner_in_a_generation_of_the_classic_protocol() -> None:
    ledger = GroupLedger()
    ledger.assigned(GroupMetadata(G, 3, "m"), [A], classic=True)
    ledger.assigned(GroupMetadata(G, 3, "m"), [A], classic=True)
    ledger.assigned(GroupMetadata(G, 4, "n"), [A], classic=True)
    ledger.assigned(GroupMetadata(G, 4, "o"), [A], classic=False)
    assert kinds(ledger, None) == set()
    ledger.assigned(GroupMetadata(G, 4, "p"), [A], classic=True)
    assert kinds(ledger, None) == {"two-owners"}


def test_a_static_member_may_return_in_the_same_generation() -> None:
    ledger = GroupLedger()
    for member in ("m", "n"):
        ledger.assigned(GroupMetadata(G, 3, member, "i"), [A], classic=True)
    assert kinds(ledger, None) == set()


def test_ghosts_are_members_whose_partition_has_another_owner() -> None:
    ledger = GroupLedger()
    old = GroupMetadata(G, 3, "m")
    ledger.assigned(old, [A], classic=True)
    ledger.gone(old, [A], ended=True)
    assert not ledger.ghosts(G)
    ledger.assigned(GroupMetadata(G, 2, "n"), [A], classic=True)
    assert not ledger.ghosts(G), "n was notified late of its loss"
    ledger.assigned(GroupMetadata(G, 5, "n"), [A], classic=True)
    (ghost,) = ledger.ghosts(G)
    assert ghost.metadata == old
    ledger.ghost_accepted(ghost)
    assert kinds(ledger, None) == {"stale-commit"}


def test_a_former_owner_is_a_ghost_from_its_next_generation_on() -> None:
    """Until then it may be a member in that epoch, which revokes other partitions, and whose
    commits Apache Kafka accepts.
    """
    ledger = GroupLedger()
    old = GroupMetadata(G, 3, "m")
    ledger.assigned(old, [A], classic=False)
    ledger.gone(old, [A])
    ledger.assigned(GroupMetadata(G, 5, "n"), [A], classic=False)
    assert not ledger.ghosts(G)
    ledger.assigned(GroupMetadata(G, 5, "m"), [], classic=False)
    assert [ghost.metadata for ghost in ledger.ghosts(G)] == [old]


def test_a_ghost_s_offset_is_identified_by_its_metadata() -> None:
    assert kinds(GroupLedger(), 0, metadata=GHOST) == {"stale-commit"}
