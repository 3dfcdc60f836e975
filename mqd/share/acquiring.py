"""Acquires records of share partitions for members.

The headers of record batches are read from the log for that, on the event loop, as a fetch does
(log/disk/segment_reading.py). So nothing else acquires records between the read and its result. A
thread reads whole batches only if the keys or the times of their records are needed. The bytes that
a member gets are sent from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import trio

from mqd.io.clock import Clock
from mqd.io.disk import Disk, FileRange
from mqd.limits import MIB
from mqd.log.service import LogService
from mqd.protocol.chunks import Unread
from mqd.protocol.slices import WHOLE_SLICE, Slices
from mqd.share import endings, giving_up, key_order
from mqd.share.ending_timer import EndingTimer
from mqd.share.group_options import ShareOptions
from mqd.share.key_affinity import KeyAffinity, KeyOf
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.memory import ShareMemory
from mqd.share.ports import InSlices
from mqd.share.reading import ReadBatch, ReadRecords, read_batches, read_records
from mqd.share.state_writer import StateWriter
from mqd.share.ttl import OFF, are_apart
from mqd.share.unaccepted_log import UnacceptedLog
from mqd.share.values import AcquiredRecords
from mqd.types import Offset

_READ_BYTES_MAX: Final = MIB
"""Read from one partition for one fetch."""
_READS_AT_ONCE: Final = 8
"""Reads of whole batches. So they take 8 MiB at most."""
_BATCHES_PER_READ: Final = 500


class FetchLimits(NamedTuple):
    """What one fetch may acquire."""

    max_records: int
    max_bytes: int
    batch_size: int
    exact: bool
    """Whether `max_records` also ends within a batch (KIP-1206)."""


class Acquired(NamedTuple):
    """Records that a fetch has acquired from one partition."""

    records: Unread
    """Whole batches. They may have records that were not acquired."""
    rows: list[AcquiredRecords]

    @property
    def record_count(self) -> int:
        return sum(one.last_offset - one.first_offset + 1 for one in self.rows)


class _Read(NamedTuple):
    """What to read: batches from `offset` on."""

    offset: Offset
    part: FileRange
    aborted: list[tuple[int, Offset]] | None
    """Producer id and first offset of aborted transactions; None if the group reads uncommitted
    records, too."""
    ttl_ms: int
    affinity: KeyAffinity | None


class Acquirer:
    def __init__(
        self,
        *,
        partitions: LedSharePartitions,
        options: ShareOptions,
        memory: ShareMemory,
        unaccepted: UnacceptedLog,
        logs: LogService,
        disk: Disk,
        clock: Clock,
        in_slices: InSlices,
        writer: StateWriter,
        timer: EndingTimer,
    ) -> None:
        self._partitions = partitions
        self._options = options
        self._memory = memory
        self._unaccepted = unaccepted
        self._logs = logs
        self._disk = disk
        self._clock = clock
        self._in_slices = in_slices
        self._writer = writer
        self._timer = timer
        self._reads = trio.Semaphore(_READS_AT_ONCE)

    async def acquire(
        self,
        led: LedSharePartition,
        member_id: str,
        limits: FetchLimits,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Acquired | None:
        """Acquire records for a member. None if none are available now, or if they are no longer
        wanted when they are read. Raises MqError."""
        core = led.core
        part = self._memory.part(self._clock.monotonic())
        core.limits = self._options.limits(led.key.group_id, led.topic, part)
        key_order.order_by_key(core, self._options.orders_by_key(led.key.group_id))
        while True:
            read = self._next_read(led, limits.max_bytes)
            if read is None:
                return None
            with self._partitions.dropped_after_bug(led):
                if read.affinity is None and read.ttl_ms == OFF:
                    acquired = self._acquire(led, member_id, read, self._headers(led, read), limits)
                else:
                    acquired = await self._acquire_in_thread(
                        led, member_id, read, limits, is_wanted
                    )
            self._writer.write_start(led)
            if acquired is not None or core.next_fetch_offset() == read.offset:
                return acquired
            await self._in_slices(_whole_slice())
            if not is_wanted():
                return None

    def _next_read(self, led: LedSharePartition, max_bytes: int) -> _Read | None:
        """None if no record may be available. Raises MqError."""
        core, partition = led.core, led.partition
        if not led.is_current:
            raise partition.not_leader()
        endings.log_start_moved(core, partition.log.log_start_offset)
        offset = core.next_fetch_offset()
        committed = self._options.reads_committed(led.key.group_id)
        limit = partition.plan_stable_offset() if committed else partition.high_watermark
        if offset is None or offset >= limit:
            return None
        found = self._logs.reader.read(
            partition.log,
            offset,
            max_bytes=min(max_bytes, _READ_BYTES_MAX) if core.affinity is None else _READ_BYTES_MAX,
            limit_offset=limit,
            min_one=True,
        )
        if not found.ranges:
            return None
        [part] = found.ranges
        aborted = None
        if committed:
            aborted = [
                (one.producer_id, one.first_offset)
                for one in self._logs.reader.aborted(partition.log, offset, found.next_offset)
            ]
        return _Read(offset, part, aborted, self._options.ttl_ms(led.topic), core.affinity)

    def _headers(self, led: LedSharePartition, read: _Read) -> Iterator[ReadBatch]:
        """The batches of the part, as they are needed. Raises MqError."""
        file, position, size = read.part
        try:
            yield from read_batches(
                lambda start, count: file.read_at(position + start, count), size, read.aborted
            )
        except OSError as error:
            raise self._logs.reader.not_read(led.partition.log, error) from error

    def _acquire(
        self,
        led: LedSharePartition,
        member_id: str,
        read: _Read,
        batches: Iterable[ReadBatch],
        limits: FetchLimits,
    ) -> Acquired | None:
        core = led.core
        seen: list[ReadBatch] = []

        def offsets() -> Iterator[tuple[Offset, Offset]]:
            for one in islice(batches, _BATCHES_PER_READ):
                seen.append(one)
                if not one.is_aborted:
                    yield one.first_offset, one.last_offset

        rows = core.acquire(
            member_id,
            offsets(),
            read_from=read.offset,
            max_records=limits.max_records,
            batch_size=limits.batch_size,
            exact=limits.exact,
            now=self._clock.monotonic(),
        )
        if seen and all(one.is_aborted for one in seen):
            core.skip(read.offset, seen[-1].last_offset)
        if not rows:
            return None
        self._timer.expect(led)
        return Acquired(_bytes_of(read.part, seen, rows), rows)

    async def _acquire_in_thread(
        self,
        led: LedSharePartition,
        member_id: str,
        read: _Read,
        limits: FetchLimits,
        is_wanted: Callable[[], bool],
    ) -> Acquired | None:
        """The same, with whole batches. None if the records are no longer wanted."""
        core = led.core
        async with self._reads:
            now_ms = self._clock.wall_ms()
            found = await self._disk.offload(_read_part, read, now_ms)
            await self._in_slices(_whole_slice())
            if not led.is_current:
                raise led.partition.not_leader()
            if not is_wanted() or core.affinity is not read.affinity:
                return None
            if core.affinity is not None:
                return await self._acquire_by_key(
                    led, member_id, read, found, limits, is_wanted, now_ms
                )
            self._give_up_expired(led, found.expired, now_ms)
            acquired = self._acquire(led, member_id, read, found.batches, limits)
            assert acquired is None or are_apart(acquired.rows, found.expired), "expired (I66)"
            return acquired

    async def _acquire_by_key(
        self,
        led: LedSharePartition,
        member_id: str,
        read: _Read,
        found: ReadRecords,
        limits: FetchLimits,
        is_wanted: Callable[[], bool],
        now_ms: int,
    ) -> Acquired | None:
        """For a group with `share.key.affinity`: learns the keys of records that it reads for the
        first time."""
        core, batches = led.core, found.batches
        if not batches:
            return None
        last = batches[-1].last_offset
        assert read.affinity is not None
        if last >= read.affinity.known_end:
            await self._in_slices(self._learning(led, found.keys, read.offset, last))
            if not led.is_current:
                raise led.partition.not_leader()
            if core.affinity is not read.affinity or not is_wanted():
                return None
        self._give_up_expired(led, found.expired, now_ms)
        rows = key_order.acquire_by_key(
            core,
            member_id,
            read.offset,  # earlier records of the batch were not decoded
            last,
            max_records=min(limits.max_records, _BATCHES_PER_READ),
            batch_size=limits.batch_size,
            now=self._clock.monotonic(),
        )
        if not rows:
            return None
        assert are_apart(rows, found.expired), "expired (I66)"
        self._timer.expect(led)
        return Acquired(_bytes_of(read.part, batches, rows), rows)

    @staticmethod
    def _learning(
        led: LedSharePartition, keys: Sequence[KeyOf], first: Offset, last: Offset
    ) -> Slices[None]:
        """Learn the keys in slices, until there is no memory for more."""
        core, affinity = led.core, led.core.affinity
        for begin in range(0, len(keys) or 1, WHOLE_SLICE):
            if core.affinity is None or core.affinity is not affinity or not led.is_current:
                return  # the option has changed
            if begin and affinity.size >= core.limits.state_bytes:
                return
            some = keys[begin : begin + WHOLE_SLICE]
            end = some[-1].offset if begin + WHOLE_SLICE < len(keys) else last
            key_order.learn_keys(core, some, first, end)
            first = end + 1
            yield WHOLE_SLICE

    def _give_up_expired(
        self, led: LedSharePartition, expired: Sequence[tuple[Offset, Offset]], now_ms: int
    ) -> None:
        """Records that had expired at `now_ms` are not delivered: they are archived, or get dead
        letters first. `now_ms` is stored: the cause in a letter depends on it."""
        if not expired:
            return
        update = giving_up.give_up_expired(led.core, expired, now_ms)
        if update is not None:
            self._writer.write(led, update)
        self._unaccepted.expired(led, sum(last - first + 1 for first, last in expired))


def _read_part(read: _Read, now_ms: int) -> ReadRecords:
    """Runs in a worker thread: records are decompressed for their keys or times."""
    part, affinity = read.part, read.affinity
    data = memoryview(part.file.read_at(part.position, part.size))
    batches = read_batches(lambda start, size: data[start : start + size], len(data), read.aborted)
    return read_records(
        data,
        batches,
        read.offset,
        keys_known_end=None if affinity is None else affinity.known_end,
        ttl_ms=read.ttl_ms,
        now_ms=now_ms,
    )


def _whole_slice() -> Slices[None]:
    """Others go first."""
    yield WHOLE_SLICE


def _bytes_of(
    part: FileRange, batches: Sequence[ReadBatch], rows: Sequence[AcquiredRecords]
) -> Unread:
    """The batches with records of these rows. Both are in order."""
    found: list[FileRange] = []
    position = 0
    for batch in batches:
        while position < len(rows) and rows[position].last_offset < batch.first_offset:
            position += 1
        if position == len(rows):
            break
        if rows[position].first_offset <= batch.last_offset:
            begins = part.position + batch.start
            if found and found[-1].position + found[-1].size == begins:
                begins = found.pop().position
            found.append(FileRange(part.file, begins, part.position + batch.end - begins))
    return Unread(found, sum(one.size for one in found))
