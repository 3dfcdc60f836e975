"""One share partition as its leader has it (KIP-932): which member has acquired which records, and
which records are done. Pure.

Members acquire records for a time, and acknowledge them. What an acknowledgement changes is stored
by the share coordinator first (`Update`), and applies afterwards. Records whose lock ends, or whose
member leaves, are available again at once: the coordinator is told later. A new leader begins with
the stored state.

Invariants: at most one member has acquired a record at any time. A record that is done is never
acquired again. A delayed record is not acquired before its time (wall clock of the leader). A
record is acquired at most `delivery_count` times.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

from mqd.back_off import step_after
from mqd.errors import ErrorCode, MqError
from mqd.protocol.schema import INT32_MAX
from mqd.protocol.slices import Slices, all_slices
from mqd.share.dead_letters import Archiving
from mqd.share.key_affinity import KeyAffinity, KeyOf
from mqd.share.record_states import (
    DONE,
    GIVEN_UP_OR_DONE,
    Batch,
    Range,
    RecordState,
    RecordStates,
)
from mqd.types import Offset

NO_MEMBER: Final = ""
NOT_DELAYED: Final = -1
BY_BACK_OFF: Final = -1
"""The delay of a release that names none."""
BATCH_RECORDS_MAX: Final = 5_000
"""Records of one batch that are acquired at once beyond the wanted number. Each of them may cost a
range when it is acknowledged."""
_OUTDATED_LOCKS_MAX: Final = 64
"""Entries of locks that may be out of date, besides two for each range."""


class AcknowledgeType(IntEnum):
    """Numbers in requests."""

    GAP = 0
    """There is no record with this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The acquisition lock begins again (KIP-1222)."""


_NEXT_STATES: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class Acknowledgement(NamedTuple):
    """Records with acknowledge types: one for each offset, or one for all."""

    first_offset: Offset
    last_offset: Offset
    types: Sequence[int]
    delay_ms: int = BY_BACK_OFF
    """When released records are available again: after so long, or as the group's back-off says."""


class AcquiredRecords(NamedTuple):
    """Records that a member has acquired, with the number of their deliveries."""

    first_offset: Offset
    last_offset: Offset
    delivery_count: int


class Limits(NamedTuple):
    """Bounds of a share partition, from the configuration of its group."""

    delivery_count: int
    """`group.share.delivery.count.limit`: times that a record is acquired."""
    record_locks: int
    """`group.share.partition.max.record.locks`: records that are acquired at one time."""
    lock_seconds: float
    """`share.record.lock.duration.ms`"""
    state_bytes: int
    """Memory of the states. Above it no new records are acquired. Above twice as much no part of a
    range is acknowledged."""
    back_off: tuple[int, ...] = ()
    """`mqd.share.retry.backoff`: ms from a release or the end of a lock to the next delivery, by
    delivery count."""
    dead_letters: bool = False
    """Whether records that the group gives up wait for a dead letter (KIP-1191)."""


@dataclass(frozen=True, slots=True)
class Update:
    """Changes that the share coordinator stores."""

    batches: tuple[Batch, ...]
    start_offset: Offset
    done_after_start: int
    """How many records after the start offset are done, with those of this update. At most
    INT32_MAX: the field of the request has 32 bits."""

    def parts(self, most: int) -> list[Update]:
        """The same changes, at most so many batches in each update."""
        return [
            replace(self, batches=self.batches[first : first + most])
            for first in range(0, len(self.batches), most)
        ]


