"""Committed offsets in memory, compared with a model that reads the whole log for every query."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, strategies as st

from mqd.coordinator.group import offset_store
from mqd.coordinator.group.offset_store import OffsetStore, weight
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey

KEYS = [
    OffsetCommitKey(group, topic, partition)
    for group in ("a", "b")
    for topic in ("t", "u")
    for partition in (0, 1)
]
PRODUCERS = [1, 2, 3]


class Put(NamedTuple):
    key: OffsetCommitKey
    commit: OffsetCommit
    producer_id: int | None


class Remove(NamedTuple):
    key: OffsetCommitKey


class End(NamedTuple):
    producer_id: int
    committed: bool


class Apply(NamedTuple):
    portion: int


commits = st.builds(OffsetCommit, st.integers(0, 99), metadata=st.text("x", max_size=3))
events = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), commits, st.sampled_from([None, *PRODUCERS])),
    st.builds(Remove, st.sampled_from(KEYS)),
    st.builds(End, st.sampled_from(PRODUCERS), st.booleans()),
    st.builds(Apply, st.integers(1, 3)),
)


Entries = dict[OffsetCommitKey, list[tuple[OffsetCommit, int | None]]]


def model(log: list[Any]) -> Entries:
    """For each partition, in the order of the log: what was committed, and in which open
    transaction.
    """
    found: Entries = {key: [] for key in KEYS}
    for event in log:
        if isinstance(event, Put):
            found[event.key].append((event.commit, event.producer_id))
        elif isinstance(event, Remove):
            found[event.key].clear()
        elif isinstance(event, End):
            for entries in found.values():
                ended = [
                    (commit, None if one == event.producer_id else one) for commit, one in entries
                ]
                kept = [
                    one
                    for one, (_, before) in zip(ended, entries, strict=True)
                    if event.committed or before != event.producer_id
                ]
                entries[:] = kept
    return found


def replay(store: OffsetStore, log: list[Any]) -> None:
    for event in log:
        if isinstance(event, Put):
            store.put(event.key, event.commit, event.producer_id)
        elif isinstance(event, Remove):
            store.remove(event.key)
        elif isinstance(event, End):
            store.end(event.producer_id, event.committed)
        else:
            store.apply_ended(event.portion)


@given(st.lists(events, max_size=30), st.booleans())
def test_committed_and_pending_state_equal_the_log(log: list[Any], at_once: bool) -> None:
    """Also before ended transactions are applied."""
    store = OffsetStore()
    with patch.object(offset_store, "APPLIED_AT_ONCE", 50 if at_once else 0):
        replay(store, log)
    assert not (at_once and store.has_ended)
    applied = not store.has_ended
    weights = dict.fromkeys("ab", 0)
    for key, entries in model(log).items():
        standing = [commit for commit, producer_id in entries if producer_id is None]
        waiting = {
            producer_id: commit for commit, producer_id in entries if producer_id is not None
        }
        group = store.group(key.group)
        if group is None:
            assert not entries
            continue
        assert store.bytes == store.recount()
        assert group.get(key.topic, key.partition) == (standing[-1] if standing else None)
        assert group.is_unstable(key.topic, key.partition) == bool(waiting)
        assert {
            transaction.producer_id: stored.commit
            for transaction, stored in group.waiting(key.topic, key.partition).items()
            if transaction.committed is None
        } == waiting
        for producer_id in PRODUCERS:
            found = group.open_offset(key.topic, key.partition, producer_id)
            assert found == waiting.get(producer_id)
        rows = {place: rest for place, *rest in group.listed(key.topic)}
        if key.partition in rows:
            assert rows[key.partition] == [standing[-1] if standing else None, bool(waiting)]
        known = bool(standing or waiting)
        assert key.partition in rows or not known
        listed = (key.topic, key.partition) in group.partitions()
        assert listed == known or (listed and not applied)
        if known:
            assert key.group in store.groups_of(key.topic) and key.topic in store.topics()
        weights[key.group] += sum(map(weight, waiting.values())) + (
            weight(standing[-1]) if standing else 0
        )
    while store.has_ended:
        store.apply_ended(1)
    for name, expected in weights.items():
        group = store.group(name)
        assert (group.bytes if group else 0) == expected


@given(st.lists(events, max_size=30))
def test_removed_offsets_leave_nothing_behind(log: list[Any]) -> None:
    store = OffsetStore()
    replay(store, log)
    for key in KEYS:
        store.remove(key)
    for producer_id in PRODUCERS:
        store.end(producer_id, True)
    store.apply_ended()
    assert vars(store) | {"_places": 0} == vars(OffsetStore())


def test_a_pending_offset_does_not_replace_a_later_commit() -> None:
    store = OffsetStore()
    key = KEYS[0]
    replay(store, [Put(key, OffsetCommit(5), 1), Put(key, OffsetCommit(7), None), End(1, True)])
    group = store.group(key.group)
    assert group is not None and group.get(key.topic, key.partition) == OffsetCommit(7)


def test_each_partition_is_listed_once() -> None:
    store = OffsetStore()
    replay(
        store,
        [
            Put(KEYS[0], OffsetCommit(5), None),
            Put(KEYS[0], OffsetCommit(6), 1),
            Put(KEYS[1], OffsetCommit(6), 2),
        ],
    )
    group = store.group("a")
    assert group is not None and list(group.partitions()) == [("t", 0), ("t", 1)]


def test_a_marker_takes_effect_at_once_and_its_offsets_are_moved_in_portions() -> None:
    """Nothing of a later transaction of the same producer is committed."""
    store = OffsetStore()
    keys = [OffsetCommitKey("g", "t", partition) for partition in range(1_000)]
    for key in keys:
        store.put(key, OffsetCommit(5), 1)
    store.end(1, True)
    group = store.group("g")
    assert group is not None and len(group.pending["t"]) == 1_000
    store.put(keys[7], OffsetCommit(6), 1)
    assert group.get("t", 7) == group.get("t", 8) == OffsetCommit(5)
    assert group.is_unstable("t", 7) and not group.is_unstable("t", 8)
    store.remove(keys[9])
    assert group.get("t", 9) is None
    portions = 0
    while store.has_ended:
        store.apply_ended(100)
        portions += 1
    assert portions == 10 and len(group.committed["t"]) == 999
    assert group.get("t", 7) == OffsetCommit(5) and group.is_unstable("t", 7)
    store.end(1, False)
    assert (7, OffsetCommit(5), False) in group.listed("t")
    assert store.bytes == store.recount()
