"""The timer index against a plain list: any order of adds, pops, commits, writes of files, crashes,
damaged files and truncations.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from types import coroutine
from typing import Any
from uuid import UUID

import pytest
import trio
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from mqd.io.disk import ArgumentsT, File, OsDisk, OsFile, ResultT
from mqd.log.epochs import LeaderEpochs
from mqd.relay import timer_files, timer_format, timer_index, timer_run
from mqd.relay.delay_progress import TimerProgress, decode_progress
from mqd.relay.timer_index import Entry, TimerIndex
from mqd.types import Offset
from tests.seeds import seeds

TOPIC_ID = UUID(int=7)
SMALL = {
    timer_run: {"TIMERS_BUFFERED": 3, "KEYS_PER_FENCE": 2},
    timer_files: {"TIMERS_PER_MERGE_STEP": 6, "KEYS_PER_FENCE": 2},
    timer_format: {
        "TIMER_RUNS_MERGED": 3,
        "TIMER_RUNS_MAX": 6,
        "TIMER_BUCKETS": 4,
        "_REWRITTEN_MIN": 4,
    },
    timer_index: {"TIMER_PROGRESS_MARKS_MAX": 4, "_POPS_PER_CHOICE": 2},
}
"""Bounds that a few entries reach."""


@pytest.fixture(autouse=True, scope="module")
def _small_bounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, values in SMALL.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield


class UnsyncedFile(OsFile):
    def sync(self) -> None:
        """These tests end no machine."""


class StepDisk(OsDisk):
    """Each offloaded call is a step of the coroutine that the test drives."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return UnsyncedFile(path, os.open(path, flags, 0o600))

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        await _pause()
        return call(*args)


@coroutine
def _pause() -> Generator[None, None, None]:
    yield


def finish(steps: Coroutine[Any, Any, None]) -> None:
    for _ in range(10_000):
        try:
            steps.send(None)
        except StopIteration:
            return
    raise AssertionError("the work does not end")


