"""The relay of one led partition of a delay topic: reads its log, waits until records are due, and
writes them to the target.

The timer index has the pending records in the order of (due time, offset). A batch of due records
and the progress that covers them are one transaction (producer.py, I54). Its progress is a
committed offset: the first pending offset, with the metadata of delay_progress.py (I57).

The next occurrence of a schedule does not follow at once what the relay knows of the log: its key
may be cancelled between. So before an occurrence enters the index, these records are read again,
and a tombstone for the occurrence is written. Until then, the floor is below them (I58).

A shell: delay_records.py decides what becomes of a record. After any error, the epoch of the
producer ends, and the next one begins with the committed progress.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Final, NamedTuple

import trio

from mqd.client.backoff import backoff_s
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.limits import KIB
from mqd.log.service import LogService
from mqd.protocol.record_reader import INT64_MAX, Record
from mqd.relay.delay_progress import (
    Counts,
    Progress as DelayProgress,
    decode_metadata,
    encode_metadata,
)
from mqd.relay.delay_records import (
    EXPIRED,
    Outgoing,
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
from mqd.relay.ports import Calls, Progress
from mqd.relay.producer import RecordsRefused, RelayProducer
from mqd.relay.reading import RecordLookup, read_chunk
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
_ADDED_AT_ONCE: Final = 200
"""Records that enter the index before other tasks have a turn."""
_TAKEN_AT_ONCE: Final = 50
"""Records that leave the index before other tasks have a turn: each may need a few reads."""
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


class DelayRelay:
    """See the module. `run` it while the partition is led here."""

    def __init__(self, env: Environment, partition: Partition, topic: DelayTopic) -> None:
        self._env = env
        self._partition = partition
        self._topic = topic
        self._place: TopicPartition = partition.assignment.topic_partition
        self._topic_id = partition.assignment.topic_id
        self._producer = RelayProducer(
            transactional_id=delay_transactional_id(self._topic_id, self._place.partition),
            group_id=delay_group(self._place.topic),
            calls=env.calls,
            entropy=env.entropy,
        )
        self._index = self._new_index()
        self._records = RecordLookup(env.logs, env.disk, partition)
        self._loaded: DelayProgress | None = None
        """The committed progress that the index has."""
        self._attempted: DelayProgress | None = None
        """The progress of a transaction whose outcome is unknown."""
        self._batch_max = BATCH_RECORDS
        """1 after a batch was refused, until the record that is to blame is found."""
        self._refused: dict[Offset, str] = {}
        """Records that the target never accepts, and why."""
        self._stall = Stall()
        self._floor_at = 0.0
        self._committed_floor: Offset = 0
        self._counts = Counts()
        """Committed ones."""
        self._unread: tuple[Offset, Offset] = 0, 0
        """Until the index knows the log up to the second offset, the occurrences of schedules there
        may need the records from the first one on."""

    def _new_index(self) -> TimerIndex:
        log = self._partition.log
        return TimerIndex(
            self._env.disk,
            log.path,
            self._topic_id,
            self._place.partition,
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
                    except MqError as error:
                        self._note(error)
                    failures = failures + 1 if self._loaded == written else 0
                    await trio.sleep(backoff_s(failures, self._env.entropy.random()))
                    progress = await self._begin_epoch()
                nursery.cancel_scope.cancel()

    def _note(self, error: MqError) -> None:
        if isinstance(error, RecordsRefused):
            logger.warning(
                "relay target refuses records partition=%s target=%s reason=%s",
                self._place,
                error.topic_partition,
                error,
            )
            return
        seconds = self._stall.failed(self._env.clock.monotonic())
        if seconds is not None:
            logger.warning(
                "relay is stuck, will retry partition=%s target=%s seconds=%.0f reason=%r "
                "remedy=%r",
                self._place,
                self._topic.target,
                seconds,
                str(error),
                remedy_of(error),
            )
            return
        logger.info("relay begins again partition=%s reason=%s", self._place, error)

    def _note_success(self) -> None:
        if self._stall.ended():
            logger.info("relay resumes partition=%s", self._place)

    # -- progress ----------------------------------------------------------------------------------

    async def _begin_epoch(self) -> DelayProgress:
        """Fence earlier relays of this partition. Returns the committed progress."""
        attempts = 0
        while True:
            try:
                await self._producer.begin_epoch()
                progress = await self._committed_progress()
                self._unread = self._committed_floor, self._partition.log.log_end_offset
                return progress
            except MqError as error:
                self._note(error)
            await trio.sleep(backoff_s(attempts, self._env.entropy.random()))
            attempts += 1

    async def _load(self, progress: DelayProgress) -> None:
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

    def _continues(self, progress: DelayProgress) -> bool:
        """Whether the index may stay: only this relay has written since it was loaded. What was
        popped and not committed is pending again."""
        if progress not in (self._loaded, self._attempted):
            return False
        if progress == self._attempted:
            self._index.confirm(progress)
        self._index.rewind()
        self._loaded, self._attempted = progress, None
        return True

    async def _committed_progress(self) -> DelayProgress:
        self._committed_floor, self._counts = 0, Counts()
        found = (await self._producer.progress([self._place])).get(self._place)
        if found is None:
            return DelayProgress()
        try:
            decoded = decode_metadata(found.metadata, self._topic_id)
        except ProtocolError as error:
            raise MqError(
                ErrorCode.INVALID_RECORD, f"the progress of {self._place} is unreadable: {error}"
            ) from error
        if decoded is None:
            return DelayProgress()  # of an earlier topic with this name
        self._committed_floor = found.offset
        progress, self._counts = decoded
        return progress

    def _encoded(self, progress: DelayProgress, counts: Counts) -> Progress:
        self._committed_floor = self._floor()
        metadata = encode_metadata(self._topic_id, progress, counts)
        return Progress(self._committed_floor, metadata)

    def _floor(self) -> Offset:
        """No record below this offset is needed any more (I58)."""
        lowest, known = self._index.lowest_offset(), self._index.next_offset
        floor = known if lowest is None else lowest
        needed, unread_end = self._unread
        return min(floor, needed) if known < unread_end else floor

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
            chunk = await read_chunk(env.logs, env.disk, partition, index.next_offset, limit)
            await self._cancel_occurrences(chunk.records)
            for number, record in enumerate(chunk.records, start=1):
                if record.offset >= index.next_offset:  # else a file of the index has it
                    self._add(record)
                if number % _ADDED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            index.read_to(chunk.next_offset)

    def _add(self, record: Record) -> None:
        key_hash = key_hash_of(record.key)
        if record.key is not None and record.value is None:
            key_hash = key_hash_of(record.key, only=cancelled_only(record))
            self._index.cancel(key_hash, record.offset)
            return
        if self._topic.replaces and repeats_since(self._topic, record) is not None:
            key_hash = NO_KEY  # it replaces nothing
        self._index.add(due_ms_of(self._topic, record), record.offset, key_hash)

    async def _write_due(self, now_ms: int) -> bool:
        """Relay one batch of what is due. Returns whether there was any."""
        index = self._index
        taken: list[Entry] = []
        outgoing: list[Outgoing] = []
        causes: Counter[str] = Counter()
        size = relayed = cancelled = 0
        await self._records.prepare(index.upcoming(now_ms, self._batch_max), BATCH_BYTES)
        while len(taken) < self._batch_max and size < BATCH_BYTES:
            first = index.peek()
            if first is None or first.due_ms > now_ms:
                break
            entry = index.pop()
            taken.append(entry)
            if len(taken) % _TAKEN_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            record = await self._records.get(entry.offset)
            if record is None:
                continue  # deleted by DeleteRecords
            if await self._is_cancelled(entry, record):
                cancelled += 1
                continue
            # Never early (I57).
            assert entry.due_ms == due_ms_of(self._topic, record) <= now_ms, (entry, record)
            outcome = outcome_of(
                self._topic,
                self._place,
                record,
                now_ms=now_ms,
                next_offset=index.next_offset,
                refused=self._refused.get(entry.offset, ""),
            )
            if outcome.cause:
                causes[outcome.cause] += 1
            else:
                relayed += 1
            outgoing += outcome.records
            size += sum(size_of(one.record) for one in outcome.records)
        if not taken:
            return False
        placed = self._placed(outgoing)
        progress = self._attempted = index.progress()
        if self._place in placed:
            needed, unread_end = self._unread
            since = index.next_offset
            self._unread = min(needed, since) if since < unread_end else since, INT64_MAX
        expired = causes[EXPIRED]
        counts = self._counts.plus(Counts(relayed, cancelled, expired, causes.total() - expired))
        try:
            await self._producer.write(placed, {self._place: self._encoded(progress, counts)})
        except RecordsRefused as error:
            if len(taken) == 1:
                self._refused[taken[0].offset] = f"refused by {error.topic_partition}: {error}"
            self._batch_max = 1
            raise
        self._confirm(progress)
        self._counts = counts
        self._unread = self._unread[0], min(self._unread[1], self._partition.log.log_end_offset)
        self._batch_max = min(BATCH_RECORDS, 2 * self._batch_max)
        for entry in taken:
            self._refused.pop(entry.offset, None)
        if causes:
            logger.warning(
                "records were not relayed partition=%s dead_letters=%s causes=%s",
                self._place,
                self._topic.dead_letters or "none",
                ",".join(f"{cause!r}:{count}" for cause, count in sorted(causes.items())),
            )
        return True

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
            index = partition_of(one, self._place, count)
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
            other = await self._records.get(offset)
            if (
                other is not None
                and other.key == record.key
                and ends(self._topic, other, entry.offset)
            ):
                return True
            await trio.lowlevel.checkpoint()  # another key has this hash
        return False

    async def _cancel_occurrences(self, records: list[Record]) -> None:
        """Write tombstones for the occurrences among these records, which the index does not have
        yet, whose key was cancelled while they were written."""
        index, loaded, (needed, unread_end) = self._index, self._loaded, self._unread
        assert loaded is not None
        if index.next_offset >= unread_end:
            return
        occurrences = [
            (max(since, needed), record)
            for record in records
            if (since := repeats_since(self._topic, record)) is not None
            and record.offset >= index.next_offset
            and not loaded.covers(due_ms_of(self._topic, record), record.offset)
        ]
        if not occurrences:
            return
        others = await self._records_by_key(
            min(since for since, _ in occurrences),
            occurrences[-1][1].offset,
            {record.key for _, record in occurrences},
        )
        cancelled = [
            cancellation_of(self._place, record, self._env.clock.wall_ms())
            for since, record in occurrences
            if any(
                since <= other.offset < record.offset and ends(self._topic, other, record.offset)
                for other in others[record.key]
            )
        ]
        if cancelled:
            progress = self._attempted = index.progress()
            await self._producer.write(
                self._placed(cancelled), {self._place: self._encoded(progress, self._counts)}
            )
            self._confirm(progress)

    async def _records_by_key(
        self, offset: Offset, limit: Offset, keys: Collection[bytes | None]
    ) -> Mapping[bytes | None, list[Record]]:
        """The records between two offsets that have one of these keys."""
        found: defaultdict[bytes | None, list[Record]] = defaultdict(list)
        env, offset = self._env, max(offset, self._partition.log.log_start_offset)
        while offset < limit:
            chunk = await read_chunk(env.logs, env.disk, self._partition, offset, limit)
            for record in chunk.records:
                if record.key in keys:
                    found[record.key].append(record)
            offset = chunk.next_offset
        return found

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
            await self._producer.write({}, {self._place: self._encoded(progress, self._counts)})
            self._confirm(progress)
        self._partition.log.kept_from = floor

    def _confirm(self, progress: DelayProgress) -> None:
        """The transaction with this progress is committed."""
        self._index.confirm(progress)
        self._loaded, self._attempted = progress, None

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
