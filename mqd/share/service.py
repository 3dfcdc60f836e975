"""The share partitions that this node leads (KIP-932): loads their state, reads and acquires
records for members, stores what they acknowledge, and ends acquisition locks.

share_partition.py decides, the share coordinator stores (ports.Persister). A write has all changes
of a share partition that came while the write before it was in flight. An acknowledgement is
returned when it is stored, so that it survives the next leader. A share partition is dropped when
the leadership ends, and when the coordinator refuses a write: the next request loads it again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import trio

from mqd.back_off import parse_back_off
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk, FileRange
from mqd.limits import KIB, MIB
from mqd.log.service import LogService
from mqd.protocol.chunks import Unread
from mqd.protocol.record_reader import Record
from mqd.protocol.slices import WHOLE_SLICE, Slices, all_slices
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.waiters import FetchWaiter
from mqd.resource_configs import (
    AUTO_OFFSET_RESET,
    EARLIEST,
    LATEST,
    RETRY_BACK_OFF,
    parse_offset_reset,
)
from mqd.share.dead_letter_writer import DeadLetterWriter, Records
from mqd.share.dead_letters import Target
from mqd.share.expired_counts import ExpiredCounts
from mqd.share.key_affinity import KeyOf
from mqd.share.memory import LED_BYTES, ShareMemory
from mqd.share.partition_letters import PartitionLetters
from mqd.share.ports import GroupOption, InSlices, Persister, ShareKey
from mqd.share.reading import ReadBatch, keys_of, read_batches
from mqd.share.record_states import RANGE_BYTES, Batch, RecordState
from mqd.share.sessions import ShareSession, ShareSessions
from mqd.share.share_partition import (
    Acknowledgement,
    AcquiredRecords,
    Limits,
    SharePartition,
    Update,
)
from mqd.share.ttl import OFF, are_apart, expired_ranges, expires_at_ms
from mqd.types import NO_OFFSET, Offset

logger = logging.getLogger(__name__)

_READ_BYTES_MAX: Final = MIB
"""Read from one partition for one fetch."""
EXPIRED_LOG_SECONDS: Final = 60.0
"""The shortest time between two log lines about expired records of a share partition."""
DELAY_CHECK_SECONDS: Final = 10.0
"""A node with delayed records compares their times with its wall clock at least so often."""
KEY_AFFINITY: Final = "share.key.affinity"
_HEAD_BYTES: Final = 4 * KIB
"""Read of a larger batch: its header, and a marker as a whole."""
_READS_AT_ONCE: Final = 8
"""So reads take 8 MiB at most. Responses have ranges of files."""
_BATCHES_PER_READ: Final = 500
_BATCHES_PER_WRITE: Final = 500
"""A larger update is several writes."""
_AT_ONCE_MAX: Final = 100
"""Ranges of records that change in one step."""
_REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a write after which the share partition must be loaded again."""


class DeadLetterPort(Protocol):
    """The dead letters of the node's share partitions."""

    def target(self, group_id: str, topic: str) -> Target | None:
        """Where the letters of the records of a topic go; None if nowhere."""
        ...

    def ttl_ms(self, topic: str) -> int:
        """`mqd.message.ttl.ms` of the topic."""
        ...

    def writer(self, key: ShareKey, topic: str, records: Records) -> DeadLetterWriter: ...


OffsetForTime = Callable[[Partition, int], Awaitable[Offset | None]]
"""The first committed offset with this timestamp (ms) or later; None if there is none."""


class FetchLimits(NamedTuple):
    """What one fetch may acquire."""

    max_records: int
    max_bytes: int
    batch_size: int
    exact: bool
    """Whether `max_records` also ends within a batch (KIP-1206)."""


class Acquired(NamedTuple):
    """Records that a fetch has acquired from one partition."""

    records: bytes | Unread
    """Whole batches. They may have records that were not acquired."""
    rows: list[AcquiredRecords]

    @property
    def record_count(self) -> int:
        return sum(one.last_offset - one.first_offset + 1 for one in self.rows)


