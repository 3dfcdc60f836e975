"""When a voter stands for election, whom it helps, and what it does when it has forgotten everything: message by message."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqd.raft.codec import Account, AppendEntries, Inquiry, PreVote, PreVoteReply, RequestVote, Vote, decode_message
from mqd.raft.elections import Amnesia, Poll
from mqd.raft.machine import Role
from mqd.raft.seams import RaftNode, Timing
from mqd.raft.voters import VoterSet
from tests.raft.directed import Ours

TIMING = Timing()
THREE = VoterSet(1, frozenset({1, 2, 3}))


def said(ours: Ours, i: int, target: int | None = None) -> list[object]:
    return [decode_message(message) for message in ours.take(i, target)]


def led(leader: int = 1, nodes: int = 3) -> Ours:
    ours = Ours(nodes)
    others = [i for i in ours.ids if i != leader]
    ours.elect(leader, others)
    ours.exchange(ours.ids)
    ours.exchange(ours.ids)
    assert ours.leads(leader)
    return ours


# -- pre-votes


def test_who_stands_asks_first_and_its_term_stays() -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    assert said(ours, 2, 1) == [PreVote(term + 1, *ours.log(2)[-1])]
    assert ours.term(2) == term and ours.nodes[2].role is Role.FOLLOWER


def test_a_majority_of_promises_begins_the_election() -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    ours.pump(2, 3)
    assert said(ours, 3, 2) == [PreVoteReply(term + 1, True)]
    ours.deliver(3, 2, PreVoteReply(term + 1, True))
    ours.tick(2)
    assert ours.nodes[2].role is Role.CANDIDATE and ours.term(2) == term + 1
    assert any(isinstance(message, RequestVote) for message in said(ours, 2, 3))


@pytest.mark.parametrize(
    "reply", [lambda term: PreVoteReply(term, True), lambda term: PreVoteReply(term + 2, True), lambda term: PreVoteReply(term, False)]
)
def test_promises_for_another_term_and_refusals_begin_none(reply: object) -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    ours.deliver(3, 2, reply(term))  # type: ignore[operator]
    ours.tick(2)
    assert ours.nodes[2].role is Role.FOLLOWER and ours.term(2) == term


def test_nobody_promises_while_a_leader_is_heard_nor_to_who_lacks_entries() -> None:
    ours = led()
    index, last_term = ours.log(3)[-1]
    term = ours.term(3)
    ours.take(3)
    ours.deliver(2, 3, PreVote(term + 1, index, last_term))
    ours.deliver(2, 1, PreVote(term + 1, index, last_term))
    assert said(ours, 3) == said(ours, 1) == []  # the leader was heard just now; the leader itself leads
    ours.advance(TIMING.election_timeout_min)
    ours.deliver(2, 3, PreVote(term + 1, index - 1, last_term))
    assert said(ours, 3) == []
    ours.deliver(2, 3, PreVote(term + 1, index, last_term))
    assert said(ours, 3, 2) == [PreVoteReply(term + 1, True)]
    ours.deliver(2, 3, PreVote(term - 1, index, last_term))
    assert said(ours, 3, 2) == [PreVoteReply(term, False)]  # that tells it where we are


def test_who_hears_a_leader_again_does_not_stand_on_old_promises() -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    ours.deliver(3, 2, PreVoteReply(term + 1, True))
    index, last_term = ours.log(2)[-1]
    ours.deliver(1, 2, AppendEntries(term, index, index, last_term, ()))
    ours.tick(2)
    assert ours.nodes[2].role is Role.FOLLOWER and ours.term(2) == term


# -- check-quorum


def test_a_leader_that_hears_no_majority_steps_down_after_one_election_time_out() -> None:
    ours = led()
    node = ours.nodes[1]
    heard = node.majority_heard_at(ours.now)
    assert ours.now - heard < 0.5 and node.ready
    began = ours.now
    while ours.leads(1):
        ours.advance(0.05)
        ours.tick(1)
        ours.take(1)
    assert ours.now - heard == pytest.approx(TIMING.election_timeout_max, abs=0.11) and ours.now > began
    assert not node.ready and node.leader_id is None and node.majority_heard_at(ours.now) == float("-inf")


def test_one_of_two_followers_is_enough_to_lead() -> None:
    ours = led()
    for _ in range(20):
        ours.exchange([1, 2], 1)
    assert ours.leads(1) and ours.now - ours.nodes[1].majority_heard_at(ours.now) < 0.5
    statuses = {status.node_id: status for status in ours.nodes[1].peers()}
    assert ours.now - statuses[2].last_heard_at < 0.5 < ours.now - statuses[3].last_heard_at
    assert ours.now - statuses[2].caught_up_at < 0.5 < ours.now - statuses[3].caught_up_at
    assert statuses[2].match_index == ours.log(1)[-1][0]


# -- prompt elections


def test_when_the_leader_s_process_is_gone_followers_stand_soon() -> None:
    ours = led()
    index, last_term = ours.log(2)[-1]
    deadline = ours.nodes[2].next_deadline()
    for i in (2, 3):
        ours.nodes[i].peer_gone(ours.now, 1)
        assert ours.nodes[i].next_deadline() <= min(deadline, ours.now + TIMING.election_timeout_min / 2)
    assert ours.nodes[2].next_deadline() != ours.nodes[3].next_deadline()
    ours.deliver(2, 3, PreVote(ours.term(3) + 1, index, last_term))
    assert said(ours, 3, 2) == [PreVoteReply(ours.term(3) + 1, True)]  # and are helped, though it was heard just now


def test_when_another_follower_is_gone_nobody_stands() -> None:
    ours = led()
    before = ours.nodes[2].next_deadline()
    ours.nodes[2].peer_gone(ours.now, 3)
    ours.nodes[1].peer_gone(ours.now, 3)
    assert ours.nodes[2].next_deadline() == before and ours.leads(1) and ours.nodes[2].leader_id == 1


# -- a voter that starts from nothing


class Guarded(Ours):
    """Voters that start from nothing are not taken for ones that have forgotten nothing."""

    formed = False


class _Forgetful(RaftNode):
    """Ours without the guard: an empty journal votes."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        if self._amnesia is not None:
            self._remember()


