"""The batches of a share partition at its share coordinator, beside a map with every record."""

from __future__ import annotations

from random import Random

import pytest

from mqd.coordinator.share.stored_states import DELIVERY_COUNT_MAX, StoredStates, are_in_order
from mqd.limits import SHARE_OFFSET_MAX
from mqd.share.record_states import DONE, Batch, RecordState

ACKNOWLEDGED, AVAILABLE = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE
ARCHIVED, ARCHIVING = RecordState.ARCHIVED, RecordState.ARCHIVING
OFFSETS = 60


Record = tuple[RecordState, int, int]
NEW: Record = (AVAILABLE, 0, 0)


def records_of(states: StoredStates) -> dict[int, Record]:
    return {
        offset: (one.state, one.delivery_count, one.time_ms)
        for one in states.batches
        for offset in range(one.first_offset, one.last_offset + 1)
    }


def some_batches(random: Random) -> list[Batch]:
    batches: list[Batch] = []
    first = random.randrange(20)
    while first < OFFSETS and len(batches) < random.randrange(1, 6):
        last = min(OFFSETS - 1, first + random.randrange(8))
        state = random.choice([AVAILABLE, ACKNOWLEDGED, ARCHIVED, ARCHIVING])
        time_ms = random.randrange(3) if state in (AVAILABLE, ARCHIVING) else 0
        batches.append(Batch(first, last, state, random.randrange(3), time_ms))
        first = last + 1 + random.randrange(6)
    return batches


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_a_map_of_all_records(seed: int) -> None:
    random = Random(seed)
    states, model, start = StoredStates(0), dict[int, Record](), 0
    for _ in range(150):
        batches = some_batches(random)
        if random.random() < 0.2:
            random.shuffle(batches)
        if random.random() < 0.2:
            batches += some_batches(random)  # they overlap: each replaces those before it
        states.store(batches)
        for one in batches:
            for offset in range(max(start, one.first_offset), one.last_offset + 1):
                count = 0 if one.state in DONE else one.delivery_count
                model[offset] = one.state, count, one.time_ms
        if random.random() < 0.1:
            start = max(start, random.randrange(OFFSETS // 2))
            states.remove_before(start)
        if random.random() < 0.3:
            states.advance()
            while model.get(start, NEW)[0] in DONE:
                start += 1
        model = {
            offset: found for offset, found in model.items() if offset >= start and found != NEW
        }
        assert states.start_offset == start
        assert records_of(states) == model
        assert are_in_order(states.batches)
        joined = StoredStates(start, states.batches)
        assert len(joined) == len(states)  # neighbours of one state are one batch
        if random.random() < 0.02:
            states, model, start = StoredStates(0), {}, 0


def test_what_no_leader_may_write_becomes_possible() -> None:
    most = 2**63 - 1
    states = StoredStates(0)
    states.store(
        [
            Batch(-5, 3, ACKNOWLEDGED, 1),
            Batch(9, 5, ACKNOWLEDGED, 1),
            Batch(10, 11, RecordState.ACQUIRED, 2**20, 7),
            Batch(12, 12, RecordState.DELAYED, 1, 7),
            Batch(14, 14, ARCHIVING, 1, -7),
            Batch(20, 21, AVAILABLE, -1),
            Batch(30, most, ACKNOWLEDGED, 1),
        ]
    )
    assert states.batches == [
        Batch(0, 3, ACKNOWLEDGED, 0),
        Batch(10, 11, AVAILABLE, DELIVERY_COUNT_MAX),
        Batch(12, 12, AVAILABLE, 1),
        Batch(14, 14, ARCHIVING, 1),
        Batch(30, SHARE_OFFSET_MAX, ACKNOWLEDGED, 0),
    ]
    states.remove_before(30)
    states.advance()
    assert states.start_offset == most and not states.batches
    states.store([Batch(most, most, ACKNOWLEDGED, 1)])
    states.advance()
    assert states.start_offset == most and not states.batches
