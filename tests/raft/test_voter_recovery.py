"""What a voter with an empty log does, and what it does not do: message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqd.raft.codec import RecoveryQuery, RecoveryReply, RequestVote, Vote
from mqd.raft.node import RaftNode
from mqd.raft.voter_recovery import VoterRecovery
from mqd.raft.voters import VoterSet
from tests.raft.directed import Ours, led, sent_messages

THREE = VoterSet(1, frozenset({1, 2, 3}))


class Guarded(Ours):
    """Voters that start from nothing do not count as voters that have lost nothing."""

    intact = False


class _Forgetful(RaftNode):
    """RaftNode without the guard: an empty journal votes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self._recovery is not None:
            self._end_recovery()


def formed_three(guarded: bool = True) -> Guarded:
    ours = Guarded(3)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    ours.exchange(ours.ids, 3)
    assert all(ours.nodes[i].not_voting_reason is None for i in ours.ids) or not guarded
    return ours


def wipe(ours: Ours, i: int) -> None:
    ours.disks[i].files.clear()
    ours.start(i)
    for other in ours.ids:
        if other != i:
            ours.connect(i, other)
            ours.nodes[other].restarted(i)


def test_the_first_formation_waits_for_all_voters() -> None:
    ours = Guarded(3)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    for _ in range(30):
        ours.exchange([1, 2], 1)
    assert ours.term(1) == ours.term(2) == 0
    assert "it waits for a reply from node 3" in (ours.nodes[1].not_voting_reason or "")
    ours.exchange([1, 2, 3], 3)
    assert [ours.nodes[i].not_voting_reason for i in ours.ids] == [None] * 3
    for i in ours.ids:
        ours.start(i)  # and this is stored
        assert ours.nodes[i].not_voting_reason is None


def test_half_of_the_voters_do_not_wait_forever_for_the_other_half() -> None:
    ours = Guarded(4)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    # 3 and 4 receive messages from all nodes; 1 and 2 learn from them that they are voters, before
    # they connect to each other
    for _ in range(3):
        ours.exchange([1, 3, 4], 1)
        ours.exchange([2, 3, 4], 1)
    assert [ours.nodes[i].not_voting_reason is None for i in ours.ids] == [False, False, True, True]
    for _ in range(3):
        ours.advance()
        ours.exchange(ours.ids, 1)
    assert [ours.nodes[i].not_voting_reason for i in ours.ids] == [None] * 4


def wiped_voter_elects(ours: Ours) -> bool:
    """2 holds a committed entry together with the leader, is wiped, and the leader is gone. Returns
    whether 3, which lacks the entry, becomes leader.
    """
    ours.elect(1, [2, 3])
    ours.exchange(ours.ids)
    ours.add(1, "KEPT")
    ours.exchange([1, 2], 4)
    assert ours.values(1)[-1:] == ["KEPT"] and ours.values(3) == []
    wipe(ours, 2)
    for _ in range(40):
        ours.exchange([2, 3], 1)
    return ours.leads(3)


def test_a_wiped_voter_elects_no_node_that_lacks_a_committed_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = formed_three()
    assert not wiped_voter_elects(ours)
    assert "starts with an empty log" in (ours.nodes[2].not_voting_reason or "")
    ours.connect(1, 2, 3)
    for _ in range(40):
        ours.exchange([1, 2, 3], 1)
    assert (
        all(ours.values(i) == ["KEPT"] for i in ours.ids)
        and ours.nodes[2].not_voting_reason is None
    )

    monkeypatch.setattr(Ours, "node_class", _Forgetful)
    unguarded = formed_three(guarded=False)
    assert wiped_voter_elects(unguarded)  # and KEPT is lost


def test_a_wiped_voter_does_not_follow_a_stale_leader() -> None:
    """It made 3 leader of a later term; 1, which leads the earlier term, must not get its
    acknowledgements.
    """
    ours = formed_three()
    ours.elect(1, [2, 3])
    ours.exchange(ours.ids)
    ours.advance(1.0)
    ours.elect(3, [2])
    ours.add(3, "KEPT")
    ours.exchange([2, 3], 4)
    assert ours.values(3) == ["KEPT"] and ours.leads(1)
    wipe(ours, 2)
    ours.add(1, "LOST")
    for _ in range(4):
        ours.exchange([1, 2], 1)
    assert ours.values(1) == [] and ours.log(2) == [(1, 0)]
    for _ in range(30):
        ours.exchange([2, 3, 1], 1)
    assert all(ours.values(i) == ["KEPT"] for i in ours.ids)


def test_a_wiped_voter_has_no_second_vote_in_a_term() -> None:
    ours = formed_three()
    ours.connect(2, 1, 3)
    ours.force_election(1)
    (requested,) = [message for message in ours.take(1, 2) if ours.is_vote_request(message)]
    ours.deliver(1, 2, requested)  # 2 votes for 1 in term 1; its response is under way
    assert sent_messages(ours, 2, 1) == [Vote(1)]
    wipe(ours, 2)
    ours.exchange([2, 1, 3], 2)  # all logs but 1's are empty; there is no leader
    index, last_term = ours.log(2)[-1]
    ours.deliver(3, 2, RequestVote(1, index, last_term))
    assert sent_messages(ours, 2, 3) == []


