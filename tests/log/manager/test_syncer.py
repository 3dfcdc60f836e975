"""The stop of a node while syncs wait for a thread, and syncs of many logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.io.disk import ArgumentsT, Disk, ResultT
from mqd.log.disk.sync_plan import SyncPlan, plan_sync
from mqd.log.manager import syncer
from mqd.log.partition_log import PartitionLog
from mqd.types import TopicPartition
from tests.log.support import FaultyDisk, Harness, batch, wait_until


class BusyDisk(FaultyDisk):
    """While `is_busy`, all threads that sync logs are taken."""

    is_busy = False

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        if limiter is not None and self.is_busy:
            await trio.sleep_forever()
        return await super().offload(call, *args)


async def test_work_of_a_cancelled_sync_is_done_by_the_clean_shutdown(
    tmp_path: Path,
) -> None:
    """Seed 600088 of 3 nodes: the sync that was to store a new leader epoch was cancelled while it
    waited for a thread. After the clean shutdown the replica did not know the epoch, and truncated
    committed records (I5).
    """
    disk = BusyDisk()
    harness = Harness(tmp_path, disk=disk)
    await harness.service.start()
    log = harness.open()
    harness.write(log, batch(), epoch=0)
    async with harness.running():
        harness.service.request_sync(log)
        await wait_until(lambda: log.durability.end_offset == log.log_end_offset)
        disk.is_busy = True
        harness.write(log, batch(), epoch=7)
        harness.service.request_sync(log)
        await wait_all_tasks_blocked()
        assert not log.epochs.dirty, "the sync was not planned"
    await harness.service.close()
    await harness.restart()
    assert harness.open().epochs.entries() == [(0, 0), (7, 1)]
    await harness.service.close()


async def test_syncs_of_many_logs_are_planned_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is deleted between two slices is not synced."""
    monkeypatch.setattr(syncer, "SYNCS_PLANNED_AT_ONCE", 2)
    planned: list[PartitionLog] = []

    def plan_and_note(disk: Disk, log: PartitionLog, *, whole: bool) -> SyncPlan:
        planned.append(log)
        return plan_sync(disk, log, whole=whole)

    monkeypatch.setattr(syncer, "plan_sync", plan_and_note)
    harness = Harness(tmp_path)
    await harness.service.start()
    logs = [harness.open(partition=TopicPartition("t", number)) for number in range(6)]
    for log in logs:
        harness.write(log, batch())
        harness.service.request_sync(log)
    async with harness.running():
        while not planned:
            await trio.lowlevel.checkpoint()
        assert len(planned) <= 4, "other tasks have a turn between two slices"
        harness.service.registry.delete(logs[5].topic_partition)
        await wait_until(lambda: all(one.durability.end_offset == 1 for one in logs[:5]))
    assert planned == logs[:5]
    await harness.service.close()
