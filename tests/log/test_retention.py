from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.retention import plan_retention
from mqd.log.segment import Segment
from tests.log.support import NOW, PARTITION, TOPIC_ID


def log_of(*segments: tuple[int, int], **options: Any) -> PartitionLog:
    """(bytes, timestamp) of each segment, ten records each; the high watermark is at the end."""
    made = []
    for number, (size, timestamp) in enumerate(segments):
        segment = Segment(10 * number, NOW)
        if size:
            segment.add(10 * number + 9, size, timestamp, 4096)
        made.append(segment)
    log = PartitionLog(PARTITION, TOPIC_ID, Path("d"), LogConfig(**options), made)
    log.checkpointed_high_watermark = log.log_end_offset
    return log


@pytest.mark.parametrize(
    "options, count",
    [
        ({"retention_ms": 100}, 2),
        ({"retention_ms": 1000}, 0),
        ({"retention_ms": -1}, 0),
        ({"retention_ms": 0}, 4),
        ({"retention_ms": -1, "retention_bytes": 400}, 0),
        ({"retention_ms": -1, "retention_bytes": 301}, 0),
        ({"retention_ms": -1, "retention_bytes": 300}, 1),
        ({"retention_ms": -1, "retention_bytes": 0}, 3),
        ({"retention_ms": 0, "cleanup_policy": frozenset({"compact"})}, 0),
    ],
)
def test_plans(options: dict[str, object], count: int) -> None:
    log = log_of((100, NOW - 300), (100, NOW - 200), (100, NOW - 50), (100, NOW - 10), **options)
    planned, reason = plan_retention(log, NOW)
    assert planned == count and bool(reason) is (count > 0)


def test_deletions_are_contiguous_and_below_the_high_watermark() -> None:
    assert plan_retention(log_of((100, NOW), (100, 5), retention_ms=100), NOW)[0] == 0
    log = log_of((100, 5), (100, 5), (100, 5), retention_ms=100)
    log.checkpointed_high_watermark = 19
    assert plan_retention(log, NOW)[0] == 1


def test_segments_before_the_log_start_are_deleted_under_any_policy() -> None:
    log = log_of((100, NOW), (100, NOW), (100, NOW), cleanup_policy=frozenset({"compact"}))
    log.advance_log_start(20)
    assert plan_retention(log, NOW)[0] == 2
    log.advance_log_start(30)
    assert plan_retention(log, NOW)[0] == 2, "the active segment stays"


def test_records_without_a_timestamp_do_not_expire() -> None:
    assert plan_retention(log_of((100, -1), (100, -1), retention_ms=0), NOW)[0] == 0


def test_rolls_by_time_of_use() -> None:
    def rolls(log: PartitionLog, now_ms: int) -> bool:
        return log.roll.is_too_old(log.active, log.config, now_ms)

    assert not rolls(log_of((0, 0), segment_ms=10), NOW + 100)
    log = log_of((100, 5), segment_ms=10)
    assert not rolls(log, NOW + 10) and rolls(log, NOW + 11)


def test_retention_keeps_pending_records_of_a_delay_topic() -> None:
    log = log_of((100, 5), (100, 5), (100, 5), retention_ms=100, mqd_delay_target="orders")
    assert plan_retention(log, NOW)[0] == 0, "nothing is known to be done"
    log.kept_from = 19
    assert plan_retention(log, NOW)[0] == 1
    log.kept_from = 30
    assert plan_retention(log, NOW)[0] == 3
    log.kept_from = 0
    log.advance_log_start(20)
    assert plan_retention(log, NOW)[0] == 2, "DeleteRecords deletes them all the same"
