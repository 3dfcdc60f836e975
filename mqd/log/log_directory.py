"""The state of one directory of `log.dirs`. A core.

A thread loads it (disk/directory_loading.py). The registry decides what happens to its logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.log.log_end import LogEnd
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
)
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import File


class LogDirectory:
    """See the head of this file."""

    __slots__ = (
        "broker_epoch",
        "failed",
        "found_serial",
        "fsync_failed",
        "id",
        "lock",
        "lost_logs",
        "partitions",
        "path",
        "recovery_points_crc",
        "serial",
        "syncing",
        "to_sync",
        "unserved_ends",
        "unserved_offsets",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: File | None = None
        self.id: UUID | None = None
        """`directory.id` of `meta.properties`."""
        self.failed: str | None = None
        """Why it is offline. It stays offline until the process restarts."""
        self.broker_epoch: int | None = None
        """From the marker of a clean shutdown. None after any other stop."""
        self.fsync_failed = False
        """Whether a write or sync failed here, before or during the load. This node cannot vouch
        for its data (disk/fsync_failure.py)."""
        self.partitions = 0
        """The number of partitions that were found, including offline ones."""
        self.lost_logs = 0
        """The number of logs that lack records which the log end checkpoint names."""
        self.unserved_offsets: dict[str, dict[TopicPartition, Offset]] = {
            LOG_START_CHECKPOINT: {},
            HIGH_WATERMARK_CHECKPOINT: {},
            CLEANER_CHECKPOINT: {},
        }
        """Checkpoint lines of partitions that are not served. The next write of these files
        includes them."""
        self.unserved_ends: dict[TopicPartition, LogEnd] = {}
        """The same for the log end checkpoint."""
        self.recovery_points_crc = 0
        """The CRC in the log end checkpoint on disk (log_end.py)."""
        self.serial = 0
        """The disk serial of the log end checkpoint on disk; 0 if there is none."""
        self.found_serial = 0
        """The disk serial at the start, before any checkpoint was written."""
        self.to_sync: dict[PartitionLog, bool] = {}
        """Log -> whether to sync all of it, or only the full segments. One cycle of the syncer
        includes all of them (group commit)."""
        self.syncing = False

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path} {self.failed or 'online'}>"

    @property
    def unserved_partitions(self) -> set[TopicPartition]:
        return set().union(*self.unserved_offsets.values())

    def drop_unserved(self, partitions: Iterable[TopicPartition]) -> None:
        """The next checkpoints have no lines for these."""
        for partition in partitions:
            for offsets in self.unserved_offsets.values():
                offsets.pop(partition, None)
            self.unserved_ends.pop(partition, None)


def why_missing(directories: Collection[LogDirectory], partition: TopicPartition) -> str | None:
    """Why a partition without files must not start empty. None: by the checkpoints it never had a
    record, and no directory is offline.
    """
    for directory in directories:
        high_watermark = directory.unserved_offsets[HIGH_WATERMARK_CHECKPOINT].get(partition, 0)
        if high_watermark:
            return (
                f"{directory.path / str(partition)} is missing, and with it the records up to "
                f"offset {high_watermark}: restore it from a backup."
                " To start it empty, remove its line from "
                f"{directory.path / HIGH_WATERMARK_CHECKPOINT} (and lower the count in the second"
                " line) while the node is stopped"
            )
    offline = [str(directory.path) for directory in directories if directory.failed is not None]
    return (
        f"it may be in a log directory that is offline: {', '.join(offline)}" if offline else None
    )
