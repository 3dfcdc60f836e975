"""Syncs logs in worker threads. One cycle of a directory includes all logs whose sync was requested
during the previous cycle (group commit).

The event loop plans a sync (disk/sync_plan.py), a worker thread runs the plan, and the loop
processes the result. After a failure `on_failed` is called once. Nothing is retried here: the
service decides what a failure means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from mqd.errors import StorageError
from mqd.io.disk import Disk
from mqd.limits import SYNC_THREADS, SYNCS_PLANNED_AT_ONCE
from mqd.log.disk.sync_plan import SyncPlan, plan_sync
from mqd.log.log_directory import LogDirectory
from mqd.log.partition_log import PartitionLog


class Syncer:
    """See the head of this file. All methods but `run` and `wait` are synchronous."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[Path, LogDirectory],
        on_synced: Callable[[SyncPlan], None],
        on_failed: Callable[[PartitionLog, StorageError | OSError], None],
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._requested = trio.Event()
        self._ended = trio.Event()

    def request(self, log: PartitionLog, *, whole: bool = True) -> None:
        """Sync everything that is written now (`whole`), or only the full segments."""
        to_sync = self._directories[log.directory].to_sync
        to_sync[log] = to_sync.get(log, False) or whole
        self._requested.set()

    async def wait(self) -> None:
        """Wait until the next sync has ended, successful or not. Cancel-safe."""
        await self._ended.wait()

    async def run(self) -> None:
        """Sync until cancelled."""
        limiters = {path: trio.CapacityLimiter(SYNC_THREADS) for path in self._directories}
        async with trio.open_nursery() as nursery:
            while True:
                await self._requested.wait()
                self._requested = trio.Event()
                for path, directory in self._directories.items():
                    if directory.to_sync and not directory.syncing:
                        directory.syncing = True
                        nursery.start_soon(self._sync_directory, directory, limiters[path])

    async def _sync_directory(self, directory: LogDirectory, limiter: trio.CapacityLimiter) -> None:
        """Run cycles until no log waits."""
        try:
            while directory.to_sync and directory.failed is None:
                async with trio.open_nursery() as nursery:
                    for number, log in enumerate(list(directory.to_sync), 1):
                        whole = directory.to_sync.pop(log, None)
                        if whole is None:
                            continue  # it was deleted meanwhile
                        try:
                            plan = plan_sync(self._disk, log, whole=whole)
                        except OSError as error:
                            self._fail(log, error)
                        else:
                            nursery.start_soon(self._sync, plan, limiter)
                        if number % SYNCS_PLANNED_AT_ONCE == 0:
                            await trio.lowlevel.checkpoint()
        finally:
            directory.syncing = False

    async def _sync(self, plan: SyncPlan, limiter: trio.CapacityLimiter) -> None:
        try:
            await self._disk.offload(plan.run, self._disk, limiter=limiter)
        except trio.Cancelled:  # it waited for a thread; a running one is not cancelled
            plan.give_back()
            raise
        except (StorageError, OSError) as error:
            plan.give_back()
            self._fail(plan.log, error)
            return
        self._on_synced(plan)
        self.wake_waiters()

    def _fail(self, log: PartitionLog, error: StorageError | OSError) -> None:
        self._on_failed(log, error)
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Call it when a sync has ended, or a log was deleted while a task may wait for its
        sync."""
        ended, self._ended = self._ended, trio.Event()
        ended.set()
