"""The input of a recovery of one log, and its report. A core."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from mqd.errors import StorageError
from mqd.log.log_end import LogEnd
from mqd.protocol.files import HIGH_WATERMARK_CHECKPOINT
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

REMEDY: Final = (
    "Nothing was changed; restore the partition from a replica or a backup. To start it empty, "
    "stop the node, move its directory away and remove its line"
    f" from {HIGH_WATERMARK_CHECKPOINT} (and lower the count in its second line)"
)


class LogDamaged(StorageError):
    """A log that cannot be opened as it is. Its files are not changed."""


class LogLost(LogDamaged):
    """A log without the records that the log end checkpoint names, although the machine was not
    restarted. Its disk was detached, or is an older copy.
    """


class LogUnfinished(StorageError):
    """The creation of a partition was interrupted. Its directory has no other files and no
    acknowledged records.
    """


@dataclass(frozen=True, slots=True)
class CheckpointedState:
    """The content of the log directory's checkpoints for one partition."""

    is_clean: bool
    """Whether the last stop was a clean shutdown."""
    recovery_point: Offset = 0
    log_start_offset: Offset = 0
    """-1: unknown."""
    high_watermark: Offset = 0
    unsynced_survived: bool = True
    """Whether all written data is still there, synced or not. True after a killed process, because
    the machine kept its page cache."""
    fsync_failed: bool = False
    """Whether a write or sync failed in this directory. Then recovery rewrites all data that was
    not synced before (disk/fsync_failure.py)."""
    cleaned_to: Offset | None = None
    """The end of the compacted part. None: it was never compacted."""
    end_claim: LogEnd | None = None
    """The line of this log in the log end checkpoint. None: it does not count, or does not
    exist.
    """


@dataclass(slots=True)
class RecoveryReport:
    """The findings in one partition's directory, and the repairs."""

    topic_partition: TopicPartition
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0
    truncated_below_high_watermark: Offset | None = None
    """The checkpointed high watermark, if the log now ends below it: acknowledged records are lost.
    """
    findings: list[str] = field(default_factory=list)
    ignored_log_start: Offset | None = None
    """A checkpointed log start offset that is impossible."""
    missing_offsets: str | None = None
    """Which offsets are missing between two segments. Correct after a compaction, damage in any
    other log."""

    def note(self, finding: str) -> None:
        self.findings.append(finding)
        logger.warning("recovery partition=%s finding=%s", self.topic_partition, finding)
