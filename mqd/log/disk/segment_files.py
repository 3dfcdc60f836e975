"""The files of one segment: made, opened, written, cut, renamed out of the log; for the
service, for recovery and for worker threads.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import PASSING_ERRNOS
from mqd.log.index import OffsetIndex, TimeIndex
from mqd.log.log_config import LogConfig
from mqd.log.segment import Segment
from mqd.log.transaction_index import AbortedIndex
from mqd.protocol.files import (
    DELETED_SUFFIX,
    INDEX_ENTRY,
    INDEX_SUFFIX,
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
    """An empty segment in the partition directory `path`, its three files created (not yet
    durable).
    """
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.open(path / segment_file_name(base_offset, suffix), create=True).truncate(0)
    file = disk.open(path / segment_file_name(base_offset, LOG_SUFFIX), create=True)
    file.truncate(0)
    return Segment(base_offset, now_ms, file)


def remove_segment(disk: Disk, path: Path, base_offset: Offset) -> None:
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        disk.remove(path / segment_file_name(base_offset, suffix))


def retire_segment(
    disk: Disk, path: Path, segment: Segment, *, or_remove: bool = False
) -> list[Path]:
    """Rename a segment's files out of the log; returns what is to be removed later. `or_remove`: a
    full directory has no room for longer names, and then they are removed at once.
    """
    retired = []
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
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
    """Both indexes of a segment; FileNotFoundError or FileFormatError when they are of no use.

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
    """Write both index files anew.

    Without space there is none, as with `append_indexes`; other errors are raised.
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


def load_aborted(disk: Disk, path: Path, segment: Segment) -> AbortedIndex:
    """The aborted transactions of a segment, from its file; none where there is no file.

    FileFormatError where it makes no sense.
    """
    try:
        data = disk.read_bytes(
            path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX + segment.suffix)
        )
    except FileNotFoundError:
        return AbortedIndex()
    return AbortedIndex.load(data, segment.base_offset, segment.next_offset)


def store_aborted(disk: Disk, path: Path, segment: Segment) -> bool:
    """Write the file anew, or remove it where nothing was aborted.

    False without space for it: it stays stale then. OSError.
    """
    assert segment.aborted is not None
    name = path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX)
    if not segment.aborted:
        disk.remove(name)
        return True
    try:
        disk.write_atomic(name, segment.aborted.encode())
    except OSError as error:
        segment.aborted.stale = True
        if error.errno not in PASSING_ERRNOS:
            raise
        logger.warning("cannot write an index file=%s reason=%s", name, error)
        return False
    return True


def append_indexes(disk: Disk, path: Path, segment: Segment) -> None:
    """Write the entries that the index files lack.

    Where that fails the files are removed, to be written whole next time.
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
    """The files of both indexes, to be cut. OSError.

    None for one that `append_indexes` has removed: a full disk has no room to make it anew."""
    files = (
        path / segment_file_name(segment.base_offset, suffix)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    )
    index, time_index = (disk.open(file) if disk.exists(file) else None for file in files)
    return index, time_index


def cut_segment(
    segment: Segment, size: int, next_offset: Offset, files: tuple[File | None, File | None]
) -> None:
    """Cut a segment that is open, and its index files; needs no space on the disk, and no
    descriptor.

    OSError; BadBatch where what stays makes no sense.
    """
    assert segment.file is not None
    segment.file.truncate(size)
    segment.cut_to(size, next_offset)
    assert segment.index is not None and segment.time_index is not None
    for index, file, entry in (
        (segment.index, files[0], INDEX_ENTRY),
        (segment.time_index, files[1], TIME_INDEX_ENTRY),
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
    """Have the file and the indexes of an older segment at hand; indexes that are missing
    or insane are rebuilt.
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
            fresh = Segment(segment.base_offset, segment.created_ms, segment.file)
            rebuild(fresh, segment.size, config.index_interval_bytes)
            fresh.seal()
            if not segment.suffix:
                store_indexes(disk, path, fresh)
            segment.index, segment.time_index = fresh.index, fresh.time_index


def rebuild(segment: Segment, size: int, index_interval_bytes: int) -> None:
    """Fill an empty segment's state and indexes from the headers in its file.

    BadBatch where they make no sense.
    """
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
