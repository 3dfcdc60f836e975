"""One partition: roles, fencing, and where the high watermark may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.replica.partition import Assignment, Partition, Rules
from mqd.types import NO_NODE, IsrChange, IsrOutcome, NodeId, TopicPartition

ME, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7, version=4)


def assignment(
    leader: NodeId = ME,
    epoch: int = 0,
    *,
    replicas: tuple[NodeId, ...] = (ME, TWO, THREE),
    isr: tuple[NodeId, ...] | None = (ME,),
    topic_id: UUID = TOPIC_ID,
) -> Assignment:
    return Assignment(TP, topic_id, leader, epoch, replicas, replicas if isr is None else isr)


def a_log(config: LogConfig | None = None) -> PartitionLog:
    return PartitionLog(TP, TOPIC_ID, Path("logs"), config or LogConfig(), [Segment(0, 0)])


def write(log: PartitionLog, count: int) -> None:
    """What the log looks like after `count` more records were written."""
    log.log_end_offset += count
    log.written_end_offset = log.log_end_offset


def a_partition(
    min_insync_replicas: int = 1, *, config: LogConfig | None = None, **options: Any
) -> Partition:
    given_assignment = assignment(**options)
    partition = Partition(ME, a_log(config), given_assignment, min_insync_replicas)
    partition.assign(given_assignment, min_insync_replicas)
    return partition


def test_a_leader_commits_what_is_written() -> None:
    partition = a_partition()
    write(partition.log, 3)
    assert partition.advance()
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)
    assert not partition.advance()


def test_who_does_not_lead_commits_nothing() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.high_watermark == 0


def test_a_new_leader_commits_what_it_has() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    partition.assign(assignment(ME, 1), 1)
    assert partition.is_leader
    assert partition.high_watermark == 3


def test_short_of_replicas_the_high_watermark_is_frozen() -> None:
    partition = a_partition(2, isr=(ME,))
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.high_watermark == 0
    partition.assign(assignment(ME, 1, isr=(ME, TWO)), 2)
    assert partition.high_watermark == 0
    assert partition.follower_fetched(TWO, 1, 3, 0, 0.0) == (True, None)
    assert partition.high_watermark == 3


def test_flush_before_ack_commits_what_is_durable_and_no_more() -> None:
    partition = a_partition(config=LogConfig(flush_before_ack=True))
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.log.on_synced(2)
    assert partition.advance()
    assert partition.high_watermark == 2


def test_the_high_watermark_does_not_go_back_when_durability_is_asked_for_later() -> None:
    partition = a_partition()
    write(partition.log, 3)
    partition.advance()
    partition.log.config = LogConfig(flush_before_ack=True)
    write(partition.log, 1)
    assert not partition.advance()
    assert partition.high_watermark == 3


@pytest.mark.parametrize(
    ("wanted", "replicas", "isr", "effective", "short"),
    [
        (1, (ME,), (ME,), 1, False),
        (2, (ME,), (ME,), 1, False),  # KIP-966: never more than there are replicas
        (3, (ME, TWO), (ME,), 2, True),
        (3, (ME, TWO), (ME, TWO), 2, False),
        (2, (ME, TWO, THREE), (ME,), 2, True),
        (2, (ME, TWO, THREE), (ME, THREE), 2, False),
    ],
)
def test_the_effective_minimum_of_replicas(
    wanted: int, replicas: tuple[NodeId, ...], isr: tuple[NodeId, ...], effective: int, short: bool
) -> None:
    partition = a_partition(wanted, replicas=replicas, isr=isr)
    assert partition.effective_min_insync_replicas == effective
    assert partition.short_of_replicas is short
    if not short:
        partition.check_append(-1)
        return
    with pytest.raises(MqError) as refused:
        partition.check_append(-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.check_append(1)
    partition.check_append(0)


def test_configure_counts_anew() -> None:
    partition = a_partition(1, isr=(ME,))
    partition.configure(2)
    assert partition.short_of_replicas
    partition.configure(1)
    assert not partition.short_of_replicas


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_who_does_not_lead_accepts_nothing(acks: int) -> None:
    for leader in (TWO, NO_NODE):
        with pytest.raises(MqError) as refused:
            a_partition(leader=leader).check_append(acks)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("leader", "asked", "code"),
    [
        (ME, -1, None),
        (ME, 5, None),
        (ME, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (ME, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (TWO, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (TWO, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (TWO, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (TWO, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs_fence(leader: NodeId, asked: int, code: ErrorCode | None) -> None:
    partition = a_partition(leader=leader, epoch=5)
    if code is None:
        partition.check_leader_epoch(asked)
        return
    with pytest.raises(MqError) as refused:
        partition.check_leader_epoch(asked)
    assert refused.value.code is code


def test_an_older_assignment_or_one_of_another_topic_is_a_bug() -> None:
    partition = a_partition(epoch=5)
    with pytest.raises(AssertionError):
        partition.assign(assignment(ME, 4), 1)
    with pytest.raises(AssertionError):
        partition.assign(assignment(ME, 6, topic_id=UUID(int=8, version=4)), 1)


# -- followers


def led(
    *,
    isr: tuple[NodeId, ...] = (ME, TWO, THREE),
    minimum: int = 1,
    lag_max: float = 10.0,
    start: int = 0,
) -> Partition:
    """A leader of three in epoch 1, whose log ends at `start`; every node is alive with
    broker epoch 1.
    """
    given = assignment(ME, 1, isr=isr)
    log = a_log()
    write(log, start)
    partition = Partition(ME, log, given, minimum, Rules(lag_max, lambda node_id: 1))
    partition.assign(given, minimum, 0.0)
    return partition


def append(partition: Partition, count: int = 1) -> None:
    partition.before_write()
    write(partition.log, count)
    partition.advance()


def test_the_high_watermark_is_what_all_in_sync_replicas_have() -> None:
    partition = led()
    append(partition, 5)
    assert not partition.follower_fetched(TWO, 1, 5, 0, 1.0).moved
    assert partition.follower_fetched(THREE, 1, 3, 0, 1.0).moved
    assert partition.high_watermark == 3
    assert not partition.follower_fetched(THREE, 1, 2, 0, 1.0).moved
    assert partition.high_watermark == 3


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
    assert partition.high_watermark == 6  # it may be in already
    assert partition.follower_fetched(THREE, 1, 7, 0, 1.0).proposal is None  # one change at a time


@pytest.mark.parametrize(("registered", "fetched"), [(None, 1), (2, 1), (1, 2)])
def test_only_the_living_incarnation_that_is_registered_joins(
    registered: int | None, fetched: int
) -> None:
    partition = led(isr=(ME,))
    partition.rules.eligible = lambda node_id: registered
    assert partition.follower_fetched(TWO, fetched, 0, 0, 1.0).proposal is None


def test_the_high_watermark_waits_for_who_is_about_to_join_and_no_longer() -> None:
    partition = led(isr=(ME,))
    # another change is in flight
    partition.in_sync.propose(IsrChange(TP, TOPIC_ID, 1, 0, ((ME, 1),)))
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition, 2)
    assert partition.high_watermark == 0
    partition.count(11.5)
    assert partition.advance()
    assert partition.high_watermark == 2


def test_who_could_not_join_while_a_change_was_in_flight_joins_afterwards() -> None:
    partition = led(isr=(ME,))
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.follower_fetched(THREE, 1, 0, 0, 1.0)
    assert partition.expand(1.0) is None
    partition.in_sync.settle(proposal, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    partition.isr_settled(1.0)
    assert partition.expand(20.0) is None  # not heard of for too long
    expanded = partition.expand(2.0)
    assert expanded is not None
    assert (expanded.isr, expanded.partition_epoch) == (((ME, 1), (TWO, 1), (THREE, 1)), 1)


def test_who_was_refused_is_not_proposed_again_before_it_is_back() -> None:
    partition, epochs = led(isr=(ME,)), {ME: 1, TWO: 1}
    partition.rules.eligible = epochs.get
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.in_sync.settle(proposal, IsrOutcome(TP, ErrorCode.INELIGIBLE_REPLICA))
    del epochs[TWO]
    # raised by the refusal
    partition.assign(replace(assignment(ME, 1, isr=(ME,)), partition_epoch=1), 1, 1.0)
    assert partition.follower_fetched(TWO, 1, 0, 0, 1.5).proposal is None
    assert partition.expand(2.0) is None
    epochs[TWO] = 1
    again = partition.expand(2.0)
    assert again is not None and again.partition_epoch == 1


@pytest.mark.parametrize("registered", [None, 2])
def test_what_the_controller_would_refuse_is_not_proposed(registered: int | None) -> None:
    """A member that stays must be there as well, under the registration that its fetches named."""
    partition, epochs = led(), {ME: 1, TWO: 1, THREE: 1}
    partition.rules.eligible = epochs.get
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition)
    partition.follower_fetched(TWO, 1, 1, 0, 10.0)
    epochs = {ME: 1, THREE: 1} if registered is None else {ME: 1, TWO: registered, THREE: 1}
    partition.rules.eligible = epochs.get
    assert partition.shrink(11.0) is None and partition.pending_isr is None
    epochs[TWO] = 1
    change = partition.shrink(11.0)
    assert change is not None and change.isr == ((ME, 1), (TWO, 1))


def test_whom_the_controller_takes_out_joins_again_by_what_it_says_then() -> None:
    """Its log may be lost: what its fetches said before is no reason to take it in."""
    partition = led()
    for node_id in (TWO, THREE):
        partition.follower_fetched(node_id, 1, 0, 0, 1.0)
    partition.assign(replace(assignment(ME, 1, isr=(ME, THREE)), partition_epoch=1), 1, 1.5)
    assert partition.expand(1.5) is None
    append(partition, 3)
    # it stayed in sync, and was not forgotten
    assert partition.follower_fetched(THREE, 1, 3, 0, 2.0).moved
    assert partition.follower_fetched(TWO, 1, 0, 0, 2.0).proposal is None
    assert partition.follower_fetched(TWO, 1, 3, 0, 2.5).proposal is not None


def test_a_follower_that_fetches_other_partitions_only_does_not_join() -> None:
    class Session:
        last_used = 1.0

    partition = led(isr=(ME,))
    partition.rules.eligible = lambda node_id: None
    partition.follower_fetched(TWO, 1, 0, 0, 1.0, Session())
    partition.follower_stopped(TWO)
    partition.rules.eligible = lambda node_id: 1
    assert partition.expand(1.5) is None
    assert partition.follower_fetched(TWO, 1, 0, 0, 2.0).proposal is not None


def test_who_is_behind_for_too_long_leaves() -> None:
    partition = led()
    partition.follower_fetched(TWO, 1, 0, 0, 1.0)
    append(partition)
    assert partition.shrink(9.9) is None
    partition.follower_fetched(TWO, 1, 1, 0, 10.0)
    change = partition.shrink(10.1)
    assert change is not None
    assert [node for node, _ in change.isr] == [ME, TWO]
    assert partition.shrink(20.0) is None  # in flight
    assert partition.high_watermark == 0  # until that is committed
    partition.in_sync.settle(change, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    # whether who left is eligible to lead, only the metadata says
    assert not partition.isr_settled(20.0)
    assert partition.assign(
        Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME, TWO), 1), 1, 20.0
    )
    assert partition.high_watermark == 1


def test_a_follower_of_a_quiet_partition_is_not_behind_when_it_is_written_again() -> None:
    class Session:
        last_used = 0.0

    session = Session()
    partition = led()
    for node in (TWO, THREE):
        partition.follower_fetched(node, 1, 0, 0, 1.0, session)
    session.last_used = 1000.0
    append(partition)
    assert partition.shrink(1009.0) is None
    assert partition.shrink(1011.0) is not None


def test_a_leader_under_load_knows_who_keeps_up() -> None:
    partition = led(lag_max=3.0)
    for second in range(10):  # always one batch behind, never at the end
        append(partition)
        partition.follower_fetched(TWO, 1, second, 0, float(second))
        partition.follower_fetched(THREE, 1, 0, 0, float(second))
    assert partition.shrink_candidates(9.5) == {THREE}


def test_nothing_is_committed_while_others_are_eligible_to_lead() -> None:
    partition = led(isr=(ME, TWO), minimum=1)
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 1, (TWO,)), 1)
    append(partition)
    assert partition.high_watermark == 0
    partition.check_append(-1)
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 2), 1)
    assert partition.high_watermark == 1


def test_nothing_is_committed_without_a_member_that_came_and_went_before_the_metadata_told() -> (
    None
):
    partition = led(isr=(ME,), minimum=1)  # the controller may have heard of a higher minimum
    joins = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert joins is not None
    partition.in_sync.settle(joins, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    partition.isr_settled(1.0)
    append(partition)
    leaves = partition.shrink(1000.0)
    assert leaves is not None
    partition.in_sync.settle(leaves, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME,), 2))
    # TWO may be eligible to lead
    assert not partition.isr_settled(1000.0) and partition.high_watermark == 0
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 2, (TWO,)), 2, 1000.0)
    assert partition.high_watermark == 0
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 3), 1, 1000.0)
    assert partition.high_watermark == 1


def test_an_assignment_older_than_the_controller_s_answer_changes_nothing() -> None:
    partition = led(isr=(ME,))
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.in_sync.settle(proposal, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 2))
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 1), 1)
    assert partition.isr == {ME, TWO}
    assert partition.assignment.partition_epoch == 0


def test_who_led_again_after_another_knows_nothing_of_its_followers() -> None:
    partition = led()
    append(partition)
    partition.follower_fetched(TWO, 1, 1, 0, 1.0)
    partition.assign(assignment(ME, 2, isr=(ME, TWO, THREE)), 1, 2.0)
    assert partition.followers[TWO].end_offset == 1  # nobody else has led in between
    partition.assign(assignment(ME, 4, isr=(ME, TWO, THREE)), 1, 3.0)
    assert partition.followers[TWO].end_offset == -1


def test_a_follower_s_high_watermark_follows_and_stays_within_its_log() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    assert partition.follower_progress(2, 0)
    assert not partition.follower_progress(1, 0)
    assert partition.high_watermark == 2
    assert partition.follower_progress(9, 0)
    assert partition.high_watermark == 3
    assert partition.follower_progress(9, 1)  # the leader's log begins later
    partition.log.log_end_offset = partition.log.written_end_offset = 1
    partition.log_replaced()
    assert partition.high_watermark == 1


def test_records_are_gone_where_every_in_sync_replica_says_so() -> None:
    partition = led(isr=(ME, TWO), start=5)
    partition.high_watermark = 5
    partition.log.advance_log_start(4)
    assert partition.low_watermark == -1
    partition.follower_fetched(TWO, 1, 5, 3, 1.0)
    partition.follower_fetched(THREE, 1, 5, 0, 1.0)
    assert partition.low_watermark == 3


def test_a_replica_that_was_lost_says_anew_what_it_has_before_it_joins() -> None:
    given = assignment(isr=(ME, TWO))
    partition = Partition(ME, a_log(), given, 1, Rules(30.0, lambda node_id: 1))
    partition.assign(given, 1)
    write(partition.log, 10)
    partition.follower_fetched(TWO, 1, 10, 0, 0.0)
    assert partition.follower_fetched(THREE, 1, 10, 0, 0.0).proposal is not None
    partition.assign(replace(given, partition_epoch=1, lost=(THREE,)), 1)
    assert partition.pending_isr is None and partition.expand(1.0) is None
    partition.assign(replace(given, partition_epoch=2, lost=(THREE,)), 1)
    assert partition.follower_fetched(THREE, 1, 10, 0, 2.0).proposal is not None
    partition.assign(replace(given, partition_epoch=3, lost=(THREE,)), 1)  # and lost that copy, too
    assert partition.pending_isr is None and partition.expand(2.0) is None
    assert partition.follower_fetched(THREE, 1, 10, 0, 3.0).proposal is not None
