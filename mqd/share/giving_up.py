"""Records that a share group gives up: they wait for a dead letter (ARCHIVING), or are archived at
once. Pure.

Records that a member rejects, or that were delivered as often as allowed, are given up when their
acquisition ends. Expired ones are given up when they are read. Records that were delivered more
often than the group now allows are given up when their state is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqd.share.dead_letters import Archiving
from mqd.share.record_states import Batch, Range, RecordState, records_in
from mqd.share.share_partition import SharePartition
from mqd.share.values import Update
from mqd.types import Offset

_NO_LETTER: Final = -1
"""The time of records that are ARCHIVING only until it is stored that they are ARCHIVED."""
_DELIVERED_LATER: Final = frozenset({RecordState.AVAILABLE, RecordState.DELAYED})


def archiving(partition: SharePartition, most: int) -> list[Archiving]:
    """The first records that wait for a dead letter, as the share coordinator has them."""
    found: list[Archiving] = []
    if not partition.gives_up:
        return found
    partition.gives_up = False
    for first, one in partition.states:
        partition.gives_up |= one.state is RecordState.ARCHIVING
        if one.state is not RecordState.ARCHIVING or one.next_state is not None:
            continue
        for offset in range(first, min(one.last + 1, first + most - len(found))):
            found.append(Archiving(offset, one.delivery_count, one.time_ms))
        if len(found) >= most:
            break
    return found


def archive(partition: SharePartition, offsets: Sequence[Offset]) -> Update | None:
    """Begin to archive records that have their dead letter."""
    batches = []
    for offset in offsets:
        for begin, one in partition.states.within(offset, offset):
            if one.state is RecordState.ARCHIVING and one.next_state is None:
                one.next_state = RecordState.ARCHIVED
                partition.states.put(begin, one)
                batches.append(Batch(begin, one.last, RecordState.ARCHIVED, one.delivery_count))
    return partition.update(batches)


def give_up_expired(
    partition: SharePartition, ranges: Sequence[tuple[Offset, Offset]], wall_ms: int
) -> Update | None:
    """Give up the available records of these ranges, which are in order: they have expired.
    Returns what the share coordinator must store before a dead letter is written."""
    states = partition.states
    batches: list[Batch] = []
    for first, last in ranges:
        first = max(first, states.start_offset)
        if first > last:
            continue
        end_offset = states.end_offset
        if first > end_offset:
            states.put(end_offset, Range(first - 1, RecordState.AVAILABLE))
        if last >= end_offset:
            states.put(max(first, end_offset), Range(last, RecordState.AVAILABLE))
        for begin, one in states.within(first, last):
            if one.state is RecordState.AVAILABLE:
                batches.extend(_give_up(partition, begin, one, wall_ms))
    return partition.update(batches)


def _give_up(partition: SharePartition, begin: Offset, one: Range, wall_ms: int) -> list[Batch]:
    state, affinity = partition.given_up, partition.affinity
    if state is RecordState.ARCHIVED and affinity is None:  # the next leader finds that, too
        partition.archive_here(begin, one.last)
        return []
    if affinity is not None:
        # The clock of the next leader may be behind. The next record of the key waits (I63).
        affinity.withhold(begin, one.last)
    time_ms = wall_ms if state is RecordState.ARCHIVING else _NO_LETTER
    changed = Range(one.last, RecordState.ARCHIVING, one.delivery_count, time_ms=time_ms)
    changed.next_state = state
    partition.states.put(begin, changed)
    return [Batch(begin, one.last, state, one.delivery_count, max(0, time_ms))]


def give_up_spent(partition: SharePartition, wall_ms: int) -> Update | None:
    """Give up the records of a loaded state that were delivered as often as the group allows: its
    limit is lower now. Their delivery counts stay. Returns what the share coordinator must store
    before anything uses the state: dead letters are of stored states (I65).
    """
    limit, state = partition.limits.delivery_count, partition.given_up
    batches: list[Batch] = []
    for first, one in list(partition.states):
        if one.state not in _DELIVERED_LATER or one.delivery_count < limit:
            continue
        time_ms = wall_ms if state is RecordState.ARCHIVING else 0
        batches.append(Batch(first, one.last, state, one.delivery_count, time_ms))
        count = one.delivery_count if state is RecordState.ARCHIVING else 0
        partition.states.put(first, Range(one.last, state, count, time_ms=time_ms))
        partition.gives_up |= state is RecordState.ARCHIVING
    return partition.update(batches, spent=records_in(batches, RecordState.ARCHIVED))


def end_archiving(
    partition: SharePartition, begin: Offset, one: Range, state: RecordState, *, stored: bool
) -> None:
    """A change from or to ARCHIVING, other than the end of an acquisition, is stored or not."""
    one.next_state = None
    partition.gives_up |= state is RecordState.ARCHIVING
    if stored and state is RecordState.ARCHIVED:
        one = Range(one.last, RecordState.ARCHIVED)
    elif not stored and (state is RecordState.ARCHIVING or one.time_ms == _NO_LETTER):
        one = Range(one.last, RecordState.AVAILABLE, one.delivery_count)
        partition.affinity = None  # it may not know the record: the next fetch reads the keys
    partition.states.put(begin, one)
    if stored:
        partition.ended_by_key(begin, one.last, state)
