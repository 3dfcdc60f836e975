"""Whether the disks of this node have space for more metadata and partitions."""

from __future__ import annotations

from mqd.io.disk import Disk
from mqd.limits import DISK_RESERVE_BYTES
from mqd.log.service import LogService
from mqd.node.data_directory import DataDirectory
from mqd.raft.service import RaftService


def why_full(data: DataDirectory, logs: LogService, raft: RaftService, disk: Disk) -> str | None:
    """Why nothing that needs space may be created; None if there is space."""
    if raft.short_of_space:
        return (
            f"The disk of {data.metadata} is full: free some space, then "
            "retry; topics can be deleted."
        )
    for directory in logs.directories.values():
        if directory.failed is None:
            try:
                if disk.free_bytes(directory.path) >= DISK_RESERVE_BYTES:
                    return None
            except OSError:
                return None  # the next write there reports the error
    return (
        "The disk of the log directories is full: free some space, then retry; topics "
        "can be deleted."
    )
