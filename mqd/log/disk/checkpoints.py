"""The small files of a log directory: checkpoints of offsets, the marker of a clean shutdown, and
`meta.properties`.

A damaged checkpoint counts as missing. That costs time, because recovery scans from the start, but
no data. `meta.properties` is different: a directory of another node or cluster is refused, and so
is a directory with files but without `meta.properties`.

A written checkpoint keeps the lines of partitions that are not served (`unserved`). Recovery points
are the exception: they are dropped, so that recovery reads these logs from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqd.errors import StorageError
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    FileFormatError,
    MetaProperties,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_offset_checkpoint,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offset_checkpoint,
)
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
"""The checkpoints of every log directory."""


def load_offsets(disk: Disk, path: Path) -> dict[TopicPartition, int]:
    """Read a checkpoint of offsets. Empty if it is missing or damaged."""
    try:
        return decode_offset_checkpoint(disk.read_bytes(path))
    except FileNotFoundError:
        return {}
    except (FileFormatError, OSError) as error:
        logger.warning("checkpoint ignored file=%s reason=%s", path, error)
        return {}


def store_offsets(disk: Disk, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    disk.write_atomic(path, encode_offset_checkpoint(offsets))


def take_clean_shutdown(disk: Disk, directory: Path) -> int | None:
    """The broker epoch of a clean shutdown; None after any other stop. The marker is removed
    durably."""
    path = directory / CLEAN_SHUTDOWN
    try:
        broker_epoch = decode_clean_shutdown(disk.read_bytes(path))
    except FileNotFoundError:
        return None
    disk.remove(path)
    disk.sync_directory(directory)
    return broker_epoch


def store_clean_shutdown(disk: Disk, directory: Path, broker_epoch: int) -> None:
    disk.write_atomic(directory / CLEAN_SHUTDOWN, encode_clean_shutdown(broker_epoch))


def ensure_meta_properties(disk: Disk, directory: Path, expected: MetaProperties) -> MetaProperties:
    """The content of `meta.properties`. If the file is missing, it is created from `expected`.

    Raises StorageError if the directory belongs to another node or cluster, if it has files but no
    `meta.properties`, or if that file is damaged.
    """
    path = directory / META_PROPERTIES
    try:
        found = decode_meta_properties(disk.read_bytes(path))
    except FileNotFoundError:
        foreign = [
            name for name in disk.list(directory) if name not in _ALLOWED_WITHOUT_META_PROPERTIES
        ]
        if foreign:
            raise StorageError(
                f"{path} is missing, and {directory} is not empty "
                f"({foreign[0]}{', ...' if len(foreign) > 1 else ''}): its owner is unknown,"
                " so nothing in it was changed. Restore the file, or use an empty directory"
            ) from None
        disk.write_atomic(path, encode_meta_properties(expected))
        return expected
    except FileFormatError as error:
        raise StorageError(
            f"{path}: {error}; restore the file or start with an empty directory"
        ) from None
    if found.cluster_id != expected.cluster_id:
        raise StorageError(
            f"{path}: the directory is of cluster {found.cluster_id!r}, not "
            f"{expected.cluster_id!r}; use another directory"
        )
    if found.node_id != expected.node_id:
        raise StorageError(
            f"{path}: the directory is of node {found.node_id}, not {expected.node_id}; use "
            "another directory"
        )
    return found


def checkpointed(
    name: str,
    logs: Iterable[PartitionLog],
    directory: Path,
    unserved: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The lines of the next checkpoint file `name` of a log directory. `unserved`: its lines of
    partitions that are not served. The cleaner's checkpoint has only logs that were compacted, and
    the high watermark checkpoint only logs whose directory is durable.
    """
    offset_of = _OFFSETS[name]
    offsets = {log.topic_partition: offset_of(log) for log in logs if log.directory == directory}
    return {
        **unserved,
        **{partition: offset for partition, offset in offsets.items() if offset is not None},
    }


def _durable_high_watermark(log: PartitionLog) -> Offset | None:
    return log.checkpointed_high_watermark if log.durability.directory_is_durable else None


_ALLOWED_WITHOUT_META_PROPERTIES = (LOCK, META_PROPERTIES + ".tmp", "lost+found")
"""Files of a directory without `meta.properties`: of an interrupted first start, or of a new file
system.
"""

_OFFSETS: Final[Mapping[str, Callable[[PartitionLog], Offset | None]]] = {
    RECOVERY_POINT_CHECKPOINT: attrgetter("durability.synced_end_offset"),
    LOG_START_CHECKPOINT: attrgetter("log_start_offset"),
    HIGH_WATERMARK_CHECKPOINT: _durable_high_watermark,
    CLEANER_CHECKPOINT: attrgetter("cleaned_to"),
}
