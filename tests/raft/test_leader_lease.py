"""Until when a leader certainly led: old replies prove nothing about the present."""

from __future__ import annotations

from math import inf

from hypothesis import given, strategies as st

from mqd.raft.leader_lease import _TIMES_MAX, LeaderLease
from tests.raft.directed import led


def test_a_reply_proves_when_its_message_was_sent() -> None:
    lease, three = LeaderLease(), {1, 2, 3}
    assert lease.sole_leader_at(1, three, 5.0) == -inf
    lease.sent(2, 10.0)
    lease.sent(2, 11.0)
    lease.replied(2)  # whatever its arrival time
    assert lease.sole_leader_at(1, three, 99.0) == 10.0
    lease.replied(2)
    lease.replied(2)  # no message is left to reply to
    assert lease.sole_leader_at(1, three, 99.0) == 11.0
    assert lease.sole_leader_at(1, {1}, 99.0) == 99.0
    assert lease.sole_leader_at(1, {1, 2, 3, 4, 5}, 99.0) == -inf  # two of five
    # a leader that is not a voter does not count itself
    assert lease.sole_leader_at(1, {2, 3}, 99.0) == -inf
    lease.clear()
    assert lease.sole_leader_at(1, three, 99.0) == -inf


def test_an_acknowledged_entry_proves_when_it_was_appended() -> None:
    lease = LeaderLease()
    lease.appended(5, 1.0)
    lease.appended(7, 2.0)
    lease.acknowledged(2, 4)
    assert lease.sole_leader_at(1, {1, 2, 3}, 9.0) == -inf
    lease.acknowledged(2, 6)
    assert lease.sole_leader_at(1, {1, 2, 3}, 9.0) == 1.0
    lease.acknowledged(2, 9)
    assert lease.sole_leader_at(1, {1, 2, 3}, 9.0) == 2.0


@given(st.lists(st.sampled_from(["send", "lose", "answer"]), max_size=700))
def test_a_proven_time_is_never_too_late(steps: list[str]) -> None:
    """`lose`: the message never gets a reply. The node replies to the others in order."""
    lease = LeaderLease()
    on_the_wire: list[float] = []
    truth = -inf
    for number, step in enumerate(steps):
        now = float(number // 2)
        if step == "answer":
            if on_the_wire:
                truth = on_the_wire.pop(0)
                lease.replied(2)
        else:
            lease.sent(2, now)
            if step == "send":
                on_the_wire.append(now)
        assert lease.sole_leader_at(1, {1, 2, 3}, now) <= truth


def test_pending_messages_are_bounded() -> None:
    lease = LeaderLease()
    for number in range(10 * _TIMES_MAX):
        lease.sent(2, float(number))
        lease.appended(number, float(number))
    assert len(lease._unanswered[2]) == _TIMES_MAX == len(lease._appended)
    for _ in range(10 * _TIMES_MAX):
        lease.replied(2)
    assert lease.sole_leader_at(1, {1, 2, 3}, 1e9) == _TIMES_MAX - 1


def test_replies_that_waited_for_a_paused_leader_do_not_renew_its_lease() -> None:
    """Such replies make the leader believe that a majority just responded."""
    ours = led()
    ours.exchange(ours.ids, 3)
    before = ours.now
    assert before - ours.nodes[1].led_at(ours.now) < 0.3
    ours.advance()
    ours.tick(1)
    replies = []
    for to, message in ours._empty(1):
        ours.deliver(1, to, message)
        replies += [(to, reply) for reply in ours.take(to, 1)]
    ours.advance(1.0)  # node 1 does not run; the others may elect another leader
    for sender, reply in replies:
        ours.deliver(sender, 1, reply)
    assert ours.nodes[1].majority_replied_at(ours.now) == ours.now
    assert ours.nodes[1].led_at(ours.now) <= before + 0.21


def test_a_barrier_proves_that_its_leader_led_after_the_request() -> None:
    ours = led()
    ours.advance(0.3)
    asked_at = ours.now
    ours.add(1, "barrier")
    ours.exchange(ours.ids, 3)
    assert ours.values(1) == ["barrier"] and ours.nodes[1].led_at(ours.now) >= asked_at
