"""Writes, merges and loads the files of a timer index (timer_format.py), in worker threads.

A file is written under a temporary name, synced and renamed. A crash may leave a temporary file, or
merged files beside the result of their merge. A load removes both.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from crc32c import crc32c

from mqd.limits import TIMER_RUNS_MERGED, TIMERS_PER_MERGE_STEP
from mqd.protocol.files import (
    TIMERS_SUFFIX,
    FileFormatError,
    parse_timers_file_name,
    timers_file_name,
)
from mqd.relay.timer_format import (
    ENTRY_BYTES,
    HEADER_BYTES,
    KEY,
    KEY_BYTES,
    Buckets,
    DoneEntries,
    RunHeader,
    cut_sorted,
    numbers_of,
    split,
)
from mqd.relay.timer_run import KEYS_PER_FENCE, TimerRun, open_run
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

_TEMPORARY: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class TimerFolder:
    """Where the files of one timer index are, and what is in all of their headers."""

    disk: Disk
    path: Path
    """The directory of the partition's log. The files vanish with it."""
    topic_id: UUID
    partition: int
    keeps_keys: bool

    def header(self, start: Offset, end: Offset, leader_epoch: int) -> RunHeader:
        return RunHeader(
            self.topic_id, self.partition, start, end, leader_epoch, self.keeps_keys, 0, 0, 0
        )


class _Writer:
    """One new file: entries, then keys. The caller removes it after an error."""

    def __init__(self, folder: TimerFolder, header: RunHeader) -> None:
        self._disk = folder.disk
        self._target = folder.path / timers_file_name(header.start, header.end)
        self.path = _temporary_path(self._target)
        self._header = header
        self._file = folder.disk.open(self.path, create=True)
        self._file.truncate(0)
        self._file.append([bytes(HEADER_BYTES)])
        self._buckets = Buckets(header.start, header.end)
        self._fences = array("Q")
        self._entries = self._keys = self._crc = 0

    def entries(self, entries: Sequence[bytes]) -> None:
        data = b"".join(entries)
        self._append(data)
        self._entries += len(entries)
        self._buckets.add(numbers_of(data, 1, 3))

    def end_of_entries(self) -> None:
        self._append(self._buckets.encode())

    def keys(self, keys: Sequence[bytes]) -> None:
        self._append(b"".join(keys))
        first = -self._keys % KEYS_PER_FENCE
        self._fences.extend(KEY.unpack(key)[0] for key in keys[first::KEYS_PER_FENCE])
        self._keys += len(keys)

    def finish(self) -> TimerRun:
        header = self._header._replace(entries=self._entries, keys=self._keys, body_crc=self._crc)
        self._file.write_at(0, header.encode())
        self._file.sync()
        self._file.close()
        return TimerRun(self._disk, self._target, header, self._fences, self._buckets)

    def _append(self, data: bytes) -> None:
        if data:
            self._file.append([data])
            self._crc = crc32c(data, self._crc)

    def abandon(self) -> None:
        with suppress(OSError):
            self._file.close()
            self._disk.remove(self.path)


def _temporary_path(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY)


def publish(folder: TimerFolder, run: TimerRun) -> None:
    """Give a new file its name. Until then the run cannot be read. Raises OSError.

    The new file may replace one with the same name. So the caller replaces the run, too, before
    anything reads.
    """
    folder.disk.rename(_temporary_path(run.path), run.path, durable=False)


def write_run(
    folder: TimerFolder, header: RunHeader, entries: list[bytes], keys: Iterable[bytes]
) -> Generator[TimerRun | None]:
    """Write a sealed table in steps of some milliseconds. The last step yields the run; `publish`
    follows. The first step sorts `entries` in place. Raises OSError, and removes what it has
    written, also if it is closed early.
    """
    writer = _Writer(folder, header)
    try:
        entries.sort()
        yield None
        writer.entries(entries)
        writer.end_of_entries()
        yield None
        ordered = sorted(keys)
        yield None
        writer.keys(ordered)
        yield None
        run = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    yield run


