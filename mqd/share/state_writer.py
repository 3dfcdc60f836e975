"""Stores the changes of share partitions, in the share coordinator (ports.Persister).

A write has all changes of a share partition that came while the write before it was in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import all_slices
from mqd.share import acknowledging
from mqd.share.ending_timer import EndingTimer
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions, Write
from mqd.share.ports import InSlices, Persister
from mqd.share.record_states import Batch
from mqd.share.unaccepted_log import UnacceptedLog
from mqd.share.values import Update

logger = logging.getLogger(__name__)

BATCHES_AT_ONCE: Final = 100
"""Ranges of records that change in one step."""
BATCHES_PER_WRITE: Final = 500
"""A larger update is several writes."""
_REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a write after which the share partition must be loaded again."""


class StateWriter:
    def __init__(
        self,
        *,
        partitions: LedSharePartitions,
        persister: Persister,
        timer: EndingTimer,
        in_slices: InSlices,
        unaccepted: UnacceptedLog,
        written: Callable[[LedSharePartition], None],
    ) -> None:
        """`written(led)`: called when all changes of a share partition are stored."""
        self._partitions = partitions
        self._persister = persister
        self._timer = timer
        self._in_slices = in_slices
        self._unaccepted = unaccepted
        self._written = written

    async def store(self, led: LedSharePartition, update: Update) -> None:
        """Returns when the share coordinator has stored it. Raises MqError."""
        for write in self.write(led, update):
            await write.done.wait()
            if write.error is not None:
                raise write.error

    def write(self, led: LedSharePartition, update: Update) -> list[Write]:
        """Begin to store the changes, in one or more writes."""
        self._unaccepted.given_up(led, update)
        writes = [Write(one) for one in update.parts(BATCHES_PER_WRITE)]
        if not self._partitions.is_running:
            for write in writes:
                write.error = led.partition.not_leader()
                write.done.set()
            return writes
        led.writes += writes
        if not led.is_writing:
            led.is_writing = True
            self._partitions.start(self._write_all, led)
        return writes

    def write_start(self, led: LedSharePartition) -> None:
        """Store a start offset that no other write stores."""
        if not led.is_writing and (update := led.core.start_update()) is not None:
            self.write(led, update)

    async def _write_all(self, led: LedSharePartition) -> None:
        """Write the changes until none are left, several at a time."""
        try:
            while led.writes and not led.is_dropped:
                await self._write_some(led)
        except Exception:
            error = self._partitions.bug(led)
            for write in led.in_flight + led.writes:
                write.error = error
                write.done.set()
            led.writes.clear()
        for write in led.writes:  # another one may have been loaded: its states are the valid ones
            write.error = led.partition.not_leader()
            write.done.set()
        led.writes.clear()
        led.is_writing = False
        self._written(led)

    async def _write_some(self, led: LedSharePartition) -> None:
        writes: list[Write] = []
        batches: list[Batch] = []
        while led.writes and len(batches) < BATCHES_PER_WRITE:
            if batches and _overlap(batches, led.writes[0].update.batches):
                break  # a record that changed again: the share coordinator refuses overlaps
            writes.append(led.writes.pop(0))
            batches.extend(writes[-1].update.batches)
        led.in_flight = writes
        error = await self._stored(led, writes[-1].update, batches)
        for write in writes:
            write.error = error
            work = acknowledging.complete(led.core, write.update, stored=error is None)
            if len(write.update.batches) <= BATCHES_AT_ONCE:
                all_slices(work)
            else:
                await self._in_slices(work)
            write.done.set()
        led.waiters.wake_one()
        self._timer.expect(led)
        if not led.writes and (start := led.core.start_update()) is not None:
            led.writes.append(Write(start))

    async def _stored(
        self, led: LedSharePartition, last: Update, batches: Sequence[Batch]
    ) -> MqError | None:
        """Have the share coordinator store these batches. Returns its error."""
        try:
            await persist(self._persister, led, replace(last, batches=tuple(batches)))
        except MqError as error:
            logger.warning(
                "cannot store the state of a share partition group=%s partition=%s reason=%s",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                error,
            )
            if error.code in _REFUSED_FOR_GOOD:
                self._partitions.drop(led)
            return error
        return None


async def persist(persister: Persister, led: LedSharePartition, update: Update) -> None:
    """One write, of at most BATCHES_PER_WRITE batches. Raises MqError."""
    await persister.write(
        led.key,
        state_epoch=led.state_epoch,
        leader_epoch=led.leader_epoch,
        start_offset=update.start_offset,
        done_after_start=update.done_after_start,
        batches=update.batches,
    )


def _overlap(some: Sequence[Batch], others: Sequence[Batch]) -> bool:
    """Whether a record is in both. None is twice in one of them."""
    ordered = sorted((*some, *others))
    return any(one.last_offset >= following.first_offset for one, following in pairwise(ordered))
