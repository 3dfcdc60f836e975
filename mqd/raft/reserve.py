"""Space that a voter holds back for its journal: a full disk must not stop what frees space
(deletions) or a restart.

The file holds bytes that no file system can compress or leave out. When a write finds no space the
file is cut by a step and the write is tried again; when the disk has room the file grows back. What
is in it is never read.

Invariant: it grows only while `RAFT_RESERVE_STEP_BYTES` and what logs require stay free, so that it
does not take what was just given to a write. A reserve that cannot be made is not an error: the
journal's own writes report what is wrong with a disk.
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
    """`wanted` bytes in the file `path`, as long as there is space.

    Every method but `short` and `may_grow` blocks.
    """

    def __init__(self, disk: Disk, path: Path, wanted: int) -> None:
        self._disk = disk
        self._path = path
        self._wanted = wanted
        try:
            self.size = min(disk.open(path).size(), wanted)
        except OSError:
            self.size = 0
        self.grow()

    @property
    def short(self) -> bool:
        """Whether some of it is missing: the disk is full, or was a moment ago."""
        return self.size < self._wanted

    def may_grow(self) -> bool:
        """Whether something is missing and the disk has room for that."""
        if not self.short:
            return False
        try:
            free = self._disk.free_bytes(self._path.parent)
        except OSError:
            return False
        return free >= self._wanted - self.size + RAFT_RESERVE_STEP_BYTES + DISK_RESERVE_BYTES

    def release(self) -> bool:
        """Give a step back to the disk; False when there is none left."""
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
        """Take back what is missing, if there is room."""
        if not self.may_grow():
            return
        try:
            file = self._disk.open(self._path, create=True)
            if file.size() > self.size:
                file.truncate(self.size)
            file.append([shake_128(b"mqd").digest(self._wanted - self.size)])
            file.sync()
            self.size = file.size()
            file.close()
        except OSError as error:
            logger.warning(
                "cannot create the metadata reserve file=%s reason=%s", self._path, error
            )
