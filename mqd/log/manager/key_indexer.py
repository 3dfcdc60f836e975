"""Builds the key filters of full segments, for topics with `mqd.key.index`: one segment at a time,
the newest first (disk/key_filter_build.py).

A worker thread does the work in slices, and pauses after each for the time that it took. A segment
gets its filter after its sync, so that nothing is built for records that a power cut removes.
Truncations and compactions remove filters; a lookup that finds a damaged one reports it. All these
get a new one here. A segment without a filter is searched all the same, only slower.

Without a topic that has the option, nothing here runs: the task looks at the logs in memory once a
minute, and when a segment of such a topic was filled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from mqd.errors import PASSING_ERRNOS, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import CLEANER_REST_SECONDS_MAX, DISK_RESERVE_BYTES
from mqd.log.disk.key_filter_build import FilterBuild, filter_path, read_filter, remove_filter
from mqd.log.manager.reading import storage_error
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.files import (
    LOG_SUFFIX,
    BadBatch,
    FileFormatError,
    segment_file_name,
)
from mqd.types import TopicPartition

logger = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
RETRY_SECONDS = 60.0


class KeyIndexer:
    """See the head of this file. `on_failed` is called for a directory that cannot be written."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        logs: Mapping[TopicPartition, PartitionLog],
        *,
        on_failed: Callable[[Path, StorageError], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._logs = logs
        self._on_failed = on_failed
        self._woken = trio.Event()
        self._waiting: dict[Segment, float] = {}
        """Segments without a filter for now, and when to try again (monotonic seconds)."""
        self.built = 0
        """The number of filters that were built, in this process."""
        self.built_bytes = 0
        """The bytes of these filters."""
        self.damaged = 0
        """The number of filters that were found damaged or out of date."""

    def wake(self) -> None:
        """A segment may need a filter."""
        self._woken.set()

    def sealed(self, log: PartitionLog) -> None:
        """A segment of the log is full, or was synced, truncated or cleaned."""
        if log.config.mqd_key_index:
            self._woken.set()

    async def run(self) -> None:
        """Build filters until cancelled."""
        while True:
            self._woken = trio.Event()
            while await self.build_one():
                pass
            with trio.move_on_after(CHECK_SECONDS):
                await self._woken.wait()

    async def build_one(self) -> bool:
        """Build the filter of one segment that lacks it. Returns whether there was one."""
        now = self._clock.monotonic()
        self._waiting = {one: until for one, until in self._waiting.items() if until > now}
        for log in list(self._logs.values()):
            if not log.config.mqd_key_index or log.failure is not None or not log.opened:
                continue
            for segment in reversed(log.segments[:-1]):
                if self._lacks_filter(log, segment):
                    await self._provide(log, segment)
                    return True
        return False

    def _lacks_filter(self, log: PartitionLog, segment: Segment) -> bool:
        return (
            not segment.has_key_filter
            and segment.size > 0
            and segment not in self._waiting
            and segment.next_offset <= log.durability.synced_end_offset
            and log.swap is None
        )

    def discard(self, log: PartitionLog, segment: Segment, reason: object) -> None:
        """A filter is damaged or out of date: remove it, and build another one."""
        self.damaged += 1
        logger.warning(
            "key filter is rebuilt partition=%s segment=%d reason=%s",
            log.topic_partition,
            segment.base_offset,
            reason,
        )
        try:
            remove_filter(self._disk, log.path, segment)
        except OSError as error:
            logger.warning("cannot remove a key filter path=%s reason=%s", log.path, error)
        self.sealed(log)

    async def _provide(self, log: PartitionLog, segment: Segment) -> None:
        """Use the filter that is there, or build one. A failure is logged and tried again."""
        try:
            truncations = log.truncations
            if await self._disk.offload(self._is_there, log, segment):
                if log.truncations == truncations and self._is_current(log, segment):
                    segment.has_key_filter = True
            elif self._is_current(log, segment):
                await self._build(log, segment)
        except BadBatch as bad:
            self._fail(log, segment, f"the segment is damaged: {bad}")
        except OSError as error:
            if not self._is_current(log, segment):
                return
            self._fail(log, segment, str(error))
            if error.errno not in PASSING_ERRNOS:
                self._on_failed(
                    log.directory, storage_error(f"cannot write a key filter in {log.path}", error)
                )

    def _fail(self, log: PartitionLog, segment: Segment, reason: str) -> None:
        logger.warning(
            "cannot build a key filter, will retry partition=%s segment=%d reason=%s",
            log.topic_partition,
            segment.base_offset,
            reason,
        )
        self._waiting[segment] = self._clock.monotonic() + RETRY_SECONDS

    def _is_there(self, log: PartitionLog, segment: Segment) -> bool:
        """Whether the segment has a valid filter. In a worker thread. Raises OSError."""
        try:
            file = self._disk.open(
                log.path / segment_file_name(segment.base_offset, LOG_SUFFIX + segment.suffix)
            )
            read_filter(self._disk, log.path, segment, file)
        except (FileNotFoundError, FileFormatError):
            return False
        return True

    async def _build(self, log: PartitionLog, segment: Segment) -> None:
        """Raises BadBatch, OSError."""
        began = self._clock.monotonic()
        if self._disk.free_bytes(log.path) < segment.size // 16 + DISK_RESERVE_BYTES:
            self._fail(log, segment, "the disk is nearly full")
            return
        truncations = log.truncations
        build = FilterBuild(self._disk, log.path, segment)
        slices = build.slices()
        placed = False
        try:
            while True:
                slice_began = self._clock.monotonic()
                read = await self._disk.offload(next, slices, None)
                if not self._is_current(log, segment) or log.truncations != truncations:
                    return
                if read is None:
                    break
                taken = self._clock.monotonic() - slice_began
                await trio.sleep(min(taken, CLEANER_REST_SECONDS_MAX))
            # No await from here on: the segment is what the filter was built from.
            self._disk.rename(
                build.temporary, filter_path(log.path, segment.base_offset), durable=False
            )
            placed = segment.has_key_filter = True
        finally:
            if not placed:
                self._remove(build.temporary)
        self.built += 1
        self.built_bytes += build.bytes
        logger.info(
            "key filter built partition=%s segment=%d bytes=%d filter_bytes=%d seconds=%.1f",
            log.topic_partition,
            segment.base_offset,
            segment.size,
            build.bytes,
            self._clock.monotonic() - began,
        )

    def _is_current(self, log: PartitionLog, segment: Segment) -> bool:
        """Whether the segment is still a full segment of a log that is served and indexed."""
        return (
            self._logs.get(log.topic_partition) is log
            and log.failure is None
            and log.config.mqd_key_index
            and log.swap is None
            and any(one is segment for one in log.segments[:-1])
        )

    def _remove(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except OSError as error:  # the next start does it, too
            logger.warning("cannot remove path=%s reason=%s", path, error)
