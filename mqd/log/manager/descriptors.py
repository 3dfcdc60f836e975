"""Descriptors: how many the logs of a node may hold, which older segments stay open, and what is
kept for when there are none.

Each log holds the file of its active segment. Older segments are opened when somebody reads there
and closed again, the longest open first; one that is full and not yet durable stays open, because a
file that is opened again later may not tell what became of the writes to it. Where nothing can be
closed, `check_room` refuses as a process without descriptors would (EMFILE), which passes.

A few spares are held back: a write that found no descriptor is taken back with them.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import StorageError
from mqd.limits import DESCRIPTORS_SPARE, OLDER_SEGMENTS_OPEN_MAX, SEGMENTS_OPEN_MAX
from mqd.log.disk.producer_snapshots import have_aborted
from mqd.log.disk.segment_files import open_segment
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.log.transaction_index import AbortedIndex
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
        """How many logs a node may have open."""
        self._older: deque[tuple[PartitionLog, Segment]] = deque()
        """Segments that were opened or filled, the first one longest ago; closed ones may
        still be among them.
        """
        self._spares: list[File] = []

    def check_partitions(self, count: int) -> None:
        """StorageError where one more log than `count` would take the descriptors that the
        node needs for other things.
        """
        if count >= self.partitions_max:
            raise StorageError(
                f"{count} partitions are open, and the limit of open files leaves "
                f"{self._budget} of them for logs:"
                " raise it (ulimit -n, or LimitNOFILE of the service) and start the node again",
                out_of_space=True,
            )

    # -- spares

    def hold_spares(self, home: Path) -> bool:
        """Open what is missing of the spares, on the lock file of the log directory `home`;
        whether all are there.
        """
        try:
            while len(self._spares) < DESCRIPTORS_SPARE:
                self._spares.append(self._disk.open(home / LOCK))
        except OSError:
            return False
        return True

    def release_spares(self) -> None:
        self._spares.clear()

    @contextmanager
    def lent(self, home: Path) -> Iterator[None]:
        """The spares are free while this lasts."""
        self._spares.clear()
        try:
            yield
        finally:
            self.hold_spares(home)

    # -- older segments

    def open(self, log: PartitionLog, segment: Segment) -> None:
        """Have a segment at hand, and let go of others. OSError, BadBatch."""
        if segment.index is None or segment.file is None:
            self.close_older(log)
            if segment is not log.active:
                self.opened(log, segment)
            open_segment(self._disk, log.path, segment, log.config)

    def have_aborted(self, log: PartitionLog, segment: Segment) -> AbortedIndex:
        """The aborted transactions of a segment, read from its file where need be.

        OSError, BadBatch.
        """
        self.opened(log, segment)
        return have_aborted(self._disk, log.path, log.segments, segment, log.config)

    def opened(self, log: PartitionLog, segment: Segment) -> None:
        """An older segment is open, or about to be."""
        self._older.append((log, segment))
        self._close_some()

    def forget(self, log: PartitionLog) -> None:
        """A log that is gone: nothing here keeps its files open."""
        self._older = deque(entry for entry in self._older if entry[0] is not log)

    def check_room(self) -> None:
        """OSError EMFILE when too many older segments are open and none of them may be closed."""
        # Open files stay within the bound (I20).
        if not self._close_some():
            raise OSError(errno.EMFILE, "too many full segments wait to be synced")

    def _close_some(self) -> bool:
        older = self._older
        for _ in range(len(older)):
            if len(older) <= self._older_max:
                break
            log, segment = older.popleft()
            if (segment.file is not None or segment.aborted) and not _close(log, segment):
                older.append((log, segment))
        return len(older) <= self._older_max

    @staticmethod
    def close_older(log: PartitionLog) -> None:
        """Keep few older segments of one log open; what a fetch is sending stays open for
        as long as it is sent.
        """
        older = [one for one in log.segments[:-1] if one.index is not None or one.file is not None]
        for segment in older[: max(0, len(older) - SEGMENTS_OPEN_MAX + 1)]:
            _close(log, segment)


def _close(log: PartitionLog, segment: Segment) -> bool:
    if segment is log.active or segment.next_offset > log.durability.synced_end_offset:
        return False
    segment.file = segment.index = segment.time_index = None
    if segment.aborted:  # an empty one costs nothing, and saves looking for the file
        segment.aborted = None
    return True
