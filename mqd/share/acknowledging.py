"""A member of a share group acknowledges records that it has acquired. Pure.

`begin` checks an acknowledgement, and marks its records with their next state. From then on nothing
else changes them, until the share coordinator has stored the update, or has not, and `complete`
applies it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices, all_slices
from mqd.share.giving_up import end_archiving
from mqd.share.record_states import Batch, Range, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import Acknowledgement, AcknowledgeType, Update
from mqd.types import Offset

_NEXT_STATES: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.RENEW: RecordState.ACQUIRED,
}


def begin(
    partition: SharePartition,
    member_id: str,
    acknowledgements: Sequence[Acknowledgement],
    now: float,
    *,
    wall_ms: int = 0,
) -> Slices[Update | None]:
    """Begin what a member acknowledges, in slices. None if there is nothing to store: only renewed
    locks, or records before the start offset.

    Raises MqError, and changes nothing: INVALID_REQUEST or INVALID_RECORD_STATE if the member has
    not acquired a record, INVALID_RECORD_STATE if there are too many ranges.
    """
    begun: list[Batch] = []
    # records that are archived, by what the member wants
    given_up = {AcknowledgeType.REJECT: 0, AcknowledgeType.RELEASE: 0}
    try:
        for one in acknowledgements:
            for first, last, kind in _runs(one):
                for start, acquired in owned(partition, member_id, first, last):
                    count = acquired.delivery_count
                    if kind is AcknowledgeType.REJECT:
                        state = partition.given_up
                    else:
                        state = partition.state_after(_NEXT_STATES[kind], count)
                    time_ms = partition.time_of(state, count, one.delay_ms, wall_ms)
                    # From now on nothing else changes these records.
                    begun.append(Batch(start, acquired.last, state, count, time_ms))
                    if state is RecordState.ARCHIVED and kind in given_up:
                        given_up[kind] += acquired.last - start + 1
                    acquired.next_state = state
                    _split_for(partition, start, acquired)
                    yield 1
                yield 1
        batches = [one for one in begun if one.state is not RecordState.ACQUIRED]
        if len(batches) < len(begun):
            yield from _renew(partition, begun, now + partition.limits.lock_seconds)
    except MqError:
        yield from _undoing(partition, begun)
        raise
    except BaseException:  # the request ends
        all_slices(_undoing(partition, begun))
        raise
    return partition.update(
        batches,
        spent=given_up[AcknowledgeType.RELEASE],
        rejected=given_up[AcknowledgeType.REJECT],
    )


def owned(
    partition: SharePartition, member_id: str, first: Offset, last: Offset
) -> list[tuple[Offset, Range]]:
    """The ranges of these records, without those before the start offset.

    Raises MqError unless the member has acquired all of them (I62): INVALID_REQUEST if one is
    behind all that were acquired, else INVALID_RECORD_STATE.
    """
    states = partition.states
    first = max(first, states.start_offset)
    if last < first:
        return []
    found = states.within(first, last)
    if not len(states):
        raise MqError(
            ErrorCode.INVALID_RECORD_STATE,
            "Batch record not found. The request batch offsets are not found in the cache.",
        )
    if last >= states.end_offset:
        which = "first" if first >= states.end_offset else "last"
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"Batch record not found. The {which} offset in request is past acquired records.",
        )
    for start, one in found:
        if one.state is not RecordState.ACQUIRED or one.next_state is not None:
            raise MqError(
                ErrorCode.INVALID_RECORD_STATE,
                f"The batch cannot be acknowledged. The record with offset {start} is not "
                "acquired.",
            )
        if one.member_id != member_id:
            raise MqError(
                ErrorCode.INVALID_RECORD_STATE,
                f"Member is not the owner of the record with offset {start}.",
            )
    return found


def complete(partition: SharePartition, update: Update, *, stored: bool) -> Slices[None]:
    """The share coordinator has stored the update, or has not: then the records are acquired as
    before.
    """
    for batch in update.batches:
        for start, one in partition.states.within(batch.first_offset, batch.last_offset):
            if one.next_state is not batch.state or one.delivery_count != batch.delivery_count:
                continue  # the log start moved beyond it, or it was available and acquired again
            if one.state is RecordState.ARCHIVING:
                end_archiving(partition, start, one, batch.state, stored=stored)
            elif stored:
                partition.end_acquisition(
                    start, one, batch.state, one.delivery_count, batch.time_ms
                )
            else:
                _stays_acquired(partition, start, one)
        yield 1
    partition.states.advance()


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


def _split_for(partition: SharePartition, start: Offset, changed: Range) -> None:
    """Replace a part of a range. Raises MqError INVALID_RECORD_STATE if there are too many ranges
    then. The acknowledgement of a whole range is never refused.
    """
    states = partition.states
    before = len(states)
    states.put(start, changed)
    if len(states) > before and states.size > 2 * partition.limits.state_bytes:
        raise MqError(
            ErrorCode.INVALID_RECORD_STATE,
            f"The share partition has {before} ranges of records in different states, and no "
            "memory for more. Acknowledge its records in the order of their offsets.",
        )


def _renew(
    partition: SharePartition, begun: Sequence[Batch], deadline: float
) -> Generator[int, None, None]:
    for batch in begun:
        if batch.state is not RecordState.ACQUIRED:
            continue
        for start, one in partition.states.within(batch.first_offset, batch.last_offset):
            if one.next_state is RecordState.ACQUIRED:
                one.deadline = deadline
                _stays_acquired(partition, start, one)
        yield 1


def _undoing(partition: SharePartition, begun: Sequence[Batch]) -> Slices[None]:
    """Nothing of this acknowledgement happens: its records are acquired as before."""
    for batch in begun:
        for start, one in partition.states.within(batch.first_offset, batch.last_offset):
            if one.next_state is batch.state:
                _stays_acquired(partition, start, one)
        yield 1


def _stays_acquired(partition: SharePartition, start: Offset, one: Range) -> None:
    """No change of these records is in flight any more."""
    one.next_state = None
    partition.states.put(start, one)
    partition.expect_end(one.deadline, start, one.last)
