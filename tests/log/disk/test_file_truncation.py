"""A truncation is complete or has no effect: descriptors may be exhausted at each of its steps, and
a reset log exists or does not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqd.errors import StorageError
from mqd.io.disk import File
from mqd.log.disk.segment_files import open_segment, rebuild
from mqd.log.disk.segment_swap import CLEANED_SUFFIX, FILES, begin_swap, put_in_place
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog, SegmentSwap
from mqd.log.segment import Segment
from mqd.protocol.files import (
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    is_deleted_directory,
    segment_file_name,
)
from tests.log.compacting import roll, sync_and_commit
from tests.log.support import PARTITION, FaultyDisk, Harness, batch

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=1, file_delete_delay_ms=0)
COUNT = 9


class ScarceDisk(FaultyDisk):
    """A disk on which the nth call that opens a descriptor fails, and all later ones."""

    left: int | None = None
    code = errno.EMFILE
    taken = 0

    def take_descriptor(self) -> None:
        super().take_descriptor()
        self.taken += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.code, "injected")

    def sync_directory(self, path: Path) -> None:
        self.take_descriptor()

    def remove_tree(self, path: Path) -> None:
        self.take_descriptor()
        super().remove_tree(path)

    @contextmanager
    def scarce(self, left: int, code: int) -> Iterator[None]:
        self.left, self.code = left, code
        yield
        self.left = None


async def begun(path: Path, disk: ScarceDisk) -> tuple[Harness, PartitionLog]:
    """Some segments with known producers, all of them named in the log end checkpoint; older
    segments are closed.
    """
    harness = Harness(path, disk=disk)
    await harness.service.start()
    log = harness.open(CONFIG)
    for number in range(COUNT):
        harness.write(
            log, batch(b"%d" % number * 60, producer_id=7, sequence=number), epoch=number // 4
        )
    await sync_and_commit(harness, log)
    await harness.service.checkpoint_recovery_points()
    for segment in log.segments[:-1]:
        segment.file = segment.index = segment.time_index = segment.transaction_index = None
    return harness, log


def truncate(harness: Harness, log: PartitionLog) -> None:
    harness.service.truncate_to(log, 3)


def truncate_active(harness: Harness, log: PartitionLog) -> None:
    harness.service.truncate_to(log, COUNT - 1)


def reset_log(harness: Harness, log: PartitionLog) -> None:
    harness.service.reset(log, 5)


def state(log: PartitionLog) -> object:
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.written_end_offset,
        [one.base_offset for one in log.segments],
        log.active.next_offset,
        log.active.size,
        log.epochs.entries(),
        log.producers.snapshot(),
    )


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    ("cut", "end"), [(truncate, 3), (truncate_active, COUNT - 1), (reset_log, 5)]
)
async def test_without_descriptors_a_truncation_is_complete_or_has_no_effect(
    tmp_path: Path, cut: Callable[[Harness, PartitionLog], None], end: int, code: int
) -> None:
    for left in range(100):
        disk = ScarceDisk()
        harness, log = await begun(tmp_path / str(left), disk)
        before, values = state(log), [record.value for record in harness.read_all(log)]
        done = True
        with disk.scarce(left, code):
            try:
                cut(harness, log)
            except StorageError as error:
                assert error.out_of_space
                done = False
        assert log.failure is None and harness.failed == []
        assert (
            log.log_end_offset
            == log.written_end_offset
            == log.active.next_offset
            == (end if done else COUNT)
        )
        if not done:
            assert state(log) == before
            assert [record.value for record in harness.read_all(log)] == values
            cut(harness, log)  # as a follower retries
        assert log.log_end_offset == end
        await sync_and_commit(harness, log)
        await harness.service.checkpoint_recovery_points()
        harness.append(log, batch(b"next", producer_id=7, epoch=1, sequence=0), epoch=5)
        assert harness.service.flush() == []
        kept = harness.read_all(log)
        harness.kill()
        harness.new_service(survival_proven=True)
        await harness.service.start()
        assert harness.service.offline == {} and harness.read_all(harness.open(CONFIG)) == kept
        names = [path.name for path in harness.directories[0].iterdir() if path.is_dir()]
        assert all(is_deleted_directory(name) or name == str(PARTITION) for name in names)
        harness.kill()
        if done:
            assert left > 0, "no call opened a descriptor"
            return
    raise AssertionError("it never succeeded")


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_truncation_between_two_steps_of_a_compaction_may_be_retried(
    tmp_path: Path, in_place: bool
) -> None:
    for left in range(100):
        disk = ScarceDisk()
        harness, log = await begun(tmp_path / str(left), disk)
        values = [record.value for record in harness.read_all(log)]
        replacement = staged(harness, log)
        begin_swap(disk, log, replacement)
        if in_place:
            put_in_place(disk, log)
        with disk.scarce(left, errno.EMFILE):
            try:
                truncate(harness, log)
            except StorageError as error:
                assert error.out_of_space
                done = False
            else:
                done = True
        assert log.failure is None and harness.failed == []
        if not done:
            assert (
                log.log_end_offset == COUNT
                and [record.value for record in harness.read_all(log)] == values
            )
            truncate(harness, log)
        assert log.swap is None and [record.value for record in harness.read_all(log)] == values[:3]
        await harness.restart()
        assert [record.value for record in harness.read_all(harness.open(CONFIG))] == values[:3]
        harness.kill()
        if done:
            return
    raise AssertionError("it never succeeded")


def staged(harness: Harness, log: PartitionLog) -> SegmentSwap:
    """The first segment, as a cleaner that changes nothing would write it."""
    old = log.segments[0]
    open_segment(harness.disk, log.path, old, CONFIG)
    for suffix in FILES:
        source = log.path / segment_file_name(old.base_offset, suffix)
        if source.exists():
            source.with_name(source.name + CLEANED_SUFFIX).write_bytes(source.read_bytes())
    cleaned = Segment(
        old.base_offset,
        0,
        harness.disk.open(
            log.path / segment_file_name(old.base_offset, LOG_SUFFIX + CLEANED_SUFFIX)
        ),
    )
    rebuild(cleaned, old.size, CONFIG.index_interval_bytes)
    cleaned.on_inactive()
    return SegmentSwap([old], cleaned)


async def test_a_broken_disk_during_a_truncation_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ScarceDisk()
    harness, log = await begun(tmp_path, disk)
    renames = []

    def rename(source: Path, target: Path, *, durable: bool = True) -> None:
        renames.append(source)
        if len(renames) > 3:
            raise OSError(errno.EIO, "injected")
        FaultyDisk.rename(disk, source, target, durable=durable)

    monkeypatch.setattr(disk, "rename", rename)
    with pytest.raises(StorageError, match="is truncated in part"):
        truncate(harness, log)
    assert not log.is_readable and len(harness.failed) == 1
    harness.kill()


async def test_a_log_is_truncated_without_directory_space_for_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ScarceDisk()
    harness, log = await begun(tmp_path, disk)
    roll(harness, log)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "rename", full)
    truncate(harness, log)
    assert log.failure is None and log.log_end_offset == 3 and len(harness.read_all(log)) == 3
    assert len(list(log.path.glob("*.log"))) == len(log.segments)
    harness.kill()


class FullDisk(FaultyDisk):
    """Without space there is no room for a new file either."""

    def open(self, path: Path, *, create: bool = False) -> File:
        if create and not self.free and not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().open(path, create=create)


async def test_a_write_is_undone_on_a_full_disk_without_an_index(
    tmp_path: Path,
) -> None:
    """`append_indexes` had removed it for lack of space: the truncation does not need it, and the
    directory stays online.
    """
    disk = FullDisk()
    harness = Harness(tmp_path, disk=disk)
    await harness.service.start()
    log = harness.open(CONFIG)
    harness.write(log, batch(b"a"))
    assert log.active.time_index is not None
    log.active.time_index.unwrite()
    (log.path / segment_file_name(0, TIME_INDEX_SUFFIX)).unlink()
    disk.free = 0
    harness.append(log, batch(b"b"))
    ((failed, error),) = harness.service.flush()
    assert failed is log and error.out_of_space and harness.failed == []
    disk.free = 1 << 30
    harness.write(log, batch(b"b"))
    assert [record.value for record in harness.read_all(log)] == [b"a", b"b"]
    await harness.service.close()
