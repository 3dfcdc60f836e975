"""The files of one segment: creates, opens, writes, truncates and renames them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import PASSING_ERRNOS
from mqd.log.index import OffsetIndex, TimeIndex
from mqd.log.log_config import LogConfig
from mqd.log.segment import Segment
from mqd.log.transaction_index import TransactionIndex
from mqd.protocol.files import (
    DELETED_SUFFIX,
    INDEX_ENTRY,
    INDEX_SUFFIX,
    KEY_FILTER_SUFFIX,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_ENTRY,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    BadBatch,
    FileFormatError,
    scan_batches,
    segment_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File

logger = logging.getLogger(__name__)


def new_segment(disk: Disk, path: Path, base_offset: Offset, now_ms: int) -> Segment:
    """Create an empty segment with its three files in the partition's directory `path`. Not yet
    durable.
    """
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.open(path / segment_file_name(base_offset, suffix), create=True).truncate(0)
    file = disk.open(path / segment_file_name(base_offset, LOG_SUFFIX), create=True)
    file.truncate(0)
    return Segment(base_offset, now_ms, file)


def remove_segment(disk: Disk, path: Path, base_offset: Offset) -> None:
    for suffix in (
        KEY_FILTER_SUFFIX,
        LOG_SUFFIX,
        INDEX_SUFFIX,
        TIME_INDEX_SUFFIX,
        TXN_INDEX_SUFFIX,
    ):
        disk.remove(path / segment_file_name(base_offset, suffix))


def retire_segment(
    disk: Disk, path: Path, segment: Segment, *, or_remove: bool = False
) -> list[Path]:
    """Rename a segment's files to .deleted. Returns the files to remove later. `or_remove`: if a
    full disk has no space for the longer names, remove them at once.
    """
    retired = []
    for suffix in (
        *(KEY_FILTER_SUFFIX, LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX),
        SNAPSHOT_SUFFIX,
    ):
        source = path / segment_file_name(segment.base_offset, suffix)
        if disk.exists(source):
            target = source.with_name(source.name + DELETED_SUFFIX)
            try:
                disk.rename(source, target, durable=False)
            except OSError as error:
                if not or_remove or error.errno not in PASSING_ERRNOS:
                    raise
                disk.remove(source)
                continue
            retired.append(target)
    return retired


def load_indexes(
    disk: Disk, path: Path, base_offset: Offset, log_size: int, suffix: str = ""
) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes of a segment. FileNotFoundError or FileFormatError if one is missing or damaged.

    `suffix`: as `Segment.suffix`.
    """
    index = OffsetIndex.load(
        base_offset,
        disk.read_bytes(path / segment_file_name(base_offset, INDEX_SUFFIX + suffix)),
        log_size,
    )
    return index, TimeIndex.load(
        base_offset,
        disk.read_bytes(path / segment_file_name(base_offset, TIME_INDEX_SUFFIX + suffix)),
    )


def store_indexes(disk: Disk, path: Path, segment: Segment) -> None:
    """Write both index files. If there is no space, remove the file, as `append_indexes` does.
    Raises OSError otherwise.
    """
    assert segment.index is not None and segment.time_index is not None
    for index, suffix in ((segment.index, INDEX_SUFFIX), (segment.time_index, TIME_INDEX_SUFFIX)):
        name = path / segment_file_name(segment.base_offset, suffix)
        try:
            file = disk.open(name, create=True)
            file.truncate(0)
            file.append([index.encode()])
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            logger.warning("cannot write an index file=%s reason=%s", name, error)
            index.unwrite()
            disk.remove(name)


def read_transaction_index(disk: Disk, path: Path, segment: Segment) -> TransactionIndex:
    """Read the transaction index of a segment. Empty if there is no file. FileFormatError if it is
    damaged.
    """
    try:
        data = disk.read_bytes(
            path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX + segment.suffix)
        )
    except FileNotFoundError:
        return TransactionIndex()
    return TransactionIndex.load(data, segment.base_offset, segment.next_offset)


