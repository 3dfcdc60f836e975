"""Swaps a cleaned segment for the segments that it was made of. A crash at any point leaves the old
segments or the new one.

The suffixes and their order are Kafka's. "Durable" means a sync of the partition's directory, in a
worker thread (only `finish_or_abort_swap` syncs on the event loop):

    .cleaned    The files are being written, then synced. Then their names are made durable.
    .swap       `begin_swap` renames all files of the new segment. Durable before any old file is
                renamed. `put_in_place`: the log reads the new segment, and the old segments except
                the first are renamed to .deleted. Durable.
    (none)      `complete_swap` renames the new files over those of the first old segment. Durable.

A start (`finish_interrupted_swaps`) removes all files of a swap if a .cleaned file is left.
Otherwise it finishes the swap: it removes the segments that the .swap segment covers, and renames
it. The covered offsets end with the last batch of a cleaned segment, which compaction always keeps.

Call `finish_or_abort_swap` before a truncation or a removal of segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqd.errors import StorageError
from mqd.log.disk.key_filter_build import filter_path, remove_filter
from mqd.log.disk.segment_files import remove_segment, retire_segment
from mqd.log.partition_log import PartitionLog, SegmentSwap
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
"""The files of a segment, in the order in which they are renamed. Once the log has its new name,
all others have theirs."""


def begin_swap(disk: Disk, log: PartitionLog, swap: SegmentSwap) -> None:
    """The .cleaned files are written and durable. From here on a start may finish the swap. Raises
    OSError."""
    assert log.swap is None, log
    for segment in swap.old:
        remove_filter(disk, log.path, segment)  # before any file of the new one has its name
    log.swap = swap
    _rename(disk, log.path, swap.cleaned.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
    swap.cleaned.suffix = SWAP_SUFFIX


def put_in_place(disk: Disk, log: PartitionLog) -> list[Path]:
    """Let the log read the new segment. Returns the files to remove later. Raises OSError."""
    swap = log.swap
    assert swap is not None and not swap.is_in_place
    old = swap.old
    log.on_cleaned(old, swap.cleaned)
    swap.is_in_place = True
    retired = []
    for segment in reversed(old[1:]):
        retired += retire_segment(disk, log.path, segment)
    for segment in old:
        segment.file = segment.index = segment.time_index = None
    return retired


def complete_swap(disk: Disk, log: PartitionLog) -> None:
    """The removal of the old segments is durable: rename the new one. Raises OSError."""
    swap = log.swap
    assert swap is not None and swap.is_in_place
    _rename(disk, log.path, swap.cleaned.base_offset, SWAP_SUFFIX, "")
    swap.cleaned.suffix = ""
    log.swap = None


def finish_or_abort_swap(disk: Disk, log: PartitionLog) -> None:
    """Finish a swap that is in place, or abort it. Raises OSError: this may be called again.

    The syncs of the directory delay the event loop for milliseconds. A truncation rarely occurs
    during a swap.
    """
    swap = log.swap
    if swap is None:
        return
    if swap.is_in_place:
        disk.sync_directory(log.path)
        complete_swap(disk, log)
        try:
            # Before any other .cleaned file exists: a start would remove this segment, too.
            disk.sync_directory(log.path)
        except OSError:
            log.swap = swap
            raise
        return
    base_offset = swap.cleaned.base_offset
    source = log.path / segment_file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)
    if disk.exists(source):
        disk.rename(
            source,
            log.path / segment_file_name(base_offset, LOG_SUFFIX + CLEANED_SUFFIX),
            durable=False,
        )
    disk.sync_directory(log.path)  # from here on a start aborts the swap
    remove_unfinished_files(disk, log.path, base_offset)
    log.swap = None


def remove_unfinished_files(disk: Disk, path: Path, base_offset: Offset) -> None:
    """Remove the files of a segment that is not in place. The .cleaned files are last: as long as
    one is left, a start removes the others.
    """
    for suffix in FILES:
        disk.remove(path / segment_file_name(base_offset, suffix + SWAP_SUFFIX))
    disk.sync_directory(path)
    for suffix in FILES:
        disk.remove(path / segment_file_name(base_offset, suffix + CLEANED_SUFFIX))


def finish_interrupted_swaps(disk: Disk, path: Path) -> list[str]:
    """At a start: finish or abort the swaps in a partition's directory that a crash interrupted.
    Returns a sentence for each.

    Raises OSError, and StorageError if a new segment cannot be read; then nothing is changed.
    """
    findings = []
    names = disk.list(path)
    if cleaned := _bases(names, CLEANED_SUFFIX):
        for base_offset in sorted(
            cleaned | {base for base in _bases(names, SWAP_SUFFIX) if base >= min(cleaned)}
        ):
            remove_unfinished_files(disk, path, base_offset)
            findings.append(
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
        disk.remove(filter_path(path, base_offset))
        _rename(disk, path, base_offset, SWAP_SUFFIX, "")
        disk.sync_directory(path)
        findings.append(f"a compaction was interrupted: its segment {base_offset} takes its place")
    return findings


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
    """Base offsets of the segments that have a file with this suffix. Without a suffix: that have a
    log file.
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
