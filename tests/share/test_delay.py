"""Records that are released with a delay, or by a back-off table."""

from __future__ import annotations

import random

import pytest

from mqd.back_off import parse_back_off, step_after
from mqd.share import endings, giving_up
from mqd.share.key_affinity import KeyOf
from mqd.share.key_order import acquire_by_key, learn_keys, order_by_key
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import BY_BACK_OFF, Acknowledgement, AcknowledgeType, Limits, Update
from tests.seeds import seeds
from tests.share.support import acknowledge, acquire, complete, expire, leave, stored_batches

LIMITS = Limits(delivery_count=4, record_locks=40, lock_seconds=10.0, state_bytes=1 << 20)
BACK_OFF = LIMITS._replace(back_off=(100, 5_000))
WALL = 1_000_000


def acquired(partition: SharePartition, last: int = 9, *, now: float = 0.0) -> list[int]:
    rows = acquire(partition, "a", (0, last), now=now)
    return [each for row in rows for each in range(row.first_offset, row.last_offset + 1)]


def release(
    partition: SharePartition, first: int, last: int, delay_ms: int = BY_BACK_OFF, wall: int = WALL
) -> Update:
    one = Acknowledgement(first, last, [AcknowledgeType.RELEASE], delay_ms)
    update = acknowledge(partition, "a", [one], 0.0, wall_ms=wall)
    assert update is not None
    return update


def test_a_delayed_record_is_available_at_its_time_and_pins_nothing() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    assert acquired(partition) == list(range(10))
    update = release(partition, 3, 4, 250)
    due = WALL + 251
    assert update.batches == (Batch(3, 4, RecordState.AVAILABLE, 1, due),)
    complete(partition, update, stored=True)
    assert endings.next_due(partition) == due
    assert acquired(partition, last=12) == [10, 11, 12], "others go on"
    endings.end_delays(partition, due - 1)
    assert acquired(partition, 12) == []
    endings.end_delays(partition, due)
    assert endings.next_due(partition) is None
    assert partition.next_fetch_offset() == 3
    assert acquired(partition, 12) == [3, 4]


def test_a_delay_of_zero_is_none() -> None:
    partition = SharePartition.loaded(0, (), BACK_OFF)
    acquired(partition)
    complete(partition, release(partition, 3, 3, 0), stored=True)
    assert acquired(partition) == [3]


def test_the_next_leader_knows_the_time() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    acquired(partition)
    update = release(partition, 0, 2, 1000)
    complete(partition, update, stored=True)
    stored = stored_batches(partition)
    assert stored[0] == Batch(0, 2, RecordState.AVAILABLE, 1, WALL + 1001)
    following = SharePartition.loaded(0, (stored[0],), LIMITS)
    assert acquired(following) == list(range(3, 10))
    endings.end_delays(following, WALL + 1001)
    assert acquired(following) == [0, 1, 2]


def test_the_back_off_depends_on_the_delivery_count() -> None:
    partition = SharePartition.loaded(0, (), BACK_OFF)
    wall = WALL
    for delay in (100, 5_000, 5_000):
        assert acquired(partition, last=0) == [0]
        update = release(partition, 0, 0, wall=wall)
        assert update.batches[0].time_ms == wall + delay + 1
        complete(partition, update, stored=True)
        wall += delay + 1
        endings.end_delays(partition, wall)
    assert acquired(partition, last=0) == [0]
    [batch] = release(partition, 0, 0, wall=wall).batches
    assert (batch.state, batch.time_ms) == (RecordState.ARCHIVED, 0), "the last delivery"


def test_a_lock_that_ends_counts_as_a_release() -> None:
    partition = SharePartition.loaded(0, (), BACK_OFF)
    acquired(partition)
    update = expire(partition, 10.0, wall_ms=WALL)
    assert update is not None
    assert update.batches[0] == Batch(0, 9, RecordState.AVAILABLE, 1, WALL + 101)
    assert acquired(partition, now=10.0) == []
    endings.end_delays(partition, WALL + 101)
    assert len(acquired(partition, now=10.2)) == 10


def test_the_end_of_a_session_delays_nothing() -> None:
    partition = SharePartition.loaded(0, (), BACK_OFF)
    acquired(partition)
    update = leave(partition, "a")
    assert update is not None and update.batches[0].time_ms == 0
    assert len(acquired(partition)) == 10


def test_a_release_that_was_not_stored_delays_nothing() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    acquired(partition)
    complete(partition, release(partition, 3, 4, 250), stored=False)
    assert endings.next_due(partition) is None
    update = expire(partition, 10.0, wall_ms=WALL)
    assert update is not None and len(acquired(partition, now=10.0)) == 10


