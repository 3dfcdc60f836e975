"""A log is truncated before or while a worker thread syncs it: truncated records do not return, and
no task waits forever.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.errors import MqError
from mqd.io.disk import File
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.types import TopicPartition
from tests.log.support import PARTITION, FaultyDisk, Harness, batch, wait_until
from tests.log.test_follower_logs import ROLLING, written


class SlowDisk(FaultyDisk):
    """Syncs of log files wait for `gate`, where there is one. Records what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: threading.Event | None = None
        self.entered = threading.Event()
        self.synced: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        original = file.sync

        def sync() -> None:
            if self.gate is not None and path.name.endswith(".log"):
                self.entered.set()
                assert self.gate.wait(20)
            self.synced.append(path.name)
            original()

        file.sync = sync  # type: ignore[method-assign]  # replaced by the test
        return file


def follow(h: Harness, log: PartitionLog, data: bytearray, base: int, epoch: int = 1) -> None:
    view = bytearray(data)
    struct.pack_into(">q", view, 0, base)
    struct.pack_into(">i", view, 12, epoch)
    assert h.service.append_as_follower(log, memoryview(view), leader_epoch=9) == len(view)
    assert h.service.flush() == []


async def durable(h: Harness, log: PartitionLog) -> None:
    h.service.request_sync(log)
    await wait_until(lambda: log.durability.end_offset == log.log_end_offset)
    await h.service.checkpoint_recovery_points()


async def test_a_reset_right_after_a_truncation_starts_new_segments(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    h = Harness(tmp_path / "f", disk=disk)
    await h.service.start()
    log = written(h, config=ROLLING)
    other = h.open(partition=TopicPartition("other", 0))
    async with h.running():
        await durable(h, log)
        h.write(other, batch())
        disk.gate = threading.Event()
        h.service.request_sync(other)  # a slow sync for another partition
        await wait_until(disk.entered.is_set)
        h.service.truncate_to(log, 10)
        await wait_all_tasks_blocked()
        h.service.reset(log, 100)  # the next response: the leader's log starts later
        gate, disk.gate = disk.gate, None
        gate.set()
        await wait_until(lambda: other.durability.end_offset == 1)
        await h.service.checkpoint_recovery_points()
        for _ in range(12):
            h.write(log, batch(b"y" * 100), epoch=9)
            await wait_all_tasks_blocked()
    assert len(log.segments) > 2


async def test_a_reset_below_a_truncation_starts_new_segments(tmp_path: Path) -> None:
    h = Harness(tmp_path / "f")
    await h.service.start()
    log = written(h, config=ROLLING)
    h.service.delete_records(log, 8)
    async with h.running():
        await durable(h, log)
        h.service.truncate_to(log, 20)
        h.service.truncate_to(log, 4)
        await h.service.checkpoint_recovery_points()
        for _ in range(8):
            h.service.request_sync(log)
            await h.service.wait_synced()
            h.write(log, batch(b"y" * 100), epoch=9)
    assert len(log.segments) > 1


async def test_a_truncation_that_waits_for_space_is_synced_after_new_options(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    h = Harness(tmp_path / "f", disk=disk)
    await h.service.start()
    log = h.open()
    h.write(log, batch(), epoch=4)
    h.write(log, batch(), epoch=5)
    async with h.running():
        await durable(h, log)
        h.service.truncate_to(log, 1)
        disk.free = 0
        await wait_until(lambda: h.service.housekeeping.flush_due)
        h.service.update_config(log, LogConfig(retention_ms=5))
        disk.free = 1 << 40
        with trio.fail_after(8):
            await wait_until(lambda: log.durability.unsynced_truncation is None)


async def test_a_reset_log_keeps_no_old_snapshot(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    h = Harness(tmp_path / "f", disk=disk)
    await h.service.start()
    log = h.open(ROLLING)
    async with h.running():
        follow(h, log, batch(b"a" * 100, producer_id=1, sequence=0), 0)
        follow(h, log, batch(b"b" * 100, producer_id=7, sequence=0, transactional=True), 1)
        disk.gate = threading.Event()
        follow(h, log, batch(b"c" * 200, producer_id=1, sequence=1), 2)  # rolls
        await wait_until(disk.entered.is_set)
        h.service.reset(log, 100)
        gate, disk.gate = disk.gate, None
        gate.set()
        await wait_until(lambda: not h.service.directories[log.directory].syncing)
        follow(h, log, batch(b"x"), 100)
    await h.restart()
    again = h.service.logs[PARTITION]
    assert not list(again.producers.entries())
    assert again.last_stable_offset(again.log_end_offset) == 101


async def test_truncated_batches_are_not_duplicates(tmp_path: Path) -> None:
    disk = SlowDisk()
    h = Harness(tmp_path / "f", disk=disk)
    await h.service.start()
    log = h.open(ROLLING)
    async with h.running():
        h.write(log, batch(b"a" * 100, producer_id=1, sequence=0), epoch=1)
        h.write(log, batch(b"b" * 100, producer_id=1, sequence=1), epoch=1)  # never committed
        disk.gate = threading.Event()
        # rolls: a snapshot as of offset 2
        h.write(log, batch(b"c" * 200, producer_id=1, sequence=2), epoch=1)
        await wait_until(disk.entered.is_set)
        h.service.truncate_to(log, 1)
        follow(h, log, batch(b"x", b"y"), 1, epoch=2)
        gate, disk.gate = disk.gate, None
        gate.set()
        await wait_until(lambda: log.durability.unsynced_truncation is None)
        right = list(log.producers.entries())
        disk.free = 10  # this node leads, and its disk is full for a moment
        h.append(log, batch(b"z" * 50, producer_id=5, sequence=0), epoch=3)
        assert h.service.flush()
        assert list(log.producers.entries()) == right
        disk.free = 1 << 40
        await wait_until(lambda: log.durability.unsynced_truncation is None)
        assert not h.append(log, batch(b"b" * 100, producer_id=1, sequence=1), epoch=3).duplicate
        assert h.service.flush() == []


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_bytes_of_a_failed_write_do_not_return_below_a_later_segment(
    tmp_path: Path, checkpointed: bool
) -> None:
    disk = SlowDisk()
    h = Harness(tmp_path / "f", disk=disk)
    await h.service.start()
    log = h.open(LogConfig(segment_bytes=420, index_interval_bytes=100, flush_before_ack=True))
    async with h.running():
        h.write(log, batch(b"a" * 100))
        await wait_until(lambda: log.durability.end_offset == 1)
        if checkpointed:
            await h.service.checkpoint_recovery_points()
        disk.synced.clear()
        small = batch(b"b" * 20)
        disk.free = len(small) + 10
        h.append(log, small)
        h.append(log, batch(b"b" * 100))
        assert h.service.flush()
        disk.free = 1 << 40
        while True:
            try:
                h.write(log, batch(b"c" * 250))
            except MqError:
                await wait_all_tasks_blocked()
            else:
                break
        assert len(log.segments) == 2
        await wait_until(lambda: log.durability.end_offset == 2)  # acknowledged
    # otherwise a power failure may restore written records without the later truncation
    assert f"{0:020}.log" in disk.synced


async def test_retention_begins_no_segment_before_a_truncation_is_durable(tmp_path: Path) -> None:
    h = Harness(tmp_path / "f")
    await h.service.start()
    log = written(h)
    async with h.running():
        await durable(h, log)
    h.service.truncate_to(log, 10)
    h.clock.now_ms += 8 * 86_400_000
    log.checkpointed_high_watermark = 0
    await h.service.retain()
    assert len(log.segments) == 1
