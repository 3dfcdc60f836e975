"""Files that read well and may not be on the disk: what a failed sync leaves behind.

After a failed fsync the kernel calls the pages clean that it could not write. Until the machine is
restarted or needs the memory every reader finds them, a process that was started anew included, and
no later sync writes them (Rebello et al., "Can Applications Recover from fsync Failures?", ATC
'20). Whoever builds on such a file loses it with the next power cut.

So a directory in which a write or sync failed is marked, and the next start writes again, in place,
what nothing proves to be on the disk (I30). Then its pages are dirty, and a sync writes them. The
mark need not be durable: if it is lost with a power cut, so are the pages that it warns of.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.limits import SCAN_BYTES

if TYPE_CHECKING:
    from mqd.io.disk import Disk

MARK = ".mqd_suspect"


def mark(disk: Disk, directory: Path) -> None:
    """Quiet where the disk takes not even this: then it will not take what a start must
    write, either.
    """
    with suppress(OSError):
        disk.open(directory / MARK, create=True).close()


def is_marked(disk: Disk, directory: Path) -> bool:
    return disk.exists(directory / MARK)


def clear(disk: Disk, directory: Path) -> None:
    """All that was in doubt was written again, and synced."""
    disk.remove(directory / MARK)


def write_again(disk: Disk, path: Path) -> None:
    """Have the whole file written by its next sync, whatever the kernel believes. OSError."""
    file = disk.open(path)
    size = file.size()
    for position in range(0, size, SCAN_BYTES):
        file.write_at(position, file.read_at(position, min(SCAN_BYTES, size - position)))
