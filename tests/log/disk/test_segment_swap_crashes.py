"""A process is killed, or the power fails, at each change of the disk during a cleaning: the log
keeps its records.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mqd.log.log_config import LogConfig
from mqd.testing.disk import MemoryDisk
from mqd.testing.process import Killed, Process
from mqd.testing.scheduler import VirtualClock
from tests.log.compacting import InlineDisk, Writer, committed_table, roll, sync_and_commit
from tests.log.support import PARTITION, Harness

CONFIG = LogConfig(
    segment_bytes=500,
    cleanup_policy=frozenset({"compact"}),
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    file_delete_delay_ms=0,
)
HOME = Path("/logs")
STEP = 1 if os.environ.get("MQD_CRASHES") == "all" else 12
"""All of them take minutes."""


class Machine:
    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock()
        self.disk = MemoryDisk(1, self.clock, random.Random(seed))
        self.process = Process(1, "node 1", self.clock)
        self.harness = Harness(HOME, disk=InlineDisk(self.disk, self.process))  # type: ignore[arg-type]  # a disk with the same calls

    async def next_life(self, *, power_cut: bool) -> None:
        self.process.end()
        if power_cut:
            self.disk.power_cut()
        self.disk.disarm()
        self.process = Process(1, "node 1", self.clock)
        self.harness.disk = InlineDisk(self.disk, self.process)  # type: ignore[assignment]  # a disk with the same calls
        self.harness.new_service(unsynced_survived=not power_cut)
        await self.harness.service.start()
        assert self.harness.service.offline == {}


async def prepared(seed: int, *, checkpointed: bool) -> tuple[Machine, Writer]:
    """A log that was cleaned once and has later appends."""
    machine = Machine(seed)
    harness = machine.harness
    await harness.service.start()
    log = harness.open(CONFIG)
    writer = Writer(harness, log, random.Random(seed))
    for part in range(2):
        for _ in range(25):
            writer.write()
        writer.end_all()
        roll(harness, log)
        await sync_and_commit(harness, log)
        if not part:
            await harness.service.compactor.clean_one()
    if checkpointed:
        await harness.service.checkpoint_recovery_points()
    await harness.service.housekeeping.store("replication-offset-checkpoint")
    assert committed_table(harness, log) == writer.dictionary
    return machine, writer


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("power_cut", [False, True])
async def test_a_crash_at_any_change_of_the_disk_loses_no_records(
    autojump_clock: object, power_cut: bool, checkpointed: bool
) -> None:
    machine, _ = await prepared(0, checkpointed=checkpointed)
    before = machine.disk.writes
    await machine.harness.service.compactor.clean_one()
    changes = machine.disk.writes - before
    assert changes > 60 and machine.harness.service.compactor.passes == 2
    for at in range((power_cut * 2 + checkpointed) * STEP // 4, changes, STEP):
        machine, writer = await prepared(at, checkpointed=checkpointed)
        end = machine.harness.service.logs[PARTITION].log_end_offset
        machine.disk.cut_in_write(at, machine.process.end)
        try:
            await machine.harness.service.compactor.clean_one()
        except Killed:
            pass
        for _ in range(2):
            await machine.next_life(power_cut=power_cut)
            harness = machine.harness
            log = harness.open(CONFIG)
            log.checkpointed_high_watermark = log.log_end_offset
            assert log.log_end_offset == end, at
            assert committed_table(harness, log) == writer.dictionary, at
            names = [path.suffix for path in machine.disk.files(str(log.path))]
            assert not {".cleaned", ".swap"} & set(names), (at, names)
        await sync_and_commit(harness, log)
        while await harness.service.compactor.clean_one():
            pass
        assert committed_table(harness, log) == writer.dictionary, at
        await machine.next_life(power_cut=power_cut)
        log = machine.harness.open(CONFIG)
        log.checkpointed_high_watermark = log.log_end_offset
        assert committed_table(machine.harness, log) == writer.dictionary, at
