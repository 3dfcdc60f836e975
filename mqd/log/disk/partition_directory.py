"""The directory of one partition: creates it, resets it, and renames it for its deletion.

A deleted partition is renamed at once and removed later (manager/delayed_deletes.py).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.log.disk.first_offset_file import create_first_offset_file
from mqd.log.disk.log_end_checkpoint import create_void_mark
from mqd.log.disk.segment_files import new_segment
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import (
    PARTITION_METADATA,
    FileFormatError,
    decode_partition_metadata,
    deleted_directory_name,
    encode_partition_metadata,
)
from mqd.types import ZERO_UUID, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk
    from mqd.log.segment import Segment

logger = logging.getLogger(__name__)


def create_log(
    disk: Disk,
    log_directory: Path,
    partition: TopicPartition,
    topic_id: UUID,
    config: LogConfig,
    now_ms: int,
    fresh: Path,
    *,
    first_offset: Offset = 0,
    void_end: bool = False,
) -> PartitionLog:
    """An empty log at `first_offset`, not yet durable. `void_end`: the log end
    checkpoint may have a line of an earlier log with this name.

    The log is created as `fresh` (a `free_name`), which a start would remove, and renamed. A killed
    process leaves a complete directory or none. After a part of one, recovery could not know
    whether the checkpointed high watermark is of this log or of an earlier one.

    Raises StorageError if the directory exists. Raises OSError: `fresh` may be left.
    """
    path = log_directory / str(partition)
    if disk.exists(path):
        raise StorageError(
            f"{path} already exists, and is not an open log: move it away, or restart the node to "
            "recover it"
        )
    segment = _create_files(disk, fresh, topic_id, first_offset, now_ms, void_end=void_end)
    disk.rename(fresh, path, durable=False)
    _follow_rename(segment, path)
    log = PartitionLog(
        partition, topic_id, log_directory, config, [segment], log_start_offset=first_offset
    )
    log.durability.has_new_files, log.durability.directory_is_durable = True, False
    log.end_claim.is_void = void_end
    return log


def _create_files(
    disk: Disk, path: Path, topic_id: UUID, base_offset: Offset, now_ms: int, *, void_end: bool
) -> Segment:
    """The directory `path` with one empty segment. Raises OSError, and no file is left."""
    try:
        disk.make_directory(path, durable=False)
        if void_end:
            create_void_mark(disk, path)
        if base_offset:
            create_first_offset_file(disk, path, base_offset)
        segment = new_segment(disk, path, base_offset, now_ms)
        file = disk.open(path / PARTITION_METADATA, create=True)
        file.truncate(0)
        file.append([encode_partition_metadata(topic_id)])
    except OSError:
        with suppress(OSError):  # the removal needs descriptors, too
            disk.remove_tree(path)
        raise
    return segment


def _follow_rename(segment: Segment, path: Path) -> None:
    assert segment.file is not None
    segment.file.path = path / segment.file.path.name


def reset_log(disk: Disk, log: PartitionLog, offset: Offset, now_ms: int, fresh: Path) -> Path:
    """Replace the log by an empty one that begins at `offset`. Returns the new path of the old
    files. Raises OSError with PASSING_ERRNOS: nothing has changed.

    The new log is created as `fresh` (a `free_name`), which a start would remove. Then follow two
    renames, so a crash leaves the old log, the new log, or none.
    """
    log.truncations += 1  # as in `plan_truncation`
    segment = _create_files(disk, fresh, log.topic_id, offset, now_ms, void_end=True)
    target = retire_log(disk, log)
    try:
        disk.rename(fresh, log.path, durable=False)
    except OSError:
        disk.rename(target, log.path, durable=False)
        raise
    for old in log.segments:
        old.file = None
    _follow_rename(segment, log.path)
    log.end_claim.is_void = True
    log.on_reset(segment)
    return target


def retire_directory(
    disk: Disk, log_directory: Path, partition: TopicPartition, *, unidentified: bool = False
) -> Path | None:
    """Rename the directory of a deleted partition that is not open. Returns its new path, or None
    if it stays. Raises OSError.

    A directory without a readable topic id may not belong to mqd. It stays for the operator, unless
    `unidentified` says to rename it, too.
    """
    path = log_directory / str(partition)
    if not disk.exists(path):
        return None
    try:
        topic_id = decode_partition_metadata(disk.read_bytes(path / PARTITION_METADATA))
    except (OSError, FileFormatError) as error:
        if unidentified:
            return _retire(disk, log_directory, partition, ZERO_UUID)
        logger.warning(
            "cannot remove a partition of a deleted topic: remove it manually path=%s reason=%s",
            path,
            error,
        )
        return None
    return _retire(disk, log_directory, partition, topic_id)


def retire_log(disk: Disk, log: PartitionLog) -> Path:
    """Rename the directory of an open log. Returns its new path. Raises OSError: nothing has
    changed."""
    return _retire(disk, log.directory, log.topic_partition, log.topic_id)


def _retire(disk: Disk, log_directory: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    target = free_name(disk, log_directory, partition, topic_id)
    disk.rename(log_directory / str(partition), target, durable=False)
    return target


def free_name(disk: Disk, log_directory: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    """An unused name for the directory of a deleted partition. An earlier one may still wait for
    its removal.
    """
    for number in count(topic_id.int):
        target = log_directory / deleted_directory_name(partition, UUID(int=number % (1 << 128)))
        if not disk.exists(target):
            return target
    raise AssertionError("unreachable")
