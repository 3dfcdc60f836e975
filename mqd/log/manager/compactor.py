"""Compacts the logs of a node: cleans the log with the largest dirty ratio, then the next one. One
log at a time.

The rules are in compaction.py; one pass over a log is in compaction_pass.py. If no log is due, the
compactor reads no file: every `log.cleaner.backoff.ms` it checks the sizes of segments in memory.

A log without enough disk space for its cleaning waits for the same time, while others are cleaned.
The disk may have space for a smaller log, whose cleaning frees more, or the other log may be in
another directory.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import trio

from mqd.errors import StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.log.compaction import Cleanable, is_due, plan_compaction
from mqd.log.compactor_options import CompactorOptions
from mqd.log.disk.segment_rewrite import Uncleanable
from mqd.log.manager.compaction_pass import CompactionPass, PassAborted, is_served
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import Reader, storage_error
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.protocol.files import LOG_SUFFIX, segment_file_name
from mqd.types import NO_TIMESTAMP, TopicPartition

logger = logging.getLogger(__name__)

_BACKOFF_SECONDS_MIN = 0.01


class Compactor:
    """See the head of this file.

    `on_failed` is called for a directory that cannot be written. `store_checkpoint` writes the
    cleaner's checkpoint.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        logs: Mapping[TopicPartition, PartitionLog],
        descriptors: Descriptors,
        reader: Reader,
        deletes: DelayedDeletes,
        *,
        on_failed: Callable[[Path, StorageError], None],
        store_checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self.options = CompactorOptions()
        """May be replaced at any time."""
        self.uncleanable: dict[PartitionLog, str] = {}
        """Logs with unreadable data, and the reason. They are not cleaned until the next start."""
        self.passes = 0
        """The number of completed passes."""
        self._waiting: dict[PartitionLog, float] = {}
        """Logs without enough disk space, and when to try them again (monotonic seconds)."""
        self._disk = disk
        self._clock = clock
        self._logs = logs
        self._descriptors = descriptors
        self._reader = reader
        self._deletes = deletes
        self._on_failed = on_failed
        self._store_checkpoint = store_checkpoint

    async def run(self) -> None:
        """Compact logs until cancelled."""
        while True:
            if not (self.options.enabled and await self.clean_one()):
                await trio.sleep(self._backoff_seconds)

    @property
    def _backoff_seconds(self) -> float:
        return max(self.options.backoff_ms / 1000, _BACKOFF_SECONDS_MIN)

    async def clean_one(self) -> bool:
        """Clean the log with the largest dirty ratio that is due. Returns whether there was one."""
        for log in [log for log in self.uncleanable if not is_served(self._logs, log)]:
            del self.uncleanable[log]
        now = self._clock.monotonic()
        self._waiting = {log: until for log, until in self._waiting.items() if until > now}
        new = [log for log in self._candidates() if log.cleaned_to is None]
        for log in new:
            # From here on this log may have gaps.
            log.cleaned_to = log.log_start_offset
        if new:
            await self._store_checkpoint()
        # No await from here until the pass begins, because logs may change in one.
        best = self._choose()
        if best is None:
            return False
        log, cleanable = best
        try:
            await self._clean(log, cleanable)
        except PassAborted as reason:
            logger.info("cleaning cancelled partition=%s reason=%s", log.topic_partition, reason)
        except Uncleanable as error:
            self.uncleanable[log] = str(error)
            logger.error(
                "cannot clean a log, it stays as it is partition=%s reason=%s",
                log.topic_partition,
                error,
            )
        except OSError as error:
            failure = storage_error(f"cannot clean {log.path}", error)
            if not failure.out_of_space or (log.swap is not None and is_served(self._logs, log)):
                # Only the next start can finish a swap whose files are partly renamed.
                self._on_failed(log.directory, failure)
                return True
            logger.warning("cannot clean now, will retry reason=%s", failure)
            self._waiting[log] = self._clock.monotonic() + self._backoff_seconds
        return True

    def _candidates(self) -> list[PartitionLog]:
        return [
            log
            for log in self._logs.values()
            if "compact" in log.config.cleanup_policy
            and log.opened
            and log.failure is None
            and log not in self.uncleanable
            and log not in self._waiting
        ]

    def _choose(self) -> tuple[PartitionLog, Cleanable] | None:
        best: tuple[PartitionLog, Cleanable] | None = None
        ratio = -1.0
        for log in self._candidates():
            if log.cleaned_to is None:
                continue
            cleanable = plan_compaction(
                log,
                self._clock.wall_ms(),
                lambda segment, log=log: self._first_timestamp(log, segment),  # type: ignore[misc]
            )
            if cleanable is not None and is_due(cleanable, log.config) and cleanable.ratio > ratio:
                best, ratio = (log, cleanable), cleanable.ratio
        return best

    def _first_timestamp(self, log: PartitionLog, segment: Segment) -> int:
        """The timestamp of the segment's first batch. Read once, for a segment that recovery did
        not read.
        """
        if segment.first_timestamp == NO_TIMESTAMP:
            file = self._disk.open(
                log.path / segment_file_name(segment.base_offset, LOG_SUFFIX + segment.suffix)
            )
            head = file.read_at(0, HEADER_BYTES)
            if len(head) == HEADER_BYTES:
                segment.first_timestamp = parse_header(head).max_timestamp
        return segment.first_timestamp

    async def _clean(self, log: PartitionLog, cleanable: Cleanable) -> None:
        """PassAborted, Uncleanable, OSError. Segments that were swapped in before stay."""
        began = self._clock.monotonic()
        cleaning = CompactionPass(
            self._disk,
            self._clock,
            self._logs,
            self._descriptors,
            self._reader,
            self._deletes,
            lambda: self.options,
            log,
            cleanable,
        )
        end = await cleaning.run()
        log.cleaned_to = end
        self.passes += 1
        logger.info(
            "cleaned partition=%s from=%d to=%d keys=%d records=%d kept=%d seconds=%.1f",
            log.topic_partition,
            cleanable.first_dirty_offset,
            end,
            cleaning.keys,
            cleaning.records_seen,
            cleaning.records_kept,
            self._clock.monotonic() - began,
        )
        await self._store_checkpoint()
