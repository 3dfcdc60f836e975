"""Guarantees of RaftNode beyond the repaired defects of PySyncObj (test_defects.py): entries are
made durable, then counted, applied and acknowledged. Observers.
"""

from __future__ import annotations

import pytest

from mqd.errors import QuorumBroken
from mqd.limits import RAFT_ROWS_PER_TURN
from mqd.raft.codec import (
    AppendEntries,
    AppendReply,
    Entry,
    PreVote,
    RequestVote,
    Vote,
    decode_message,
)
from mqd.raft.machine import Role
from mqd.raft.node import RaftNode
from mqd.raft.snapshots import Compaction
from tests.raft.directed import Ours, sent_messages


class _CountsUnsynced(RaftNode):
    """RaftNode without its limit on the commit index."""

    def _durable_index(self) -> int:
        return self._journal.last_index


@pytest.mark.parametrize("limited", [True, False])
def test_a_quorum_of_one_applies_nothing_before_its_fsync(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not limited:
        monkeypatch.setattr(Ours, "node_class", _CountsUnsynced)
    ours = Ours(1)
    node, results = ours.nodes[1], []
    ours.tick(1)
    assert node.ready
    ours.add(1, "x", lambda _index, result: results.append(result))
    node.turn(ours.now)
    node.turn(ours.now + 1)
    if not limited:
        assert ours.values(1) == ["x"] and results == ["applied"]  # a power cut now would undo it
        return
    assert ours.values(1) == [] and results == [] and ours.journals[1].dirty
    ours.journals[1].flush()
    assert node.can_commit()
    node.turn(ours.now + 2)
    assert ours.values(1) == ["x"] and results == ["applied"]


def test_a_leader_of_three_does_not_count_its_own_unsynced_copy() -> None:
    """The follower's copy is durable, the leader's is not: one of three."""
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    node = ours.nodes[1]
    ours.add(1, "x")
    node.turn(ours.now)
    entry = ours.journals[1].entries[-1]
    commit = ours.commit(1)
    node.receive(ours.now, 2, AppendReply(ours.term(1), entry.index + 1, True, False))
    node.turn(ours.now)
    assert ours.commit(1) == commit
    ours.journals[1].flush()
    node.turn(ours.now)
    assert ours.commit(1) == entry.index


def test_a_cut_commit_does_not_stop_at_an_entry_of_an_earlier_term() -> None:
    """Raft's figure 8: an old entry on a majority is safe only below a newer one, which is not
    durable here yet.
    """
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    ours.add(1, "old")
    ours.tick(1)  # durable here and on no other node
    ours.take(1)
    commit, old = ours.commit(1), ours.log(1)[-1]
    ours.deliver(2, 1, Vote(ours.term(1) + 1))  # a higher term: it leads no longer
    node = ours.nodes[1]
    ours.force_election(1)
    node.receive(ours.now, 2, Vote(ours.term(1)))
    assert ours.leads(1) and ours.journals[1].durable_index == old[0] < ours.journals[1].last_index
    node.receive(
        ours.now, 2, AppendReply(ours.term(1), ours.journals[1].last_index + 1, True, False)
    )
    node.turn(ours.now)
    assert ours.commit(1) == commit
    ours.journals[1].flush()
    node.turn(ours.now)
    assert ours.commit(1) == old[0] + 1


def test_a_leader_that_conflicts_with_committed_entries_stops_this_node() -> None:
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    last, term = ours.log(2)[-1]
    node = ours.nodes[2]
    assert node.commit_index == last
    with pytest.raises(
        QuorumBroken,
        match=f"entry {last} is committed here in term {term}, the leader has it in {term + 1}",
    ):
        node.receive(ours.now, 1, AppendEntries(term + 1, last, last, term + 1, ()))
    with pytest.raises(QuorumBroken, match=f"node 3 leads term {term}, and so does this one"):
        ours.nodes[1].receive(ours.now, 3, AppendEntries(term, last, last, term, ()))


def test_a_follower_applies_nothing_before_its_fsync() -> None:
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    last, term = ours.log(2)[-1]
    node = ours.nodes[2]
    entry = Entry(b"\x00x", last + 1, term)
    node.receive(ours.now, 1, AppendEntries(term, last + 1, last, term, (entry,)))
    node.turn(ours.now)
    assert ours.values(2) == [] and node._outbox.messages
    ours.journals[2].flush()
    assert node.can_commit()
    node.turn(ours.now)
    assert ours.values(2) == ["x"]


def test_a_turn_applies_a_bounded_number_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that lags applies one portion a turn, and other tasks run in between."""
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    last, term = ours.log(2)[-1]
    node, machine = ours.nodes[2], ours.machines[2]
    entries = tuple(Entry(b"\x00%d" % number, last + number, term) for number in range(1, 6))
    apply = machine.apply
    half = RAFT_ROWS_PER_TURN // 2
    monkeypatch.setattr(machine, "apply", lambda *command: apply(*command) * half)
    node.receive(ours.now, 1, AppendEntries(term, last + 5, last, term, entries))
    ours.journals[2].flush()
    for count in (2, 4, 5):
        assert node.can_commit()
        node.turn(ours.now)
        assert node.commit_index == last + 5 and node.applied_index == last + count
        assert node.has_unapplied == (count < 5)
    assert ours.values(2) == ["1", "2", "3", "4", "5"] and not node.can_commit()


def test_a_turn_applies_a_command_that_is_larger_than_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = Ours(1)
    ours.tick(1)
    machine = ours.machines[1]
    apply = machine.apply
    monkeypatch.setattr(machine, "apply", lambda *command: apply(*command) * 2 * RAFT_ROWS_PER_TURN)
    for value in ("x", "y"):
        ours.add(1, value)
    ours.tick(1)
    assert ours.values(1) == ["x", "y"]


def test_a_vote_is_on_disk_before_it_leaves() -> None:
    ours = Ours(3)
    ours.connect(1, 2, 3)
    ours.force_election(1)
    requested = decode_message(ours.take(1, 2)[0])
    ours.nodes[2].receive(ours.now, 1, requested)
    with pytest.raises(AssertionError):
        ours.nodes[2].flushed()  # no message leaves before the flush
    ours.disks[2].crash()
    ours.start(2)
    assert ours.journals[2].vote is None  # the vote never left, so it may vote again
    ours.deliver(1, 2, requested)
    ours.disks[2].crash()
    ours.start(2)
    journal = ours.journals[2]
    assert (journal.term, journal.vote) == (1, 1)


def test_leadership_is_transferred() -> None:
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    assert ours.nodes[1].transfer_leadership()
    ours.exchange([1, 2, 3], 2)
    assert ours.nodes[1].role is Role.FOLLOWER and any(ours.leads(i) for i in (2, 3))
    assert not ours.nodes[1].transfer_leadership()


def test_the_journal_is_compacted_by_entries_and_by_bytes() -> None:
    ours = Ours(1)
    node = ours.nodes[1]
    node._snapshots._compaction = Compaction(entries_max=10, bytes_max=1_000, entries_kept=2)
    ours.tick(1)
    for _ in range(8):
        ours.add(1, "small")
        ours.tick(1)
    journal = ours.journals[1]
    assert (journal.snapshot_index, journal.base_index) == (11, 9)
    ours.add(1, "z" * 1_000)
    ours.tick(1)
    assert journal.snapshot_index == 12
    ours.start(1)
    ours.tick(1)
    assert ours.values(1) == ["small"] * 8 + ["z" * 1_000]


# -- observers


class WithObserver(Ours):
    def start(self, i: int) -> None:
        ids, self.ids = self.ids, [1, 2, 3]
        self.observers = [4]
        super().start(i)
        self.ids = ids


def test_observers_follow_and_are_never_counted_nor_elected() -> None:
    ours = WithObserver(4)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    ours.force_election(1)
    ours.pump(1, 2)
    ours.pump(2, 1)
    ours.exchange([1, 2, 4], 3)
    ours.add(1, "both")
    ours.exchange([1, 2, 4], 4)
    assert ours.values(4) == ["both"]
    ours.add(1, "only here and on the observer")
    ours.exchange([1, 4], 3)
    assert (
        ours.log(4) == ours.log(1)
        and ours.commit(1) < ours.log(1)[-1][0]
        and ours.values(4) == ["both"]
    )
    status = next(status for status in ours.nodes[1].peers() if status.node_id == 4)
    assert not status.voter and status.match_index == ours.log(1)[-1][0]
    while ours.leads(1):  # its messages do not keep a leader in office either
        ours.exchange([1, 4], 1)
    for _ in range(40):
        ours.exchange([4, 1], 1)
    assert ours.nodes[4].role is Role.FOLLOWER and ours.term(1) == ours.term(4)
    last, last_term = ours.log(4)[-1]
    for message in (PreVote(9, last, last_term), RequestVote(9, last, last_term)):
        ours.deliver(1, 4, message)
        assert sent_messages(ours, 4) == []
    ours.deliver(4, 1, RequestVote(99, 99, 98))
    assert ours.term(1) < 99


def test_observers_take_snapshots() -> None:
    ours = WithObserver(4)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    ours.force_election(1)
    ours.pump(1, 2)
    ours.pump(2, 1)
    for k in range(6):
        ours.add(1, f"v{k}")
    ours.exchange([1, 2], 6)
    ours.compact(1)
    ours.exchange([1, 2, 4], 8)
    assert ours.values(4) == [f"v{k}" for k in range(6)]
