"""One partition: roles, fencing, and where the high watermark may be."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.partition_log import LogConfig, PartitionLog
from mqd.log.segment import Segment
from mqd.replica.partition import Assignment, Partition
from mqd.types import NO_NODE, NodeId, TopicPartition

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


def a_partition(min_insync_replicas: int = 1, *, config: LogConfig | None = None, **options: object) -> Partition:
    given_assignment = assignment(**options)  # type: ignore[arg-type]
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
