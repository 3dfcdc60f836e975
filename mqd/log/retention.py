"""Which old segments go: retention by time and by size, and what lies before the log start. A core:
plans, nothing else.

Whole segments only, from the oldest on, without gaps, and never one that reaches beyond the high
watermark. The active segment goes too when all of it is too old; it is rolled first
(manager/housekeeping.py).
"""

from __future__ import annotations

from mqd.log.partition_log import PartitionLog


def plan_retention(log: PartitionLog, now_ms: int) -> tuple[int, str]:
    """(how many of the oldest segments to remove, why).

    `segments[-1]` counted means: roll it first.
    """
    config = log.config
    segments = log.segments
    by_policy = "delete" in config.cleanup_policy
    excess = (
        log.size_bytes - config.retention_bytes if by_policy and config.retention_bytes >= 0 else -1
    )
    count = 0
    reason = ""
    for segment in segments:
        last = segment is segments[-1]
        if not segment.size and last:
            break
        if segment.next_offset > log.checkpointed_high_watermark:
            break
        if segment.next_offset <= log.log_start_offset and not last:
            reason = reason or "before the log start offset"
        elif (
            by_policy
            and 0 <= config.retention_ms < now_ms - segment.max_timestamp
            and segment.max_timestamp >= 0
        ):
            reason = reason or f"older than retention.ms={config.retention_ms}"
        elif excess >= segment.size and not last:
            reason = reason or f"the log is larger than retention.bytes={config.retention_bytes}"
        else:
            break
        excess -= segment.size
        count += 1
    return count, reason
