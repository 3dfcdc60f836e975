"""When the next batch of a log begins a new segment: by size, time, offset or a full index. A core.

The limits are computed when a segment begins. Each append then only compares numbers.
"""

from __future__ import annotations

from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.segment import Segment
from mqd.protocol.files import INDEX_ENTRY, RELATIVE_OFFSET_MAX, TIME_INDEX_ENTRY
from mqd.types import Offset, TopicPartition


class RollPolicy:
    """The limits of the last segment of one log. That segment may be planned and not yet written.

    Appends read and write the attributes directly: this is the hot path.
    """

    __slots__ = ("_jitter_permille", "at_bytes", "at_offset", "at_timestamp", "size")

    def __init__(self, partition: TopicPartition) -> None:
        self._jitter_permille = sum(str(partition).encode()) % 1000
        self.size = 0
        """Bytes in the segment, with those that are queued. An empty segment never rolls."""
        self.at_bytes = 0
        """A batch that makes the segment larger begins the next one."""
        self.at_offset: Offset = 0
        """A batch with a larger last offset begins the next segment."""
        self.at_timestamp = 0
        """A batch with a larger timestamp begins the next segment."""

    def watch(self, active: Segment, config: LogConfig) -> None:
        """The next batch goes to the active segment, and none is queued."""
        self.size = active.size
        self.at_bytes = config.segment_bytes
        self.at_offset = active.base_offset + RELATIVE_OFFSET_MAX
        if active.size:
            self.at_timestamp = self.timestamp_limit(active.first_timestamp, config)
        else:
            self.at_timestamp = FOREVER_MS
        self.watch_indexes(active, config)

    def watch_indexes(self, active: Segment, config: LogConfig) -> None:
        """An index of the active segment has grown."""
        assert active.index is not None and active.time_index is not None
        bytes_max = config.segment_index_bytes
        if (
            len(active.index) >= bytes_max // INDEX_ENTRY.size
            or len(active.time_index) >= bytes_max // TIME_INDEX_ENTRY.size - 1
        ):
            self.at_bytes = 0

    def begin(self, base_offset: Offset, config: LogConfig) -> None:
        """A new segment is planned."""
        self.size = 0
        self.at_bytes = config.segment_bytes
        self.at_offset = base_offset + RELATIVE_OFFSET_MAX
        self.at_timestamp = FOREVER_MS

    def timestamp_limit(self, first_timestamp: int, config: LogConfig) -> int:
        """`at_timestamp` of a segment, from the timestamp of its first batch."""
        if first_timestamp < 0:
            return FOREVER_MS
        return first_timestamp + self.segment_age_max_ms(config)

    def segment_age_max_ms(self, config: LogConfig) -> int:
        """`segment.ms` less this partition's share of `segment.jitter.ms`. For a compacted topic,
        at most `max.compaction.lag.ms`."""
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy and config.max_compaction_lag_ms > 0:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        jitter_ms = min(config.segment_jitter_ms, segment_ms) * self._jitter_permille // 1000
        return max(0, segment_ms - jitter_ms)

    def is_too_old(self, active: Segment, config: LogConfig, now_ms: int) -> bool:
        """Whether the active segment is in use for longer than `segment.ms`, by this process."""
        return active.size > 0 and now_ms - active.created_ms > self.segment_age_max_ms(config)