def formed_three(guarded: bool = True) -> Guarded:
    ours = Guarded(3)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    ours.exchange(ours.ids, 3)
    assert all(ours.nodes[i].abstains is None for i in ours.ids) or not guarded
    return ours


def wipe(ours: Ours, i: int) -> None:
    ours.disks[i].files.clear()
    ours.start(i)
    for other in ours.ids:
        if other != i:
            ours.connect(i, other)
            ours.nodes[other].reborn(i)


def test_the_first_formation_waits_for_all_voters() -> None:
    ours = Guarded(3)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    for _ in range(30):
        ours.exchange([1, 2], 1)
    assert ours.term(1) == ours.term(2) == 0
    assert "it waits to hear from node 3" in (ours.nodes[1].abstains or "")
    ours.exchange([1, 2, 3], 3)
    assert [ours.nodes[i].abstains for i in ours.ids] == [None] * 3
    for i in ours.ids:
        ours.start(i)  # and it is remembered
        assert ours.nodes[i].abstains is None


def test_half_of_the_voters_do_not_wait_for_the_other_half_for_ever() -> None:
    ours = Guarded(4)
    for i in ours.ids:
        ours.connect(i, *[other for other in ours.ids if other != i])
    for _ in range(3):  # 3 and 4 hear everybody; 1 and 2 hear of them that they are voters now, before they hear each other
        ours.exchange([1, 3, 4], 1)
        ours.exchange([2, 3, 4], 1)
    assert [ours.nodes[i].abstains is None for i in ours.ids] == [False, False, True, True]
    for _ in range(3):
        ours.advance()
        ours.exchange(ours.ids, 1)
    assert [ours.nodes[i].abstains for i in ours.ids] == [None] * 4


def wiped_voter_elects(ours: Ours) -> bool:
    """2 holds a committed entry with the leader, is wiped, and the leader is gone: does 3, which lacks the entry, become leader?"""
    ours.elect(1, [2, 3])
    ours.exchange(ours.ids)
    ours.add(1, "KEPT")
    ours.exchange([1, 2], 4)
    assert ours.values(1)[-1:] == ["KEPT"] and ours.values(3) == []
    wipe(ours, 2)
    for _ in range(40):
        ours.exchange([2, 3], 1)
    return ours.leads(3)


def test_a_wiped_voter_does_not_help_to_elect_a_node_that_lacks_a_committed_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = formed_three()
    assert not wiped_voter_elects(ours)
    assert "starts from nothing" in (ours.nodes[2].abstains or "")
    ours.connect(1, 2, 3)
    for _ in range(40):
        ours.exchange([1, 2, 3], 1)
    assert all(ours.values(i) == ["KEPT"] for i in ours.ids) and ours.nodes[2].abstains is None

    monkeypatch.setattr(Ours, "node_class", _Forgetful)
    unguarded = formed_three(guarded=False)
    assert wiped_voter_elects(unguarded)  # and KEPT is lost


def test_a_wiped_voter_does_not_follow_a_leader_that_was_left_behind() -> None:
    """It made 3 leader of a later term; 1, which leads the earlier one, must not get its acknowledgements."""
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
    (asked,) = [message for message in ours.take(1, 2) if ours.is_vote_request(message)]
    ours.deliver(1, 2, asked)  # 2 votes for 1 in term 1; its answer is under way
    assert said(ours, 2, 1) == [Vote(1)]
    wipe(ours, 2)
    ours.exchange([2, 1, 3], 2)  # all logs but 1's are empty; nobody leads
    index, last_term = ours.log(2)[-1]
    ours.deliver(3, 2, RequestVote(1, index, last_term))
    assert said(ours, 2, 3) == []