def store_transaction_index(disk: Disk, path: Path, segment: Segment) -> bool:
    """Write the file of the transaction index, or remove it if the index is empty.

    False if there is no space: then the index stays stale. Raises OSError.
    """
    assert segment.transaction_index is not None
    name = path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX)
    if not segment.transaction_index:
        disk.remove(name)
        return True
    try:
        disk.write_atomic(name, segment.transaction_index.encode())
    except OSError as error:
        segment.transaction_index.stale = True
        if error.errno not in PASSING_ERRNOS:
            raise
        logger.warning("cannot write an index file=%s reason=%s", name, error)
        return False
    return True


def append_indexes(disk: Disk, path: Path, segment: Segment) -> None:
    """Append the entries that the index files lack. If that fails, remove the file; the next call
    writes all entries.
    """
    assert segment.index is not None and segment.time_index is not None
    for index, suffix in ((segment.index, INDEX_SUFFIX), (segment.time_index, TIME_INDEX_SUFFIX)):
        if index.unwritten:
            file = path / segment_file_name(segment.base_offset, suffix)
            try:
                disk.open(file, create=True).append([index.take_unwritten()])
            except OSError as error:
                logger.warning("cannot write an index file=%s reason=%s", file, error)
                index.unwrite()
                disk.remove(file)


def open_indexes(disk: Disk, path: Path, segment: Segment) -> tuple[File | None, File | None]:
    """Open the files of both indexes, for `truncate_segment`. None for a file that `append_indexes`
    has removed: a full disk has no space to create it. Raises OSError.
    """
    files = (
        path / segment_file_name(segment.base_offset, suffix)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    )
    index, time_index = (disk.open(file) if disk.exists(file) else None for file in files)
    return index, time_index


def truncate_segment(
    segment: Segment,
    size: int,
    next_offset: Offset,
    index_files: tuple[File | None, File | None],
) -> None:
    """Truncate an open segment and its index files. Needs no disk space and no descriptor. Raises
    OSError or BadBatch.
    """
    assert segment.file is not None
    segment.file.truncate(size)
    segment.on_truncated(size, next_offset)
    assert segment.index is not None and segment.time_index is not None
    index_file, time_index_file = index_files
    for index, file, entry in (
        (segment.index, index_file, INDEX_ENTRY),
        (segment.time_index, time_index_file, TIME_INDEX_ENTRY),
    ):
        if file is None:
            index.unwrite()
        else:
            file.truncate((len(index) - index.unwritten) * entry.size)
    for _position, header, _view in scan_batches(
        segment.file.read_at, segment.index.last_position(), size
    ):
        segment.note_time(header.last_offset, header.max_timestamp)


def open_segment(disk: Disk, path: Path, segment: Segment, config: LogConfig) -> None:
    """Open the file and the indexes of a segment. Missing or damaged indexes are rebuilt. Raises
    OSError or BadBatch.
    """
    if segment.file is None:
        segment.file = disk.open(
            path / segment_file_name(segment.base_offset, LOG_SUFFIX + segment.suffix)
        )
    if segment.index is None:
        try:
            segment.index, segment.time_index = load_indexes(
                disk, path, segment.base_offset, segment.size, segment.suffix
            )
        except (FileFormatError, FileNotFoundError) as error:
            logger.warning("index rebuilt segment=%s reason=%s", segment.file.path, error)
            rebuilt = Segment(segment.base_offset, segment.created_ms, segment.file)
            rebuild(rebuilt, segment.size, config.index_interval_bytes)
            rebuilt.on_inactive()
            if not segment.suffix:
                store_indexes(disk, path, rebuilt)
            segment.index, segment.time_index = rebuilt.index, rebuilt.time_index


def rebuild(segment: Segment, size: int, index_interval_bytes: int) -> None:
    """Build the state and the indexes of a segment from the headers in its file. BadBatch."""
    assert segment.file is not None and not segment.size
    for position, header, view in scan_batches(segment.file.read_at, 0, size):
        if (
            not segment.next_offset <= header.base_offset
            or header.last_offset > segment.base_offset + RELATIVE_OFFSET_MAX
        ):
            raise BadBatch(
                position, f"base offset {header.base_offset} where {segment.next_offset} was due"
            )
        segment.add(header.last_offset, len(view), header.max_timestamp, index_interval_bytes)