class _Write:
    """Changes that wait until the share coordinator has stored them."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.done = trio.Event()
        self.error: MqError | None = None


@dataclass(eq=False)
class LedSharePartition:
    """A share partition that this node leads in one leader epoch."""

    key: ShareKey
    partition: Partition
    leader_epoch: int
    core: SharePartition | None = None
    """None until it is loaded."""
    state_epoch: int = 0
    loaded: trio.Event = field(default_factory=trio.Event)
    load_error: MqError | None = None
    writes: list[_Write] = field(default_factory=list)
    in_flight: list[_Write] = field(default_factory=list)
    """What the share coordinator stores now."""
    is_writing: bool = False
    is_dropped: bool = False
    """The next request loads it again."""
    writes_letters: bool = False
    """A task writes dead letters."""
    expired_count: int = 0
    """Expired records that were found since the last log line about them."""
    expired_logged_at: float = -math.inf
    waiters: dict[FetchWaiter, None] = field(default_factory=dict)
    """Fetches that wait for available records."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return LED_BYTES + (0 if self.core is None else self.core.size)

    @property
    def is_current(self) -> bool:
        return (
            not self.is_dropped
            and self.partition.serves
            and self.partition.leader_epoch == self.leader_epoch
        )


class ShareService:
    """All share partitions and share sessions of one node."""

    def __init__(
        self,
        *,
        replica: ReplicaService,
        logs: LogService,
        disk: Disk,
        clock: Clock,
        persister: Persister,
        option: GroupOption,
        offset_for_time: OffsetForTime,
        dead_letters: DeadLetterPort,
        in_slices: InSlices,
        sessions_max: int,
        memory_bytes_max: int,
    ) -> None:
        """`memory_bytes_max`: of all share partitions (memory_plan.py)."""
        self.sessions = ShareSessions(sessions_max)
        self._replica = replica
        self._logs = logs
        self._disk = disk
        self._clock = clock
        self._persister = persister
        self._option = option
        self._offset_for_time = offset_for_time
        self._dead_letters = dead_letters
        self._in_slices = in_slices
        self._reads = trio.Semaphore(_READS_AT_ONCE)
        self._led: dict[ShareKey, LedSharePartition] = {}
        self.memory = ShareMemory(memory_bytes_max, self._led.values)
        self.expired = ExpiredCounts()
        self.bugs = 0
        """Share partitions that were dropped because of an unexpected exception."""
        self._nursery: trio.Nursery | None = None
        """None before `run`, and after it: connections that the node closes then end sessions."""
        self._earlier_deadline = trio.Event()
        self._expires_at = math.inf

    async def run(self) -> None:
        """Own the tasks of share partitions, and end acquisition locks; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    earlier = self._earlier_deadline = trio.Event()
                    self._expires_at = math.inf  # a lock that begins meanwhile wakes this task
                    self._expires_at = await self._in_slices(self._expiring())
                    with trio.move_on_after(max(0.0, self._expires_at - self._clock.monotonic())):
                        await earlier.wait()
            finally:
                self._nursery = None

    def _start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Start a task, unless the node stops."""
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    # -- leadership --------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """The leadership of a partition on this node has changed: drop its share partitions."""
        for led in [one for one in self._led.values() if one.partition is partition]:
            if not led.is_current:
                self._drop(led)
        if not partition.is_leader:
            assigned = partition.assignment
            self.expired.forget_partition(assigned.topic_id, assigned.topic_partition.partition)

    async def led(self, key: ShareKey, partition: Partition) -> LedSharePartition:
        """The share partition, loaded. Raises MqError."""
        led = self._led.get(key)
        if led is None or led.partition is not partition or not led.is_current:
            if led is not None:
                self._drop(led)
            if self._nursery is None:
                raise partition.not_leader()
            led = self._led[key] = LedSharePartition(key, partition, partition.leader_epoch)
            self._start(self._load, led)
        if led.core is None:
            await led.loaded.wait()
            if led.load_error is not None:
                raise led.load_error
        return led

    def _drop(self, led: LedSharePartition) -> None:
        led.is_dropped = True
        if self._led.get(led.key) is led:
            del self._led[led.key]
        for waiter in list(led.waiters):
            waiter.free()

    def _bug(self, led: LedSharePartition) -> MqError:
        """An unexpected exception was caught: log it, and drop the share partition, whose state may
        be anything. Others, and the node, are not affected (I42). Returns the error of its
        requests.
        """
        self.bugs += 1
        logger.exception(
            "bug in a share partition, dropping it group=%s partition=%s",
            led.key.group_id,
            led.partition.assignment.topic_partition,
        )
        self._drop(led)
        return MqError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "The state of the share partition is unusable. It is loaded again. See the log.",
        )

    @contextmanager
    def _dropped_after_bug(self, led: LedSharePartition) -> Iterator[None]:
        """Around what a request changes: the exception then closes its connection."""
        try:
            yield
        except MqError:
            raise
        except Exception:
            self._drop(led)
            raise

    def _drop_unused(self, led: LedSharePartition) -> None:
        """Without sessions of its group, drop it once all changes are stored: the offsets of the
        group may be set or deleted now."""
        if (
            led.core is not None
            and not led.is_writing
            and not led.writes_letters
            and not self.sessions.has_group(led.key.group_id)
        ):
            self._drop(led)

    async def _load(self, led: LedSharePartition) -> None:
        try:
            stored = await self._persister.read(led.key, led.leader_epoch)
            size = LED_BYTES + RANGE_BYTES * len(stored.batches)
            self.memory.load(size, self._clock.monotonic())
            start_offset = stored.start_offset
            if start_offset == NO_OFFSET:
                start_offset = await self._first_offset(led)
                # Stored at once: a later leader must not begin at a later offset.
                await self._persister.write(
                    led.key,
                    state_epoch=stored.state_epoch,
                    leader_epoch=led.leader_epoch,
                    start_offset=start_offset,
                    done_after_start=0,
                    batches=(),
                )
            led.state_epoch = stored.state_epoch
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
            led.core = SharePartition.loaded(
                start_offset, stored.batches, self._limits(led), end_offset=end_offset
            )
            led.core.end_delays(self._clock.wall_ms())
            self._expect_deadline(led.core)
            self._write_letters_soon(led)
        except MqError as error:
            led.load_error = error
            self._drop(led)
        except Exception:
            led.load_error = self._bug(led)
        finally:
            led.loaded.set()
        self._drop_unused(led)

    async def _first_offset(self, led: LedSharePartition) -> Offset:
        """Where a new share partition begins: `share.auto.offset.reset`."""
        reset = parse_offset_reset(str(self._option(led.key.group_id, AUTO_OFFSET_RESET)))
        partition = led.partition
        if reset == EARLIEST:
            return partition.log.log_start_offset
        end = partition.high_watermark
        if reset == LATEST:
            return end
        found = await self._offset_for_time(partition, self._clock.wall_ms() - reset)
        return end if found is None else found

    def lock_ms(self, group_id: str) -> int:
        """How long a member may hold a record."""
        found: int = self._option(group_id, "share.record.lock.duration.ms")
        return found

    def renews(self, group_id: str) -> bool:
        """Whether members may renew the locks of records (KIP-1222)."""
        found: bool = self._option(group_id, "share.renew.acknowledge.enable")
        return found

    def _limits(self, led: LedSharePartition) -> Limits:
        option, group_id = self._option, led.key.group_id
        return Limits(
            delivery_count=option(group_id, "share.delivery.count.limit"),
            record_locks=option(group_id, "share.partition.max.record.locks"),
            lock_seconds=option(group_id, "share.record.lock.duration.ms") / 1000,
            state_bytes=self.memory.part(self._clock.monotonic()),
            back_off=parse_back_off(option(group_id, RETRY_BACK_OFF)),
            dead_letters=self._dead_letters.target(group_id, _topic_of(led)) is not None,
        )

    # -- acquire -----------------------------------------------------------------------------------

    async def acquire(
        self,
        led: LedSharePartition,
        member_id: str,
        limits: FetchLimits,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Acquired | None:
        """Acquire records for a member. None if none are available now, or if they are no longer
        wanted when they are read. Raises MqError."""
        core, partition = _core_of(led), led.partition
        core.limits = self._limits(led)
        core.order_by_key(self._option(led.key.group_id, KEY_AFFINITY))
        while True:
            if not led.is_current:
                raise partition.not_leader()
            core.log_start_moved(partition.log.log_start_offset)
            offset = core.next_fetch_offset()
            committed = self._reads_committed(led)
            limit = partition.plan_stable_offset()
            if not committed:
                limit = partition.high_watermark
            if offset is None or offset >= limit:
                return None
            found = self._logs.reader.read(
                partition.log,
                offset,
                max_bytes=min(limits.max_bytes, _READ_BYTES_MAX)
                if core.affinity is None
                else _READ_BYTES_MAX,
                limit_offset=limit,
                min_one=True,
            )
            if not found.ranges:
                return None
            aborted = None
            if committed:
                aborted = [
                    (one.producer_id, one.first_offset)
                    for one in self._logs.reader.aborted(partition.log, offset, found.next_offset)
                ]
            [part] = found.ranges
            expired: list[tuple[Offset, Offset]] = []
            ttl_ms = self._dead_letters.ttl_ms(_topic_of(led))
            async with self._reads:
                size = part.size
                if size > _READ_BYTES_MAX and core.affinity is None and ttl_ms == OFF:
                    size = _HEAD_BYTES
                if ttl_ms == OFF:
                    data = await self._disk.offload(part.file.read_at, part.position, size)
                else:
                    data, expired = await self._disk.offload(
                        _read_with_expired, part, ttl_ms, self._clock.wall_ms()
                    )
                batches = await self._disk.offload(read_batches, data, aborted, part.size)
                await self._in_slices(_whole_slice())
                if not led.is_current:
                    raise partition.not_leader()
                if not is_wanted():
                    return None
                with self._dropped_after_bug(led):
                    if core.affinity is not None:
                        acquired = await self._acquire_by_key(
                            led, member_id, part, data, batches, offset, limits, expired, is_wanted
                        )
                    else:
                        self._give_up(led, expired)
                        acquired = self._acquire(
                            core, member_id, part, batches[:_BATCHES_PER_READ], offset, limits
                        )
            if acquired is not None:
                assert are_apart(acquired.rows, expired), "expired records were acquired (I66)"
                return acquired
            if core.next_fetch_offset() == offset:
                return None

    def _acquire(
        self,
        core: SharePartition,
        member_id: str,
        part: FileRange,
        batches: Sequence[ReadBatch],
        offset: Offset,
        limits: FetchLimits,
    ) -> Acquired | None:
        now = self._clock.monotonic()
        rows = core.acquire(
            member_id,
            [(one.first_offset, one.last_offset) for one in batches if not one.is_aborted],
            read_from=offset,
            max_records=limits.max_records,
            batch_size=limits.batch_size,
            exact=limits.exact,
            now=now,
        )
        if batches and all(one.is_aborted for one in batches):
            core.skip(offset, batches[-1].last_offset)
        if not rows:
            return None
        self._expect_deadline(core)
        start, end = _span(batches, rows[0].first_offset, rows[-1].last_offset)
        size = end - start
        return Acquired(Unread([FileRange(part.file, part.position + start, size)], size), rows)

    async def _acquire_by_key(
        self,
        led: LedSharePartition,
        member_id: str,
        part: FileRange,
        data: bytes,
        batches: Sequence[ReadBatch],
        offset: Offset,
        limits: FetchLimits,
        expired: Sequence[tuple[Offset, Offset]],
        is_wanted: Callable[[], bool],
    ) -> Acquired | None:
        """The same, for a group with `share.key.affinity`: learns the keys of records that it reads
        for the first time."""
        core = _core_of(led)
        affinity = core.affinity
        if affinity is None or not batches:
            return None
        last = batches[-1].last_offset
        if last >= affinity.known_end:
            unknown = [one for one in batches if one.last_offset >= affinity.known_end]
            keys = await self._disk.offload(keys_of, data, unknown)
            await self._in_slices(self._learning(led, keys, offset, last))
            if not led.is_current:
                raise led.partition.not_leader()
            if core.affinity is not affinity or not is_wanted():
                return None
        self._give_up(led, expired)
        rows = core.acquire_by_key(
            member_id,
            batches[0].first_offset,
            last,
            max_records=min(limits.max_records, _BATCHES_PER_READ),
            batch_size=limits.batch_size,
            now=self._clock.monotonic(),
        )
        if not rows:
            return None
        self._expect_deadline(core)
        return Acquired(_ranges_of_rows(part, batches, rows), rows)

    @staticmethod
    def _learning(
        led: LedSharePartition, keys: Sequence[KeyOf], first: Offset, last: Offset
    ) -> Slices[None]:
        """Learn the keys in slices, until there is no memory for more."""
        core, affinity = _core_of(led), _core_of(led).affinity
        for begin in range(0, len(keys) or 1, WHOLE_SLICE):
            if core.affinity is None or core.affinity is not affinity or not led.is_current:
                return  # the option has changed
            if begin and affinity.size >= core.limits.state_bytes:
                return
            some = keys[begin : begin + WHOLE_SLICE]
            end = some[-1].offset if begin + WHOLE_SLICE < len(keys) else last
            core.learn_keys(some, first, end)
            first = end + 1
            yield WHOLE_SLICE

    def _give_up(self, led: LedSharePartition, expired: Sequence[tuple[Offset, Offset]]) -> None:
        """Expired records are not delivered: they are archived, or get dead letters first."""
        if not expired:
            return
        core, now = _core_of(led), self._clock.monotonic()
        update = core.give_up(expired, self._clock.wall_ms())
        if update is not None:
            self._write(led, update)
        count = sum(last - first + 1 for first, last in expired)
        self.expired.add(led.key, count)
        led.expired_count += count
        if now >= led.expired_logged_at + EXPIRED_LOG_SECONDS:
            led.expired_logged_at = now
            logger.info(
                "records expired group=%s partition=%s count=%d effect='not delivered'",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                led.expired_count,
            )
            led.expired_count = 0

    def _reads_committed(self, led: LedSharePartition) -> bool:
        isolation: str = self._option(led.key.group_id, "share.isolation.level")
        return isolation == "read_committed"

    def park(self, waiter: FetchWaiter, places: Sequence[LedSharePartition]) -> None:
        """Free `waiter` when any of these may have records for it, or at its deadline."""
        for led in places:
            led.waiters[waiter] = None
        self._replica.park_fetch(waiter, [led.partition for led in places])

    @staticmethod
    def unpark(waiter: FetchWaiter, places: Sequence[LedSharePartition]) -> None:
        for led in places:
            led.waiters.pop(waiter, None)

    # -- acknowledge -------------------------------------------------------------------------------

    async def acknowledge(
        self, led: LedSharePartition, member_id: str, acknowledgements: Sequence[Acknowledgement]
    ) -> None:
        """Returns when the share coordinator has stored it. Raises MqError."""
        core = _core_of(led)
        if not led.is_current:
            raise led.partition.not_leader()
        now = self._clock.monotonic()
        core.limits = core.limits._replace(state_bytes=self.memory.part(now))
        work = core.acknowledging(member_id, acknowledgements, now, wall_ms=self._clock.wall_ms())
        with self._dropped_after_bug(led), closing(work):
            if sum(len(one.types) for one in acknowledgements) <= _AT_ONCE_MAX:
                update = all_slices(work)
            else:
                update = await self._in_slices(work)
        self._expect_deadline(core)
        if update is None:
            return
        if not led.is_current:
            raise led.partition.not_leader()
        for write in self._write(led, update):
            await write.done.wait()
            if write.error is not None:
                raise write.error

    async def release(self, session: ShareSession) -> None:
        """The session has ended: its records are available again."""
        await self._in_slices(self._releasing(session))

    def _releasing(self, session: ShareSession) -> Slices[None]:
        group_id, member_id = session.key
        for topic_id, partition in list(session.places):
            yield 1
            led = self._led.get(ShareKey(group_id, topic_id, partition))
            if led is None or led.core is None:
                continue
            try:
                update = yield from led.core.releasing(member_id)
            except Exception:
                self._bug(led)
                continue
            if update is not None and led.is_current:
                self._write(led, update)
                self._wake(led)
        if not self.sessions.has_group(group_id):
            for led in [one for one in self._led.values() if one.key.group_id == group_id]:
                yield 1
                if not self.sessions.has_group(group_id):
                    self._drop_unused(led)

    def connection_closed(self, peer: str) -> None:
        """The sessions of this connection have ended."""
        for session in self.sessions.end_of_peer(peer):
            self._start(self.release, session)

    def _write(self, led: LedSharePartition, update: Update) -> list[_Write]:
        """Store the changes, in one or more writes."""
        writes = [_Write(one) for one in update.parts(_BATCHES_PER_WRITE)]
        if self._nursery is None:
            for write in writes:
                write.error = led.partition.not_leader()
                write.done.set()
            return writes
        led.writes += writes
        if not led.is_writing:
            led.is_writing = True
            self._start(self._write_all, led)
        return writes

    async def _write_all(self, led: LedSharePartition) -> None:
        """Write the changes until none are left, several at a time."""
        try:
            await self._write_in_order(led)
        except Exception:
            error = self._bug(led)
            for write in led.in_flight + led.writes:
                write.error = error
                write.done.set()
            led.writes.clear()
        led.is_writing = False
        self._write_letters_soon(led)
        self._drop_unused(led)

    async def _write_in_order(self, led: LedSharePartition) -> None:
        core = _core_of(led)
        while led.writes:
            writes: list[_Write] = []
            batches: list[Batch] = []
            while led.writes and len(batches) < _BATCHES_PER_WRITE:
                if batches and _overlap(batches, led.writes[0].update.batches):
                    break  # a record that changed again: the share coordinator refuses overlaps
                writes.append(led.writes.pop(0))
                batches.extend(writes[-1].update.batches)
            led.in_flight = writes
            error = await self._stored(led, writes[-1].update, batches)
            became_available = False
            for write in writes:
                write.error = error
                work = core.completing(write.update, stored=error is None)
                if len(write.update.batches) <= _AT_ONCE_MAX:
                    became_available |= all_slices(work)
                else:
                    became_available |= await self._in_slices(work)
                write.done.set()
            if became_available:
                self._wake(led)
            self._expect_deadline(core)

    async def _stored(
        self, led: LedSharePartition, last: Update, batches: Sequence[Batch]
    ) -> MqError | None:
        """Have the share coordinator store these batches. Returns its error."""
        try:
            await self._persister.write(
                led.key,
                state_epoch=led.state_epoch,
                leader_epoch=led.leader_epoch,
                start_offset=last.start_offset,
                done_after_start=last.done_after_start,
                batches=batches,
            )
        except MqError as error:
            logger.warning(
                "cannot store the state of a share partition group=%s partition=%s reason=%s",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                error,
            )
            if error.code in _REFUSED_FOR_GOOD:
                self._drop(led)
            return error
        return None

    # -- dead letters ------------------------------------------------------------------------------

    def _write_letters_soon(self, led: LedSharePartition) -> None:
        """Write the dead letters of records that the group has given up."""
        core = _core_of(led)
        if self._nursery is None or led.writes_letters or not led.is_current:
            return
        if core.gives_up and core.archiving(1):
            led.writes_letters = True
            self._nursery.start_soon(self._write_letters, led)

    async def _write_letters(self, led: LedSharePartition) -> None:
        async def store(update: Update) -> None:
            for write in self._write(led, update):
                await write.done.wait()
                if write.error is not None:
                    raise write.error

        def expires(record: Record) -> int | None:
            return expires_at_ms(record, self._dead_letters.ttl_ms(_topic_of(led)))

        letters = PartitionLetters(led, self._logs, self._disk, store=store, expires_at_ms=expires)
        await self._dead_letters.writer(led.key, _topic_of(led), letters).run()
        led.writes_letters = False
        self._drop_unused(led)

    @staticmethod
    def _wake(led: LedSharePartition) -> None:
        for waiter in list(led.waiters):
            waiter.free()

    # -- locks -------------------------------------------------------------------------------------

    def _expect_deadline(self, core: SharePartition) -> None:
        if self._next_deadline(core) < self._expires_at:
            self._earlier_deadline.set()

    def _next_deadline(self, core: SharePartition) -> float:
        """Monotonic seconds at which a lock or a delay ends. A wall clock that jumps is noticed
        after DELAY_CHECK_SECONDS."""
        lock, due = core.next_deadline(), core.next_due()
        deadline = math.inf if lock is None else lock
        if due is not None:
            seconds = (due - self._clock.wall_ms()) / 1000
            deadline = min(
                deadline, self._clock.monotonic() + min(max(0.0, seconds), DELAY_CHECK_SECONDS)
            )
        return deadline

    def _expiring(self) -> Slices[float]:
        """End the locks and delays whose time is over, and find the next deadline."""
        now, expires_at = self._clock.monotonic(), math.inf
        wall_ms = self._clock.wall_ms()
        for led in list(self._led.values()):
            yield 1
            if led.core is None or led.is_dropped:
                continue
            try:
                if led.core.end_delays(wall_ms):
                    self._wake(led)
                update = yield from led.core.expiring(now, wall_ms=wall_ms)
            except Exception:
                self._bug(led)
                continue
            if update is not None:
                logger.debug(
                    "acquisition locks expired group=%s partition=%s batches=%d",
                    led.key.group_id,
                    led.partition.assignment.topic_partition,
                    len(update.batches),
                )
                self._write(led, update)
                if led.core.affinity is not None or any(
                    one.state is RecordState.AVAILABLE for one in update.batches
                ):
                    self._wake(led)
            expires_at = min(expires_at, self._next_deadline(led.core))
        return expires_at


def _read_with_expired(
    part: FileRange, ttl_ms: int, now_ms: int
) -> tuple[bytes, list[tuple[Offset, Offset]]]:
    """The bytes, and the expired records among them. Runs in a worker thread."""
    data = part.file.read_at(part.position, part.size)
    return data, expired_ranges(data, ttl_ms, now_ms)


def _topic_of(led: LedSharePartition) -> str:
    return led.partition.assignment.topic_partition.topic


def _overlap(some: Sequence[Batch], others: Sequence[Batch]) -> bool:
    """Whether a record is in both. None is twice in one of them."""
    ordered = sorted((*some, *others))
    return any(one.last_offset >= following.first_offset for one, following in pairwise(ordered))


def _core_of(led: LedSharePartition) -> SharePartition:
    assert led.core is not None, "it is loaded"
    return led.core


def _ranges_of_rows(
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


def _whole_slice() -> Slices[None]:
    """Others go first."""
    yield WHOLE_SLICE


def _span(batches: Sequence[ReadBatch], first: Offset, last: Offset) -> tuple[int, int]:
    """The positions of the batches with these offsets."""
    start = next(one.start for one in batches if one.last_offset >= first)
    end = next(one.end for one in reversed(batches) if one.first_offset <= last)
    return start, end