def test_the_old_and_new_votes_of_a_wiped_voter_elect_one_leader() -> None:
    """Voter 1 of five stands in term 2 and has the vote of 2. Its other requests are delayed. 2 is
    wiped, queries three of the four other voters, none of which has seen term 2, and becomes a
    voter again.
    """
    ours = Guarded(5)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    ours.exchange(ours.ids, 3)
    ours.elect(4, [1, 2, 3, 5])
    ours.exchange(ours.ids, 4)
    assert ours.leads(4) and ours.term(1) == 1
    ours.force_election(1)
    requests = [(to, message) for to, message in ours._empty(1) if ours.is_vote_request(message)]
    late = dict(requests)
    ours.deliver(1, 2, late[2])
    (granted,) = ours.take(2, 1)
    ours.deliver(2, 1, granted)
    wipe(ours, 2)
    rounds = 0
    while ours.nodes[2].not_voting_reason is not None:
        ours.exchange([2, 3, 4, 5], 1)
        rounds += 1
        assert rounds < 100
    assert ours.term(2) == 1 and ours.leads(4)
    ours.force_election(5)
    requested = next(message for message in ours.take(5) if ours.is_vote_request(message))
    for voter in (2, 4):
        ours.deliver(5, voter, requested)
        for message in ours.take(voter, 5):
            ours.deliver(voter, 5, message)
    assert ours.leads(5) and ours.term(5) == 2
    ours.deliver(1, 3, late[3])
    for message in ours.take(3, 1):
        ours.deliver(3, 1, message)
    assert ours.term(1) == 2 and not ours.leads(1)


def test_old_responses_and_unknown_nodes_prove_nothing() -> None:
    recovery = VoterRecovery(1, {1, 2, 3}, nonce=5)
    recovery.on_reply(2, RecoveryReply(4, 5, 1, True, THREE))
    recovery.on_reply(3, RecoveryReply(4, 6, 1, True, THREE))
    recovery.on_reply(9, RecoveryReply(4, 5, 1, True, THREE))
    assert recovery.first_formation(1) is None and recovery.may_follow() is None
    recovery.on_reply(3, RecoveryReply(7, 5, 9, False, THREE))
    # it was wiped, too
    assert recovery.first_formation(1) is None and recovery.may_follow() is None
    recovery.on_reply(3, RecoveryReply(7, 5, 9, True, THREE))
    assert recovery.may_follow() == 7


def test_a_voter_of_the_log_counts_without_being_in_the_peers_file() -> None:
    """Node 3 was restarted with voters {2, 3} before its recovery was complete, while the log still
    has {1, 2, 3}.
    """
    recovery = VoterRecovery(3, {2, 3}, nonce=5)
    recovery.on_reply(2, RecoveryReply(4, 5, 9, True, THREE))
    assert recovery.may_follow() is None
    assert "waits for a reply from node 1" in recovery.waits_for()
    recovery.on_reply(1, RecoveryReply(6, 5, 9, True, THREE))
    assert recovery.may_follow() == 6


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_every_old_majority_has_a_voter_that_testifies(voters: int, needed: int) -> None:
    recovery = VoterRecovery(1, range(1, voters + 1), nonce=0)
    for reported in range(2, voters + 1):
        assert (recovery.may_follow() is not None) == (reported - 2 >= needed)
        recovery.on_reply(
            reported, RecoveryReply(1, 0, 9, True, VoterSet(1, frozenset(range(1, voters + 1))))
        )
    majority = voters // 2 + 1
    # the other voters of a majority outnumber the voters that did not testify
    assert (voters - 1 - needed) < majority - 1


def test_a_directory_of_the_first_release_is_not_a_new_voter() -> None:
    ours = Ours(3)
    content = ours.disks[1].files[Path("raft/quorum-state")]
    assert b'"formed": false' in content.data or ours.journals[1].intact
    from mqd.raft import formats

    line = (
        b'{"version": 1, "cluster_id": "c", "node_id": 1, "node_uuid": '
        b'"00000000-0000-0000-0000-000000000001", "term": 3, "vote": 2}'
    )
    from crc32c import crc32c

    state = formats.decode_state(b"%s\n%08x\n" % (line, crc32c(line)))
    assert state.intact and state.vote == 2


def test_a_recovery_query_resets_the_acknowledgements_of_that_voter() -> None:
    ours = led()
    assert {status.match_index for status in ours.nodes[1].peers()} == {ours.log(1)[-1][0]}
    ours.take(1)
    ours.deliver(2, 1, RecoveryQuery(0, 77))
    assert sent_messages(ours, 1, 2) == [
        RecoveryReply(ours.term(1), 77, ours.log(1)[-1][0], True, THREE)
    ]
    assert [status.match_index for status in ours.nodes[1].peers()] == [0, ours.log(1)[-1][0]]
