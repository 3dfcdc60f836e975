"""A log is deleted, and perhaps recreated under its name, while a task works on it: no other log is
affected.
"""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest
import trio

from mqd.log.log_config import LogConfig
from mqd.protocol.files import LEADER_EPOCH_CHECKPOINT, decode_leader_epochs
from mqd.types import TopicPartition
from tests.log.manager.test_truncation_during_sync import SlowDisk
from tests.log.support import NOW, PARTITION, FaultyDisk, Harness, batch, wait_until
from tests.log.test_follower_logs import ROLLING

NEXT_ID = UUID(int=99, version=4)


class SlowNames(FaultyDisk):
    """Renames of small files wait for `gate`, where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        if self.gate is not None and source.suffix == ".tmp":
            self.entered.set()
            assert self.gate.wait(20)
        super().rename(source, target, durable=durable)


@pytest.mark.parametrize("again", [False, True])
async def test_retention_skips_a_log_that_was_deleted_meanwhile(
    tmp_path: Path, again: bool
) -> None:
    h = Harness(tmp_path)
    await h.service.start()
    config = LogConfig(retention_ms=1000, file_delete_delay_ms=0)
    first, log = h.open(config, TopicPartition("first", 0)), h.open(config)
    for one in (first, log):
        h.write(one, batch())
        h.service.checkpoint_high_watermark(one.topic_partition, 1)
    h.clock.now_ms = NOW + 5000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(h.service.retain)
        while not first.log_start_offset:
            await trio.lowlevel.checkpoint()
        h.service.delete(PARTITION)
        if again:
            h.write(
                h.service.open(PARTITION, NEXT_ID, config), batch(b"kept", timestamp=h.clock.now_ms)
            )
    assert not h.failed
    if again:
        await h.restart()
        assert [
            record.value for record in h.read_all(h.service.open(PARTITION, NEXT_ID, config))
        ] == [b"kept"]
    h.kill()


@pytest.mark.parametrize("change", ["deleted", "made again", "begun anew"])
async def test_a_sync_of_deleted_files_takes_no_directory_offline(
    tmp_path: Path, change: str
) -> None:
    disk = SlowNames()
    h = Harness(tmp_path, disk=disk)
    await h.service.start()
    log = h.open()
    async with h.running():
        h.write(log, batch(), epoch=3)
        disk.gate = threading.Event()
        h.service.request_sync(log)
        await wait_until(disk.entered.is_set)
        if change == "begun anew":
            h.service.reset(log, 100)
        else:
            h.service.delete(PARTITION)
            if change == "made again":
                log = h.service.open(PARTITION, NEXT_ID, LogConfig())
        gate, disk.gate = disk.gate, None
        gate.set()
        await wait_until(lambda: not h.service.directories[log.directory].syncing)
        assert not h.failed
        if change != "deleted":
            h.write(log, batch(), epoch=4)
            h.service.request_sync(log)
            await wait_until(lambda: log.durability.end_offset == log.log_end_offset)
    h.kill()


async def test_files_that_a_sync_writes_for_a_deleted_log_are_removed(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    h = Harness(tmp_path, disk=disk)
    await h.service.start()
    log = h.open(ROLLING)
    async with h.running():
        for number in range(3):
            disk.gate = threading.Event() if number == 2 else None
            h.write(log, batch(b"x" * 100 * number, producer_id=1, sequence=number), epoch=number)
        await wait_until(disk.entered.is_set)  # the last one has begun a segment
        h.service.delete(PARTITION)
        fresh = h.service.open(PARTITION, NEXT_ID, LogConfig())
        h.write(fresh, batch(), epoch=0)
        h.service.request_sync(fresh)
        gate, disk.gate = disk.gate, None
        assert gate is not None
        gate.set()
        await wait_until(lambda: fresh.durability.end_offset)
    assert not list(fresh.path.glob("*.snapshot"))
    assert decode_leader_epochs((fresh.path / LEADER_EPOCH_CHECKPOINT).read_bytes()) == [(0, 0)]
    h.kill()
