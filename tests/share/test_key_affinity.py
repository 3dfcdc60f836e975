"""Records of one key are delivered one at a time, in their order: against a model, and by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from mqd.share import endings
from mqd.share.giving_up import give_up_expired
from mqd.share.key_affinity import KeyOf
from mqd.share.key_order import acquire_by_key, learn_keys, order_by_key
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import Acknowledgement, AcknowledgeType, Limits, Update
from tests.share import support
from tests.share.support import complete, expire, leave

LIMITS = Limits(delivery_count=3, record_locks=20, lock_seconds=10.0, state_bytes=1 << 20)
DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
A, B = 1, 2


def started(start_offset: int = 0, *batches: Batch) -> SharePartition:
    partition = SharePartition.loaded(start_offset, batches, LIMITS)
    order_by_key(partition, True)
    return partition


def learn(partition: SharePartition, first: int, *keys: int | None) -> None:
    rows = [KeyOf(offset, key) for offset, key in enumerate(keys, first)]
    learn_keys(partition, rows, first, first + len(keys) - 1)


def acquire(
    partition: SharePartition, member: str = "m", most: int = 100, now: float = 0.0
) -> list[int]:
    rows = acquire_by_key(partition, member, 0, 1_000, max_records=most, batch_size=100, now=now)
    return [offset for one in rows for offset in range(one.first_offset, one.last_offset + 1)]


def acknowledge(
    partition: SharePartition, offset: int, kind: AcknowledgeType, member: str = "m"
) -> None:
    update = support.acknowledge(partition, member, [Acknowledgement(offset, offset, [kind])], 0.0)
    complete(partition, update, stored=True)


def test_a_key_waits_for_its_acknowledgement() -> None:
    partition = started()
    learn(partition, 0, A, A, B, None, A, None)
    assert acquire(partition) == [0, 2, 3, 5], "the first of each key, and those without one"
    assert acquire(partition, "other") == []
    acknowledge(partition, 0, AcknowledgeType.ACCEPT)
    assert acquire(partition, "other") == [1]
    assert partition.states.start_offset == 1


@pytest.mark.parametrize("how", ["released", "expired", "left"])
def test_a_returned_record_comes_before_later_ones_of_its_key(how: str) -> None:
    partition = started()
    learn(partition, 0, A, A, B)
    assert acquire(partition) == [0, 2]
    if how == "released":
        acknowledge(partition, 0, AcknowledgeType.RELEASE)
    elif how == "expired":
        expire(partition, 10.0)
    else:
        leave(partition, "m")
    assert acquire(partition, "other", most=1) == [0]


def test_a_rejected_record_and_one_at_its_limit_free_the_next() -> None:
    partition = started()
    learn(partition, 0, A, A, A)
    assert acquire(partition) == [0]
    acknowledge(partition, 0, AcknowledgeType.REJECT)
    for delivery in range(LIMITS.delivery_count):
        assert acquire(partition, now=20.0 * delivery) == [1]
        update = expire(partition, 20.0 * delivery + 10.0, wall_ms=7)
    assert acquire(partition) == [], "the next leader would deliver record 1 again, after 2"
    complete(partition, update, stored=True)
    assert acquire(partition) == [2]


@pytest.mark.parametrize("how", ["expired", "left"])
def test_a_record_at_its_limit_is_given_up_again_if_that_is_not_stored(how: str) -> None:
    partition = started(0, Batch(0, 0, RecordState.AVAILABLE, LIMITS.delivery_count - 1))
    learn(partition, 0, A, A)
    assert acquire(partition) == [0]
    update = expire(partition, 10.0, wall_ms=7) if how == "expired" else leave(partition, "m")
    complete(partition, update, stored=False)
    assert acquire(partition) == []
    complete(partition, expire(partition, 10.0, wall_ms=7), stored=True)
    assert acquire(partition) == [1]


def test_the_next_record_of_a_key_waits_until_an_expired_one_is_stored() -> None:
    """The clock of the next leader may be behind: it would deliver the expired record after it."""
    partition = started()
    learn(partition, 0, A, A, B)
    update = give_up_expired(partition, [(0, 0)], 50)
    assert acquire(partition) == [2]
    complete(partition, update, stored=False)
    assert partition.affinity is None, "the next fetch learns the keys again"
    order_by_key(partition, True)
    learn(partition, 0, A, A, B)
    update = give_up_expired(partition, [(0, 0)], 60)
    assert update is not None and update.batches == (Batch(0, 0, RecordState.ARCHIVED, 0),)
    assert acquire(partition) == []
    complete(partition, update, stored=True)
    assert (acquire(partition), partition.states.start_offset) == ([1], 1)


def test_a_new_leader_learns_the_keys_of_unfinished_records_first() -> None:
    stored = (Batch(1, 1, RecordState.ACKNOWLEDGED, 1), Batch(3, 3, RecordState.AVAILABLE, 1))
    partition = started(0, *stored)
    assert partition.next_fetch_offset() == 0
    learn(partition, 0, A, A, B, A)
    assert acquire(partition) == [0, 2]
    acknowledge(partition, 0, AcknowledgeType.ACCEPT)
    assert acquire(partition) == [3], "1 was done before"


def test_offsets_without_records_are_archived() -> None:
    partition = started()
    learn_keys(partition, [KeyOf(1, A), KeyOf(4, A)], 0, 6)
    assert acquire(partition) == [1]
    acknowledge(partition, 1, AcknowledgeType.ACCEPT)
    assert partition.states.start_offset == 4
    assert acquire(partition) == [4]
    acknowledge(partition, 4, AcknowledgeType.ACCEPT)
    assert partition.states.start_offset == 7


def test_millions_of_offsets_without_records_take_no_time() -> None:
    """A batch of an aborted transaction may say that it has so many."""
    partition = started()
    learn(partition, 0, A, A)
    learn_keys(partition, [], 2, 2**40)
    assert partition.next_fetch_offset() == 0
    endings.log_start_moved(partition, 2**41)
    assert partition.next_fetch_offset() == 2**41


def test_bytes_bound_the_keys() -> None:
    partition = started()
    partition.limits = LIMITS._replace(state_bytes=1_000)
    learn(partition, 0, A, A, A, A)
    assert acquire(partition) == [0]
    assert partition.next_fetch_offset() is None
    acknowledge(partition, 0, AcknowledgeType.ACCEPT)
    assert partition.next_fetch_offset() == 1


def test_the_option_may_change_while_records_are_acquired() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    rows = support.acquire(partition, "m", (0, 2))
    assert rows[0].last_offset == 2
    order_by_key(partition, True)
    learn(partition, 0, A, A, A, A)
    assert acquire(partition) == []
    acknowledge(partition, 1, AcknowledgeType.ACCEPT)
    acknowledge(partition, 2, AcknowledgeType.RELEASE)
    assert acquire(partition, "other") == []
    acknowledge(partition, 0, AcknowledgeType.ACCEPT)
    assert acquire(partition, "other") == [2]
    order_by_key(partition, False)
    assert partition.next_fetch_offset() == 3


@dataclass
class Model:
    """All records, with a state for each."""

    keys: list[int | None] = field(default_factory=list)
    states: list[RecordState] = field(default_factory=list)
    members: dict[int, str] = field(default_factory=dict)
    pending: dict[int, Update] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def eligible(self) -> list[int]:
        found, blocked = [], set()
        for offset, (key, state) in enumerate(zip(self.keys, self.states, strict=True)):
            if state in DONE:
                continue
            if key not in blocked and state is RecordState.AVAILABLE:
                found.append(offset)
            if key is not None:
                blocked.add(key)
        return found


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("learn"),
            st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=5),
        ),
        st.tuples(st.just("acquire"), st.sampled_from("ab"), st.integers(1, 6)),
        st.tuples(
            st.just("acknowledge"),
            st.integers(0, 30),
            st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]),
        ),
        st.tuples(st.just("complete"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("leave"), st.sampled_from("ab")),
        st.tuples(st.just("expire")),
        st.tuples(st.just("trim"), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_random_histories_are_as_in_the_model(steps: list[tuple[object, ...]]) -> None:
    partition, model = started(), Model()
    updates: list[Update] = []
    now = 0.0
    for name, *arguments in steps:
        if name == "learn":
            keys = arguments[0]
            assert isinstance(keys, list)
            learn(partition, len(model.keys), *keys)
            model.keys += keys
            model.states += [RecordState.AVAILABLE] * len(keys)
        elif name == "acquire":
            member, most = str(arguments[0]), int(str(arguments[1]))
            room = LIMITS.record_locks - len(model.members)
            expected = model.eligible()[: min(most, room)]
            assert acquire(partition, member, most, now) == expected
            for offset in expected:
                model.states[offset] = RecordState.ACQUIRED
                model.members[offset] = member
                model.counts[offset] = model.counts.get(offset, 0) + 1
        elif name == "acknowledge":
            offset = int(str(arguments[0]))
            if offset in model.members and offset not in model.pending:
                kinds = [int(str(arguments[1].value))]  # type: ignore[attr-defined]
                one = Acknowledgement(offset, offset, kinds)
                update = support.acknowledge(partition, model.members[offset], [one], now)
                assert update is not None
                updates.append(update)
                model.pending[offset] = update
        elif name == "complete" and updates:
            update = updates.pop(int(str(arguments[0])) % len(updates))
            complete(partition, update, stored=bool(arguments[1]))
            for batch in update.batches:
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    if model.pending.get(offset) is update:
                        del model.pending[offset]
                        if arguments[1]:
                            end(model, offset, batch.state)
        elif name in ("leave", "expire"):
            now += 11.0 if name == "expire" else 0.0
            if name == "leave":
                changed = leave(partition, str(arguments[0]))
            else:
                changed = expire(partition, now, wall_ms=7)
            if changed is not None:
                updates.append(changed)
            for offset, member in list(model.members.items()):
                if offset in model.pending or (name == "leave" and member != arguments[0]):
                    continue
                if model.counts[offset] < LIMITS.delivery_count:
                    end(model, offset, RecordState.AVAILABLE)
                else:
                    assert changed is not None
                    model.pending[offset] = changed
        elif name == "trim":
            start = min(partition.states.start_offset + int(str(arguments[0])), len(model.keys))
            endings.log_start_moved(partition, start)
            for offset in range(start):
                if model.states[offset] not in DONE:
                    end(model, offset, RecordState.ARCHIVED)
        assert partition.affinity is not None
        partition.affinity.check()
        unfinished = [one for one, state in enumerate(model.states) if state not in DONE]
        assert partition.states.start_offset == min(unfinished, default=len(model.keys))
        assert partition.affinity.next_ready() == min(model.eligible(), default=None)
        assert partition.acquired_count == len(model.members)


def end(model: Model, offset: int, state: RecordState) -> None:
    model.states[offset] = state
    model.members.pop(offset, None)
    model.pending.pop(offset, None)
