"""What ends without an acknowledgement: acquisition locks, delays, the sessions of members, and
records that the log no longer has. Pure.
"""

from __future__ import annotations

import heapq

from mqd.protocol.slices import Slices
from mqd.share.record_states import DONE, Batch, Range, RecordState, records_in
from mqd.share.share_partition import SharePartition
from mqd.share.values import BY_BACK_OFF, Update
from mqd.types import Offset

_NOT_DELAYED = -1


def next_deadline(partition: SharePartition) -> float | None:
    """Monotonic seconds at which the first lock ends."""
    return partition.locks[0][0] if partition.locks else None


def next_due(partition: SharePartition) -> int | None:
    """Wall time in ms at which the first delayed records are available."""
    return partition.delayed[0][0] if partition.delayed else None


def end_delays(partition: SharePartition, wall_ms: int) -> None:
    """Delayed records whose time has come are available."""
    while partition.delayed and partition.delayed[0][0] <= wall_ms:
        due, first, last = heapq.heappop(partition.delayed)
        for begin, one in partition.states.within(first, last):
            if one.state is RecordState.DELAYED and one.time_ms == due:
                assert one.time_ms <= wall_ms, "never early (I64)"
                partition.states.put(
                    begin, Range(one.last, RecordState.AVAILABLE, one.delivery_count)
                )
                partition.ended_by_key(begin, one.last, RecordState.AVAILABLE)


def expire(partition: SharePartition, now: float, *, wall_ms: int = 0) -> Slices[Update | None]:
    """End the locks whose time is over, in slices. The records are available again, at once or
    after the back-off, or archived if they were delivered as often as allowed."""
    batches: list[Batch] = []
    while partition.locks and partition.locks[0][0] <= now:
        deadline, first, last = heapq.heappop(partition.locks)
        for begin, found in partition.states.within(first, last):
            for at, one in _still(partition, begin, found):
                if one.deadline == deadline and one.next_state is None:
                    batches.append(_give_back(partition, at, one, wall_ms))
            yield 1
    return partition.update(batches, spent=records_in(batches, RecordState.ARCHIVED))


def release(partition: SharePartition, member_id: str) -> Slices[Update | None]:
    """The session of the member ends: its records are available again. Records that it acquires
    meanwhile in another session stay acquired."""
    batches: list[Batch] = []
    held = [(begin, one) for begin, one in partition.states if one.member_id == member_id]
    for begin, found in held:
        for at, one in _still(partition, begin, found):
            if one.next_state is None:
                batches.append(_give_back(partition, at, one, _NOT_DELAYED))
        yield 1
    return partition.update(batches, spent=records_in(batches, RecordState.ARCHIVED))


def log_start_moved(partition: SharePartition, log_start_offset: Offset) -> bool:
    """The log has no records before this offset. Returns whether the start offset moved."""
    states = partition.states
    removed = states.within(states.start_offset, log_start_offset - 1)
    partition.acquired_count -= sum(
        one.last - first + 1 for first, one in removed if one.state is RecordState.ACQUIRED
    )
    moved = states.remove_before(log_start_offset)
    if moved:
        partition.ended_by_key(0, states.start_offset - 1, RecordState.ARCHIVED)
    return moved


def _still(partition: SharePartition, begin: Offset, found: Range) -> list[tuple[Offset, Range]]:
    """The ranges of these records that are acquired as they were in an earlier slice."""
    return [
        (at, one)
        for at, one in partition.states.within(begin, found.last)
        if one.state is RecordState.ACQUIRED
        and (one.member_id, one.deadline) == (found.member_id, found.deadline)
    ]


def _give_back(partition: SharePartition, begin: Offset, acquired: Range, wall_ms: int) -> Batch:
    count = acquired.delivery_count
    state = partition.state_after(RecordState.AVAILABLE, count)
    time_ms = 0
    if wall_ms != _NOT_DELAYED:
        time_ms = partition.time_of(state, count, BY_BACK_OFF, wall_ms)
    if state is RecordState.ARCHIVING or (state in DONE and partition.affinity is not None):
        # no letter (I65), and no later record of the key (I63), before it is stored
        acquired.next_state = state
        partition.states.put(begin, acquired)
    else:
        partition.end_acquisition(begin, acquired, state, count, time_ms)
    return Batch(begin, acquired.last, state, count, time_ms)
