"""Data that can be read but may not be on the disk, after a failed fsync.

After a failed fsync the kernel marks the unwritten pages as clean. Every process can read them
until the machine restarts or needs the memory, but no later sync writes them. (Rebello et al., "Can
Applications Recover from fsync Failures?", ATC '20.) A process that relies on such pages loses them
in the next power cut.

So a directory in which a write or sync failed gets a mark. The next start rewrites, in place, all
data that may not be on the disk (I30). Then the pages are dirty, and a sync writes them. The mark
need not be durable: a power cut that removes it also removes those pages.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.limits import SCAN_BYTES

if TYPE_CHECKING:
    from mqd.io.disk import Disk

MARK = ".mqd_suspect"


def set_mark(disk: Disk, directory: Path) -> None:
    """Ignores errors: a disk that cannot store the mark cannot store the rewritten data either."""
    with suppress(OSError):
        disk.open(directory / MARK, create=True).close()


def has_mark(disk: Disk, directory: Path) -> bool:
    return disk.exists(directory / MARK)


def clear_mark(disk: Disk, directory: Path) -> None:
    """All data that may not have been on the disk was rewritten and synced."""
    disk.remove(directory / MARK)


def rewrite_in_place(disk: Disk, path: Path) -> None:
    """Make all pages of the file dirty, so that its next sync writes them. Raises OSError."""
    file = disk.open(path)
    size = file.size()
    for position in range(0, size, SCAN_BYTES):
        file.write_at(position, file.read_at(position, min(SCAN_BYTES, size - position)))
