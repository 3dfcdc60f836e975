"""Which followers the high watermark waits for, and which join and leave the ISR."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mqd.errors import ErrorCode
from mqd.replica.assignment import Assignment
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.partition import Partition
from mqd.types import IsrChange, IsrOutcome
from tests.replica.partitions import (
    ME,
    THREE,
    TOPIC_ID,
    TP,
    TWO,
    a_log,
    append,
    assignment,
    led,
    write,
)
from tests.replica.ports import set_eligible


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    partition = led(isr=(ME,), start=4)
    partition.high_watermark = 2
    # its leader's epoch begins at 4
    assert partition.follower_fetched(TWO, 1, 3, 0, 1.0).proposal is None
    append(partition, 2)
    partition.high_watermark = 6
    assert partition.follower_fetched(TWO, 1, 5, 0, 1.0).proposal is None
    news = partition.follower_fetched(TWO, 1, 6, 0, 1.0)
    assert news.proposal is not None
    assert news.proposal.isr == ((ME, 1), (TWO, 1))
    assert partition.isr == {ME}
    assert partition.pending_isr == frozenset({ME, TWO})
    append(partition)
    assert partition.high_watermark == 6  # it may already be in the ISR
    assert partition.follower_fetched(THREE, 1, 7, 0, 1.0).proposal is None  # one change at a time


@pytest.mark.parametrize(("registered", "fetched"), [(None, 1), (2, 1), (1, 2)])
def test_only_the_registered_live_incarnation_joins(registered: int | None, fetched: int) -> None:
    partition = led(isr=(ME,))
    set_eligible(partition, lambda node_id: registered)
    assert partition.follower_fetched(TWO, fetched, 0, 0, 1.0).proposal is None


def test_the_high_watermark_waits_for_a_member_while_it_is_proposed() -> None:
    partition = led(isr=(ME,))
    # another change is in flight
    partition.in_sync.propose(IsrChange(TP, TOPIC_ID, 1, 0, ((ME, 1),)))
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition, 2)
    assert partition.high_watermark == 0
    partition.membership.recount(11.5)
    assert partition.advance()
    assert partition.high_watermark == 2


def test_a_follower_that_caught_up_during_a_proposal_joins_afterwards() -> None:
    partition = led(isr=(ME,))
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.follower_fetched(THREE, 1, 0, 0, 1.0)
    assert partition.expand_isr(1.0) is None
    partition.in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    partition.isr_decided(1.0)
    assert partition.expand_isr(20.0) is None  # no fetch for too long
    expanded = partition.expand_isr(2.0)
    assert expanded is not None
    assert (expanded.isr, expanded.partition_epoch) == (((ME, 1), (TWO, 1), (THREE, 1)), 1)


def test_a_refused_follower_is_not_proposed_before_it_returns() -> None:
    partition, epochs = led(isr=(ME,)), {ME: 1, TWO: 1}
    set_eligible(partition, epochs.get)
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.INELIGIBLE_REPLICA))
    del epochs[TWO]
    # raised by the refusal
    partition.assign(replace(assignment(ME, 1, isr=(ME,)), partition_epoch=1), 1, 1.0)
    assert partition.follower_fetched(TWO, 1, 0, 0, 1.5).proposal is None
    assert partition.expand_isr(2.0) is None
    epochs[TWO] = 1
    again = partition.expand_isr(2.0)
    assert again is not None and again.partition_epoch == 1


@pytest.mark.parametrize("registered", [None, 2])
def test_changes_that_the_controller_would_refuse_are_not_proposed(registered: int | None) -> None:
    """A remaining member must be registered as well, under the registration of its fetches."""
    partition, epochs = led(), {ME: 1, TWO: 1, THREE: 1}
    set_eligible(partition, epochs.get)
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition)
    partition.follower_fetched(TWO, 1, 1, 0, 10.0)
    epochs = {ME: 1, THREE: 1} if registered is None else {ME: 1, TWO: registered, THREE: 1}
    set_eligible(partition, epochs.get)
    assert partition.shrink_isr(11.0) is None and partition.pending_isr is None
    epochs[TWO] = 1
    change = partition.shrink_isr(11.0)
    assert change is not None and change.isr == ((ME, 1), (TWO, 1))


def test_a_removed_follower_rejoins_by_a_later_report() -> None:
    """Its log may be lost: the positions of its earlier fetches are no reason to add it to
    the ISR.
    """
    partition = led()
    for node_id in (TWO, THREE):
        partition.follower_fetched(node_id, 1, 0, 0, 1.0)
    partition.assign(replace(assignment(ME, 1, isr=(ME, THREE)), partition_epoch=1), 1, 1.5)
    assert partition.expand_isr(1.5) is None
    append(partition, 3)
    # it stayed in the ISR, and its state was kept
    assert partition.follower_fetched(THREE, 1, 3, 0, 2.0).high_watermark_moved
    assert partition.follower_fetched(TWO, 1, 0, 0, 2.0).proposal is None
    assert partition.follower_fetched(TWO, 1, 3, 0, 2.5).proposal is not None


def test_a_follower_that_fetches_only_other_partitions_does_not_join() -> None:
    class Session:
        last_used = 1.0

    partition = led(isr=(ME,))
    set_eligible(partition, lambda node_id: None)
    partition.follower_fetched(TWO, 1, 0, 0, 1.0, Session())
    partition.membership.follower_stopped(TWO)
    set_eligible(partition, lambda node_id: 1)
    assert partition.expand_isr(1.5) is None
    assert partition.follower_fetched(TWO, 1, 0, 0, 2.0).proposal is not None


def test_a_follower_that_lags_for_too_long_leaves_the_isr() -> None:
    partition = led()
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition)
    assert partition.shrink_isr(9.9) is None
    partition.follower_fetched(TWO, 1, 1, 0, 10.0)
    change = partition.shrink_isr(10.1)
    assert change is not None
    assert [node for node, _ in change.isr] == [ME, TWO]
    assert partition.shrink_isr(20.0) is None  # in flight
    assert partition.high_watermark == 0  # until that is committed
    partition.in_sync.on_outcome(change, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    # only the metadata shows whether the removed replica is eligible to lead
    assert not partition.isr_decided(20.0)
    assert partition.assign(
        Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME, TWO), 1), 1, 20.0
    )
    assert partition.high_watermark == 1


def test_a_follower_of_an_idle_partition_does_not_lag_at_its_next_append() -> None:
    class Session:
        last_used = 0.0

    session = Session()
    partition = led()
    for node in (TWO, THREE):
        partition.follower_fetched(node, 1, 0, 0, 1.0, session)
    session.last_used = 1000.0
    append(partition)
    assert partition.shrink_isr(1009.0) is None
    assert partition.shrink_isr(1011.0) is not None


def test_a_leader_under_load_detects_followers_that_keep_up() -> None:
    partition = led(lag_max=3.0)
    for second in range(10):  # always one batch behind, never at the end
        append(partition)
        partition.follower_fetched(TWO, 1, second, 0, float(second))
        partition.follower_fetched(THREE, 1, 0, 0, float(second))
    assert partition.membership.out_of_sync_replicas(9.5) == {THREE}


def test_deleted_records_count_when_every_isr_member_reports_it() -> None:
    partition = led(isr=(ME, TWO), start=5)
    partition.high_watermark = 5
    partition.log.advance_log_start(4)
    assert partition.membership.low_watermark() == -1
    partition.follower_fetched(TWO, 1, 5, 3, 1.0)
    partition.follower_fetched(THREE, 1, 5, 0, 1.0)
    assert partition.membership.low_watermark() == 3


def test_a_reelected_leader_has_no_state_of_its_followers() -> None:
    partition = led()
    append(partition)
    partition.follower_fetched(TWO, 1, 1, 0, 1.0)
    partition.assign(assignment(ME, 2, isr=(ME, TWO, THREE)), 1, 2.0)
    assert partition.followers[TWO].end_offset == 1  # no other replica has led in between
    partition.assign(assignment(ME, 4, isr=(ME, TWO, THREE)), 1, 3.0)
    assert partition.followers[TWO].end_offset == -1


def test_a_lost_replica_reports_its_end_again_before_it_joins() -> None:
    given = assignment(isr=(ME, TWO))
    partition = Partition(ME, a_log(), given, 1, IsrConditions(30.0, lambda node_id: 1))
    partition.assign(given, 1)
    write(partition.log, 10)
    partition.follower_fetched(TWO, 1, 10, 0, 0.0)
    assert partition.follower_fetched(THREE, 1, 10, 0, 0.0).proposal is not None
    partition.assign(replace(given, partition_epoch=1, lost=(THREE,)), 1)
    assert partition.pending_isr is None and partition.expand_isr(1.0) is None
    partition.assign(replace(given, partition_epoch=2, lost=(THREE,)), 1)
    assert partition.follower_fetched(THREE, 1, 10, 0, 2.0).proposal is not None
    partition.assign(replace(given, partition_epoch=3, lost=(THREE,)), 1)  # and lost that copy, too
    assert partition.pending_isr is None and partition.expand_isr(2.0) is None
    assert partition.follower_fetched(THREE, 1, 10, 0, 3.0).proposal is not None
