"""The files in a partition's directory before recovery reads any segment: its topic id, and what a
crash left of interrupted operations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.log.disk.first_offset_file import first_offset_of, is_first_offset_file
from mqd.log.disk.segment_swap import finish_interrupted_swaps
from mqd.log.log_end import LOG_END_VOID
from mqd.log.recovery_report import (
    REMEDY,
    CheckpointedState,
    LogDamaged,
    LogUnfinished,
    RecoveryReport,
)
from mqd.protocol.files import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    PARTITION_METADATA_BYTES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    FileFormatError,
    decode_partition_metadata,
    parse_segment_file_name,
    parse_timers_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

_TEMPORARY_SUFFIXES = (DELETED_SUFFIX, ".tmp")


def read_topic_id(disk: Disk, path: Path, checkpointed: CheckpointedState) -> UUID:
    """The topic id in `partition.metadata` of the partition's directory `path`. LogUnfinished,
    LogDamaged, OSError.
    """
    file = path / PARTITION_METADATA
    found = b""
    try:
        found = disk.read_bytes(file)
        return decode_partition_metadata(found)
    except (FileNotFoundError, FileFormatError) as error:
        # A torn file was never synced. Then no file here was synced, because the first sync of a
        # log includes all of them.
        is_torn = len(found) < PARTITION_METADATA_BYTES or b"\0" in found
        if is_torn and _is_unfinished(disk, path, checkpointed):
            raise LogUnfinished(
                f"{path} has no complete {PARTITION_METADATA}, and no acknowledged records"
            ) from None
        if isinstance(error, FileFormatError):
            raise LogDamaged(f"{file}: {error}. {REMEDY}") from None
        raise LogDamaged(
            f"{path} has no {PARTITION_METADATA}: it is not a partition, or its topic is "
            "unknown. Nothing was changed; restore"
            " the file, or move the directory out of the log directory"
        ) from None


def _is_unfinished(disk: Disk, path: Path, checkpointed: CheckpointedState) -> bool:
    """Whether the directory has only files that the creation of a partition leaves, and no
    acknowledged record.

    After a power cut, files of a log that was never synced may still have records. They were not
    acknowledged.
    """
    names = disk.list(path)
    return (
        not checkpointed.high_watermark
        and all(_is_partition_file(name) or _is_leftover(name) for name in names)
        and not (
            checkpointed.unsynced_survived
            and any(disk.open(path / name).size() for name in names if name.endswith(LOG_SUFFIX))
        )
    )


def _is_partition_file(name: str) -> bool:
    return (
        parse_segment_file_name(name) is not None
        or parse_timers_file_name(name) is not None
        or name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT, LOG_END_VOID)
        or is_first_offset_file(name)
    )


def _is_leftover(name: str) -> bool:
    """Whether a crash left this file: not yet renamed to a file of the partition, or not yet
    removed.
    """
    return name.endswith(_TEMPORARY_SUFFIXES) and _is_partition_file(name.rpartition(".")[0])


def remove_leftovers(disk: Disk, path: Path, report: RecoveryReport) -> tuple[list[Offset], Offset]:
    """Finish interrupted swaps and remove temporary files. Returns the base offsets of the
    segments, ascending, and the offset of the first offset file. Raises LogDamaged, OSError.
    """
    try:
        for finding in finish_interrupted_swaps(disk, path):
            report.note(finding)
    except StorageError as error:
        raise LogDamaged(str(error)) from None
    bases: list[Offset] = []
    other_files: list[tuple[Offset, str, str]] = []
    names = disk.list(path)
    for name in names:
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed[1] == LOG_SUFFIX:
            bases.append(parsed[0])
        elif parsed is not None:
            other_files.append((*parsed, name))
        elif _is_leftover(name):
            disk.remove(path / name)
        elif name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)):
            report.note(f"file {name} is not part of the log and is ignored")
    known_bases = set(bases)
    for base, suffix, name in other_files:
        if suffix != SNAPSHOT_SUFFIX and base not in known_bases:
            report.note(f"index {name} has no segment and is removed")
            disk.remove(path / name)
    return sorted(bases), first_offset_of(names)
