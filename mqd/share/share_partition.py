"""One share partition as its leader has it (KIP-932): which member has acquired which records, and
which records are done. Pure.

Members acquire records for a time, and acknowledge them. What an acknowledgement changes is stored
by the share coordinator first (`Update`), and applies afterwards. Records whose lock ends, or whose
member leaves, are available again at once: the coordinator is told later. A new leader begins with
the stored state.

This file has the state, how records are acquired, and the changes that all other files use:
acknowledging.py   a member acknowledges records
endings.py         a lock, a delay or a session ends, or the log start moves
giving_up.py       records that expire, or that wait for a dead letter (service.py: who writes it)
key_order.py       acquires records by key

Invariants: at most one member has acquired a record at any time. A record that is done is never
acquired again. A delayed record is not acquired before its time (wall clock of the leader). A
record is acquired at most `delivery_count` times.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from mqd.back_off import step_after
from mqd.protocol.schema import INT32_MAX
from mqd.share.key_affinity import KeyAffinity
from mqd.share.record_states import (
    DONE,
    GIVEN_UP_OR_DONE,
    Batch,
    Range,
    RecordState,
    RecordStates,
)
from mqd.share.values import BY_BACK_OFF, AcquiredRecords, Limits, Update, add_row
from mqd.types import Offset

BATCH_RECORDS_MAX: Final = 5_000
"""Records of one batch that are acquired at once beyond the wanted number. Each of them may cost a
range when it is acknowledged."""
_OUTDATED_LOCKS_MAX: Final = 64
"""Entries of locks that may be out of date, besides two for each range."""


@dataclass(slots=True)
class SharePartition:
    """The state of one group's share partition."""

    states: RecordStates
    limits: Limits
    acquired_count: int = 0
    """Records that are acquired now."""
    gives_up: bool = False
    """Records may be ARCHIVING: False only if none is."""
    locks: list[tuple[float, Offset, Offset]] = field(default_factory=list)
    """A heap of (end of the lock, first offset, last offset). An entry may be out of date."""
    delayed: list[tuple[int, Offset, Offset]] = field(default_factory=list)
    """The same for delayed records, by wall time in ms."""
    affinity: KeyAffinity | None = None
    """The order of records by key, if the group has `share.key.affinity`."""
    _archived_here: Offset = -1
    """The last record that was archived without an update: the share coordinator does not know."""
    _start_in_update: Offset = 0
    """The start offset in the last update."""

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
        often as the group now allows are available: see giving_up.give_up_spent.
        """
        partition = SharePartition(RecordStates(start_offset), limits)
        states = partition.states
        for batch in sorted(batches):
            if end_offset is not None:
                batch = batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
                if batch.first_offset > batch.last_offset:
                    continue
            states.store(_sane(batch))
        states.advance()
        partition._start_in_update = states.start_offset
        for first, one in states:
            partition.gives_up |= one.state is RecordState.ARCHIVING
            if one.state is RecordState.DELAYED:
                heapq.heappush(partition.delayed, (one.time_ms, first, one.last))
        return partition

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
            ready = self.affinity.next_ready()
            if ready is not None:
                return ready
            if max(self.affinity.size, self.states.size) >= self.limits.state_bytes:
                return None
            return max(self.affinity.known_end, self.states.start_offset)
        available = self.states.next_available()
        if available is not None:
            return available
        return None if self.states.size >= self.limits.state_bytes else self.states.end_offset

    def acquire(
        self,
        member_id: str,
        batches: Iterable[tuple[Offset, Offset]],
        *,
        read_from: Offset,
        max_records: int,
        batch_size: int,
        exact: bool,
        now: float,
    ) -> list[AcquiredRecords]:
        """Acquire available records of `batches`: the first and last offsets of record batches of
        the log, in order. They are read until there are enough records. `read_from`: the offset
        from which on they are read. Available offsets between them, which compaction has removed,
        are archived.

        At least one batch is acquired whole if `max_records` end within it, unless `exact`; of a
        batch with more than BATCH_RECORDS_MAX records, so many. Records with many deliveries are
        acquired in smaller parts, and nothing after them (`_most_again`).
        """
        wanted = min(max_records, self.limits.record_locks - self.acquired_count)
        deadline = now + self.limits.lock_seconds
        acquired: list[AcquiredRecords] = []
        if wanted <= 0:
            return acquired
        covered = read_from
        for first, last in batches:
            self.archive(covered, first - 1)
            covered = last + 1
            # An earlier record that has just become available may have expired: it was not read.
            first = max(first, read_from, self.states.start_offset)
            room = wanted if exact else max(wanted, BATCH_RECORDS_MAX)
            for begin, end, count in self._available_in(first, last):
                if room <= 0:
                    break
                most = self._most_again(begin, count)
                if most is not None and acquired:
                    return acquired
                end = min(end, begin + (room if most is None else min(room, most)) - 1)
                room -= end - begin + 1
                wanted -= end - begin + 1
                self.put_acquired(begin, end, count + 1, member_id, deadline)
                add_row(acquired, begin, end, count + 1, batch_size)
                if most is not None:
                    return acquired
            if wanted <= 0:
                break
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
                self.archive_here(end_offset, first - 1)
                self.states.advance()
                end_offset = first
            found.append((end_offset, last, 0))
        return found

    def put_acquired(
        self, first: Offset, last: Offset, delivery_count: int, member_id: str, deadline: float
    ) -> None:
        """A member has acquired these records, which were available."""
        self.states.put(
            first, Range(last, RecordState.ACQUIRED, delivery_count, member_id, deadline)
        )
        self.acquired_count += last - first + 1
        self.expect_end(deadline, first, last)

    def expect_end(self, deadline: float, first: Offset, last: Offset) -> None:
        """The lock of these records ends at `deadline`."""
        heapq.heappush(self.locks, (deadline, first, last))
        if len(self.locks) > 2 * len(self.states) + _OUTDATED_LOCKS_MAX:
            self.locks = [
                (one.deadline, first, one.last)
                for first, one in self.states
                if one.state is RecordState.ACQUIRED
            ]
            heapq.heapify(self.locks)

    # -- records that are not delivered ------------------------------------------------------------

    def archive(self, first: Offset, last: Offset) -> None:
        """Archive the available records among these, up to the end offset: no record has their
        offset, or it is of an aborted transaction. So the order by key does not have them, and
        millions of offsets take no time.
        """
        for begin, one in self.states.within(max(first, self.states.start_offset), last):
            if one.state is RecordState.AVAILABLE:
                self.archive_here(begin, one.last)
        self.states.advance()

    def skip(self, first: Offset, last: Offset) -> None:
        """None of these records is delivered: they are of aborted transactions."""
        self.archive(first, last)
        if last >= self.states.end_offset:
            self.archive_here(self.states.end_offset, last)
            self.states.advance()

    def archive_here(self, first: Offset, last: Offset) -> None:
        """Archive records that a later leader archives, too: their states are not stored."""
        self.states.put(first, Range(last, RecordState.ARCHIVED))
        self._archived_here = max(self._archived_here, last)

    def start_update(self) -> Update | None:
        """The start offset, if it has passed records that only this leader has archived, and the
        last update has an earlier one. Without it, the group would have a lag until a member
        acknowledges another record.
        """
        has_moved = self.states.start_offset > self._start_in_update
        if has_moved and self._archived_here >= self._start_in_update:
            return self._changed(())
        return None

    def start_to_store(self) -> Update:
        """The start offset, whether or not the last update has it."""
        return self._changed(())

    # -- changes of acquired records ---------------------------------------------------------------

    def end_acquisition(
        self,
        begin: Offset,
        acquired: Range,
        state: RecordState,
        delivery_count: int,
        time_ms: int,
    ) -> None:
        """These records, which were acquired, have this state now."""
        self.acquired_count -= acquired.last - begin + 1
        if state in DONE:
            delivery_count = 0  # so that neighbours that are done become one range
        self.gives_up |= state is RecordState.ARCHIVING
        if time_ms and state is RecordState.AVAILABLE:
            state = RecordState.DELAYED
            heapq.heappush(self.delayed, (time_ms, begin, acquired.last))
        self.states.put(
            begin,
            Range(acquired.last, state, delivery_count, time_ms=time_ms),
        )
        self.ended_by_key(begin, acquired.last, state)

    def ended_by_key(self, first: Offset, last: Offset, state: RecordState) -> None:
        """These records have this state now. In the order by key, others may follow."""
        affinity = self.affinity
        if affinity is None:
            return
        for offset in affinity.within(first, last):
            if state not in GIVEN_UP_OR_DONE:
                if state is RecordState.AVAILABLE:
                    affinity.available(offset)
                continue
            head = affinity.done(offset)
            if head is not None and self.states.state_of(head) is RecordState.AVAILABLE:
                affinity.available(head)

    def state_after(self, state: RecordState, delivery_count: int) -> RecordState:
        """The state that records get instead of `state`, after so many deliveries."""
        if state is RecordState.AVAILABLE and delivery_count >= self.limits.delivery_count:
            return self.given_up
        return state

    @property
    def given_up(self) -> RecordState:
        """The state of a record that is not delivered again, although it was not accepted."""
        return RecordState.ARCHIVING if self.limits.dead_letters else RecordState.ARCHIVED

    def time_of(self, state: RecordState, delivery_count: int, delay_ms: int, wall_ms: int) -> int:
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

    def update(
        self, batches: Collection[Batch], *, spent: int = 0, rejected: int = 0
    ) -> Update | None:
        """What the share coordinator stores of these changes. `spent` records were delivered as
        often as allowed, and are archived, as `rejected` ones."""
        self.states.advance()
        return self._changed(batches, spent, rejected) if batches else None

    def _changed(self, batches: Collection[Batch], spent: int = 0, rejected: int = 0) -> Update:
        self._start_in_update = self.states.start_offset
        done = min(self.states.done_after_start(), INT32_MAX)
        return Update(tuple(batches), self.states.start_offset, done, spent + rejected, spent)


def _sane(batch: Batch) -> Batch:
    """A stored batch with valid values: tools can write any to the share coordinator."""
    state, count = batch.state, max(0, batch.delivery_count)
    if state is RecordState.ACQUIRED:  # by nobody that this leader knows
        state = RecordState.AVAILABLE
    has_time = state in (RecordState.AVAILABLE, RecordState.ARCHIVING)
    time_ms = max(0, batch.time_ms) if has_time else 0
    return batch._replace(state=state, delivery_count=count, time_ms=time_ms)
