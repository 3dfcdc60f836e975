"""Acquires records by key, for a share group with `share.key.affinity` (key_affinity.py). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mqd.share.key_affinity import KeyAffinity, KeyOf
from mqd.share.record_states import GIVEN_UP_OR_DONE, Range, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import AcquiredRecords, add_row
from mqd.types import Offset


def order_by_key(partition: SharePartition, wanted: bool) -> None:
    """Begin or end the order by key, when the option of the group changes."""
    if wanted != (partition.affinity is not None):
        partition.affinity = KeyAffinity(partition.states.start_offset) if wanted else None


def learn_keys(
    partition: SharePartition, keys: Sequence[KeyOf], first: Offset, last: Offset
) -> None:
    """The keys of all records of the log from `first`, which is at most `known_end`, to `last`.
    Offsets without a record are archived.
    """
    affinity, states = partition.affinity, partition.states
    assert affinity is not None
    first = max(first, affinity.known_end, states.start_offset)
    if last < first:
        return
    if last >= states.end_offset:
        states.put(states.end_offset, Range(last, RecordState.AVAILABLE))
    unfinished = [
        one
        for one in keys
        if first <= one.offset <= last and states.state_of(one.offset) not in GIVEN_UP_OR_DONE
    ]
    affinity.learn(
        unfinished, last + 1, lambda offset: states.state_of(offset) is RecordState.AVAILABLE
    )
    covered = first
    for one in keys:
        if one.offset >= covered:
            partition.archive(covered, one.offset - 1)
            covered = one.offset + 1
    partition.archive(covered, last)


def acquire_by_key(
    partition: SharePartition,
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
    affinity = partition.affinity
    assert affinity is not None
    wanted = min(max_records, partition.limits.record_locks - partition.acquired_count)
    deadline = now + partition.limits.lock_seconds
    acquired: list[AcquiredRecords] = []
    for offset in affinity.ready_between(first, last)[: max(0, wanted)]:
        [(_, one)] = partition.states.within(offset, offset)
        assert one.state is RecordState.AVAILABLE, one
        count = one.delivery_count + 1
        affinity.acquired(offset)
        partition.put_acquired(offset, offset, count, member_id, deadline)
        add_row(acquired, offset, offset, count, batch_size)
    return acquired