@dataclass(slots=True)
class SharePartition:
    """The state of one group's share partition."""

    states: RecordStates
    limits: Limits
    acquired_count: int = 0
    """Records that are acquired now."""
    gives_up: bool = False
    """Records may be ARCHIVING: False only if none is."""
    _locks: list[tuple[float, Offset, Offset]] = field(default_factory=list)
    """A heap of (end of the lock, first offset, last offset). An entry may be out of date."""
    _delayed: list[tuple[int, Offset, Offset]] = field(default_factory=list)
    """The same for delayed records, by wall time in ms."""
    affinity: KeyAffinity | None = None
    """The order of records by key, if the group has `share.key.affinity`."""

    @staticmethod
    def loaded(
        start_offset: Offset,
        batches: Iterable[Batch],
        limits: Limits,
        *,
        end_offset: Offset | None = None,
    ) -> SharePartition:
        """As the share coordinator stores it. Records between the batches are available. Batches at
        and after `end_offset`, the end of the log, are ignored. Records that were delivered as
        often as allowed are archived.
        """
        partition = SharePartition(RecordStates(start_offset), limits)
        states = partition.states
        for batch in sorted(batches):
            if end_offset is not None:
                batch = batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
                if batch.first_offset > batch.last_offset:
                    continue
            states.store(partition._sane(batch))
        states.advance()
        for first, one in states:
            partition.gives_up |= one.state is RecordState.ARCHIVING
            if one.state is RecordState.DELAYED:
                heapq.heappush(partition._delayed, (one.time_ms, first, one.last))
        return partition

    def _sane(self, batch: Batch) -> Batch:
        """A stored batch, whatever the share coordinator was told. Records that were delivered as
        often as allowed are given up: with dead letters, after one more delivery."""
        limit = self.limits.delivery_count
        state, count = batch.state, max(0, batch.delivery_count)
        if state is RecordState.ACQUIRED:  # by nobody that this leader knows
            state = RecordState.AVAILABLE
        if state is RecordState.AVAILABLE and count >= limit:
            count = limit - 1
            if not self.limits.dead_letters:
                state = RecordState.ARCHIVED
        has_time = state in (RecordState.AVAILABLE, RecordState.ARCHIVING)
        time_ms = max(0, batch.time_ms) if has_time else 0
        return batch._replace(state=state, delivery_count=count, time_ms=time_ms)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.states.size + (0 if self.affinity is None else self.affinity.size)

    # -- acquire -----------------------------------------------------------------------------------

    def next_fetch_offset(self) -> Offset | None:
        """The first offset that may be acquired. None while the bounds allow nothing."""
        if self.acquired_count >= self.limits.record_locks:
            return None
        if self.affinity is not None:
            return self._next_by_key(self.affinity)
        available = self.states.next_available()
        if available is not None:
            return available
        return None if self.states.size >= self.limits.state_bytes else self.states.end_offset

    def acquire(
        self,
        member_id: str,
        batches: Sequence[tuple[Offset, Offset]],
        *,
        read_from: Offset | None = None,
        max_records: int,
        batch_size: int,
        exact: bool,
        now: float,
    ) -> list[AcquiredRecords]:
        """Acquire available records of `batches`: the first and last offsets of record batches that
        were read from the log, in order. `read_from`: the offset from which on they were read.
        Available offsets between them, which compaction has removed, are archived.

        At least one batch is acquired whole if `max_records` end within it, unless `exact`; of a
        batch with more than BATCH_RECORDS_MAX records, so many. Records with many deliveries are
        acquired in smaller parts, and nothing after them (`_most_again`).
        """
        wanted = min(max_records, self.limits.record_locks - self.acquired_count)
        deadline = now + self.limits.lock_seconds
        acquired: list[AcquiredRecords] = []
        covered = batches[0][0] if batches and read_from is None else read_from or 0
        for first, last in batches:
            if wanted <= 0:
                break
            self.archive(covered, first - 1)
            covered = last + 1
            first = max(first, self.states.start_offset)
            room = wanted if exact else max(wanted, BATCH_RECORDS_MAX)
            for begin, end, count in self._available_in(first, last):
                if room <= 0:
                    break
                most = self._most_again(begin, count)
                if most is not None and acquired:
                    return acquired
                end = min(end, begin + (room if most is None else min(room, most)) - 1)
                room -= end - begin + 1
                self.states.put(
                    begin, Range(end, RecordState.ACQUIRED, count + 1, member_id, deadline)
                )
                self._expect(deadline, begin, end)
                self.acquired_count += end - begin + 1
                wanted -= end - begin + 1
                _add(acquired, begin, end, count + 1, batch_size)
                if most is not None:
                    return acquired
        return acquired

    def _most_again(self, begin: Offset, count: int) -> int | None:
        """How many of the available records from `begin`, which were delivered `count` times, are
        acquired together. None: all.

        As in Apache Kafka, a record that makes members fail must not use up the deliveries of its
        neighbours. After half of the allowed deliveries, half of a range is acquired, then a
        quarter, and the last time one record.
        """
        limit = self.limits.delivery_count
        half = max(2, (limit + 1) // 2)
        if not half <= count < limit:
            return None
        if count == limit - 1:
            return 1
        return max(1, self.states.records_from(begin) >> (count - half + 1))

    # -- records by key ----------------------------------------------------------------------------

    def order_by_key(self, wanted: bool) -> None:
        """Begin or end the order by key (key_affinity.py), when the option of the group changes."""
        if wanted != (self.affinity is not None):
            self.affinity = KeyAffinity(self.states.start_offset) if wanted else None

    def _next_by_key(self, affinity: KeyAffinity) -> Offset | None:
        ready = affinity.next_ready()
        if ready is not None:
            return ready
        if max(affinity.size, self.states.size) >= self.limits.state_bytes:
            return None
        return max(affinity.known_end, self.states.start_offset)

    def learn_keys(self, keys: Sequence[KeyOf], first: Offset, last: Offset) -> None:
        """The keys of all records of the log from `first`, which is at most `known_end`, to `last`.
        Offsets without a record are archived.
        """
        affinity = self.affinity
        assert affinity is not None
        first = max(first, affinity.known_end, self.states.start_offset)
        if last < first:
            return
        if last >= self.states.end_offset:
            self.states.put(self.states.end_offset, Range(last, RecordState.AVAILABLE))
        unfinished = [
            one for one in keys if first <= one.offset <= last and self._state_of(one.offset)
        ]
        affinity.learn(unfinished, last + 1, self._is_available)
        covered = first
        for one in keys:
            if one.offset >= covered:
                self.archive(covered, one.offset - 1)
                covered = one.offset + 1
        self.archive(covered, last)

    def acquire_by_key(
        self,
        member_id: str,
        first: Offset,
        last: Offset,
        *,
        max_records: int,
        batch_size: int,
        now: float,
    ) -> list[AcquiredRecords]:
        """Acquire the first available record of each key, and records without a key, of these
        offsets."""
        affinity = self.affinity
        assert affinity is not None
        wanted = min(max_records, self.limits.record_locks - self.acquired_count)
        deadline = now + self.limits.lock_seconds
        acquired: list[AcquiredRecords] = []
        for offset in affinity.ready_between(first, last)[: max(0, wanted)]:
            [(_, one)] = self.states.within(offset, offset)
            assert one.state is RecordState.AVAILABLE, one
            count = one.delivery_count + 1
            self.states.put(offset, Range(offset, RecordState.ACQUIRED, count, member_id, deadline))
            affinity.acquired(offset)
            self._expect(deadline, offset, offset)
            self.acquired_count += 1
            _add(acquired, offset, offset, count, batch_size)
        return acquired

    def _state_of(self, offset: Offset) -> bool:
        """Whether the record is not done."""
        found = self.states.within(offset, offset)
        return bool(found) and found[0][1].state not in GIVEN_UP_OR_DONE

    def _is_available(self, offset: Offset) -> bool:
        found = self.states.within(offset, offset)
        return bool(found) and found[0][1].state is RecordState.AVAILABLE

    def _ended_by_key(self, first: Offset, last: Offset, state: RecordState) -> None:
        """These records were acquired, and have this state now."""
        affinity = self.affinity
        if affinity is None:
            return
        for offset in range(first, last + 1):
            if state not in GIVEN_UP_OR_DONE:
                if state is RecordState.AVAILABLE:
                    affinity.available(offset)
                continue
            head = affinity.done(offset)
            if head is not None and self._is_available(head):
                affinity.available(head)

    # -- records that are not delivered ------------------------------------------------------------

    def archive(self, first: Offset, last: Offset) -> None:
        """Archive the available records among these, up to the end offset: no record has their
        offset, or it is of an aborted transaction.
        """
        for begin, one in self.states.within(max(first, self.states.start_offset), last):
            if one.state is RecordState.AVAILABLE:
                self.states.put(begin, Range(one.last, RecordState.ARCHIVED))
                self._ended_by_key(begin, one.last, RecordState.ARCHIVED)
        self.states.advance()

    def skip(self, first: Offset, last: Offset) -> None:
        """None of these records is delivered: they are of aborted transactions."""
        self.archive(first, last)
        if last >= self.states.end_offset:
            self.states.put(self.states.end_offset, Range(last, RecordState.ARCHIVED))
            self.states.advance()

    def _available_in(self, first: Offset, last: Offset) -> list[tuple[Offset, Offset, int]]:
        """(first offset, last offset, delivery count) of records that may be acquired."""
        end_offset = self.states.end_offset
        found = [
            (begin, one.last, one.delivery_count)
            for begin, one in self.states.within(first, last)
            if one.state is RecordState.AVAILABLE
        ]
        if last >= end_offset:
            if first > end_offset:  # the log has no records in between
                self.states.put(end_offset, Range(first - 1, RecordState.ARCHIVED))
                self.states.advance()
                end_offset = first
            found.append((end_offset, last, 0))
        return found

    # -- acknowledge -------------------------------------------------------------------------------

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        now: float,
        *,
        wall_ms: int = 0,
    ) -> Update | None:
        """`acknowledging` in one step."""
        return all_slices(self.acknowledging(member_id, acknowledgements, now, wall_ms=wall_ms))

    def acknowledging(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        now: float,
        *,
        wall_ms: int = 0,
    ) -> Slices[Update | None]:
        """Begin what a member acknowledges, in slices. None if there is nothing to store: only
        renewed locks, or records before the start offset.

        Raises MqError INVALID_RECORD_STATE, and changes nothing, if the member has not acquired a
        record, or if there are too many ranges.
        """
        deadline = now + self.limits.lock_seconds
        begun: list[Batch] = []
        try:
            for one in acknowledgements:
                for first, last, kind in _runs(one):
                    for begin, acquired in self._owned(member_id, first, last):
                        count = acquired.delivery_count
                        state = RecordState.ACQUIRED
                        if kind is AcknowledgeType.REJECT:
                            state = self._given_up
                        elif kind is not AcknowledgeType.RENEW:
                            state = self._state_after(_NEXT_STATES[kind], count)
                        time_ms = self._time_of(state, count, one.delay_ms, wall_ms)
                        # From now on nothing else changes these records.
                        begun.append(Batch(begin, acquired.last, state, count, time_ms))
                        acquired.next_state = state
                        self._split_for(begin, acquired)
                        yield 1
                    yield 1
            batches = [one for one in begun if one.state is not RecordState.ACQUIRED]
            if len(batches) < len(begun):
                yield from self._renew(begun, member_id, deadline)
        except MqError:
            yield from self._undoing(begun)
            raise
        except BaseException:  # the request ends
            all_slices(self._undoing(begun))
            raise
        return self._update(batches)

    def _change_later(
        self, begin: Offset, acquired: Range, state: RecordState, delay_ms: int, wall_ms: int
    ) -> Batch:
        """Change the state after the share coordinator has stored it."""
        changed = acquired.copy(acquired.last)
        changed.next_state = state
        self.states.put(begin, changed)
        count = acquired.delivery_count
        time_ms = self._time_of(state, count, delay_ms, wall_ms)
        return Batch(begin, acquired.last, state, count, time_ms)

    def _split_for(self, begin: Offset, changed: Range) -> None:
        """Replace a part of a range. Raises MqError INVALID_RECORD_STATE if there are too many
        ranges then. The acknowledgement of a whole range is never refused.
        """
        before = len(self.states)
        self.states.put(begin, changed)
        if len(self.states) > before and self.states.size > 2 * self.limits.state_bytes:
            raise MqError(
                ErrorCode.INVALID_RECORD_STATE,
                f"The share partition has {before} ranges of records in different states, and no "
                "memory for more. Acknowledge its records in the order of their offsets.",
            )

    def _renew(
        self, begun: Sequence[Batch], member_id: str, deadline: float
    ) -> Generator[int, None, None]:
        for batch in begun:
            if batch.state is not RecordState.ACQUIRED:
                continue
            for begin, one in self.states.within(batch.first_offset, batch.last_offset):
                if one.next_state is RecordState.ACQUIRED:
                    one.next_state, one.deadline = None, deadline
                    self.states.put(begin, one)
                    self._expect(deadline, begin, one.last)
            yield 1

    def _undoing(self, begun: Sequence[Batch]) -> Slices[None]:
        """Nothing of this acknowledgement happens: its records are acquired as before."""
        for batch in begun:
            for begin, one in self.states.within(batch.first_offset, batch.last_offset):
                if one.next_state is batch.state:
                    one.next_state = None
                    self.states.put(begin, one)
                    self._expect(one.deadline, begin, one.last)
            yield 1

    def _owned(self, member_id: str, first: Offset, last: Offset) -> list[tuple[Offset, Range]]:
        """The ranges of these records, without those before the start offset.

        Raises MqError unless the member has acquired all of them (I62): INVALID_REQUEST if one is
        behind all that were acquired, else INVALID_RECORD_STATE.
        """
        first = max(first, self.states.start_offset)
        if last < first:
            return []
        found = self.states.within(first, last)
        if not len(self.states):
            raise MqError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        if last >= self.states.end_offset:
            which = "first" if first >= self.states.end_offset else "last"
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"Batch record not found. The {which} offset in request is past acquired records.",
            )
        for begin, one in found:
            if one.state is not RecordState.ACQUIRED or one.next_state is not None:
                raise MqError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"The batch cannot be acknowledged. The record with offset {begin} is not "
                    "acquired.",
                )
            if one.member_id != member_id:
                raise MqError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"Member is not the owner of the record with offset {begin}.",
                )
        return found

    def complete(self, update: Update, *, stored: bool) -> bool:
        """`completing` in one step."""
        return all_slices(self.completing(update, stored=stored))

    def completing(self, update: Update, *, stored: bool) -> Slices[bool]:
        """The share coordinator has stored the update, or has not: then the records are acquired as
        before. Returns whether records became available.
        """
        became_available = False
        for batch in update.batches:
            for begin, one in self.states.within(batch.first_offset, batch.last_offset):
                if one.next_state is not batch.state:
                    continue  # the log start moved beyond it
                if one.state is RecordState.ARCHIVING:
                    self._end_archiving(begin, one, batch.state, stored=stored)
                elif stored:
                    self._end_acquisition(
                        begin, one, batch.state, one.delivery_count, batch.time_ms
                    )
                    became_available |= batch.state is RecordState.AVAILABLE and not batch.time_ms
                    became_available |= self.affinity is not None  # the next record of its key
                else:
                    one.next_state = None
                    self.states.put(begin, one)
                    self._expect(one.deadline, begin, one.last)
            yield 1
        self.states.advance()
        return became_available

    # -- what ends without an acknowledgement ------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which the first lock ends."""
        return self._locks[0][0] if self._locks else None

    def next_due(self) -> int | None:
        """Wall time in ms at which the first delayed records are available."""
        return self._delayed[0][0] if self._delayed else None

    def end_delays(self, wall_ms: int) -> bool:
        """Delayed records whose time has come are available. Returns whether there are any."""
        found = False
        while self._delayed and self._delayed[0][0] <= wall_ms:
            due, first, last = heapq.heappop(self._delayed)
            for begin, one in self.states.within(first, last):
                if one.state is RecordState.DELAYED and one.time_ms == due:
                    assert one.time_ms <= wall_ms, "never early (I64)"
                    self.states.put(
                        begin, Range(one.last, RecordState.AVAILABLE, one.delivery_count)
                    )
                    self._ended_by_key(begin, one.last, RecordState.AVAILABLE)
                    found = True
        return found

    def expire(self, now: float, *, wall_ms: int = 0) -> Update | None:
        """`expiring` in one step."""
        return all_slices(self.expiring(now, wall_ms=wall_ms))

    def expiring(self, now: float, *, wall_ms: int = 0) -> Slices[Update | None]:
        """End the locks whose time is over, in slices. The records are available again, at once or
        after the back-off, or archived if they were delivered as often as allowed."""
        batches: list[Batch] = []
        while self._locks and self._locks[0][0] <= now:
            deadline, first, last = heapq.heappop(self._locks)
            for begin, found in self.states.within(first, last):
                for at, one in self._still(begin, found):
                    if one.deadline == deadline and one.next_state is None:
                        batches.append(self._give_back(at, one, one.delivery_count, wall_ms))
                yield 1
        return self._update(batches)

    def release_all(self, member_id: str) -> Update | None:
        """`releasing` in one step."""
        return all_slices(self.releasing(member_id))

    def releasing(self, member_id: str) -> Slices[Update | None]:
        """The session of the member ends: its records are available again. Records that it acquires
        meanwhile in another session stay acquired."""
        batches: list[Batch] = []
        owned = [(begin, one) for begin, one in self.states if one.member_id == member_id]
        for begin, found in owned:
            for at, one in self._still(begin, found):
                if one.next_state is None:
                    batches.append(self._give_back(at, one, one.delivery_count, NOT_DELAYED))
            yield 1
        return self._update(batches)

    def _still(self, begin: Offset, found: Range) -> list[tuple[Offset, Range]]:
        """The ranges of these records that are acquired as they were in an earlier slice."""
        return [
            (at, one)
            for at, one in self.states.within(begin, found.last)
            if one.state is RecordState.ACQUIRED
            and (one.member_id, one.deadline) == (found.member_id, found.deadline)
        ]

    def _expect(self, deadline: float, first: Offset, last: Offset) -> None:
        """The lock of these records ends at `deadline`."""
        heapq.heappush(self._locks, (deadline, first, last))
        if len(self._locks) > 2 * len(self.states) + _OUTDATED_LOCKS_MAX:
            self._locks = [
                (one.deadline, first, one.last)
                for first, one in self.states
                if one.state is RecordState.ACQUIRED
            ]
            heapq.heapify(self._locks)

    def log_start_moved(self, log_start_offset: Offset) -> bool:
        """The log has no records before this offset. Returns whether the start offset moved."""
        for _, one in self.states.within(self.states.start_offset, log_start_offset - 1):
            if one.state is RecordState.ACQUIRED:
                self.acquired_count = -1
        moved = self.states.remove_before(log_start_offset)
        if moved and self.affinity is not None:
            for offset in self.affinity.before(self.states.start_offset):
                self._ended_by_key(offset, offset, RecordState.ARCHIVED)
        if self.acquired_count < 0:
            self.acquired_count = sum(
                one.last - first + 1
                for first, one in self.states
                if one.state is RecordState.ACQUIRED
            )
        return moved

    def _give_back(
        self, begin: Offset, acquired: Range, delivery_count: int, wall_ms: int
    ) -> Batch:
        state = self._state_after(RecordState.AVAILABLE, delivery_count)
        if state is RecordState.ARCHIVING:  # no letter before it is stored (I65)
            return self._change_later(begin, acquired, state, BY_BACK_OFF, max(0, wall_ms))
        time_ms = 0
        if wall_ms != NOT_DELAYED:
            time_ms = self._time_of(state, delivery_count, BY_BACK_OFF, wall_ms)
        batch = Batch(begin, acquired.last, state, delivery_count, time_ms)
        self._end_acquisition(begin, acquired, state, delivery_count, time_ms)
        return batch

    def _time_of(self, state: RecordState, delivery_count: int, delay_ms: int, wall_ms: int) -> int:
        """Wall time at which a record that changes to `state` is available, or since which it is
        archiving. 0: none."""
        if state is RecordState.ARCHIVING:
            return wall_ms
        if state is not RecordState.AVAILABLE:
            return 0
        if delay_ms == BY_BACK_OFF:
            delay_ms = step_after(self.limits.back_off, delivery_count)
        # Both times are rounded down: one millisecond more is never early.
        return wall_ms + delay_ms + 1 if delay_ms > 0 else 0

    def _end_acquisition(
        self,
        begin: Offset,
        acquired: Range,
        state: RecordState,
        delivery_count: int,
        time_ms: int,
    ) -> None:
        self.acquired_count -= acquired.last - begin + 1
        if state in DONE:
            delivery_count = 0  # so that neighbours that are done become one range
        self.gives_up |= state is RecordState.ARCHIVING
        if time_ms and state is RecordState.AVAILABLE:
            state = RecordState.DELAYED
            heapq.heappush(self._delayed, (time_ms, begin, acquired.last))
        self.states.put(
            begin,
            Range(acquired.last, state, delivery_count, time_ms=time_ms),
        )
        self._ended_by_key(begin, acquired.last, state)

    def _state_after(self, state: RecordState, delivery_count: int) -> RecordState:
        if state is RecordState.AVAILABLE and delivery_count >= self.limits.delivery_count:
            return self._given_up
        return state

    @property
    def _given_up(self) -> RecordState:
        """The state of a record that is not delivered again, although it was not accepted."""
        return RecordState.ARCHIVING if self.limits.dead_letters else RecordState.ARCHIVED

    # -- dead letters ------------------------------------------------------------------------------

    def archiving(self, most: int) -> list[Archiving]:
        """The first records that wait for a dead letter, as the share coordinator has them."""
        found: list[Archiving] = []
        if not self.gives_up:
            return found
        self.gives_up = False
        for first, one in self.states:
            self.gives_up |= one.state is RecordState.ARCHIVING
            if one.state is not RecordState.ARCHIVING or one.next_state is not None:
                continue
            for offset in range(first, min(one.last + 1, first + most - len(found))):
                found.append(Archiving(offset, one.delivery_count, one.time_ms))
            if len(found) >= most:
                break
        return found

    def archive_given_up(self, offsets: Sequence[Offset]) -> Update | None:
        """Begin to archive records that have their dead letter."""
        batches = []
        for offset in offsets:
            for begin, one in self.states.within(offset, offset):
                if one.state is RecordState.ARCHIVING and one.next_state is None:
                    one.next_state = RecordState.ARCHIVED
                    self.states.put(begin, one)
                    batches.append(Batch(begin, one.last, RecordState.ARCHIVED, one.delivery_count))
        return self._update(batches)

    def give_up(self, ranges: Sequence[tuple[Offset, Offset]], wall_ms: int) -> Update | None:
        """Give up the available records of these ranges, which are in order: they have expired.
        Returns what the share coordinator must store before a dead letter is written."""
        batches: list[Batch] = []
        for first, last in ranges:
            first = max(first, self.states.start_offset)
            if first > last:
                continue
            end_offset = self.states.end_offset
            if first > end_offset:
                self.states.put(end_offset, Range(first - 1, RecordState.AVAILABLE))
            if last >= end_offset:
                self.states.put(max(first, end_offset), Range(last, RecordState.AVAILABLE))
            for begin, one in self.states.within(first, last):
                if one.state is RecordState.AVAILABLE:
                    batches.extend(self._give_up(begin, one, wall_ms))
        return self._update(batches)

    def _give_up(self, begin: Offset, one: Range, wall_ms: int) -> list[Batch]:
        self._ended_by_key(begin, one.last, RecordState.ARCHIVED)
        if self._given_up is RecordState.ARCHIVED:  # the next leader finds that, too
            self.states.put(begin, Range(one.last, RecordState.ARCHIVED))
            return []
        changed = Range(one.last, RecordState.ARCHIVING, one.delivery_count, time_ms=wall_ms)
        changed.next_state = RecordState.ARCHIVING
        self.states.put(begin, changed)
        return [Batch(begin, one.last, RecordState.ARCHIVING, one.delivery_count, wall_ms)]

    def _end_archiving(
        self, begin: Offset, one: Range, state: RecordState, *, stored: bool
    ) -> None:
        """A change from or to ARCHIVING, other than the end of an acquisition, is stored or
        not."""
        one.next_state = None
        self.gives_up |= state is RecordState.ARCHIVING
        if stored and state is RecordState.ARCHIVED:
            one = Range(one.last, RecordState.ARCHIVED)
        elif not stored and state is RecordState.ARCHIVING:
            one = Range(one.last, RecordState.AVAILABLE, one.delivery_count)
            self.affinity = None  # it has forgotten the record: the next fetch reads the keys again
        self.states.put(begin, one)

    def _update(self, batches: Collection[Batch]) -> Update | None:
        self.states.advance()
        if not batches:
            return None
        done = min(self.states.done_after_start(), INT32_MAX)
        return Update(tuple(batches), self.states.start_offset, done)


def _runs(one: Acknowledgement) -> Iterator[tuple[Offset, Offset, AcknowledgeType]]:
    """The records with the same acknowledge type, as ranges of offsets."""
    if len(one.types) == 1:
        yield one.first_offset, one.last_offset, AcknowledgeType(one.types[0])
        return
    first = one.first_offset
    for kind, equal in groupby(one.types):
        last = first + sum(1 for _ in equal) - 1
        yield first, last, AcknowledgeType(kind)
        first = last + 1


def _add(
    acquired: list[AcquiredRecords],
    first: Offset,
    last: Offset,
    delivery_count: int,
    batch_size: int,
) -> None:
    """Add records to the list. Neighbours with the same delivery count become one row until it has
    `batch_size` records."""
    if acquired:
        before = acquired[-1]
        if (
            before.last_offset + 1 == first
            and before.delivery_count == delivery_count
            and before.last_offset - before.first_offset + 1 < batch_size
        ):
            acquired[-1] = before._replace(last_offset=last)
            return
    acquired.append(AcquiredRecords(first, last, delivery_count))
