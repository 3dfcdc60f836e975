"""A share partition against a model that has one entry for each record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mqd.coordinator.share.stored_states import is_valid
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import all_slices
from mqd.share import acknowledging, endings
from mqd.share.giving_up import archiving, give_up_spent
from mqd.share.record_states import RANGE_BYTES, Batch, RecordState
from mqd.share.share_partition import BATCH_RECORDS_MAX, SharePartition
from mqd.share.values import Acknowledgement, AcknowledgeType, AcquiredRecords, Limits, Update
from tests.seeds import seeds
from tests.share import support
from tests.share.support import acquire, complete, expire, leave, stored_batches

LIMITS = Limits(delivery_count=3, record_locks=40, lock_seconds=10.0, state_bytes=1 << 20)
MEMBERS = ("a", "b", "c")


def empty(start_offset: int = 0, limits: Limits = LIMITS) -> SharePartition:
    return SharePartition.loaded(start_offset, (), limits)


def acknowledge(
    partition: SharePartition, member: str, first: int, last: int, *kinds: int, now: float = 0.0
) -> Update | None:
    return support.acknowledge(partition, member, [Acknowledgement(first, last, kinds)], now)


def test_accepted_records_move_the_start_offset() -> None:
    partition = empty()
    assert acquire(partition, "a", (0, 9)) == [(0, 9, 1)]
    update = acknowledge(partition, "a", 0, 4, AcknowledgeType.ACCEPT)
    assert update is not None
    assert update.batches == (Batch(0, 4, RecordState.ACKNOWLEDGED, 1),)
    assert partition.states.start_offset == 0, "before the coordinator has stored it"
    complete(partition, update, stored=True)
    assert partition.states.start_offset == 5
    assert partition.acquired_count == 5


def test_an_update_that_was_not_stored_leaves_the_records_acquired() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9))
    update = acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT)
    assert update is not None
    with pytest.raises(MqError) as raised:
        acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE
    complete(partition, update, stored=False)
    assert acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT) == update


def test_released_records_are_acquired_again_until_the_limit() -> None:
    partition, update = empty(), None
    for delivery in (1, 2, 3):
        assert acquire(partition, "a", (0, 0)) == [(0, 0, delivery)]
        update = acknowledge(partition, "a", 0, 0, AcknowledgeType.RELEASE)
        complete(partition, update, stored=True)
    assert update is not None
    assert update.batches == (Batch(0, 0, RecordState.ARCHIVED, 3),)
    assert partition.states.start_offset == 1


def test_given_up_records_are_counted_unless_they_get_dead_letters() -> None:
    kinds = (
        AcknowledgeType.REJECT,
        AcknowledgeType.RELEASE,
        AcknowledgeType.RELEASE,
        AcknowledgeType.GAP,
        AcknowledgeType.ACCEPT,
    )
    for letters in (False, True):
        partition = empty(limits=LIMITS._replace(delivery_count=1, dead_letters=letters))
        acquire(partition, "a", (0, 8))
        updates = [
            acknowledge(partition, "a", 0, 4, *kinds),
            leave(partition, "a"),
        ]
        counts = [update and (update.given_up, update.spent) for update in updates]
        assert counts == ([(0, 0), (0, 0)] if letters else [(3, 2), (4, 4)])
        acquire(partition, "a", (9, 10))
        ended = expire(partition, 100.0)
        assert ended is not None and ended.spent == (0 if letters else 2)


def test_one_slow_record_holds_back_only_itself() -> None:
    partition = empty(limits=LIMITS._replace(record_locks=2))
    assert acquire(partition, "slow", (0, 0)) == [(0, 0, 1)]
    for offset in range(1, 10_000):
        assert partition.next_fetch_offset() == offset
        assert acquire(partition, "a", (offset, offset)) == [(offset, offset, 1)]
        update = acknowledge(partition, "a", offset, offset, AcknowledgeType.ACCEPT)
        complete(partition, update, stored=True)
    assert partition.states.start_offset == 0
    assert len(partition.states) == 2


def test_a_lock_ends_and_can_be_renewed() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9), now=0.0)
    assert endings.next_deadline(partition) == 10.0
    assert acknowledge(partition, "a", 0, 4, AcknowledgeType.RENEW, now=6.0) is None
    update = expire(partition, 10.0)
    assert update is not None
    assert update.batches == (Batch(5, 9, RecordState.AVAILABLE, 1),)
    assert acquire(partition, "b", (0, 9), now=10.0) == [(5, 9, 2)]
    assert expire(partition, 16.0) is not None
    assert acquire(partition, "b", (0, 9), now=16.0) == [(0, 4, 2)]


def test_a_session_that_ends_returns_records() -> None:
    """Its deliveries count, so counts never go back."""
    partition = empty()
    acquire(partition, "a", (0, 4))
    acquire(partition, "b", (5, 9))
    update = leave(partition, "a")
    assert update is not None
    assert update.batches == (Batch(0, 4, RecordState.AVAILABLE, 1),)
    assert acquire(partition, "c", (0, 9)) == [(0, 4, 2)]


@pytest.mark.parametrize(
    "limit, acquired",
    [
        (2, [(0, 7, 1), (0, 7, 2)]),
        (3, [(0, 7, 1), (0, 7, 2), *((offset, offset, 3) for offset in range(8))]),
        (
            5,
            [
                *((0, 7, count) for count in (1, 2, 3)),
                (0, 3, 4),
                (0, 0, 5),
                *((offset, offset, 5) for offset in (1, 2, 3)),
                (4, 5, 4),
            ],
        ),
    ],
)
def test_records_are_delivered_in_smaller_parts_before_they_are_given_up(
    limit: int, acquired: list[tuple[int, int, int]]
) -> None:
    """So that a record that makes members fail does not use up the deliveries of others."""
    partition = empty(limits=LIMITS._replace(delivery_count=limit))
    for first, last, count in acquired:
        found = acquire(partition, "a", (0, 3), (4, 7), (8, 9)) if count == 1 else None
        if found is None:
            found = acquire(partition, "a", (0, 3), (4, 7))
        assert found[:1] == [(first, last if count > 1 else 9, count)], acquired
        update = acknowledge(partition, "a", first, last, AcknowledgeType.RELEASE)
        assert update is not None
        complete(partition, update, stored=True)


def test_whole_batches_are_acquired_unless_the_number_is_exact() -> None:
    assert acquire(empty(), "a", (0, 9), (10, 19), (20, 29), most=12) == [(0, 19, 1)]
    assert acquire(empty(), "a", (0, 9), (10, 19), most=12, exact=True) == [(0, 11, 1)]
    rows = acquire(empty(), "a", (0, 9), (10, 19), (20, 29), batch_size=15)
    assert rows == [(0, 19, 1), (20, 29, 1)]


def test_offsets_that_the_log_does_not_have_are_archived() -> None:
    partition = empty()
    assert acquire(partition, "a", (5, 6), (9, 9)) == [(5, 6, 1), (9, 9, 1)]
    assert partition.states.start_offset == 5
    update = acknowledge(partition, "a", 5, 6, AcknowledgeType.ACCEPT)
    complete(partition, update, stored=True)
    assert partition.states.start_offset == 9


def test_the_log_start_removes_acquired_records() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9))
    update = acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT)
    assert update is not None
    assert endings.log_start_moved(partition, 5)
    assert partition.acquired_count == 5
    complete(partition, update, stored=True)
    assert (partition.states.start_offset, partition.acquired_count) == (10, 0)
    assert acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT) is None


def test_no_record_is_acquired_above_the_bounds() -> None:
    partition = empty(limits=LIMITS._replace(record_locks=10))
    assert acquire(partition, "a", (0, 9)) == [(0, 9, 1)]
    assert partition.next_fetch_offset() is None
    partition = empty(limits=LIMITS._replace(state_bytes=1))
    acquire(partition, "a", (0, 0))
    assert partition.next_fetch_offset() is None, "new records"
    leave(partition, "a")
    assert partition.next_fetch_offset() == 0, "records that have a state"


# -- random histories


@dataclass
class Record:
    """The model of one record."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline: float = 0.0
    pending: bool = False


