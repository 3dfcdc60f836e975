"""The clean shutdown of a log directory: syncs its logs, then writes checkpoints and Kafka's marker
of a clean shutdown.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from mqd.errors import StorageError
from mqd.io.disk import Disk
from mqd.log.disk.checkpoints import CHECKPOINTS, checkpointed, store_clean_shutdown, store_offsets
from mqd.log.disk.log_end_checkpoint import plan_log_ends
from mqd.log.disk.producer_snapshots import remove_snapshots
from mqd.log.disk.segment_files import append_indexes
from mqd.log.disk.sync_plan import plan_sync
from mqd.log.log_directory import LogDirectory
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    INDEX_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    TIME_INDEX_SUFFIX,
    segment_file_name,
)

CLOSED_AT_ONCE = 16
"""Logs that are made durable at the same time. Ten thousand logs take half a minute, instead of six
minutes one after the other.
"""


async def close_directory(
    disk: Disk, directory: LogDirectory, logs: list[PartitionLog], broker_epoch: int, serial: int
) -> None:
    """Make everything durable, and write the marker. Nothing else may use these logs.

    Each log waits for the disk about six times. The disk serves several waits together, so several
    logs are closed at the same time. Logs that failed get no recovery point, so the next start does
    not trust them. Raises OSError, or StorageError if there is no space for the small files: then
    the records are durable, and the next start scans them.
    """
    failures: list[OSError | StorageError] = []

    async def close(some: list[PartitionLog]) -> None:
        try:
            await disk.offload(_close_logs, disk, some)
        except (OSError, StorageError) as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for first in range(min(len(logs), CLOSED_AT_ONCE)):
            nursery.start_soon(close, logs[first::CLOSED_AT_ONCE])
    for failure in sorted(failures, key=lambda error: isinstance(error, StorageError)):
        raise failure
    await disk.offload(_store_closed, disk, directory, logs, broker_epoch, serial)


def _close_logs(disk: Disk, logs: Iterable[PartitionLog]) -> None:
    """Make them durable, except those that failed. In a worker thread."""
    full: StorageError | None = None
    for log in logs:
        if not log.is_readable or (not log.written_end_offset and not log.truncations):
            # It never held a record. Thousands of such logs are not worth six syncs each. After
            # the next start, its files are synced with its first records (`_Loader._finish`).
            continue
        active = log.active
        active.on_inactive()
        append_indexes(disk, log.path, active)
        snapshot = (log.written_end_offset, log.producers.freeze())
        log.durability.unwritten_snapshots.append(snapshot)
        plan = plan_sync(disk, log, whole=True)
        plan.add_transaction_index(active)
        plan.indexes += [
            log.path / segment_file_name(active.base_offset, suffix)
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        ]
        try:
            plan.run(disk)
        except StorageError as error:  # its recovery point stays. The others become durable.
            full = error
            continue
        log.durability.on_closed(log.written_end_offset)
        remove_snapshots(disk, log.path, log.segments)
    if full is not None:
        raise full


def _store_closed(
    disk: Disk, directory: LogDirectory, logs: list[PartitionLog], broker_epoch: int, serial: int
) -> None:
    """After `_close_logs`: the checkpoints, and the marker of a clean shutdown. In a worker thread.
    `serial`: see `plan_log_ends`."""
    sound = [log for log in logs if log.is_readable]
    for name in (
        *CHECKPOINTS,
        *((CLEANER_CHECKPOINT,) if any(log.cleaned_to is not None for log in logs) else ()),
    ):
        counted = sound if name == RECOVERY_POINT_CHECKPOINT else logs
        store_offsets(
            disk,
            directory.path / name,
            checkpointed(name, counted, directory.path, directory.unserved_offsets.get(name, {})),
        )
    plan = plan_log_ends(directory, logs, serial, changed=serial != directory.serial)
    plan.run(disk)
    plan.on_stored(disk)
    directory.serial = serial
    store_clean_shutdown(disk, directory.path, broker_epoch)
