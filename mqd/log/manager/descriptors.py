"""File descriptors of the logs of a node: bounds their number, and decides which older segments
stay open.

Each log holds the file of its active segment. Older segments are opened for reads, and closed
again, the one that was opened first before the others. A full segment that is not durable yet stays
open, because an fdatasync of a file that is opened later may not report failed writes. If nothing
can be closed, `check_room` raises EMFILE, which is temporary.

A few spare descriptors are held back. They are used to undo a write that found no descriptor.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import StorageError
from mqd.io.memory_files import in_memory
from mqd.limits import DESCRIPTORS_SPARE, OLDER_SEGMENTS_OPEN_MAX, SEGMENTS_OPEN_MAX
from mqd.log.disk.producer_snapshots import open_transaction_index
from mqd.log.disk.segment_files import open_segment
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.log.transaction_index import TransactionIndex
from mqd.protocol.files import LOCK

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File


class Descriptors:
    """See the head of this file. `budget`: descriptors for all logs of the node together."""

    def __init__(self, disk: Disk, budget: int) -> None:
        self._disk = disk
        self._budget = budget
        self._older_max = min(OLDER_SEGMENTS_OPEN_MAX, budget // 4)
        self.partitions_max = min(max(0, budget - self._older_max - DESCRIPTORS_SPARE), 2**31 - 1)
        """The maximum number of open logs of a node."""
        self._older: deque[tuple[PartitionLog, Segment]] = deque()
        """Segments that were opened or filled, the oldest first. Some may be closed already."""
        self._spares: list[File] = []

    def check_partitions(self, count: int) -> None:
        """Raises StorageError if one more log than `count` would need descriptors that are reserved
        for other uses.
        """
        if count >= self.partitions_max:
            raise StorageError(
                f"{count} partitions are open, and the limit of open files leaves "
                f"{self._budget} of them for logs."
                " Raise it (ulimit -n, or LimitNOFILE of the service) and start the node again",
                out_of_space=True,
            )

    # -- spares

    def hold_spares(self, directory: Path) -> bool:
        """Open the missing spares, on the lock file of a log directory. Returns whether all are
        open. Files in memory need none."""
        if in_memory(directory):
            return True
        try:
            while len(self._spares) < DESCRIPTORS_SPARE:
                self._spares.append(self._disk.open(directory / LOCK))
        except OSError:
            return False
        return True

    def release_spares(self) -> None:
        self._spares.clear()

    @contextmanager
    def spares_released(self, directory: Path) -> Iterator[None]:
        """The spares are closed in this context."""
        if in_memory(directory):
            yield
            return
        self._spares.clear()
        try:
            yield
        finally:
            self.hold_spares(directory)

    # -- older segments

    def open(self, log: PartitionLog, segment: Segment) -> None:
        """Open a segment, and close others. Raises OSError or BadBatch."""
        if segment.index is None or segment.file is None:
            self.close_older(log)
            if segment is not log.active:
                self.opened(log, segment)
            open_segment(self._disk, log.path, segment, log.config)

    def open_transaction_index(self, log: PartitionLog, segment: Segment) -> TransactionIndex:
        """The transaction index of a segment, loaded if necessary. Raises OSError or BadBatch."""
        self.opened(log, segment)
        return open_transaction_index(self._disk, log.path, log.segments, segment, log.config)

    def opened(self, log: PartitionLog, segment: Segment) -> None:
        """An older segment is open, or will be opened now."""
        self._older.append((log, segment))
        self._close_some()

    def forget(self, log: PartitionLog) -> None:
        """A log was deleted: drop its segments."""
        self._older = deque(entry for entry in self._older if entry[0] is not log)

    def check_room(self) -> None:
        """Raises OSError EMFILE if too many older segments are open and none of them may be
        closed."""
        # Open files stay within the bound (I20).
        if not self._close_some():
            raise OSError(errno.EMFILE, "too many full segments wait to be synced")

    def _close_some(self) -> bool:
        older = self._older
        for _ in range(len(older)):
            if len(older) <= self._older_max:
                break
            log, segment = older.popleft()
            if (segment.file is not None or segment.transaction_index) and not _close(log, segment):
                older.append((log, segment))
        return len(older) <= self._older_max

    @staticmethod
    def close_older(log: PartitionLog) -> None:
        """Close all but a few older segments of one log. An in-flight fetch holds its own
        reference."""
        older = [one for one in log.segments[:-1] if one.index is not None or one.file is not None]
        for segment in older[: max(0, len(older) - SEGMENTS_OPEN_MAX + 1)]:
            _close(log, segment)


def _close(log: PartitionLog, segment: Segment) -> bool:
    if segment is log.active or segment.next_offset > log.durability.synced_end_offset:
        return False
    segment.file = segment.index = segment.time_index = None
    if segment.transaction_index:  # an empty one needs no memory, and saves a lookup of its file
        segment.transaction_index = None
    return True