class IndexMachine(RuleBasedStateMachine):
    """`log`: (due time, key hash) at each offset; a tombstone has no due time, None is a record
    that the index does not need."""

    keeps_keys = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="mqd-timers-"))
        self.log: list[tuple[int | None, int] | None] = []
        self.log_start = 0
        self.epoch = 1
        self.epochs = LeaderEpochs([(self.epoch, 0)])
        self.committed = TimerProgress()
        self.done: set[Offset] = set()
        """Relayed and committed."""
        self.popped: set[Offset] = set()
        """Relayed, not committed."""
        self.now = 0
        self.work: Coroutine[Any, Any, None] | None = None

    def teardown(self) -> None:
        self.stop_work()
        shutil.rmtree(self.directory)

    @initialize()
    def start(self) -> None:
        self.stop_work()
        self.popped.clear()
        self.index = TimerIndex(
            StepDisk(),
            self.directory,
            TOPIC_ID,
            0,
            self.epochs.epoch_of,
            keeps_keys=self.keeps_keys,
            entries_in_memory=5,
        )
        self.committed = decode_progress(self.committed.encode())
        finish(self.index.load(self.committed, self.log_start, len(self.log)))

    def stop_work(self) -> None:
        if self.work is not None:
            self.work.close()
            self.work = None

    # -- rules

    @rule(records=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=12))
    def append(self, records: list[tuple[int, int]]) -> None:
        self.log += records

    @rule(key=st.integers(1, 3))
    def append_tombstone(self, key: int) -> None:
        self.log.append((None, key))

    @rule()
    def append_other(self) -> None:
        self.log.append(None)

    @rule(count=st.integers(1, 20))
    def read(self, count: int) -> None:
        """Read batches of two records, as a reader that begins within a batch does."""
        for _ in range(count):
            offset = self.index.next_offset
            for at in range(offset - offset % 2, min(offset - offset % 2 + 2, len(self.log))):
                if at >= self.log_start:
                    self._report(at)
            if not self.index.has_room:
                self.write_all()

    def _report(self, offset: Offset) -> None:
        record = self.log[offset]
        if record is None:
            self.index.read_to(offset + 1)
        elif record[0] is None:
            self.index.cancel(record[1], offset)
        else:
            self.index.add(record[0], offset, record[1])

    @rule(count=st.integers(1, 12))
    def pop(self, count: int) -> None:
        for _ in range(count):
            entry = self.index.peek()
            if entry is None:
                return
            assert self.index.upcoming(entry.due_ms, count)[0] == entry.offset
            assert not entry.due_ms or not self.index.upcoming(entry.due_ms - 1, count)
            assert self.index.pop() == entry
            self.popped.add(entry.offset)

    @rule()
    def commit(self) -> None:
        self.committed = self.index.progress()
        self.index.confirm(self.committed)
        self.done |= self.popped
        self.popped.clear()
        assert len(self.committed.marks) <= 4 + 2

    @rule()
    def abort(self) -> None:
        self.index.rewind()
        self.popped.clear()

    @rule(by=st.integers(0, 5))
    def time_passes(self, by: int) -> None:
        self.now += by
        while (entry := self.index.peek()) is not None and entry.due_ms <= self.now:
            self.popped.add(self.index.pop().offset)
        self.index.passed(self.now)

    @rule(steps=st.integers(1, 5))
    def write_some(self, steps: int) -> None:
        for _ in range(steps):
            if self.work is None:
                self.work = self.index.work()
            try:
                self.work.send(None)
            except StopIteration:
                self.work = None

    @rule()
    def write_all(self) -> None:
        if self.work is not None:
            finish(self.work)
        finish(self.index.work())
        self.work = None
        assert not self.index.is_busy and self.index.has_room

    @rule()
    def crash(self) -> None:
        self.start()

    @rule(seed=st.integers(0, 2**32))
    def damage(self, seed: int) -> None:
        dice = random.Random(seed)
        files = sorted(self.directory.iterdir())
        if files:
            path = dice.choice(files)
            data = bytearray(path.read_bytes())
            how = dice.randrange(3)
            if how == 0:
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            elif how == 1:
                del data[dice.randrange(len(data)) :]
            path.write_bytes(data)
            if how == 2:
                path.unlink()
        self.start()

    @rule(share=st.floats(0, 1), epoch=st.integers(1, 2), records=st.integers(0, 30))
    def truncate(self, share: float, epoch: int, records: int) -> None:
        """The log loses records whose relay was not committed, and gets others."""
        lowest = max([mark.end_offset for mark in self.committed.marks], default=self.log_start)
        end = lowest + int(share * (len(self.log) - lowest))
        if end < len(self.log):
            del self.log[end:]
            self.epochs.truncate_from_end(end)
            self.epoch += epoch
            self.epochs.assign(self.epoch, end)
            self.log += [(number, 1 + number % 3) for number in range(records)]
            self.start()

    @rule()
    def delete_old_records(self) -> None:
        lowest = self.index.lowest_offset()
        self.log_start = max(
            self.log_start,
            min(lowest if lowest is not None else self.index.next_offset, self.index.next_offset),
        )

    # -- what must hold

    def pending(self) -> list[Entry]:
        known = range(self.log_start, self.index.next_offset)
        entries = []
        for offset in known:
            record = self.log[offset]
            taken = offset in self.done or offset in self.popped
            if record is not None and record[0] is not None and not taken:
                entries.append(Entry(record[0], offset, record[1]))
        return sorted(entries)

    @invariant()
    def check(self) -> None:
        self.files_are_few()
        if not self.index._gaps:
            self.same_as_a_list()
            self.floor_is_below_all()
            self.keys_are_found()

    def same_as_a_list(self) -> None:
        pending = self.pending()
        assert len(self.index) == len(pending)
        frozen = self.index._frozen
        eligible = [one for one in pending if frozen is None or one.offset < frozen]
        assert self.index.peek() == (eligible[0] if eligible else None)

    def floor_is_below_all(self) -> None:
        lowest = self.index.lowest_offset()
        exact = min([*(one.offset for one in self.pending()), *self.popped], default=None)
        assert (lowest is None) == (exact is None)
        if exact is not None and lowest is not None:
            assert exact - (len(self.log) // 2 + 1) <= lowest <= exact

    def keys_are_found(self) -> None:
        pending = self.pending()
        for entry in [*pending[:2], *pending[-2:]]:
            later = [
                offset
                for offset in range(self.index.next_offset - 1, entry.offset, -1)
                if (record := self.log[offset]) is not None
                and record[1] == entry.key_hash != timer_index.NO_KEY
            ]
            tombstones = [offset for offset in later if self.log[offset][0] is None]  # type: ignore[index]
            assert list(self.index.cancelled_by(entry.key_hash, entry.offset)) == tombstones
            if self.keeps_keys:
                assert list(self.index.replaced_by(entry.key_hash, entry.offset)) == later

    def files_are_few(self) -> None:
        assert len(self.index._runs) <= 30


class KeyIndexMachine(IndexMachine):
    keeps_keys = True


STEPS = settings(max_examples=10, stateful_step_count=30, deadline=None)
TestTimerIndex = IndexMachine.TestCase
TestTimerIndex.settings = STEPS
TestTimerIndexWithKeys = KeyIndexMachine.TestCase
TestTimerIndexWithKeys.settings = STEPS


WEIGHTS: dict[str, int] = {
    "append": 30,
    "append_tombstone": 5,
    "append_other": 2,
    "read": 40,
    "pop": 20,
    "commit": 12,
    "abort": 3,
    "time_passes": 6,
    "write_some": 40,
    "write_all": 3,
    "crash": 2,
    "damage": 1,
    "truncate": 1,
    "delete_old_records": 3,
}


def run_history(machine: IndexMachine, seed: int, steps: int) -> None:
    """A long history, without Hypothesis. A smaller one would rarely merge what was merged."""
    dice = random.Random(seed)
    soon = dice.choice([3, 30, 400])

    def number(high: int) -> int:
        return dice.randint(0, high)

    arguments: dict[str, Any] = {
        "append": lambda: ([(machine.now + number(soon), number(3)) for _ in range(number(12))],),
        "append_tombstone": lambda: (1 + number(2),),
        "read": lambda: (1 + number(20),),
        "pop": lambda: (1 + number(12),),
        "time_passes": lambda: (number(5),),
        "write_some": lambda: (1 + number(10),),
        "damage": lambda: (dice.getrandbits(32),),
        "truncate": lambda: (dice.random(), 1 + number(1), number(30)),
    }
    machine.start()
    try:
        for _ in range(steps):
            (name,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            getattr(machine, name)(*arguments.get(name, tuple)())
            machine.check()
    finally:
        machine.teardown()


@pytest.mark.parametrize("seed", seeds(2, range(20)))
@pytest.mark.parametrize("kind", [IndexMachine, KeyIndexMachine])
def test_long_histories(kind: type[IndexMachine], seed: int) -> None:
    run_history(kind(), seed, 200)


def test_small_files_are_merged_while_a_large_merge_goes_on(tmp_path: Path) -> None:
    index = TimerIndex(StepDisk(), tmp_path, TOPIC_ID, 0, lambda offset: 1, entries_in_memory=5)
    finish(index.load(TimerProgress(), 0, 0))
    work, most = index.work(), 0
    for offset in range(500):
        index.add(500 - offset, offset)
        for _ in range(4):
            try:
                work.send(None)
            except StopIteration:
                work = index.work()
        most = max(most, index.statistics().runs)
    work.close()
    assert most <= 12, most
