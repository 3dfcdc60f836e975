"""Disk space that a voter reserves for its journal, so that a full disk prevents neither deletions,
which free space, nor a restart.

The file has incompressible bytes, which every file system must store. If a write finds no space,
the file is truncated by one step, and the write is retried. When the disk has space again, the file
grows. Its content is never read.

Invariant: it grows only while `RAFT_RESERVE_STEP_BYTES` and the reserve of the logs stay free. So
it does not take the space that it has just released for a write. If the reserve cannot be created,
there is no error: the journal's own writes report a problem of the disk.
"""

from __future__ import annotations

import logging
from hashlib import shake_128
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.limits import DISK_RESERVE_BYTES, RAFT_RESERVE_STEP_BYTES

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)


class Reserve:
    """A file `path` of up to `size_max` bytes, as far as there is space. All methods but `short`
    and `may_grow` block.
    """

    def __init__(self, disk: Disk, path: Path, size_max: int) -> None:
        self._disk = disk
        self._path = path
        self._size_max = size_max
        try:
            self.size = min(disk.open(path).size(), size_max)
        except OSError:
            self.size = 0
        self.grow()

    @property
    def short(self) -> bool:
        """Whether a part of it is missing: the disk is full, or was a moment ago."""
        return self.size < self._size_max

    def may_grow(self) -> bool:
        """Whether a part is missing and the disk has space for it."""
        if not self.short:
            return False
        try:
            free = self._disk.free_bytes(self._path.parent)
        except OSError:
            return False
        return free >= self._size_max - self.size + RAFT_RESERVE_STEP_BYTES + DISK_RESERVE_BYTES

    def release(self) -> bool:
        """Release one step of disk space; False if nothing is left."""
        if not self.size:
            return False
        size = max(0, self.size - RAFT_RESERVE_STEP_BYTES)
        self.size = size
        try:
            file = self._disk.open(self._path)
            file.truncate(size)
            file.sync()  # some file systems free blocks only then
            file.close()
        except OSError as error:
            logger.warning(
                "cannot release the metadata reserve file=%s reason=%s", self._path, error
            )
            self.size = 0
            return False
        return True

    def grow(self) -> None:
        """Reserve the missing part again, if there is space."""
        if not self.may_grow():
            return
        try:
            file = self._disk.open(self._path, create=True)
            if file.size() > self.size:
                file.truncate(self.size)
            file.append([shake_128(b"mqd").digest(self._size_max - self.size)])
            file.sync()
            self.size = file.size()
            file.close()
        except OSError as error:
            logger.warning(
                "cannot create the metadata reserve file=%s reason=%s", self._path, error
            )
