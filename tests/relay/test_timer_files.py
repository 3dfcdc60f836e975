"""Files of a timer index: which ones a start uses, and how many there are."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import trio
from hypothesis import given, settings, strategies as st

from mqctl.verifying import Verifier
from mqd import limits
from mqd.errors import StorageError
from mqd.io.disk import File, OsDisk
from mqd.log.disk.leftovers import remove_leftovers
from mqd.log.recovery_report import RecoveryReport
from mqd.protocol.files import FileFormatError, parse_timers_file_name, timers_file_name
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.timer_files import delete_runs
from mqd.relay.timer_format import HEADER_BYTES, Buckets, RunHeader, choose_merge, decode_header
from mqd.relay.timer_index import TimerIndex, key_hash_of
from mqd.types import Offset, TopicPartition
from tests.log.support import InlineDisk

TOPIC_ID = UUID(int=7)
SIZE = 8


class FullDisk(InlineDisk):
    """A disk without space, until a test says otherwise."""

    is_full = True

    def open(self, path: Path, *, create: bool = False) -> File:
        if create and self.is_full:
            raise OSError(errno.ENOSPC, "no space", str(path))
        return super().open(path, create=create)


def new_index(
    directory: Path,
    *,
    topic_id: UUID = TOPIC_ID,
    partition: int = 0,
    epoch_of: Callable[[Offset], int] = lambda offset: 3,
    keeps_keys: bool = False,
    disk: OsDisk | None = None,
) -> TimerIndex:
    return TimerIndex(
        disk or OsDisk(),
        directory,
        topic_id,
        partition,
        epoch_of,
        keeps_keys=keeps_keys,
        entries_in_memory=SIZE,
    )


async def filled(directory: Path) -> None:
    """Two files of eight entries each, and two entries in memory that are lost."""
    index = new_index(directory)
    await index.load(TimerProgress(), 0, 0)
    for offset in range(2 * SIZE + 2):
        index.add(1_000 - offset, offset, key_hash_of(b"%d" % offset))
    index.cancel(key_hash_of(b"3"), 2 * SIZE + 2)
    await index.work()
    assert index.statistics().runs == 2


async def next_offset_of(index: TimerIndex, *, start: int = 0, end: int = 50) -> Offset:
    await index.load(TimerProgress(), start, end)
    return index.next_offset


async def test_a_start_reads_only_the_last_records_again(tmp_path: Path) -> None:
    await filled(tmp_path)
    index = new_index(tmp_path)
    assert await next_offset_of(index) == 2 * SIZE
    assert len(index) == 2 * SIZE and index.peek() == (1_000 - 15, 15, key_hash_of(b"15"))
    assert list(index.cancelled_by(key_hash_of(b"3"), 3)) == []
    index.cancel(key_hash_of(b"3"), 2 * SIZE + 2)
    assert list(index.cancelled_by(key_hash_of(b"3"), 3)) == [2 * SIZE + 2]


async def test_files_that_are_not_of_this_log_are_removed(tmp_path: Path) -> None:
    cases: list[tuple[Callable[[], TimerIndex], int, int, int]] = [
        (lambda: new_index(tmp_path, topic_id=UUID(int=8)), 0, 50, 0),
        (lambda: new_index(tmp_path, partition=1), 0, 50, 0),
        (lambda: new_index(tmp_path, keeps_keys=True), 0, 50, 0),
        (lambda: new_index(tmp_path, epoch_of=lambda offset: 3 + (offset >= SIZE)), 0, 50, SIZE),
        (lambda: new_index(tmp_path), 0, 2 * SIZE - 1, SIZE),
        (lambda: new_index(tmp_path), 2 * SIZE, 50, 2 * SIZE),
    ]
    for make, start, end, expected in cases:
        await filled(tmp_path)
        assert await next_offset_of(make(), start=start, end=end) == expected
        left = [parse_timers_file_name(one.name) for one in tmp_path.iterdir()]
        assert all(one is not None and one[0] < expected for one in left)


async def test_a_damaged_file_between_others_is_read_from_the_log_again(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / timers_file_name(0, SIZE)).write_bytes(b"mqdtimer")
    (tmp_path / (timers_file_name(0, 99) + ".tmp")).touch()
    index = new_index(tmp_path)
    assert await next_offset_of(index) == 0
    assert index.peek() is None  # what is due first is unknown
    for offset in range(SIZE):
        index.add(1_000 - offset, offset)
    assert index.next_offset == 2 * SIZE
    assert index.peek() is not None and len(index) == 2 * SIZE
    await index.work()
    assert await next_offset_of(new_index(tmp_path)) == 2 * SIZE
    delete_runs(OsDisk(), tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_damaged_later_is_an_error(tmp_path: Path) -> None:
    await filled(tmp_path)
    index = new_index(tmp_path)
    await index.load(TimerProgress(), 0, 50)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1000])
        path.unlink()
    with pytest.raises(StorageError, match="cannot read"):
        while index.peek() is not None:
            index.pop()
            index._runs[0].seek(1)


async def test_a_full_disk_holds_back_what_is_added(
    tmp_path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    index = new_index(tmp_path, disk=disk)
    await index.load(TimerProgress(), 0, 0)
    offset = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.run)
        while index.has_room:
            index.add(5, offset)
            offset += 1
        assert offset == limits.TIMER_TABLES_MAX * SIZE
        with trio.move_on_after(60) as scope:
            await index.wait_for_room()
        assert scope.cancelled_caught and "cannot write timers" in caplog.text
        disk.is_full = False
        await index.wait_for_room()
        nursery.cancel_scope.cancel()
    assert len(index) == offset
    assert [index.pop().offset for _ in range(offset)] == list(range(offset))


def test_files_of_timers_disturb_neither_a_start_nor_log_verify(tmp_path: Path) -> None:
    path = tmp_path / "orders.delay-0"
    path.mkdir()
    (path / timers_file_name(0, 10)).write_bytes(b"x")
    (path / (timers_file_name(0, 10) + ".tmp")).write_bytes(b"x")
    for suffix in ("log", "index", "timeindex"):
        (path / f"{0:020d}.{suffix}").touch()
    report = RecoveryReport(TopicPartition("orders.delay", 0))
    assert remove_leftovers(OsDisk(), path, report) == ([0], 0)
    assert not report.findings
    (path / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw", encoding="ascii"
    )
    verifier = Verifier(lambda name: None)
    verifier.partition(path)
    assert verifier.findings == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=150))
def test_few_files_remain_and_entries_are_rarely_written_again(sizes: list[int]) -> None:
    runs: list[int] = []
    written = 0
    for size in sizes:
        runs.append(size)
        while (window := choose_merge(runs, runs)) is not None:
            total = sum(runs[window])
            written += total
            runs[window] = [total]
        assert len(runs) <= limits.TIMER_RUNS_MAX
    assert written <= sum(sizes) * (2 + math.log(len(sizes), 4))


def test_ten_million_entries_have_few_files() -> None:
    runs: list[int] = []
    written = 0
    for _ in range(10_000_000 // limits.TIMERS_IN_MEMORY):
        runs.append(limits.TIMERS_IN_MEMORY)
        while (window := choose_merge(runs, runs)) is not None:
            written += sum(runs[window])
            runs[window] = [sum(runs[window])]
        assert len(runs) <= 3 * limits.TIMER_RUNS_MERGED
    assert written <= 4 * 10_000_000


def test_a_file_of_which_little_is_left_is_written_again() -> None:
    assert choose_merge([100_000, 100_000], [100_000, 10_000]) == slice(1, 2)
    assert choose_merge([100_000, 1_000], [100_000, 0]) is None


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**50),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=50, unique=True),
    st.data(),
)
def test_buckets_are_a_lower_bound(start: int, deltas: list[int], data: st.DataObject) -> None:
    offsets = sorted(start + delta for delta in deltas)
    buckets = Buckets(start, start + 10**6 + 1)
    buckets.add(offsets)
    other = Buckets(start, start + 10**6 + 1)
    other.decode(buckets.encode())
    wide = Buckets(max(start - 10**7, 0), start + 10**7)
    wide.add_counts(other)
    for offset in data.draw(st.permutations(offsets))[:-1]:
        offsets.remove(offset)
        for one, error in ((other, 2**9), (wide, 2**14)):
            one.remove(offset)
            assert offsets[0] - error < one.lowest() <= offsets[0]


def test_headers() -> None:
    header = RunHeader(TOPIC_ID, 5, 10, 2**62, 7, True, 2**40, 3, 0xFFFFFFFF)
    data = header.encode()
    assert len(data) == HEADER_BYTES and decode_header(data) == header
    for position in range(len(data)):
        changed = data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :]
        with pytest.raises(FileFormatError):
            decode_header(changed)
    with pytest.raises(FileFormatError, match="less than a header"):
        decode_header(data[:-1])
    assert parse_timers_file_name(timers_file_name(3, 17)) == (3, 17)
    for name in (timers_file_name(3, 3), timers_file_name(0, 2**63), "3-17.timers", "x"):
        assert parse_timers_file_name(name) is None
