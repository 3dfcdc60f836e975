"""Loads the state of a share partition from the share coordinator."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mqd.errors import MqError
from mqd.io.clock import Clock
from mqd.replica.partition import Partition
from mqd.resource_configs import EARLIEST, LATEST
from mqd.share import endings, giving_up
from mqd.share.group_options import ShareOptions
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.memory import LED_BYTES, ShareMemory
from mqd.share.ports import Persister
from mqd.share.record_states import RANGE_BYTES
from mqd.share.share_partition import SharePartition
from mqd.share.state_writer import BATCHES_PER_WRITE, persist
from mqd.share.unaccepted_log import UnacceptedLog
from mqd.share.values import Update
from mqd.types import NO_OFFSET, Offset

logger = logging.getLogger(__name__)

OffsetForTime = Callable[[Partition, int], Awaitable[Offset | None]]
"""The first committed offset with this timestamp (ms) or later; None if there is none."""


class Loader:
    def __init__(
        self,
        *,
        partitions: LedSharePartitions,
        options: ShareOptions,
        memory: ShareMemory,
        unaccepted: UnacceptedLog,
        persister: Persister,
        clock: Clock,
        offset_for_time: OffsetForTime,
    ) -> None:
        self._partitions = partitions
        self._options = options
        self._memory = memory
        self._unaccepted = unaccepted
        self._persister = persister
        self._clock = clock
        self._offset_for_time = offset_for_time

    async def load(self, led: LedSharePartition, then: Callable[[LedSharePartition], None]) -> None:
        """A task. Calls `then(led)` before the requests that wait for the state."""
        try:
            led.loaded_core = await self._read(led)
            endings.end_delays(led.core, self._clock.wall_ms())
            then(led)
        except MqError as error:
            led.load_error = error
            self._partitions.drop(led)
        except Exception:
            led.load_error = self._partitions.bug(led)
        finally:
            led.loaded.set()
        self._partitions.drop_unused(led)

    async def _read(self, led: LedSharePartition) -> SharePartition:
        stored = await self._persister.read(led.key, led.leader_epoch)
        size = LED_BYTES + RANGE_BYTES * len(stored.batches)
        self._memory.load(size, self._clock.monotonic())
        led.state_epoch = stored.state_epoch
        start_offset = stored.start_offset
        if start_offset == NO_OFFSET:
            start_offset = await self._first_offset(led)
            # Stored at once: a later leader must not begin at a later offset.
            await self._store(led, Update((), start_offset, 0))
        end_offset = led.partition.log.log_end_offset
        beyond = max((one.last_offset for one in stored.batches), default=-1) - end_offset + 1
        if beyond > 0:
            logger.warning(
                "ignoring a stored state beyond the end of the log group=%s partition=%s "
                "end_offset=%d offsets_beyond=%d",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                end_offset,
                beyond,
            )
        part = self._memory.part(self._clock.monotonic())
        limits = self._options.limits(led.key.group_id, led.topic, part)
        core = SharePartition.loaded(start_offset, stored.batches, limits, end_offset=end_offset)
        given_up = giving_up.give_up_spent(core, self._clock.wall_ms())
        if given_up is not None:
            await self._store(led, given_up)
            self._unaccepted.given_up(led, given_up)
        return core

    async def _store(self, led: LedSharePartition, update: Update) -> None:
        for part in update.parts(BATCHES_PER_WRITE):
            await persist(self._persister, led, part)

    async def _first_offset(self, led: LedSharePartition) -> Offset:
        """Where a new share partition begins: `share.auto.offset.reset`."""
        reset, partition = self._options.offset_reset(led.key.group_id), led.partition
        if reset == EARLIEST:
            return partition.log.log_start_offset
        end = partition.high_watermark
        if reset == LATEST:
            return end
        found = await self._offset_for_time(partition, self._clock.wall_ms() - reset)
        return end if found is None else found
