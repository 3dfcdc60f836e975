"""The relay of one led partition of a delay topic: reads its log, waits until records are due, and
writes them to the target.

The timer index has the pending records in the order of (due time, offset). A batch of due records
and the progress that covers them are one transaction (producer.py, I54). Its progress is a
committed offset: the first pending offset, with the metadata of delay_progress.py (I57).

The next occurrence of a schedule does not follow at once what the relay knows of the log: its key
may be cancelled between. So before an occurrence enters the index, these records are read again,
and a tombstone for the occurrence is written (occurrences.py, I58).

A shell: delay_records.py decides what becomes of a record. After any error, the epoch of the
producer ends, and the next one begins with the committed progress.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import trio

from mqd.client.backoff import backoff_s
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.limits import KIB
from mqd.log.service import LogService
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.relay.delay_progress import (
    Counts,
    TimerProgress,
    decode_metadata,
    encode_metadata,
)
from mqd.relay.delay_records import (
    EXPIRED,
    Outgoing,
    Refusal,
    cancellation_of,
    cancelled_only,
    due_ms_of,
    ends,
    outcome_of,
    partition_of,
    repeats_since,
    size_of,
)
from mqd.relay.delay_topic import DelayTopic
from mqd.relay.names import delay_group, delay_transactional_id
from mqd.relay.occurrences import Cancellations, OccurrenceWindow
from mqd.relay.ports import Calls, CommittedProgress
from mqd.relay.producer import RecordsRefused, RelayProducer
from mqd.relay.reading import Chunk, RecordLookup, read_chunk
from mqd.relay.sharing import Shared
from mqd.relay.stall import Stall, remedy_of
from mqd.relay.timer_index import NO_KEY, Entry, TimerIndex, key_hash_of
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.waiters import FetchWaiter
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 512 * KIB
"""Records of one transaction; a larger record has one of its own."""
WAIT_SECONDS: Final = 1.0
"""The longest wait while records are pending: a wall clock that jumps is noticed by then."""
_IDLE_SECONDS: Final = 60.0
_FLOOR_SECONDS: Final = 5.0
_BEHIND_SECONDS: Final = 0.1


class Environment(NamedTuple):
    """What all relays of a node share."""

    replica: ReplicaService
    logs: LogService
    disk: Disk
    clock: Clock
    entropy: Entropy
    calls: Calls
    partitions_of: Callable[[str], int]
    """The number of partitions of a topic; 0 for none."""
    check_clock: Callable[[], None]
    """Logs a jump of the wall clock."""
    shared: Shared


@dataclass(slots=True)
class _Taken:
    """Due records that left the index, and what becomes of them."""

    entries: list[Entry] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    size: int = 0
    relayed: int = 0
    cancelled: int = 0
    causes: Counter[str] = field(default_factory=Counter)


class DelayRelay:
    """See the module. `run` it while the partition is led here."""

    def __init__(self, env: Environment, partition: Partition, topic: DelayTopic) -> None:
        self._env = env
        self._partition = partition
        self._topic = topic
        self._topic_partition: TopicPartition = partition.assignment.topic_partition
        self._topic_id = partition.assignment.topic_id
        self._producer = RelayProducer(
            transactional_id=delay_transactional_id(
                self._topic_id, self._topic_partition.partition
            ),
            group_id=delay_group(self._topic_partition.topic),
            calls=env.calls,
            entropy=env.entropy,
            begins=env.shared.begins,
            on_retry=self._warn,
        )
        self._index = self._new_index()
        self._records = RecordLookup(env.logs, env.disk, env.shared, partition)
        self._loaded: TimerProgress | None = None
        """The committed progress that the index has."""
        self._attempted: TimerProgress | None = None
        """The progress of a transaction whose outcome is unknown."""
        self._batch_max = BATCH_RECORDS
        """Half of a batch that was refused, until the record that is to blame is found."""
        self._refused: defaultdict[Offset, list[Refusal]] = defaultdict(list)
        """Records that a topic never accepts as they are."""
        self._stall = Stall()
        self._floor_at = 0.0
        self._committed_floor: Offset = 0
        self._counts = Counts()
        """Committed ones."""
        self._window = OccurrenceWindow()

    def _new_index(self) -> TimerIndex:
        log = self._partition.log
        return TimerIndex(
            self._env.disk,
            log.path,
            self._topic_id,
            self._topic_partition.partition,
            log.epochs.epoch_of,
            keeps_keys=self._topic.replaces,
        )

    async def run(self) -> None:
        """Relay until cancelled. Raises StorageError, in a group."""
        failures = 0
        progress = await self._begin_epoch()
        while True:
            async with trio.open_nursery() as nursery:
                await self._load(progress)
                nursery.start_soon(self._index.run)
                while self._continues(progress):
                    try:
                        written = self._loaded
                        await self._relay()
                    except RecordsRefused as error:
                        self._note_refusal(error)  # the next batch is another one: no back-off
                    except MqError as error:
                        self._note(error)
                        failures = failures + 1 if self._loaded == written else 0
                        await trio.sleep(backoff_s(failures, self._env.entropy.random()))
                    progress = await self._begin_epoch()
                nursery.cancel_scope.cancel()

    def _note_refusal(self, error: RecordsRefused) -> None:
        logger.warning(
            "relay target refuses records partition=%s target=%s reason=%s",
            self._topic_partition,
            error.topic_partition,
            error,
        )

    def _note(self, error: MqError) -> None:
        self._warn(error)
        if self._stall.note():
            logger.info("relay begins again partition=%s reason=%s", self._topic_partition, error)

    def _warn(self, error: MqError) -> None:
        """Log a failure if there were only failures for some time."""
        seconds = self._stall.failed(self._env.clock.monotonic())
        if seconds is None:
            return
        topics = filter(
            None, (self._topic.target, self._topic.dead_letters, self._topic_partition.topic)
        )
        cause = self._producer.explained(error, topics)
        logger.warning(
            "relay is stuck, will retry partition=%s target=%s seconds=%.0f reason=%r remedy=%r",
            self._topic_partition,
            self._topic.target,
            seconds,
            str(cause),
            remedy_of(cause),
        )

    def _note_success(self) -> None:
        if self._stall.ended():
            logger.info("relay resumes partition=%s", self._topic_partition)

    # -- progress ----------------------------------------------------------------------------------

    async def _begin_epoch(self) -> TimerProgress:
        """Fence earlier relays of this partition. Returns the committed progress."""
        attempts = 0
        while True:
            try:
                await self._producer.begin_epoch()
                progress = await self._committed_progress()
                self._window.begin(self._committed_floor, self._partition.log.log_end_offset)
                return progress
            except MqError as error:
                self._note(error)
            await trio.sleep(backoff_s(attempts, self._env.entropy.random()))
            attempts += 1

    async def _load(self, progress: TimerProgress) -> None:
        """Begin an index as of this progress. `_read` fills it."""
        partition = self._partition
        end = max((mark.end_offset for mark in progress.marks), default=0)
        while (
            partition.last_stable_offset < end
            or partition.high_watermark < partition.epoch_start_offset
        ):
            # A leader that just began, or one that was replaced: it lacks records, or does not
            # know yet that tombstones are committed (I57).
            await self._wait_for_records(max(end, partition.last_stable_offset), _BEHIND_SECONDS)
        self._index = self._new_index()
        await self._index.load(
            progress, partition.log.log_start_offset, partition.last_stable_offset
        )
        self._loaded, self._attempted = progress, None

    def _continues(self, progress: TimerProgress) -> bool:
        """Whether the index may stay: only this relay has written since it was loaded. What was
        popped and not committed is pending again."""
        if progress not in (self._loaded, self._attempted):
            return False
        if progress == self._attempted:
            self._index.confirm(progress)
        self._index.rewind()
        self._loaded, self._attempted = progress, None
        return True

    async def _committed_progress(self) -> TimerProgress:
        self._committed_floor, self._counts = 0, Counts()
        found = (await self._producer.progress([self._topic_partition])).get(self._topic_partition)
        if found is None:
            return TimerProgress()
        try:
            decoded = decode_metadata(found.metadata, self._topic_id)
        except ProtocolError as error:
            raise MqError(
                ErrorCode.INVALID_RECORD,
                f"the progress of {self._topic_partition} is unreadable: {error}",
            ) from error
        if decoded is None:
            return TimerProgress()  # of an earlier topic with this name
        self._committed_floor = found.offset
        progress, self._counts = decoded
        return progress

    def _encoded(self, progress: TimerProgress, counts: Counts) -> CommittedProgress:
        self._committed_floor = self._floor()
        metadata = encode_metadata(self._topic_id, progress, counts)
        return CommittedProgress(self._committed_floor, metadata)

    def _floor(self) -> Offset:
        """No record below this offset is needed any more (I58)."""
        lowest, known = self._index.lowest_offset(), self._index.next_offset
        return self._window.floor(known if lowest is None else lowest, known)

    # -- the loop ----------------------------------------------------------------------------------

    async def _relay(self) -> None:
        env, index = self._env, self._index
        while True:
            env.check_clock()
            await trio.lowlevel.checkpoint()
            await self._read()
            now_ms = env.clock.wall_ms()
            is_writing = await self._write_due(now_ms)
            self._note_success()
            if is_writing:
                continue
            first = index.peek()
            if first is None or first.due_ms > now_ms:
                index.passed(now_ms)
            await self._keep_from_floor()
            if index.next_offset >= self._partition.last_stable_offset:
                await self._wait()

    async def _read(self) -> None:
        """Take all committed records into the index: one of them may cancel what is due."""
        env, index, partition = self._env, self._index, self._partition
        limit = partition.last_stable_offset
        index.read_to(partition.log.log_start_offset)
        while index.next_offset < limit:
            if not index.has_room:
                await index.wait_for_room()
            async with env.shared.reads:
                occurrences = await self._read_chunk(limit)
            if occurrences:
                await self._cancel_occurrences(occurrences)

    async def _read_chunk(self, limit: Offset) -> list[tuple[Offset, Record]]:
        """Take the next records into the index, unless there are occurrences among them that may
        have been cancelled while they were written: then return these."""
        env, index = self._env, self._index
        chunk = await self._chunk(index.next_offset, limit)
        if self._window.overlaps(index.next_offset, chunk.next_offset):
            occurrences = list[tuple[Offset, Record]]()
            note = partial(self._note_occurrence, occurrences)
            await env.shared.loop.each(note, chunk.records)
            if occurrences:
                return occurrences
        await env.shared.loop.each(self._add, chunk.records)
        index.read_to(chunk.next_offset)
        return []

    async def _chunk(self, offset: Offset, limit: Offset) -> Chunk:
        env = self._env
        return await read_chunk(env.logs, env.disk, env.shared, self._partition, offset, limit)

    def _add(self, record: Record) -> None:
        if record.offset < self._index.next_offset:
            return  # a file of the index has it
        key_hash = key_hash_of(record.key)
        if record.key is not None and record.value is None:
            key_hash = key_hash_of(record.key, only=cancelled_only(record))
            self._index.cancel(key_hash, record.offset)
            return
        if self._topic.replaces and repeats_since(self._topic, record) is not None:
            key_hash = NO_KEY  # it replaces nothing
        self._index.add(due_ms_of(self._topic, record), record.offset, key_hash)

    async def _write_due(self, now_ms: int) -> bool:
        """Relay one batch of what is due, or one large record. Returns whether there was any."""
        index = self._index
        try:
            await self._records.prepare(index.upcoming(now_ms, self._batch_max), BATCH_BYTES)
            taken = await self._take(now_ms)
            first = index.peek()
            if taken.entries:
                await self._write(taken)
            elif first is None or first.due_ms > now_ms:
                return False
            else:
                async with self._env.shared.large_writes:
                    await self._write_large(first, now_ms)
        finally:
            self._records.forget()
        return True

    async def _take(self, now_ms: int) -> _Taken:
        """One batch of what is due, up to a large record."""
        index, loop, taken = self._index, self._env.shared.loop, _Taken()
        async with loop:
            while len(taken.entries) < self._batch_max and taken.size < BATCH_BYTES:
                first = index.peek()
                if first is None or first.due_ms > now_ms:
                    break
                if taken.entries and not self._records.is_prepared(first.offset):
                    break  # to read it alone would cost as much as many
                record = await self._record(first.offset)
                if self._records.is_large(first.offset):
                    break
                await self._take_one(first, record, now_ms, taken)
                await loop.pause()
        return taken

    async def _write_large(self, entry: Entry, now_ms: int) -> None:
        """Relay a large record, compressed as it was: the target may accept no more bytes."""
        env, taken = self._env, _Taken()
        found = await self._records.whole(entry.offset)
        async with env.shared.loop:
            await self._take_one(entry, found and found.record, now_ms, taken)

        async def build(records: list[Record], **identity: Any) -> bytearray:
            codec = Codec.NONE if found is None else found.codec
            return await env.disk.offload(partial(build_batch, records, codec=codec, **identity))

        await self._write(taken, build)

    async def _record(self, offset: Offset) -> Record | None:
        """As `RecordLookup.get`, within the relay's time on the event loop."""
        if self._records.is_prepared(offset):
            return await self._records.get(offset)
        async with self._env.shared.loop.outside():
            return await self._records.get(offset)

    async def _take_one(
        self, entry: Entry, record: Record | None, now_ms: int, taken: _Taken
    ) -> None:
        """Pop the entry, and decide what becomes of its record."""
        index = self._index
        popped = index.pop()
        assert popped == entry, (popped, entry)
        taken.entries.append(entry)
        if record is None:
            return  # deleted by DeleteRecords
        if await self._is_cancelled(entry, record):
            taken.cancelled += 1
            return
        # Never early (I57).
        assert entry.due_ms == due_ms_of(self._topic, record) <= now_ms, (entry, record)
        outcome = outcome_of(
            self._topic,
            self._topic_partition,
            record,
            now_ms=now_ms,
            next_offset=index.next_offset,
            refused=self._refused.get(entry.offset, ()),
        )
        if outcome.cause:
            taken.causes[outcome.cause] += 1
        else:
            taken.relayed += 1
        taken.outgoing += outcome.records
        taken.size += sum(size_of(one.record) for one in outcome.records)

    async def _write(
        self, taken: _Taken, build: Callable[..., Awaitable[bytearray]] | None = None
    ) -> None:
        index = self._index
        placed = self._placed(taken.outgoing)
        progress = self._attempted = index.progress()
        if self._topic_partition in placed:
            self._window.writes(index.next_offset)
        expired = taken.causes[EXPIRED]
        counts = self._counts.plus(
            Counts(taken.relayed, taken.cancelled, expired, taken.causes.total() - expired)
        )
        try:
            await self._producer.write(
                placed, {self._topic_partition: self._encoded(progress, counts)}, build
            )
        except RecordsRefused as error:
            to_blame = blamed(error, placed)
            for offset in to_blame:
                self._refused[offset].append(Refusal(error.topic_partition.topic, str(error)))
            if not to_blame:
                self._batch_max = len(taken.entries) // 2
            raise
        self._confirm(progress)
        self._counts = counts
        self._window.written(self._partition.log.log_end_offset)
        refused_before = self._refused.keys() & {entry.offset for entry in taken.entries}
        for offset in refused_before:
            del self._refused[offset]
        if not refused_before:
            # Slowly: a refusal costs as much as a few batches.
            self._batch_max = min(BATCH_RECORDS, self._batch_max + 1 + self._batch_max // 4)
        if taken.causes:
            logger.warning(
                "records were not relayed partition=%s dead_letters=%s causes=%s",
                self._topic_partition,
                self._topic.dead_letters or "none",
                ",".join(f"{cause!r}:{count}" for cause, count in sorted(taken.causes.items())),
            )

    def _placed(self, outgoing: list[Outgoing]) -> dict[TopicPartition, list[Record]]:
        """By partition. Raises MqError if a topic does not exist."""
        placed: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        for one in outgoing:
            count = self._env.partitions_of(one.topic)
            if not count:
                raise MqError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"the topic {one.topic!r} does not exist",
                )
            index = partition_of(one, self._topic_partition, count)
            placed[TopicPartition(one.topic, index)].append(one.record)
        return placed

    # -- by key ------------------------------------------------------------------------------------

    async def _is_cancelled(self, entry: Entry, record: Record) -> bool:
        """Whether a later tombstone, or record if later ones replace, has the key."""
        if record.key is None:
            return False
        index, key_hash = self._index, key_hash_of(record.key)
        later = index.replaced_by if self._topic.replaces else index.cancelled_by
        for offset in chain(
            later(key_hash, entry.offset),
            index.cancelled_by(key_hash_of(record.key, only=entry.offset), entry.offset),
        ):
            other = await self._record(offset)
            if (
                other is not None
                and other.key == record.key
                and ends(self._topic, other, entry.offset)
            ):
                return True
            await self._env.shared.loop.pause()  # another key has this hash
        return False

    def _note_occurrence(self, found: list[tuple[Offset, Record]], record: Record) -> None:
        """Add a record that is an occurrence which the index does not have yet."""
        assert self._loaded is not None
        occurrence = self._window.occurrence_of(
            self._topic, record, self._index.next_offset, self._loaded
        )
        if occurrence is not None:
            found.append(occurrence)

    async def _cancel_occurrences(self, occurrences: list[tuple[Offset, Record]]) -> None:
        """Write tombstones for those of these occurrences whose key was cancelled while they were
        written. The index does not have them yet."""
        index, shared = self._index, self._env.shared
        search = Cancellations(self._topic, occurrences)
        offset = max(search.start, self._partition.log.log_start_offset)
        while offset < search.end:
            async with shared.reads:
                chunk = await self._chunk(offset, search.end)
                await shared.loop.each(search.read, chunk.records)
            offset = chunk.next_offset
            del chunk
        now_ms = self._env.clock.wall_ms()
        for outgoing in _portions(
            cancellation_of(self._topic_partition, record, now_ms) for record in search.cancelled()
        ):
            progress = self._attempted = index.progress()
            try:
                await self._producer.write(
                    self._placed(outgoing),
                    {self._topic_partition: self._encoded(progress, self._counts)},
                )
            except RecordsRefused:
                self._window.settled(search.end)
                raise
            self._confirm(progress)
        self._window.settled(search.end)

    # -- waiting -----------------------------------------------------------------------------------

    async def _keep_from_floor(self) -> None:
        """Now and then: let retention delete what is done, and commit where the first pending
        record is."""
        now = self._env.clock.monotonic()
        if now < self._floor_at:
            return
        self._floor_at = now + _FLOOR_SECONDS
        floor = self._floor()
        if floor != self._committed_floor:
            progress = self._attempted = self._index.progress()
            await self._producer.write(
                {}, {self._topic_partition: self._encoded(progress, self._counts)}
            )
            self._confirm(progress)
        self._partition.log.kept_from = floor

    def _confirm(self, progress: TimerProgress) -> None:
        """The transaction with this progress is committed."""
        self._index.confirm(progress)
        self._loaded, self._attempted = progress, None
        self._note_success()

    async def _wait(self) -> None:
        """Until the next record is due, or new records are committed."""
        env, first = self._env, self._index.peek()
        seconds = _IDLE_SECONDS
        if first is not None:
            until_due_s = (first.due_ms - env.clock.wall_ms()) / 1000
            seconds = max(0.0, min(WAIT_SECONDS, until_due_s))
        await self._wait_for_records(self._index.next_offset, seconds)

    async def _wait_for_records(self, offset: Offset, seconds: float) -> None:
        """Until the last stable offset has passed `offset`, for so long at most."""
        partition = self._partition
        if partition.plan_stable_offset() > offset or not seconds:
            return
        woken = trio.Event()
        deadline = self._env.clock.monotonic() + seconds
        waiter = FetchWaiter(woken.set, 1, deadline, read_committed=True)
        self._env.replica.park_fetch(waiter, [partition])
        try:
            with trio.move_on_after(seconds):
                await woken.wait()
        finally:
            if not waiter.freed:
                waiter.freed = True
                waiter.leave()


def blamed(error: RecordsRefused, placed: Mapping[TopicPartition, list[Record]]) -> set[Offset]:
    """The offsets of the records of the delay topic that are certainly refused. Empty: of several
    records, any may be to blame."""
    batch = placed[error.topic_partition]
    if len(batch) == 1:
        return {batch[0].offset}
    return {batch[index].offset for index in error.indexes if 0 <= index < len(batch)}


def _portions(outgoing: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """For one transaction each."""
    portion, size = list[Outgoing](), 0
    for one in outgoing:
        portion.append(one)
        size += size_of(one.record)
        if len(portion) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
