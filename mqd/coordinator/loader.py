"""Loads the shards of partitions that this node leads: replays their logs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from mqd.coordinator.context import ContextState, CoordinatorContext
from mqd.coordinator.loading import SkippedRecords, replay_batches
from mqd.coordinator.shard import CoordinatorResult, Moment, Shard
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import COORDINATOR_LOAD_BYTES
from mqd.log.service import LogService

logger = logging.getLogger(__name__)

RELOAD_SECONDS: Final = 0.1
"""Between a failure and the next try to load."""
RELOAD_AFTER_BUG_SECONDS = 10.0
"""The same after an unexpected exception: the next try most likely fails, too."""


class CoordinatorLoader:
    """Loads the shards of one internal topic, one after the other. So the first are ready early."""

    def __init__(
        self,
        *,
        make_shard: Callable[[int], Shard],
        loaded: Callable[[CoordinatorContext, CoordinatorResult], None],
        logs: LogService,
        clock: Clock,
        disk: Disk,
    ) -> None:
        """`loaded(context, result)`: the shard is active, and this is the result of `on_loaded`."""
        self._make_shard = make_shard
        self._loaded = loaded
        self._logs = logs
        self._clock = clock
        self._disk = disk
        self._queue: deque[CoordinatorContext] = deque()
        self._arrival = trio.Event()
        self._load_lock = trio.Lock()

    def load(self, context: CoordinatorContext) -> None:
        """Load its shard, later."""
        self._queue.append(context)
        self._arrival.set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Start a task for each context, until cancelled."""
        while True:
            while self._queue:
                nursery.start_soon(self._load, self._queue.popleft())
            await self._arrival.wait()
            self._arrival = trio.Event()

    async def _load(self, context: CoordinatorContext) -> None:
        with context.scope:
            while True:
                began = self._clock.monotonic()
                try:
                    async with self._load_lock:
                        await self._replay_log(context)
                    now = Moment(self._clock.monotonic(), self._clock.wall_ms())
                    result = context.shard.on_loaded(now)
                except MqError as error:
                    logger.error(
                        "cannot load a coordinator, will retry partition=%s reason=%s",
                        context.topic_partition,
                        error,
                    )
                    pause = RELOAD_SECONDS
                except Exception:  # a bug: this partition has no coordinator, the others do
                    context.state = ContextState.FAILED
                    logger.exception(
                        "bug: cannot load a coordinator, its requests fail partition=%s",
                        context.topic_partition,
                    )
                    pause = RELOAD_AFTER_BUG_SECONDS
                else:
                    break
                context.shard = self._make_shard(context.index)
                await trio.sleep(pause)
            context.state = ContextState.ACTIVE
            seconds = self._clock.monotonic() - began
            if context.end:
                logger.info(
                    "coordinator loaded partition=%s end_offset=%d seconds=%.3f",
                    context.topic_partition,
                    context.end,
                    seconds,
                )
            self._loaded(context, result)

    async def _replay_log(self, context: CoordinatorContext) -> None:
        """Replay every record of the partition. Uncommitted records, too: this node leads, so they
        will be committed.

        A record that cannot be decoded is skipped: a later release wrote it, or a client that may
        write to internal topics. Any other exception is a bug and is raised: a shard that lacks a
        record would respond from an incomplete state.
        """
        log, shard = context.partition.log, context.shard
        skipped = SkippedRecords()
        offset = log.log_start_offset
        while offset < log.written_end_offset:
            found = self._logs.reader.read(
                log,
                offset,
                max_bytes=COORDINATOR_LOAD_BYTES,
                limit_offset=log.written_end_offset,
                min_one=True,
            )
            for part in found.ranges:
                data = await self._disk.offload(part.file.read_at, part.position, part.size)
                replay_batches(shard, data, offset, skipped)
                await trio.lowlevel.checkpoint()
            if found.next_offset <= offset:
                raise MqError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{log.topic_partition} cannot be read at offset {offset}",
                )
            offset = found.next_offset
        context.end = offset
        if skipped.records:
            logger.warning(
                "skipped records that cannot be decoded partition=%s %s",
                log.topic_partition,
                skipped,
                extra={"always": True},  # one per load, of fifty partitions
            )
