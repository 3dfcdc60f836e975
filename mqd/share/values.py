"""What goes into a share partition, and what comes out of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from mqd.share.record_states import Batch
from mqd.types import Offset

BY_BACK_OFF: Final = -1
"""The delay of a release that names none."""


class AcknowledgeType(IntEnum):
    """Numbers in requests."""

    GAP = 0
    """There is no record with this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The acquisition lock begins again (KIP-1222)."""


class Acknowledgement(NamedTuple):
    """Records with acknowledge types: one for each offset, or one for all."""

    first_offset: Offset
    last_offset: Offset
    types: Sequence[int]
    delay_ms: int = BY_BACK_OFF
    """When released records are available again: after so long, or as the group's back-off says."""


class AcquiredRecords(NamedTuple):
    """Records that a member has acquired, with the number of their deliveries."""

    first_offset: Offset
    last_offset: Offset
    delivery_count: int


class Limits(NamedTuple):
    """Bounds of a share partition, from the options of its group."""

    delivery_count: int
    """`share.delivery.count.limit`: times that a record is acquired."""
    record_locks: int
    """`share.partition.max.record.locks`: records that are acquired at one time."""
    lock_seconds: float
    """`share.record.lock.duration.ms`"""
    state_bytes: int
    """Memory of the states. Above it no new records are acquired. Above twice as much no part of a
    range is acknowledged."""
    back_off: tuple[int, ...] = ()
    """`mqd.share.retry.backoff`: ms from a release or the end of a lock to the next delivery, by
    delivery count."""
    dead_letters: bool = False
    """Whether records that the group gives up wait for a dead letter (KIP-1191)."""


@dataclass(frozen=True, slots=True)
class Update:
    """Changes that the share coordinator stores."""

    batches: tuple[Batch, ...]
    start_offset: Offset
    done_after_start: int
    """How many records after the start offset are done, with those of this update. At most
    INT32_MAX: the field of the request has 32 bits."""
    given_up: int = 0
    """Records that get no dead letter: rejected, or delivered as often as allowed."""
    spent: int = 0
    """How many of these were delivered as often as allowed."""

    def parts(self, most: int) -> list[Update]:
        """The same changes, at most so many batches in each update."""
        return [
            replace(self, batches=self.batches[first : first + most])
            for first in range(0, len(self.batches) or 1, most)
        ]


def add_row(
    rows: list[AcquiredRecords],
    first: Offset,
    last: Offset,
    delivery_count: int,
    batch_size: int,
) -> None:
    """Add records that were acquired. Neighbours with the same delivery count become one row until
    it has `batch_size` records."""
    if rows:
        before = rows[-1]
        if (
            before.last_offset + 1 == first
            and before.delivery_count == delivery_count
            and before.last_offset - before.first_offset + 1 < batch_size
        ):
            rows[-1] = before._replace(last_offset=last)
            return
    rows.append(AcquiredRecords(first, last, delivery_count))