@pytest.mark.parametrize("stored", [True, False])
def test_a_late_write_does_not_end_the_next_acquisition(stored: bool) -> None:
    """The session of a member ends, and the member acquires the record again, before that is
    stored."""
    partition = SharePartition.loaded(0, (), LIMITS)
    acquired(partition)
    left = leave(partition, "a")
    assert acquired(partition) == list(range(10))
    released = release(partition, 0, 9, 250)
    complete(partition, left, stored=stored)
    assert partition.acquired_count == 10 and acquired(partition) == []
    complete(partition, released)
    assert partition.acquired_count == 0 and acquired(partition) == []
    endings.end_delays(partition, WALL + 251)
    assert acquired(partition) == list(range(5)), "half of them, at the third delivery"


@pytest.mark.parametrize("seed", seeds(5, range(100)))
def test_no_record_is_early_and_none_is_lost(seed: int) -> None:
    """Random releases, locks that end, and new leaders with the stored state."""
    dice, wall = random.Random(seed), WALL
    partition = SharePartition.loaded(0, (), BACK_OFF._replace(delivery_count=10**6))
    stored: dict[int, Batch] = {}
    due: dict[int, int] = {}
    held: set[int] = set()
    for _ in range(400):
        wall += dice.randrange(300)
        endings.end_delays(partition, wall)
        match dice.randrange(4):
            case 0:
                for offset in acquired(partition, last=29, now=wall / 1000):
                    assert wall >= due.get(offset, 0), offset
                    held.add(offset)
            case 1 if held:
                offset = dice.choice(sorted(held))
                delay = dice.choice((BY_BACK_OFF, 0, 50, 700))
                update = release(partition, offset, offset, delay, wall)
                if dice.random() < 0.8:
                    complete(partition, update, stored=True)
                    [stored[offset]] = update.batches
                    due[offset] = update.batches[0].time_ms
                    held.discard(offset)
                else:
                    complete(partition, update, stored=False)
            case 2:
                update_ = expire(partition, wall / 1000, wall_ms=wall)
                for batch in () if update_ is None else update_.batches:
                    for offset in range(batch.first_offset, batch.last_offset + 1):
                        held.discard(offset)
                        stored[offset] = Batch(offset, offset, *batch[2:])
                        due[offset] = batch.time_ms
            case 3 if dice.random() < 0.1:
                partition = SharePartition.loaded(0, stored.values(), partition.limits)
                held.clear()
    wall += 10_000
    expire(partition, wall / 1000, wall_ms=wall)
    endings.end_delays(partition, wall + 10_000)
    assert acquired(partition, last=29, now=wall / 1000) == list(range(30))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("1s", (1000,)),
        ("500ms, 10s,1m,2h,1d", (500, 10_000, 60_000, 7_200_000, 86_400_000)),
    ],
)
def test_back_off_tables(text: str, found: tuple[int, ...]) -> None:
    assert parse_back_off(text) == found
    assert step_after(found, 100) == (found[-1] if found else 0)


@pytest.mark.parametrize("text", ["1", "s", "-1s", "1s,,2s", "1w", "30d", ",".join(["1s"] * 21)])
def test_wrong_back_off_tables(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_back_off(text)


def by_key(partition: SharePartition, last: int = 9) -> list[int]:
    rows = acquire_by_key(partition, "a", 0, last, max_records=99, batch_size=99, now=0.0)
    return [each for row in rows for each in range(row.first_offset, row.last_offset + 1)]


def test_a_delayed_record_holds_its_key_and_one_that_was_given_up_does_not() -> None:
    """With share.key.affinity. Keys: 0 and 3 are of one key, 1 and 4 of another, 2 and 5 too."""
    partition = SharePartition.loaded(0, (), LIMITS._replace(dead_letters=True))
    order_by_key(partition, True)
    learn_keys(partition, [KeyOf(offset, offset % 3) for offset in range(6)], 0, 5)
    assert by_key(partition) == [0, 1, 2]
    complete(partition, release(partition, 0, 0, 250), stored=True)
    rejected = Acknowledgement(1, 1, [AcknowledgeType.REJECT])
    update = acknowledge(partition, "a", [rejected], 0.0, wall_ms=WALL)
    assert update is not None
    assert by_key(partition) == []
    complete(partition, update, stored=True)
    assert by_key(partition) == [4], "the next one of the key of 1"
    complete(partition, release(partition, 2, 2, 0), stored=True)
    update = giving_up.give_up_expired(partition, [(2, 2)], WALL)
    assert update is not None
    assert by_key(partition) == []
    complete(partition, update, stored=True)
    assert by_key(partition) == [5], "2 has expired"
    assert [one.offset for one in giving_up.archiving(partition, 9)] == [1, 2]
    endings.end_delays(partition, WALL + 251)
    assert by_key(partition) == [0]
    assert partition.affinity is not None
    partition.affinity.check()
