"""One partition with a log that no producer writes, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.replica.assignment import Assignment
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.partition import Partition
from mqd.types import NodeId, TopicPartition

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
    """Set the log's end after `count` more written records."""
    log.log_end_offset += count
    log.written_end_offset = log.log_end_offset


def a_partition(
    min_insync_replicas: int = 1, *, config: LogConfig | None = None, **options: Any
) -> Partition:
    given_assignment = assignment(**options)
    partition = Partition(ME, a_log(config), given_assignment, min_insync_replicas)
    partition.assign(given_assignment, min_insync_replicas)
    return partition


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
    partition = Partition(ME, log, given, minimum, IsrConditions(lag_max, lambda node_id: 1))
    partition.assign(given, minimum, 0.0)
    return partition


def append(partition: Partition, count: int = 1) -> None:
    partition.membership.before_write()
    write(partition.log, count)
    partition.advance()
