"""The timer index of one delay partition: its pending records, by the time at which they are due.

The index is derived from the log, and may be rebuilt from it at any time. The caller reads the log
in order of offsets, up to the last stable offset, and reports each record: `add`, `cancel` for a
tombstone, `read_to` for all others. It takes due records with `pop`, and commits the `progress()`
of the index together with what it has done with them. Then `confirm` says so. After a failed
commit, `rewind` makes the records pending again. After a restart or a failover, `load` gets the
last committed progress. It must cover every progress that was confirmed.

The newest entries are in memory (timer_table.py). The task of `run` writes full tables to files
(timer_run.py), and merges files of about the same size. A file has what is known about a range of
offsets. A load uses those that agree with the log. So memory is bounded, and a start reads only
the last records again.

Hashes of keys have 64 bits, so different keys may have the same one. `cancelled_by`, `replaced_by`
and `latest_of` therefore return offsets of records whose key may be equal. The caller reads these
records and compares the keys, which makes the result exact.

Invariant (I56): an entry that the confirmed progress does not cover is in the index: pending, or
popped and not confirmed. A progress covers only entries that were popped.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Generator, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import UUID

import trio

from mqd.limits import (
    TIMER_PROGRESS_MARKS_MAX,
    TIMER_RUNS_MAX,
    TIMER_TABLES_MAX,
    TIMERS_IN_MEMORY,
)
from mqd.protocol.record_reader import INT64_MAX
from mqd.relay.delay_progress import Mark, TimerProgress
from mqd.relay.timer_files import LogRange, TimerFolder, load_runs, merge_runs, publish, write_run
from mqd.relay.timer_format import (
    ENTRY,
    NO_KEY,
    Buckets,
    DoneEntries,
    Entry,
    choose_merge,
)
from mqd.relay.timer_run import TimerRun
from mqd.relay.timer_table import TimerTable
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 10.0
"""After a file could not be written, the next attempt follows."""
_POPS_PER_CHOICE: Final = 4_096

_ResultT = TypeVar("_ResultT")

__all__ = ("NO_KEY", "Entry", "TimerIndex", "TimerStatistics", "key_hash_of")


class TimerStatistics(NamedTuple):
    pending: int
    in_memory: int
    """Entries that are in no file yet."""
    runs: int
    """Files."""


def key_hash_of(key: bytes | None, only: Offset | None = None) -> int:
    """64 bits; NO_KEY for a record without a key. `only`: of a tombstone that cancels only the
    record at this offset. It has another hash, so a look-up for one record finds no others."""
    if key is None:
        return NO_KEY
    person = b"" if only is None else (only + 1).to_bytes(9, "big")
    return int.from_bytes(blake2b(key, digest_size=8, person=person).digest(), "big") or 1


class TimerIndex:
    """`directory`: that of the partition's log. `epoch_of`: the leader epoch of the record at an
    offset. `keeps_keys`: whether `replaced_by` and `latest_of` are used (`mqd.delay.replace`).
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic_id: UUID,
        partition: int,
        epoch_of: Callable[[Offset], int],
        *,
        keeps_keys: bool = False,
        entries_in_memory: int = TIMERS_IN_MEMORY,
    ) -> None:
        self._disk = disk
        self._folder = TimerFolder(disk, directory, topic_id, partition, keeps_keys)
        self._epoch_of = epoch_of
        self._entries_max = entries_in_memory
        self.next_offset: Offset = 0
        """The first offset that the index does not know yet: the caller reads the log from here.
        After a record, it may be much higher than the next one: files have what is between.
        """
        self._gaps: list[tuple[Offset, Offset]] = []
        """Ranges of offsets below the last run that no run has; the first begins at
        `next_offset`."""
        self._table = TimerTable(0)
        self._sealed: list[TimerTable] = []
        """Full tables, oldest first. They wait for their files."""
        self._runs: list[TimerRun] = []
        """In order of offsets."""
        self._heads: list[tuple[bytes, int]] = []
        """A heap: the next entry of each run, and the number of the run."""
        self._heaps: list[list[bytes]] = []
        """The heaps of entries in memory that may be popped."""
        self._returned: list[bytes] = []
        """A heap: entries that were popped before a `rewind`."""
        self._unconfirmed: set[bytes] = set()
        """Entries that were popped, and are not confirmed. Those of `_returned` are among them. No
        run returns them again."""
        self._popped_top = b""
        """No entry above this was popped or is done."""
        self._progress = self._confirmed = TimerProgress()
        self._done = DoneEntries(self._confirmed)
        self._frozen: Offset | None = None
        """If the progress has many marks: records at or above this offset wait for `passed`."""
        self._merging: list[TimerRun] = []
        """The runs of the merges that go on, each within the one before."""
        self._is_choice_due = True
        """Whether another merge may be due since `_choose_merge` returned None: a large merge asks
        after each of its steps."""
        self._work = trio.Event()
        self._room = trio.Event()

    async def load(self, progress: TimerProgress, log_start: Offset, log_end: Offset) -> None:
        """Open what an earlier run of the node has left. The caller then reads the log from
        `next_offset`. `log_end`: the end of what is committed. Raises OSError.
        """
        self._progress = self._confirmed = progress
        self._done = DoneEntries(progress)
        self._popped_top = self._done.top
        log = LogRange(log_start, log_end, self._epoch_of)
        self._runs = await self._in_steps(load_runs(self._folder, log, self._done))
        self._gaps, known = [], log_start
        for run in self._runs:
            if run.header.start > known:
                self._gaps.append((known, run.header.start))
            known = run.header.end
        self.next_offset = self._gaps[0][0] if self._gaps else known
        self._table = TimerTable(self.next_offset)
        self._list_sources()

    @property
    def has_room(self) -> bool:
        """Whether further records may be added. If not, `wait_for_room` first."""
        return len(self._sealed) < TIMER_TABLES_MAX and (
            len(self._runs) < TIMER_RUNS_MAX or not self.is_busy
        )

    async def wait_for_room(self) -> None:
        """Wait until the task of `run` has written what the memory has no room for."""
        while not self.has_room:
            if self._room.is_set():
                self._room = trio.Event()
            self._work.set()
            await self._room.wait()

    @property
    def keeps_keys(self) -> bool:
        return self._folder.keeps_keys

    @property
    def is_busy(self) -> bool:
        """Whether `run` has something to write or merge."""
        return bool(self._sealed) or bool(self._merging) or self._choose_merge() is not None

    def statistics(self) -> TimerStatistics:
        in_memory = sum(len(one.heap) for one in (self._table, *self._sealed))
        return TimerStatistics(len(self), in_memory, len(self._runs))

    # -- from the log

    def add(self, due_ms: int, offset: Offset, key_hash: int = NO_KEY) -> None:
        """The record at `offset` is due at `due_ms`. Does nothing if the index knows it already."""
        assert due_ms >= 0, due_ms
        if not self._is_new(offset):
            return
        entry = ENTRY.pack(due_ms, offset, key_hash)
        if not self._done.covers(entry):
            self._table.add(entry)
        if key_hash and self._folder.keeps_keys:
            self._table.add_key(key_hash, offset, is_tombstone=False)
        self.read_to(offset + 1)

    def cancel(self, key_hash: int, offset: Offset) -> None:
        """The record at `offset` is a tombstone. It cancels earlier records with its key."""
        if self._is_new(offset):
            self._table.add_key(key_hash, offset, is_tombstone=True)
            self.read_to(offset + 1)

    def read_to(self, offset: Offset) -> None:
        """No other record below `offset` belongs into the index."""
        while self._gaps and offset >= self._gaps[0][1]:
            self._close_gap()
        self.next_offset = max(self.next_offset, offset)
        if self._table.is_full(self._entries_max, self.next_offset):
            self._seal(self.next_offset)

    def _is_new(self, offset: Offset) -> bool:
        while self._gaps and offset >= self._gaps[0][1]:
            self._close_gap()
        return offset >= self.next_offset

    def _close_gap(self) -> None:
        """Everything up to the next run is known. Continue after that one, or after the last."""
        _, end = self._gaps.pop(0)
        self._seal(end)
        following = self._gaps[0][0] if self._gaps else self._runs[-1].header.end
        assert following > end, (following, end)
        self.next_offset = following
        self._table = TimerTable(following)
        self._list_sources()

    def _seal(self, end: Offset) -> None:
        """The table has all records below `end`. Begin a new one."""
        if end > self._table.start:
            self._table.end = end
            self._sealed.append(self._table)
            self._table = TimerTable(end)
            self._list_sources()
            self._work.set()

    # -- in the order of time

    def __len__(self) -> int:
        """Pending entries, with cancelled and replaced ones until they are due."""
        tables = sum(len(table.heap) for table in (self._table, *self._sealed))
        return tables + len(self._returned) + sum(run.left for run in self._runs)

    def peek(self) -> Entry | None:
        """The entry that is due first, and of these the one with the smallest offset. None also
        while the log is read again because a file was damaged.
        """
        if self._gaps:
            return None
        first = self._heads[0][0] if self._heads else b""
        for heap in self._heaps:
            if heap and (heap[0] < first or not first):
                first = heap[0]
        return Entry._make(ENTRY.unpack(first)) if first else None

    def upcoming(self, until_ms: int, count: int) -> list[Offset]:
        """About the next `count` entries that are due by `until_ms`, in their order. A hint: `pop`
        may return others, and fewer."""
        if self._gaps:
            return []
        bound = ENTRY.pack(until_ms, INT64_MAX, NO_KEY)
        found = [entry for heap in self._heaps for entry in _smallest(heap, bound, count)]
        for _, number in self._heads:
            found += self._runs[number].buffered(bound, count)
        return [ENTRY.unpack(entry)[1] for entry in sorted(found)[:count]]

    def pop(self) -> Entry:
        """Take the entry of `peek`. IndexError if there is none. Raises StorageError if a file is
        damaged: load a new index.
        """
        if self._gaps:
            raise IndexError("the log is read again")
        best: list[bytes] | None = None
        first = self._heads[0][0] if self._heads else b""
        for heap in self._heaps:
            if heap and (heap[0] < first or not first):
                best, first = heap, heap[0]
        if not first:
            raise IndexError("nothing is pending")
        if best is not None:
            heapq.heappop(best)
        else:
            self._take_from_run()
        self._unconfirmed.add(first)
        if first > self._popped_top:
            self._popped_top = first
        entry = Entry._make(ENTRY.unpack(first))
        self._progress = self._progress.with_mark(
            Mark(entry.due_ms, entry.offset, self._known_end())
        )
        if len(self._progress.marks) >= TIMER_PROGRESS_MARKS_MAX and self._frozen is None:
            self._freeze()
        return entry

    def _take_from_run(self) -> None:
        _, number = self._heads[0]
        run = self._runs[number]
        run.take()
        if not run.left % _POPS_PER_CHOICE:
            self._is_choice_due = True  # so much was taken that a merge may be due
            self._work.set()
        run.next()
        self._skip(run)
        if run.head:
            heapq.heapreplace(self._heads, (run.head, number))
        else:
            heapq.heappop(self._heads)

    def _skip(self, run: TimerRun) -> None:
        """Step over what was popped already."""
        while run.head and run.head <= self._popped_top:
            if run.head not in self._unconfirmed and not self._done.covers(run.head):
                break
            run.next()

    def passed(self, now_ms: int) -> None:
        """Nothing is due by `now_ms` any more, as `peek` says. This keeps the progress short.

        Records that had to wait may be pending then, and due: call `peek` again.
        """
        if self._gaps:
            return
        first = self.peek()
        assert first is None or first.due_ms > now_ms, (first, now_ms)
        self._progress = self._progress.passed(now_ms, self._known_end())
        if self._frozen is not None:
            self._frozen = None
            self._list_sources()

    def _known_end(self) -> Offset:
        """Entries of all records below this offset may be popped."""
        return self.next_offset if self._frozen is None else self._frozen

    def _freeze(self) -> None:
        """Later records wait until nothing else is due. Until then, each mark replaces the one
        before.
        """
        self._seal(self.next_offset)
        self._frozen = self.next_offset
        self._list_sources()

    def progress(self) -> TimerProgress:
        """What is done if everything is that was popped so far."""
        return self._progress

    def confirm(self, progress: TimerProgress) -> None:
        """An earlier result of `progress()` is committed."""
        self._confirmed = progress
        self._done = DoneEntries(progress)
        self._is_choice_due = True  # keys below the floor may be left out
        self._unconfirmed = {one for one in self._unconfirmed if not self._done.covers(one)}
        if self._returned:
            self._returned[:] = [one for one in self._returned if one in self._unconfirmed]
            heapq.heapify(self._returned)
            for mark in progress.marks:
                self._progress = self._progress.with_mark(mark)

    def rewind(self) -> None:
        """A commit failed: entries that were popped and not confirmed are pending again."""
        self._returned[:] = self._unconfirmed
        heapq.heapify(self._returned)
        self._progress = self._confirmed

    def lowest_offset(self) -> Offset | None:
        """No entry below this offset is pending, or popped and not confirmed. The log may be
        deleted up to here. None if there is no entry.

        The smallest offset of an entry may be higher, by 1/2048 of the offsets of a file.
        """
        popped = min((one[8:16] for one in self._unconfirmed), default=None)
        lowest = None if popped is None else int.from_bytes(popped, "big")
        run_lowest = next((run.buckets.lowest() for run in self._runs if run.left), None)
        if run_lowest is not None and (lowest is None or run_lowest < lowest):
            lowest = run_lowest
        for table in (*self._sealed, self._table):  # a table of a gap is below runs
            if lowest is None or table.start < lowest:
                offset = table.lowest_offset()
                if offset is not None and (lowest is None or offset < lowest):
                    lowest = offset
        return lowest

    # -- by key

    def cancelled_by(self, key_hash: int, offset: Offset) -> Iterator[Offset]:
        """Tombstones after `offset` that have this key hash, the newest first. If one of them has
        the key of the record at `offset`, that record is cancelled. Raises StorageError.
        """
        return self._later(key_hash, offset, tombstones_only=True)

    def replaced_by(self, key_hash: int, offset: Offset) -> Iterator[Offset]:
        """Records and tombstones after `offset` that have this key hash, the newest first.
        Needs `keeps_keys`. Raises StorageError.
        """
        assert self._folder.keeps_keys
        return self._later(key_hash, offset, tombstones_only=False)

    def latest_of(self, key_hash: int) -> Offset | None:
        """The newest record or tombstone with this key hash, if it is not below
        `lowest_offset()`. Needs `keeps_keys`. Raises StorageError.
        """
        return next(self.replaced_by(key_hash, -1), None)

    def _later(self, key_hash: int, offset: Offset, *, tombstones_only: bool) -> Iterator[Offset]:
        """Each step is a search of its own: the sources may change between two of them."""
        below: Offset | None = self.next_offset + 1
        if self._gaps:
            below = self._runs[-1].header.end + 1
        while key_hash != NO_KEY and below is not None:
            below = self._newest_key(key_hash, offset, below, tombstones_only)
            if below is not None:
                yield below

    def _newest_key(
        self, key_hash: int, above: Offset, below: Offset, tombstones_only: bool
    ) -> Offset | None:
        """The newest record between two offsets, both exclusive, with this key hash."""
        newest: Offset | None = None
        for table in (self._table, *reversed(self._sealed)):
            found = table.newest_key(key_hash, below, tombstones_only)
            if found is not None and found > above:
                newest = max(found, newest or 0)
        for run in reversed(self._runs):
            if run.header.end <= max(above + 1, newest or 0):
                break
            if run.header.keys and run.header.start < below:
                found = run.newest_key(key_hash, below, tombstones_only)
                if found is not None and found > above:
                    return found if newest is None else max(found, newest)
        return newest

    # -- files

    async def run(self) -> None:
        """Write and merge files in the background, until it is cancelled. Raises StorageError if a
        file is damaged: load a new index.

        If a file cannot be written, it is tried again later. Until then `has_room` may be false.
        """
        while True:
            await self._work.wait()
            self._work = trio.Event()
            try:
                await self.work()
            except OSError as error:
                logger.warning(
                    "cannot write timers, trying again directory=%s retry_seconds=%d reason=%s",
                    self._folder.path,
                    _RETRY_SECONDS,
                    error,
                )
                await trio.sleep(_RETRY_SECONDS)
                self._work.set()

    async def work(self) -> None:
        """Write and merge all files that are due, for `run` and for tests. Raises OSError and
        StorageError.
        """
        await self._write_tables()
        while (runs := self._choose_merge()) is not None:
            await self._merge(runs)

    async def _write_tables(self) -> None:
        while self._sealed:
            table = self._sealed[0]
            header = self._folder.header(table.start, table.end, self._epoch_of(table.end - 1))
            # (I56) also what is popped and not confirmed: a start must find it
            entries = table.entries_with(self._unconfirmed)
            run = await self._in_steps(write_run(self._folder, header, entries, table.keys()))
            publish(self._folder, run)  # no await from here on
            run.forget_taken(entries, table.heap)
            self._sealed.pop(0)
            self._runs.append(run)
            self._runs.sort(key=lambda one: one.header.start)
            self._list_sources()
            self._room.set()

    async def _in_steps(self, steps: Generator[_ResultT | None]) -> _ResultT:
        """The last step's result. Each one is a call in a worker thread: the interpreter is free
        between two.
        """
        try:
            while (result := await self._disk.offload(next, steps)) is None:
                pass
        finally:
            steps.close()
        return result

    def _choose_merge(self) -> list[TimerRun] | None:
        """The next merge. While one goes on, only later runs are merged, which are smaller."""
        if not self._is_choice_due:
            return None
        floor, popped = self._floor(), len(self._unconfirmed)
        first = self._runs.index(self._merging[-1]) + 1 if self._merging else 0
        for runs in self._neighbours(first):
            sizes, left = list[int](), list[int]()
            for run in runs:
                sizes.append(run.header.entries + run.header.keys)
                keys = run.header.keys if run.header.end > floor else 0
                left.append(run.left + keys + popped)
            window = choose_merge(sizes, left)
            if window is not None:
                return runs[window]
        self._is_choice_due = False
        return None

    def _neighbours(self, first: int) -> Iterator[list[TimerRun]]:
        """Sequences of runs that may be merged: no gap and no frozen offset is between them."""
        runs: list[TimerRun] = []
        for run in self._runs[first:]:
            start = run.header.start
            if runs and (start != runs[-1].header.end or start == self._frozen):
                yield runs
                runs = []
            runs.append(run)
        yield runs

    def _floor(self) -> Offset:
        lowest = self.lowest_offset()
        return self.next_offset if lowest is None else lowest

    async def _merge(self, runs: list[TimerRun]) -> None:
        steps = merge_runs(self._folder, runs, self._done, self._floor())
        outer = len(self._merging)
        self._merging += runs
        self._is_choice_due = True
        try:
            while True:
                merged = await self._disk.offload(next, steps)
                if merged is not None:
                    break
                # A large merge takes seconds. Meanwhile the number of runs stays small.
                await self._write_tables()
                if (smaller := self._choose_merge()) is not None:
                    await self._merge(smaller)
        finally:
            del self._merging[outer:]
            self._is_choice_due = True
            steps.close()
        publish(self._folder, merged)  # no await until the runs are replaced
        merged.left = sum(run.left for run in runs)
        merged.buckets = Buckets(merged.header.start, merged.header.end)
        for run in runs:
            merged.buckets.add_counts(run.buckets)
        assert sum(merged.buckets.counts) == merged.left, merged.path
        first = self._runs.index(runs[0])
        assert self._runs[first : first + len(runs)] == runs
        self._runs[first : first + len(runs)] = [merged]
        merged.seek(merged.start_after(self._done))
        self._list_sources()
        self._room.set()
        await self._disk.offload(self._remove, [one for one in runs if one.path != merged.path])

    def _remove(self, runs: list[TimerRun]) -> None:
        for run in runs:
            self._disk.remove(run.path)

    def _list_sources(self) -> None:
        """The tables or runs have changed."""
        self._is_choice_due = True
        end = self._frozen
        tables = [one for one in (*self._sealed, self._table) if end is None or one.start < end]
        self._heaps = [self._returned, *(table.heap for table in tables)]
        self._heads = []
        for number, run in enumerate(self._runs):
            if end is None or run.header.end <= end:
                self._skip(run)
                if run.head:
                    self._heads.append((run.head, number))
        heapq.heapify(self._heads)


def _smallest(heap: list[bytes], bound: bytes, count: int) -> Iterator[bytes]:
    """The first `count` items of a heap below `bound`, in order. The heap does not change."""
    reached = [(heap[0], 0)] if heap else []
    while reached and count:
        item, index = heapq.heappop(reached)
        if item >= bound:
            return
        yield item
        count -= 1
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heapq.heappush(reached, (heap[child], child))