@dataclass
class Model:
    records: dict[int, Record] = field(default_factory=dict)
    start: int = 0

    def at(self, offset: int) -> Record:
        return self.records.setdefault(offset, Record())

    def advance(self) -> None:
        while self.at(self.start).state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED):
            del self.records[self.start]
            self.start += 1

    def give_back(self, record: Record) -> None:
        record.state = (
            RecordState.ARCHIVED if record.count >= LIMITS.delivery_count else RecordState.AVAILABLE
        )
        record.member = ""


class History:
    """Random steps of both, and a comparison after each."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.partition = empty()
        self.model = Model()
        self.now = 0.0
        self.updates: list[Update] = []
        self.stored: dict[int, Batch] = {}

    def step(self) -> None:
        steps = (self.acquire, self.acknowledge, self.complete, self.expire, self.leave, self.trim)
        self.dice.choices(steps, (6, 8, 6, 2, 1, 1))[0]()
        self.model.advance()
        self.compare()

    def acquire(self) -> None:
        first = self.partition.next_fetch_offset()
        if first is None:
            return
        batches = []
        for _ in range(self.dice.randint(1, 4)):
            last = first + self.dice.randint(0, 5)
            batches.append((first, last))
            first = last + 1
        member, most = self.dice.choice(MEMBERS), self.dice.randint(1, 12)
        exact = self.dice.random() < 0.5
        rows = acquire(
            self.partition, member, *batches, most=most, exact=exact, batch_size=4, now=self.now
        )
        offsets = [offset for begin, end, _ in rows for offset in range(begin, end + 1)]
        assert offsets == sorted(set(offsets))
        assert len(offsets) <= most or not exact
        for row in rows:
            acquired = AcquiredRecords(*row)
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                record = self.model.at(offset)
                assert record.state is RecordState.AVAILABLE, (offset, record)
                record.state, record.member = RecordState.ACQUIRED, member
                record.count += 1
                record.deadline = self.now + LIMITS.lock_seconds
                assert record.count == acquired.delivery_count <= LIMITS.delivery_count

    def acknowledge(self) -> None:
        first = self.model.start + self.dice.randint(-2, 10)
        last = first + self.dice.randint(0, 6)
        member = self.dice.choice(MEMBERS)
        if first in self.model.records and self.dice.random() < 0.8:
            member = self.model.records[first].member or member
        kinds = [
            self.dice.choice(list(AcknowledgeType))
            for _ in range(self.dice.choice((1, last - first + 1)))
        ]
        offsets = [offset for offset in range(first, last + 1) if offset >= self.model.start]
        allowed = all(
            self.model.at(offset).state is RecordState.ACQUIRED
            and self.model.at(offset).member == member
            and not self.model.at(offset).pending
            for offset in offsets
        )
        try:
            update = acknowledge(self.partition, member, first, last, *kinds, now=self.now)
        except MqError as error:
            never_acquired = last >= self.partition.states.end_offset
            assert error.code is ErrorCode.INVALID_RECORD_STATE or never_acquired
            assert not allowed
            return
        assert allowed
        for offset in offsets:
            record = self.model.at(offset)
            if (kinds[0] if len(kinds) == 1 else kinds[offset - first]) is AcknowledgeType.RENEW:
                record.deadline = self.now + LIMITS.lock_seconds
            else:
                record.pending = True
        if update is not None:
            self.updates.append(update)

    def complete(self) -> None:
        if not self.updates:
            return
        update = self.updates.pop(self.dice.randrange(len(self.updates)))
        stored = self.dice.random() < 0.8
        complete(self.partition, update, stored=stored)
        for batch in update.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                if offset < self.model.start:
                    continue
                record = self.model.at(offset)
                assert record.pending
                record.pending = False
                if stored:
                    record.state, record.member = batch.state, ""

    def expire(self) -> None:
        self.now += self.dice.choice((1.0, 4.0, 12.0))
        expire(self.partition, self.now)
        for record in self.model.records.values():
            if (
                record.state is RecordState.ACQUIRED
                and record.deadline <= self.now
                and not record.pending
            ):
                self.model.give_back(record)

    def leave(self) -> None:
        member = self.dice.choice(MEMBERS)
        leave(self.partition, member)
        for record in self.model.records.values():
            if record.member == member and not record.pending:
                self.model.give_back(record)

    def trim(self) -> None:
        log_start = self.model.start + self.dice.randint(0, 3)
        endings.log_start_moved(self.partition, log_start)
        while self.model.start < log_start:
            self.model.records.pop(self.model.start, None)
            self.model.start += 1

    def compare(self) -> None:
        states = self.partition.states
        assert states.start_offset == self.model.start
        covered = self.model.start
        acquired = 0
        for first, one in states:
            assert first == covered
            covered = one.last + 1
            for offset in range(first, covered):
                record = self.model.at(offset)
                assert one.state is record.state, (offset, one, record)
                assert (one.next_state is not None) == record.pending
                if one.state is RecordState.ACQUIRED:
                    acquired += 1
                    assert (one.member_id, one.delivery_count) == (record.member, record.count)
                elif one.state is RecordState.AVAILABLE:
                    assert one.delivery_count == record.count
        assert acquired == self.partition.acquired_count
        for offset, record in self.model.records.items():
            assert offset < covered or record.state is RecordState.AVAILABLE


@pytest.mark.parametrize("seed", seeds(20, range(400)))
def test_random_histories_are_as_in_the_model(seed: int) -> None:
    history = History(seed)
    for _ in range(200):
        history.step()


def loaded(*batches: Batch, end_offset: int | None = None) -> SharePartition:
    return SharePartition.loaded(0, batches, LIMITS, end_offset=end_offset)


def test_the_number_of_done_records_fits_into_its_field() -> None:
    partition = loaded(Batch(100, 2**40, RecordState.ACKNOWLEDGED, 1))
    acquire(partition, "a", (0, 9))
    update = acknowledge(partition, "a", 1, 1, AcknowledgeType.ACCEPT)
    assert update is not None
    assert update.done_after_start == 2**31 - 1


def test_a_stored_state_ends_with_the_log() -> None:
    partition = loaded(
        Batch(3, 2**40, RecordState.ACKNOWLEDGED, 1),
        Batch(2**41, 2**42, RecordState.ACKNOWLEDGED, 1),
        end_offset=5,
    )
    assert partition.states.end_offset == 5
    assert partition.states.done_after_start() == 2


@pytest.mark.parametrize("dead_letters", [False, True])
def test_loaded_records_that_were_delivered_as_often_as_allowed_are_given_up(
    dead_letters: bool,
) -> None:
    """The limit of the group is lower now. Their delivery counts stay."""
    stored = (
        Batch(0, 1, RecordState.AVAILABLE, 32767),
        Batch(2, 2, RecordState.ACQUIRED, 1),
        Batch(3, 3, RecordState.AVAILABLE, -32768),
        Batch(4, 4, RecordState.AVAILABLE, 3, 900),
        Batch(5, 5, RecordState.ARCHIVING, 8, 40),
    )
    limits = LIMITS._replace(dead_letters=dead_letters)
    partition = SharePartition.loaded(0, stored, limits)
    update = give_up_spent(partition, 50)
    assert update is not None and all(map(is_valid, update.batches))
    assert update.spent == update.given_up == (0 if dead_letters else 3)
    state, since_ms = (RecordState.ARCHIVING, 50) if dead_letters else (RecordState.ARCHIVED, 0)
    assert update.batches == (
        Batch(0, 1, state, 32767, since_ms),
        Batch(4, 4, state, 3, since_ms),
    )
    assert update.start_offset == (0 if dead_letters else 2)
    waiting = [tuple(one) for one in archiving(partition, 9)]
    given_up = [(0, 32767, 50), (1, 32767, 50), (4, 3, 50)] if dead_letters else []
    assert waiting == [*given_up, (5, 8, 40)]
    endings.end_delays(partition, 1_000)
    assert acquire(partition, "a", (0, 4)) == [(2, 2, 2), (3, 3, 1)]
    assert give_up_spent(partition, 60) is None


# -- bounds


def test_a_huge_batch_is_acquired_in_parts() -> None:
    partition = empty(limits=LIMITS)
    assert acquire(partition, "a", (0, 899_999), most=1, batch_size=1 << 30) == [
        (0, BATCH_RECORDS_MAX - 1, 1)
    ]
    assert partition.next_fetch_offset() is None, "above the record locks"
    update = acknowledge(partition, "a", 0, BATCH_RECORDS_MAX - 1, AcknowledgeType.ACCEPT)
    complete(partition, update, stored=True)
    assert partition.next_fetch_offset() == BATCH_RECORDS_MAX
    assert acquire(partition, "a", (0, 899_999), most=1, batch_size=1 << 30) == [
        (BATCH_RECORDS_MAX, 2 * BATCH_RECORDS_MAX - 1, 1)
    ]


def test_no_acknowledgement_makes_more_ranges_than_there_is_memory_for() -> None:
    partition = empty(limits=LIMITS._replace(state_bytes=RANGE_BYTES * 10))
    acquire(partition, "a", (0, 99))
    before = stored_batches(partition)
    with pytest.raises(MqError) as raised:
        acknowledge(partition, "a", 0, 99, *[1, 2] * 50)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE
    assert "no memory for more" in raised.value.message
    assert stored_batches(partition) == before, "nothing has changed"
    assert partition.states.done_after_start() == 0
    assert endings.next_deadline(partition) == LIMITS.lock_seconds
    update = acknowledge(partition, "a", 0, 99, AcknowledgeType.ACCEPT)
    assert update is not None, "a whole range is never refused"
    complete(partition, update, stored=True)
    assert partition.states.start_offset == 100


def test_an_acknowledgement_in_slices_is_all_or_nothing() -> None:
    """Between two slices the log start moves, and locks end."""
    partition = empty()
    acquire(partition, "a", (0, 9))
    work = acknowledging.begin(partition, "a", [Acknowledgement(0, 9, [1, 2] * 5)], 0.0)
    for _ in range(6):
        next(work)
    endings.log_start_moved(partition, 1)
    expired = expire(partition, LIMITS.lock_seconds)
    assert expired is not None
    assert expired.batches[0].first_offset == 3, "the earlier ones are being acknowledged"
    with pytest.raises(MqError):
        all_slices(work)
    assert {one.next_state for _, one in partition.states} == {None}
    assert expire(partition, LIMITS.lock_seconds) is not None, "their lock has ended, too"
    assert acquire(partition, "b", (1, 9)) == [(1, 9, 2)]


def test_an_acknowledgement_that_is_abandoned_changes_nothing() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9))
    work = acknowledging.begin(partition, "a", [Acknowledgement(0, 9, [1, 4] * 5)], 0.0)
    for _ in range(6):
        next(work)
    work.close()
    assert acknowledge(partition, "a", 0, 9, AcknowledgeType.ACCEPT) is not None


def test_a_release_in_slices_spares_what_another_session_acquires() -> None:
    partition = empty()
    for first in range(0, 8, 2):
        acquire(partition, "a", (first, first + 1), now=float(first))
    work = endings.release(partition, "a")
    next(work)
    assert expire(partition, LIMITS.lock_seconds + 4.5) is not None
    assert acquire(partition, "a", (0, 5), now=100.0) == [(0, 5, 2)]
    update = all_slices(work)
    assert update is not None
    assert [one.first_offset for one in update.batches] == [0, 6]
    assert partition.acquired_count == 6


def test_locks_that_are_renewed_take_no_more_memory() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9))
    for second in range(1_000):
        acknowledge(partition, "a", 0, 9, AcknowledgeType.RENEW, now=second / 1000)
    assert len(partition.locks) < 100


def test_a_large_update_is_several_writes() -> None:
    partition = empty()
    acquire(partition, "a", (0, 9))
    update = acknowledge(partition, "a", 0, 9, *[1, 2] * 5)
    assert update is not None
    parts = update.parts(4)
    assert [len(one.batches) for one in parts] == [4, 4, 2]
    for one in parts:
        complete(partition, one, stored=True)
    assert acquire(partition, "b", (0, 9)) == [(n, n, 2) for n in range(1, 10, 2)]
