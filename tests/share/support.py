"""Changes of a share partition, each in one step."""

from __future__ import annotations

from collections.abc import Sequence

from mqd.coordinator.share.stored_states import is_valid
from mqd.protocol.slices import all_slices
from mqd.share import acknowledging, endings
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import Acknowledgement, AcquiredRecords, Update
from mqd.types import Offset


def acquire(
    partition: SharePartition,
    member_id: str,
    *batches: tuple[Offset, Offset],
    most: int = 500,
    exact: bool = False,
    batch_size: int = 500,
    now: float = 0.0,
) -> list[AcquiredRecords]:
    """Acquire records of these batches of the log, which are read from the first one on."""
    return partition.acquire(
        member_id,
        batches,
        read_from=batches[0][0],
        max_records=most,
        batch_size=batch_size,
        exact=exact,
        now=now,
    )


def acknowledge(
    partition: SharePartition,
    member_id: str,
    acknowledgements: Sequence[Acknowledgement],
    now: float = 0.0,
    *,
    wall_ms: int = 0,
) -> Update | None:
    work = acknowledging.begin(partition, member_id, acknowledgements, now, wall_ms=wall_ms)
    return all_slices(work)


def complete(partition: SharePartition, update: Update | None, *, stored: bool = True) -> None:
    assert update is not None, "there is nothing to store"
    assert all(map(is_valid, update.batches)), "the share coordinator refuses others"
    all_slices(acknowledging.complete(partition, update, stored=stored))


def expire(partition: SharePartition, now: float, *, wall_ms: int = 0) -> Update | None:
    return all_slices(endings.expire(partition, now, wall_ms=wall_ms))


def leave(partition: SharePartition, member_id: str) -> Update | None:
    """The session of the member ends."""
    return all_slices(endings.release(partition, member_id))


def stored_batches(partition: SharePartition) -> tuple[Batch, ...]:
    """All states, as the share coordinator has them."""
    return tuple(
        Batch(
            first,
            one.last,
            RecordState.AVAILABLE if one.state is RecordState.DELAYED else one.state,
            one.delivery_count,
            one.time_ms,
        )
        for first, one in partition.states
        if one.delivery_count or one.state is not RecordState.AVAILABLE
    )
