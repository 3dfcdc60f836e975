"""The records of a target assignment, and the time that they take."""

from __future__ import annotations

from typing import Final

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Assignment

COMPARED_TOPIC_STEPS: Final = 5
"""Steps (as in assignment.Work) to compare one topic of two targets."""
_RECORD_STEPS: Final = 500
_TOPIC_STEPS: Final = 50
_PARTITION_STEPS: Final = 4


def record_steps(target: Assignment) -> int:
    """Steps to encode, append and replay the record of a member."""
    topics, partitions = len(target), sum(map(len, target.values()))
    return _RECORD_STEPS + _TOPIC_STEPS * topics + _PARTITION_STEPS * partitions


def target_record(target: Assignment) -> records.TargetAssignmentMember:
    return records.TargetAssignmentMember(
        tuple(
            records.TopicPartitions(topic_id, partitions) for topic_id, partitions in target.items()
        )
    )
