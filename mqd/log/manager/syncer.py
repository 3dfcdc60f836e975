"""Syncs logs in worker threads. One cycle of a directory includes all logs whose sync was requested
during the cycle before (group commit).

The event loop plans a sync (`plan_sync` in disk/sync_plan.py), a worker thread runs the plan, and
the loop processes the result. After a failure `failed` is called once. Nothing is retried here: the
service decides what a failure means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import trio

from mqd.errors import StorageError
from mqd.io.disk import Disk
from mqd.limits import SYNC_THREADS
from mqd.log.disk.checkpoints import checkpointed, store_offsets
from mqd.log.disk.directory import LogDirectory
from mqd.log.disk.log_end_checkpoint import NAME
from mqd.log.disk.log_end_plan import is_news, plan_ends
from mqd.log.disk.sync_plan import SyncPlan, plan_sync
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT


class Syncer:
    """See the head of this file. All but `run` and `wait` are synchronous."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[Path, LogDirectory],
        done: Callable[[SyncPlan], None],
        failed: Callable[[PartitionLog, StorageError | OSError], None],
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._done = done
        self._failed = failed
        self._wanted = trio.Event()
        self._ended = trio.Event()

    def request(self, log: PartitionLog, *, whole: bool = True) -> None:
        """Have made durable what is written now: all of it, or the full segments only."""
        to_sync = self._directories[log.directory].to_sync
        to_sync[log] = to_sync.get(log, False) or whole
        self._wanted.set()

    async def wait(self) -> None:
        """Until the next plan has ended, well or not. Cancel-safe."""
        await self._ended.wait()

    async def run(self) -> None:
        """Until cancelled."""
        limiters = {path: trio.CapacityLimiter(SYNC_THREADS) for path in self._directories}
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for path, directory in self._directories.items():
                    if directory.to_sync and not directory.syncing:
                        directory.syncing = True
                        nursery.start_soon(self._sync_directory, directory, limiters[path])

    async def _sync_directory(self, directory: LogDirectory, limiter: trio.CapacityLimiter) -> None:
        """Cycles, until nothing waits."""
        try:
            while directory.to_sync and directory.failed is None:
                to_sync, directory.to_sync = directory.to_sync, {}
                async with trio.open_nursery() as nursery:
                    for log, whole in to_sync.items():
                        try:
                            plan = plan_sync(self._disk, log, whole=whole)
                        except OSError as error:
                            self._end(log, error)
                        else:
                            nursery.start_soon(self._sync, plan, limiter)
        finally:
            directory.syncing = False

    async def _sync(self, plan: SyncPlan, limiter: trio.CapacityLimiter) -> None:
        try:
            await self._disk.offload(plan.run, self._disk, limiter=limiter)
        except (StorageError, OSError) as error:
            plan.give_back()
            self._end(plan.log, error)
            return
        self._done(plan)
        self.tell()

    def _end(self, log: PartitionLog, error: StorageError | OSError) -> None:
        self._failed(log, error)
        self.tell()

    def tell(self) -> None:
        """Wake whoever waits: a plan has ended, or a log is gone that one might have waited for."""
        ended, self._ended = self._ended, trio.Event()
        ended.set()


async def store_checkpoint(
    disk: Disk,
    name: str,
    directories: Iterable[LogDirectory],
    logs: Collection[PartitionLog],
    failed: Callable[[Path, OSError], None],
) -> None:
    """Write one kind of checkpoint in every directory that is online; `failed` is told of a
    directory where that cannot be done.
    """
    for directory in directories:
        if directory.failed is None:
            here = [log for log in logs if log.directory == directory.path]
            offsets = checkpointed(name, here, directory.path, directory.carried.get(name, {}))
            if name == RECOVERY_POINT_CHECKPOINT:
                for log in here:
                    log.durability.recovery_point = max(
                        log.durability.recovery_point, log.durability.synced_end_offset
                    )
            try:
                await disk.offload(store_offsets, disk, directory.path / name, offsets)
                if name == RECOVERY_POINT_CHECKPOINT:
                    for log in here:
                        log.durability.recovery_point = offsets[log.topic_partition]
            except OSError as error:
                failed(directory.path / name, error)


async def store_ends(
    disk: Disk,
    directories: Iterable[LogDirectory],
    logs: Collection[PartitionLog],
    serial: int,
    failed: Callable[[Path, OSError], None],
) -> int:
    """After the recovery points: write the checkpoint of ends in every directory that is online.
    Returns the disk serial that all of them have now: one more where any log has moved, and none
    could not be written.
    """
    online = [directory for directory in directories if directory.failed is None]
    news = is_news(logs) or any(directory.serial != serial for directory in online)
    wanted, all_written = serial + news, True
    for directory in online:
        plan = plan_ends(
            directory,
            [log for log in logs if log.directory == directory.path],
            wanted,
            is_news=news,
        )
        try:
            await disk.offload(plan.run, disk)
        except OSError as error:
            failed(directory.path / NAME, error)
            all_written = False
        else:
            plan.done(disk)
            directory.serial, directory.pair = wanted, plan.pair
    return wanted if all_written else serial


async def every(seconds: float, call: Callable[[], object]) -> None:
    """Again and again, until cancelled."""
    while True:
        await trio.sleep(seconds)
        call()
