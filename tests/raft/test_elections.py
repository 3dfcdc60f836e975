"""When a voter stands for election, and which votes count: message by message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqd.raft.codec import AppendEntries, PreVote, PreVoteReply, RequestVote
from mqd.raft.elections import PreVotePoll, Timing
from mqd.raft.machine import Role
from tests.raft.directed import led, sent_messages

TIMING = Timing()


# -- pre-votes


def test_a_candidate_requests_pre_votes_first_and_keeps_its_term() -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    assert sent_messages(ours, 2, 1) == [PreVote(term + 1, *ours.log(2)[-1])]
    assert ours.term(2) == term and ours.nodes[2].role is Role.FOLLOWER


def test_a_majority_of_promises_begins_the_election() -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    ours.pump(2, 3)
    assert sent_messages(ours, 3, 2) == [PreVoteReply(term + 1, True)]
    ours.deliver(3, 2, PreVoteReply(term + 1, True))
    ours.tick(2)
    assert ours.nodes[2].role is Role.CANDIDATE and ours.term(2) == term + 1
    assert any(isinstance(message, RequestVote) for message in sent_messages(ours, 2, 3))


@pytest.mark.parametrize(
    "reply",
    [
        lambda term: PreVoteReply(term, True),
        lambda term: PreVoteReply(term + 2, True),
        lambda term: PreVoteReply(term, False),
    ],
)
def test_promises_for_another_term_and_refusals_begin_no_election(
    reply: Callable[[int], Any],
) -> None:
    ours = led()
    term = ours.term(2)
    ours.advance(2.0)
    ours.tick(2)
    ours.deliver(3, 2, reply(term))
    ours.tick(2)
    assert ours.nodes[2].role is Role.FOLLOWER and ours.term(2) == term


def test_no_pre_vote_while_a_leader_is_alive_or_for_a_shorter_log() -> None:
    ours = led()
    index, last_term = ours.log(3)[-1]
    term = ours.term(3)
    ours.take(3)
    ours.deliver(2, 3, PreVote(term + 1, index, last_term))
    ours.deliver(2, 1, PreVote(term + 1, index, last_term))
    # a message of the leader just arrived; the leader itself leads
    assert sent_messages(ours, 3) == sent_messages(ours, 1) == []
    ours.advance(TIMING.election_timeout_min)
    ours.deliver(2, 3, PreVote(term + 1, index - 1, last_term))
    assert sent_messages(ours, 3) == []
    ours.deliver(2, 3, PreVote(term + 1, index, last_term))
    assert sent_messages(ours, 3, 2) == [PreVoteReply(term + 1, True)]
    ours.deliver(2, 3, PreVote(term - 1, index, last_term))
    assert sent_messages(ours, 3, 2) == [PreVoteReply(term, False)]  # with the position of node 3


def test_a_node_that_follows_again_discards_old_pre_votes() -> None:
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


def test_a_leader_without_a_majority_steps_down_after_one_election_timeout() -> None:
    ours = led()
    node = ours.nodes[1]
    received = node.majority_replied_at(ours.now)
    assert ours.now - received < 0.5 and node.ready
    began = ours.now
    while ours.leads(1):
        ours.advance(0.05)
        ours.tick(1)
        ours.take(1)
    assert (
        ours.now - received == pytest.approx(TIMING.election_timeout_max, abs=0.11)
        and ours.now > began
    )
    assert (
        not node.ready
        and node.leader_id is None
        and node.majority_replied_at(ours.now) == float("-inf")
    )


def test_one_of_two_followers_is_enough_to_lead() -> None:
    ours = led()
    for _ in range(20):
        ours.exchange([1, 2], 1)
    assert ours.leads(1) and ours.now - ours.nodes[1].majority_replied_at(ours.now) < 0.5
    statuses = {status.node_id: status for status in ours.nodes[1].peers()}
    assert ours.now - statuses[2].last_replied_at < 0.5 < ours.now - statuses[3].last_replied_at
    assert ours.now - statuses[2].caught_up_at < 0.5 < ours.now - statuses[3].caught_up_at
    assert statuses[2].match_index == ours.log(1)[-1][0]


# -- prompt elections


def test_followers_stand_soon_after_the_leader_s_process_ends() -> None:
    ours = led()
    index, last_term = ours.log(2)[-1]
    deadline = ours.nodes[2].next_deadline()
    for i in (2, 3):
        ours.nodes[i].peer_gone(ours.now, 1)
        assert ours.nodes[i].next_deadline() <= min(
            deadline, ours.now + TIMING.election_timeout_min / 2
        )
    assert ours.nodes[2].next_deadline() != ours.nodes[3].next_deadline()
    ours.deliver(2, 3, PreVote(ours.term(3) + 1, index, last_term))
    # and get votes, though the leader's last message is recent
    assert sent_messages(ours, 3, 2) == [PreVoteReply(ours.term(3) + 1, True)]


def test_without_another_follower_no_node_becomes_a_candidate() -> None:
    ours = led()
    before = ours.nodes[2].next_deadline()
    ours.nodes[2].peer_gone(ours.now, 3)
    ours.nodes[1].peer_gone(ours.now, 3)
    assert (
        ours.nodes[2].next_deadline() == before and ours.leads(1) and ours.nodes[2].leader_id == 1
    )


# -- votes


def test_a_vote_after_the_longest_election_timeout_does_not_count() -> None:
    for seconds, elected in ((1.3, True), (1.5, False)):
        ours = led()
        ours.advance(2.0)
        ours.force_election(2)
        requested = next(message for message in ours.take(2) if ours.is_vote_request(message))
        ours.deliver(2, 3, requested)
        (granted,) = ours.take(3, 2)
        ours.advance(seconds)
        ours.deliver(3, 2, granted)
        assert ours.leads(2) == elected


def test_an_election_is_won_once_and_only_by_votes_of_voters() -> None:
    poll = PreVotePoll(1, {1, 2, 3}, patience=1.0)
    assert poll.grants(0.0) and not poll.on_grant(2, 0)
    poll.begin(5)
    assert not poll.on_grant(9, 5) and not poll.on_grant(2, 4)
    assert poll.on_grant(2, 5) and not poll.on_grant(3, 5)
    poll.leader_seen(10.0)
    assert not poll.won and not poll.grants(10.9) and poll.grants(11.0)
