"""The stop of a node while syncs wait for a thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from mqd.io.disk import ArgumentsT, ResultT
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
