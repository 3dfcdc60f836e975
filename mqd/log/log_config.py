"""The topic options that apply to its logs. A core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from mqd.limits import BATCH_BYTES_MAX
from mqd.types import IN_MEMORY, STORAGE

FOREVER_MS: Final = 2**63 - 1
"""Kafka's Long.MAX_VALUE: an interval that does not end."""
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's dotted names with underscores. -1 means no limit for retention."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = BATCH_BYTES_MAX
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER_MS
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    """Each level below is for the codec of its name (recompression.py)."""
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = FOREVER_MS
    flush_ms: int = FOREVER_MS
    flush_before_ack: bool = False
    """Not in Kafka: acknowledge a record only after an fdatasync. Same as `flush.messages=1`."""
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    preallocate: bool = False
    mqd_key_index: bool = False
    """Not in Kafka: a key filter for each full segment (disk/key_filter_build.py)."""
    mqd_delay_target: str = ""
    """Not in Kafka: not empty for a delay topic. Retention keeps its pending records."""
    retention_acknowledged: bool = False
    """Not in Kafka: delete what all groups have acknowledged (`mqd.retention.acknowledged`)."""
    memory_bytes: int = 0
    """Not in Kafka: the log is in memory (`mqd.storage=memory`), and this is its maximum size.
    0: it is on disk."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> LogConfig:
        """The configuration from dotted names and typed values. Unused names are ignored."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name.replace("_", ".")
            if name in options:
                values[field.name] = options[name]
        policy = values.get("cleanup_policy")
        if policy is not None:
            names = policy.split(",") if isinstance(policy, str) else policy
            values["cleanup_policy"] = frozenset(name.strip() for name in names if name.strip())
        if values.get("flush_messages") == 1:
            values["flush_before_ack"] = True
        values["retention_acknowledged"] = bool(options.get("mqd.retention.acknowledged"))
        if options.get(STORAGE) == IN_MEMORY:
            # No sync makes it durable, and a removed segment gives its memory back at once.
            values |= {
                "memory_bytes": options["mqd.memory.max.bytes"],
                "cleanup_policy": frozenset({"delete"}),
                "flush_before_ack": False,
                "flush_messages": FOREVER_MS,
                "flush_ms": FOREVER_MS,
                "file_delete_delay_ms": 0,
            }
        return cls(**values)