def test_an_old_vote_of_a_wiped_voter_and_its_new_one_elect_no_two_leaders() -> None:
    """Of five voters, 1 stands in term 2 and has the vote of 2. Its other requests are under way for long. 2 is wiped, asks three
    of the four others, of which none knows term 2, and becomes a voter again."""
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
    while ours.nodes[2].abstains is not None:
        ours.exchange([2, 3, 4, 5], 1)
        rounds += 1
        assert rounds < 100
    assert ours.term(2) == 1 and ours.leads(4)
    ours.force_election(5)
    asked = next(message for message in ours.take(5) if ours.is_vote_request(message))
    for voter in (2, 4):
        ours.deliver(5, voter, asked)
        for message in ours.take(voter, 5):
            ours.deliver(voter, 5, message)
    assert ours.leads(5) and ours.term(5) == 2
    ours.deliver(1, 3, late[3])
    for message in ours.take(3, 1):
        ours.deliver(3, 1, message)
    assert ours.term(1) == 2 and not ours.leads(1)


def test_a_vote_that_comes_after_the_longest_election_time_out_does_not_count() -> None:
    for seconds, elected in ((1.3, True), (1.5, False)):
        ours = led()
        ours.advance(2.0)
        ours.force_election(2)
        asked = next(message for message in ours.take(2) if ours.is_vote_request(message))
        ours.deliver(2, 3, asked)
        (granted,) = ours.take(3, 2)
        ours.advance(seconds)
        ours.deliver(3, 2, granted)
        assert ours.leads(2) == elected


def test_old_answers_and_strangers_testify_nothing() -> None:
    amnesia = Amnesia(1, {1, 2, 3}, nonce=5)
    amnesia.on_account(2, Account(4, 5, 1, True, THREE))
    amnesia.on_account(3, Account(4, 6, 1, True, THREE))
    amnesia.on_account(9, Account(4, 5, 1, True, THREE))
    assert amnesia.first_formation(1) is None and amnesia.may_follow() is None
    amnesia.on_account(3, Account(7, 5, 9, False, THREE))
    assert amnesia.first_formation(1) is None and amnesia.may_follow() is None  # it has forgotten, too
    amnesia.on_account(3, Account(7, 5, 9, True, THREE))
    assert amnesia.may_follow() == 7


@pytest.mark.parametrize(("voters", "needed"), [(2, 1), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_so_many_must_remember_that_every_old_majority_has_one_of_them(voters: int, needed: int) -> None:
    amnesia = Amnesia(1, range(1, voters + 1), nonce=0)
    for told in range(2, voters + 1):
        assert (amnesia.may_follow() is not None) == (told - 2 >= needed)
        amnesia.on_account(told, Account(1, 0, 9, True, VoterSet(1, frozenset(range(1, voters + 1)))))
    majority = voters // 2 + 1
    assert (voters - 1 - needed) < majority - 1  # a majority with this voter has more others than did not testify


def test_a_directory_of_the_first_release_is_no_new_voter() -> None:
    ours = Ours(3)
    content = ours.disks[1].files[Path("raft/quorum-state")]
    assert b'"formed": false' in content.data or ours.journals[1].formed
    from mqd.raft import formats

    line = b'{"version": 1, "cluster_id": "c", "node_id": 1, "node_uuid": "00000000-0000-0000-0000-000000000001", "term": 3, "vote": 2}'
    from crc32c import crc32c

    state = formats.decode_state(b"%s\n%08x\n" % (line, crc32c(line)))
    assert state.formed and state.vote == 2


def test_a_poll_is_won_once_and_by_voters() -> None:
    poll = Poll(1, {1, 2, 3}, patience=1.0)
    assert poll.grants(0.0) and not poll.on_grant(2, 0)
    poll.begin(5)
    assert not poll.on_grant(9, 5) and not poll.on_grant(2, 4)
    assert poll.on_grant(2, 5) and not poll.on_grant(3, 5)
    poll.heard_leader(10.0)
    assert not poll.won and not poll.grants(10.9) and poll.grants(11.0)


def test_an_inquiry_makes_the_leader_forget_what_that_voter_acknowledged() -> None:
    ours = led()
    assert {status.match_index for status in ours.nodes[1].peers()} == {ours.log(1)[-1][0]}
    ours.take(1)
    ours.deliver(2, 1, Inquiry(0, 77))
    assert said(ours, 1, 2) == [Account(ours.term(1), 77, ours.log(1)[-1][0], True, THREE)]
    assert [status.match_index for status in ours.nodes[1].peers()] == [0, ours.log(1)[-1][0]]


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
    assert ours.log(4) == ours.log(1) and ours.commit(1) < ours.log(1)[-1][0] and ours.values(4) == ["both"]
    status = next(status for status in ours.nodes[1].peers() if status.node_id == 4)
    assert not status.voter and status.match_index == ours.log(1)[-1][0]
    while ours.leads(1):  # nor does it keep a leader in office
        ours.exchange([1, 4], 1)
    for _ in range(40):
        ours.exchange([4, 1], 1)
    assert ours.nodes[4].role is Role.FOLLOWER and ours.term(1) == ours.term(4)
    last, last_term = ours.log(4)[-1]
    for message in (PreVote(9, last, last_term), RequestVote(9, last, last_term)):
        ours.deliver(1, 4, message)
        assert said(ours, 4) == []
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


