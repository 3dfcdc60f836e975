"""Which old segments are removed: by retention time and size, and below the log start offset. A
core.

Only whole segments are removed, the oldest first, without gaps, and only below the high watermark.
If the whole active segment is too old, it is rolled first and then removed
(manager/housekeeping.py).

In a delay topic, only records below `kept_from` are removed by policy: the others may be pending
(I58). Only the leader knows; the other replicas follow its log start.
"""

from __future__ import annotations

from mqd.log.partition_log import PartitionLog


def plan_retention(log: PartitionLog, now_ms: int) -> tuple[int, str]:
    """(the number of the oldest segments to remove, the reason). If the number includes the active
    segment, the caller rolls it first.
    """
    config = log.config
    segments = log.segments
    by_policy = "delete" in config.cleanup_policy
    excess = (
        log.size_bytes - config.retention_bytes if by_policy and config.retention_bytes >= 0 else -1
    )
    kept_from = log.kept_from if config.mqd_delay_target else None
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
        elif kept_from is not None and segment.next_offset > kept_from:  # (I58)
            break
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
