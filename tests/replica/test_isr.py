"""The ISR on its leader: what is proposed, which ISR may be true, and how the controller's
responses are applied.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.errors import ErrorCode
from mqd.replica.isr import InSync, ProposalResult
from mqd.types import IsrChange, IsrOutcome, NodeId, TopicPartition

TP = TopicPartition("t", 0)
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def change(*isr: NodeId, partition_epoch: int = 5) -> IsrChange:
    return IsrChange(TP, UUID(int=7), 3, partition_epoch, tuple((node, 1) for node in isr))


def proposed(*isr: NodeId) -> tuple[InSync, IsrChange]:
    in_sync = InSync((ONE, TWO), 5)
    proposal = change(*isr)
    in_sync.propose(proposal)
    return in_sync, proposal


def refused(code: ErrorCode) -> IsrOutcome:
    return IsrOutcome(TP, code)


def test_members_of_both_isrs_count_until_the_decision() -> None:
    in_sync, _ = proposed(ONE, THREE)
    assert in_sync.committed == {ONE, TWO}
    assert in_sync.maximal == {ONE, TWO, THREE}
    with pytest.raises(AssertionError):
        in_sync.propose(change(ONE))


def test_an_accepted_proposal_is_committed() -> None:
    in_sync, proposal = proposed(ONE, THREE)
    assert (
        in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.NONE, ONE, 3, (ONE, THREE), 6))
        is ProposalResult.COMMITTED
    )
    assert in_sync.committed == in_sync.maximal == {ONE, THREE}
    assert in_sync.partition_epoch == 6
    assert in_sync.proposal is None


@pytest.mark.parametrize(
    "code",
    [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED],
)
def test_an_outdated_leader_waits_for_the_metadata(code: ErrorCode) -> None:
    in_sync, proposal = proposed(ONE, THREE)
    assert in_sync.on_outcome(proposal, refused(code)) is ProposalResult.WAIT
    assert in_sync.maximal == {ONE, TWO, THREE}  # an earlier attempt may have been accepted
    in_sync.commit((ONE,), 6)
    assert in_sync.maximal == {ONE}
    assert in_sync.proposal is None
    assert (
        in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.NONE, ONE, 3, (ONE, THREE), 6))
        is ProposalResult.STALE
    )
    assert in_sync.committed == {ONE}


def test_a_leader_replaced_by_its_own_change_waits_for_the_metadata() -> None:
    in_sync, proposal = proposed(ONE, THREE)
    assert (
        in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.NONE, THREE, 4, (ONE, THREE), 6))
        is ProposalResult.WAIT
    )
    assert in_sync.maximal == {ONE, TWO, THREE}


def test_an_ineligible_member_is_no_longer_proposed() -> None:
    in_sync, proposal = proposed(ONE, TWO, THREE)
    assert (
        in_sync.on_outcome(proposal, refused(ErrorCode.INELIGIBLE_REPLICA))
        is ProposalResult.REFUSED
    )
    assert in_sync.maximal == {ONE, TWO}
    assert in_sync.proposal is None


def test_an_attempt_of_unknown_outcome_counts_until_a_retry_is_refused() -> None:
    in_sync, proposal = proposed(ONE, TWO, THREE)
    assert in_sync.on_outcome(proposal, None) is ProposalResult.RETRY
    assert in_sync.maximal == {ONE, TWO, THREE}
    assert (
        in_sync.on_outcome(proposal, refused(ErrorCode.INELIGIBLE_REPLICA))
        is ProposalResult.REFUSED
    )
    assert in_sync.maximal == {ONE, TWO}


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_other_errors_are_retried(code: ErrorCode) -> None:
    in_sync, proposal = proposed(ONE)
    assert in_sync.on_outcome(proposal, refused(code)) is ProposalResult.RETRY
    assert in_sync.proposal is proposal
