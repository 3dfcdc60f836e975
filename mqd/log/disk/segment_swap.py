"""A cleaned segment takes the place of those that it was made of, so that a crash at any point
leaves the old ones or the new one.

Kafka's names, and its order; "durable" is a sync of the partition's directory, in a worker thread
but for `settle`:

    .cleaned    being written, then synced, then durable by name
    .swap       `stage`: all files of the new segment have this name; durable before anything old
                goes `put_in_place`: the log reads from the new segment; the old ones but the first
                are
                .deleted; durable
    (none)      `complete`: renamed over the first of the old ones; durable

A start (`finish_replacements`) drops everything where a .cleaned is left, and carries on with what
is .swap where none is: removes what the new segment covers, and renames it. That the last batch of
a cleaned segment always stays tells what it covers.

Whoever cuts the log or takes segments out of it between two steps calls `settle` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqd.errors import StorageError
from mqd.log.disk.segment_files import remove_segment, retire_segment
from mqd.log.partition_log import PartitionLog, Replacement
from mqd.protocol.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    BadBatch,
    parse_segment_file_name,
    scan_batches,
    segment_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

FILES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX)
"""What a segment consists of, the log last: where its name is right, all are."""


def stage(disk: Disk, log: PartitionLog, replacement: Replacement) -> None:
    """The files of the new segment are written and durable under their names: from here on
    a start may finish it. OSError.
    """
    assert log.replacement is None, log
    log.replacement = replacement
    _rename(disk, log.path, replacement.cleaned.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
    replacement.cleaned.suffix = SWAP_SUFFIX


def put_in_place(disk: Disk, log: PartitionLog) -> list[Path]:
    """Read from the new segment from here on; returns what is to be removed later. OSError."""
    replacement = log.replacement
    assert replacement is not None and not replacement.is_in_place
    old = replacement.old
    log.on_cleaned(old, replacement.cleaned)
    replacement.is_in_place = True
    retired = []
    for segment in reversed(old[1:]):
        retired += retire_segment(disk, log.path, segment)
    for segment in old:
        segment.file = segment.index = segment.time_index = None
    return retired


def complete(disk: Disk, log: PartitionLog) -> None:
    """That the old segments are gone is durable: the new one gets its name. OSError."""
    replacement = log.replacement
    assert replacement is not None and replacement.is_in_place
    _rename(disk, log.path, replacement.cleaned.base_offset, SWAP_SUFFIX, "")
    replacement.cleaned.suffix = ""
    log.replacement = None


def settle(disk: Disk, log: PartitionLog) -> None:
    """Bring a replacement to one end or the other, at once: the log is about to be made shorter.
    OSError: this may be called again.

    The syncs of a directory hold up the loop for milliseconds; that a cut falls between two steps
    is rare.
    """
    replacement = log.replacement
    if replacement is None:
        return
    if replacement.is_in_place:
        disk.sync_directory(log.path)
        complete(disk, log)
        try:
            # before anything else is .cleaned: a start would drop it all
            disk.sync_directory(log.path)
        except OSError:
            log.replacement = replacement
            raise
        return
    base_offset = replacement.cleaned.base_offset
    source = log.path / segment_file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)
    if disk.exists(source):
        disk.rename(
            source,
            log.path / segment_file_name(base_offset, LOG_SUFFIX + CLEANED_SUFFIX),
            durable=False,
        )
    disk.sync_directory(log.path)  # a start drops it all
    drop_files(disk, log.path, base_offset)
    log.replacement = None


def drop_files(disk: Disk, path: Path, base_offset: Offset) -> None:
    """Remove the files of a segment that does not count yet; what says so goes last."""
    for suffix in FILES:
        disk.remove(path / segment_file_name(base_offset, suffix + SWAP_SUFFIX))
    disk.sync_directory(path)
    for suffix in FILES:
        disk.remove(path / segment_file_name(base_offset, suffix + CLEANED_SUFFIX))


def finish_replacements(disk: Disk, path: Path) -> list[str]:
    """What a crash left of replacements in a partition's directory: finished or dropped. Tells what
    was done, one line each.

    StorageError for a new segment that cannot be read, and nothing is changed; OSError.
    """
    told = []
    names = disk.list(path)
    if cleaned := _bases(names, CLEANED_SUFFIX):
        for base_offset in sorted(
            cleaned | {base for base in _bases(names, SWAP_SUFFIX) if base >= min(cleaned)}
        ):
            drop_files(disk, path, base_offset)
            told.append(
                f"a compaction was interrupted: what it wrote of segment {base_offset} is dropped"
            )
        names = disk.list(path)
    for base_offset in sorted(_bases(names, SWAP_SUFFIX)):
        name = segment_file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)
        if name in names:
            end = _end_of(disk, path / name, base_offset)
            for other in sorted(_bases(names, ""), reverse=True):
                if base_offset < other < end:
                    remove_segment(disk, path, other)
            disk.sync_directory(path)
        _rename(disk, path, base_offset, SWAP_SUFFIX, "")
        disk.sync_directory(path)
        told.append(f"a compaction was interrupted: its segment {base_offset} takes its place")
    return told


def _end_of(disk: Disk, path: Path, base_offset: Offset) -> Offset:
    file = disk.open(path)
    end = base_offset
    try:
        for _position, header, _view in scan_batches(file.read_at, 0, file.size()):
            end = header.next_offset
    except BadBatch as bad:
        raise StorageError(
            f"{path} {bad}: a compaction was interrupted, and what it wrote is damaged"
        ) from None
    replaced = path.with_name(segment_file_name(base_offset, LOG_SUFFIX))
    if not file.size() and disk.exists(replaced) and disk.open(replaced).size():
        raise StorageError(
            f"{path} is empty: a compaction was interrupted, and what it wrote is gone"
        )
    return end


def _bases(names: Iterable[str], suffix: str) -> set[Offset]:
    """Base offsets of the segments of which a file has this suffix; without one: of which
    the log is there.
    """
    found = set()
    for name in names:
        parsed = (
            parse_segment_file_name(name.removesuffix(suffix)) if name.endswith(suffix) else None
        )
        if parsed is not None and (suffix or parsed[1] == LOG_SUFFIX):
            found.add(parsed[0])
    return found


def _rename(disk: Disk, path: Path, base_offset: Offset, old: str, new: str) -> None:
    for suffix in FILES:
        source = path / segment_file_name(base_offset, suffix + old)
        if disk.exists(source):
            disk.rename(source, path / segment_file_name(base_offset, suffix + new), durable=False)