def merge_runs(
    folder: TimerFolder, runs: Sequence[TimerRun], done: DoneEntries, floor: Offset
) -> Generator[TimerRun | None]:
    """Merge neighbours in steps of some milliseconds. The last step yields the new run; `publish`
    follows. Raises OSError and StorageError, and removes what it has written, also if it is closed
    early.

    Left out are entries that are done, and keys below `floor`: no pending record is older. Without
    `keeps_keys` only tombstones have keys.
    """
    first, last = runs[0].header, runs[-1].header
    writer = _Writer(folder, folder.header(first.start, last.end, last.leader_epoch))
    try:
        starts = list[int]()
        for number, run in enumerate(runs, start=1):
            starts.append(run.start_after(done))
            if number % TIMER_RUNS_MERGED == 0:
                yield None
        counts = [run.header.entries for run in runs]
        readers = [run.read_entries for run in runs]
        merged = 0
        for entries in _merged(readers, starts, counts, ENTRY_BYTES):
            is_mixed = bool(entries) and entries[0] < done.top
            writer.entries(
                [one for one in entries if not done.covers(one)] if is_mixed else entries
            )
            merged += len(entries)
            if merged >= TIMERS_PER_MERGE_STEP // 2:
                merged = 0
                yield None
        writer.end_of_entries()
        low = floor << 1
        readers, counts = [run.read_keys for run in runs], [run.header.keys for run in runs]
        for keys in _merged(readers, [0] * len(runs), counts, KEY_BYTES):
            codes = numbers_of(b"".join(keys), 1, 2)
            writer.keys(
                [
                    key
                    for key, code in zip(keys, codes)
                    if code >= low and (code & 1 or folder.keeps_keys)
                ]
            )
            merged += len(keys)
            if merged >= TIMERS_PER_MERGE_STEP // 2:
                merged = 0
                yield None
        yield None
        run = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    yield run


def _merged(
    readers: Sequence[Callable[[int, int], bytes]],
    starts: list[int],
    counts: Sequence[int],
    size: int,
) -> Iterator[list[bytes]]:
    """The items of several files in order, at most TIMERS_PER_MERGE_STEP at a time."""
    buffers: list[list[bytes]] = [[] for _ in readers]
    read_at_once = max(TIMERS_PER_MERGE_STEP // len(readers), 1)
    while True:
        for number, buffer in enumerate(buffers):
            if not buffer and starts[number] < counts[number]:
                data = readers[number](starts[number], read_at_once)
                buffers[number] = split(data, size)
                starts[number] += len(buffers[number])
        if not any(buffers):
            return
        complete = [start >= count for start, count in zip(starts, counts)]
        yield cut_sorted(buffers, complete)


@dataclass(frozen=True, slots=True)
class LogRange:
    """What the log has: its start, the end of its committed records, and their leader epochs."""

    start: Offset
    end: Offset
    epoch_of: Callable[[Offset], int]


def load_runs(
    folder: TimerFolder, log: LogRange, done: DoneEntries
) -> Generator[list[TimerRun] | None]:
    """The runs of an earlier start that agree with the log, in order of offsets, from the last of
    several steps. All other files are removed. Raises OSError.
    """
    disk, runs = folder.disk, list[TimerRun]()
    found: list[tuple[Offset, Offset]] = []
    for name in disk.list(folder.path):
        if name.endswith(TIMERS_SUFFIX + _TEMPORARY):
            disk.remove(folder.path / name)
        elif (parsed := parse_timers_file_name(name)) is not None:
            found.append(parsed)
    for start, end in sorted(found, key=lambda one: (one[0], -one[1])):
        path = folder.path / timers_file_name(start, end)
        if runs and end <= runs[-1].header.end:  # merged into that one
            disk.remove(path)
            continue
        try:
            run = yield from open_run(disk, path)
            _check(run.header, folder, log, (start, end), runs)
        except FileFormatError as error:
            logger.warning("timers are read from the log again file=%s reason=%s", path, error)
            disk.remove(path)
            continue
        yield from run.forget_done(done)
        run.seek(run.start_after(done))
        runs.append(run)
    yield runs


def _check(
    header: RunHeader,
    folder: TimerFolder,
    log: LogRange,
    named: tuple[Offset, Offset],
    before: Sequence[TimerRun],
) -> None:
    """Raises FileFormatError if the run is not of this log, or not of these records."""
    if (header.start, header.end) != named:
        raise FileFormatError(f"it has the offsets {header.start} to {header.end}")
    if (header.topic_id, header.partition) != (folder.topic_id, folder.partition):
        raise FileFormatError(f"it is of partition {header.partition} of {header.topic_id}")
    if before and header.start < before[-1].header.end:
        raise FileFormatError("its offsets overlap with those of another file")
    if header.end <= log.start:
        raise FileFormatError(f"the log begins at offset {log.start}")
    if header.end > log.end:
        raise FileFormatError(f"the log ends at offset {log.end}")
    epoch = log.epoch_of(header.end - 1)
    if epoch != header.leader_epoch:
        raise FileFormatError(
            f"it has leader epoch {header.leader_epoch} at offset {header.end - 1}, the log {epoch}"
        )
    if folder.keeps_keys and not header.keeps_keys:
        raise FileFormatError("it has no keys, and mqd.delay.replace needs them")


def delete_runs(disk: Disk, path: Path) -> None:
    """Remove the files of a topic that is no delay topic any more. Raises OSError."""
    for name in disk.list(path):
        if parse_timers_file_name(name.removesuffix(_TEMPORARY)) is not None:
            disk.remove(path / name)
