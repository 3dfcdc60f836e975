"""One partition: roles, fencing, and the possible values of the high watermark."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.log_config import LogConfig
from mqd.replica.assignment import Assignment
from mqd.types import NO_NODE, IsrOutcome, NodeId
from tests.replica.partitions import (
    ME,
    THREE,
    TOPIC_ID,
    TP,
    TWO,
    a_partition,
    append,
    assignment,
    led,
    write,
)


def test_a_leader_commits_written_records() -> None:
    partition = a_partition()
    write(partition.log, 3)
    assert partition.advance()
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)
    assert not partition.advance()


def test_a_node_that_does_not_lead_commits_nothing() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.high_watermark == 0


def test_a_new_leader_commits_its_records() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    partition.assign(assignment(ME, 1), 1)
    assert partition.is_leader
    assert partition.high_watermark == 3


def test_with_too_few_replicas_the_high_watermark_is_frozen() -> None:
    partition = a_partition(2, isr=(ME,))
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.high_watermark == 0
    partition.assign(assignment(ME, 1, isr=(ME, TWO)), 2)
    assert partition.high_watermark == 0
    assert partition.follower_fetched(TWO, 1, 3, 0, 0.0) == (True, None)
    assert partition.high_watermark == 3


def test_flush_before_ack_commits_only_durable_records() -> None:
    partition = a_partition(config=LogConfig(flush_before_ack=True))
    write(partition.log, 3)
    assert not partition.advance()
    assert partition.log.on_synced(2)
    assert partition.advance()
    assert partition.high_watermark == 2


def test_the_high_watermark_stays_when_durability_is_required_later() -> None:
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
        (2, (ME,), (ME,), 1, False),  # KIP-966: never more than the number of replicas
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


def test_new_options_recompute_the_minimum() -> None:
    partition = a_partition(1, isr=(ME,))
    partition.configure(2)
    assert partition.short_of_replicas
    partition.configure(1)
    assert not partition.short_of_replicas


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_replica_that_does_not_lead_accepts_nothing(acks: int) -> None:
    for leader in (TWO, NO_NODE):
        with pytest.raises(MqError) as refused:
            a_partition(leader=leader).check_append(acks)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("leader", "requested", "code"),
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
def test_leader_epochs_fence(leader: NodeId, requested: int, code: ErrorCode | None) -> None:
    partition = a_partition(leader=leader, epoch=5)
    if code is None:
        partition.check_leader_epoch(requested)
        return
    with pytest.raises(MqError) as refused:
        partition.check_leader_epoch(requested)
    assert refused.value.code is code


def test_an_older_assignment_or_one_of_another_topic_is_a_bug() -> None:
    partition = a_partition(epoch=5)
    with pytest.raises(AssertionError):
        partition.assign(assignment(ME, 4), 1)
    with pytest.raises(AssertionError):
        partition.assign(assignment(ME, 6, topic_id=UUID(int=8, version=4)), 1)


def test_the_high_watermark_is_the_smallest_end_in_the_isr() -> None:
    partition = led()
    append(partition, 5)
    assert not partition.follower_fetched(TWO, 1, 5, 0, 1.0).high_watermark_moved
    assert partition.follower_fetched(THREE, 1, 3, 0, 1.0).high_watermark_moved
    assert partition.high_watermark == 3
    assert not partition.follower_fetched(THREE, 1, 2, 0, 1.0).high_watermark_moved
    assert partition.high_watermark == 3


def test_nothing_is_committed_while_others_are_eligible_to_lead() -> None:
    partition = led(isr=(ME, TWO), minimum=1)
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 1, (TWO,)), 1)
    append(partition)
    assert partition.high_watermark == 0
    partition.check_append(-1)
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 2), 1)
    assert partition.high_watermark == 1


def test_nothing_is_committed_without_a_member_of_the_proposed_isr() -> None:
    partition = led(isr=(ME,), minimum=1)  # the controller may have a higher minimum
    joins = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert joins is not None
    partition.in_sync.on_outcome(joins, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 1))
    partition.isr_decided(1.0)
    append(partition)
    leaves = partition.shrink_isr(1000.0)
    assert leaves is not None
    partition.in_sync.on_outcome(leaves, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME,), 2))
    # TWO may be eligible to lead
    assert not partition.isr_decided(1000.0) and partition.high_watermark == 0
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 2, (TWO,)), 2, 1000.0)
    assert partition.high_watermark == 0
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 3), 1, 1000.0)
    assert partition.high_watermark == 1


def test_an_assignment_before_the_controller_s_response_changes_nothing() -> None:
    partition = led(isr=(ME,))
    proposal = partition.follower_fetched(TWO, 1, 0, 0, 1.0).proposal
    assert proposal is not None
    partition.in_sync.on_outcome(proposal, IsrOutcome(TP, ErrorCode.NONE, ME, 1, (ME, TWO), 2))
    partition.assign(Assignment(TP, TOPIC_ID, ME, 1, (ME, TWO, THREE), (ME,), 1), 1)
    assert partition.isr == {ME, TWO}
    assert partition.assignment.partition_epoch == 0


def test_a_follower_s_high_watermark_advances_within_its_log() -> None:
    partition = a_partition(leader=TWO)
    write(partition.log, 3)
    assert partition.follower_progress(2, 0)
    assert not partition.follower_progress(1, 0)
    assert partition.high_watermark == 2
    assert partition.follower_progress(9, 0)
    assert partition.high_watermark == 3
    assert partition.follower_progress(9, 1)  # the leader's log starts later
    partition.log.log_end_offset = partition.log.written_end_offset = 1
    partition.log_replaced()
    assert partition.high_watermark == 1
