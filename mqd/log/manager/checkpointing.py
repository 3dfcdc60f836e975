"""Writes checkpoints of all log directories, in worker threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from mqd.io.disk import Disk
from mqd.log.disk.checkpoints import checkpointed, store_offsets
from mqd.log.disk.log_end_checkpoint import log_ends_changed, plan_log_ends
from mqd.log.log_directory import LogDirectory
from mqd.log.log_end import LOG_END_CHECKPOINT
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT


async def store_checkpoint(
    disk: Disk,
    name: str,
    directories: Iterable[LogDirectory],
    logs: Collection[PartitionLog],
    on_failed: Callable[[Path, OSError], None],
) -> None:
    """Write one kind of checkpoint in every online directory. `on_failed` is called for each file
    that cannot be written.
    """
    for directory in directories:
        if directory.failed is None:
            directory_logs = [log for log in logs if log.directory == directory.path]
            offsets = checkpointed(
                name, directory_logs, directory.path, directory.unserved_offsets.get(name, {})
            )
            if name == RECOVERY_POINT_CHECKPOINT:
                for log in directory_logs:
                    log.durability.recovery_point = max(
                        log.durability.recovery_point, log.durability.synced_end_offset
                    )
            try:
                await disk.offload(store_offsets, disk, directory.path / name, offsets)
                if name == RECOVERY_POINT_CHECKPOINT:
                    for log in directory_logs:
                        log.durability.recovery_point = offsets[log.topic_partition]
            except OSError as error:
                on_failed(directory.path / name, error)


async def store_log_ends(
    disk: Disk,
    directories: Iterable[LogDirectory],
    logs: Collection[PartitionLog],
    serial: int,
    on_failed: Callable[[Path, OSError], None],
) -> int:
    """Write the log end checkpoint in every online directory, after the recovery points.

    Returns the disk serial of all of them. It is `serial` if no log end has changed, or if a file
    could not be written, else one more.
    """
    online = [directory for directory in directories if directory.failed is None]
    changed = log_ends_changed(logs) or any(directory.serial != serial for directory in online)
    new_serial, all_written = serial + changed, True
    for directory in online:
        plan = plan_log_ends(
            directory,
            [log for log in logs if log.directory == directory.path],
            new_serial,
            changed=changed,
        )
        try:
            await disk.offload(plan.run, disk)
        except OSError as error:
            on_failed(directory.path / LOG_END_CHECKPOINT, error)
            all_written = False
        else:
            plan.on_stored(disk)
            directory.serial = new_serial
            directory.recovery_points_crc = plan.recovery_points_crc
    return new_serial if all_written else serial
