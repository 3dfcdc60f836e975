"""Which records are too old for share groups: `mqd.message.ttl.ms` of the topic, and the header
`mqd-ttl` of a record. Pure.

Both are milliseconds after the time stamp of the record, and the earlier one counts. The headers
are read only if the topic has the option: 0 means that only headers count. A header that is not a
decimal number is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mqd.delay_names import TTL
from mqd.header_numbers import last_number
from mqd.protocol.record_reader import Record
from mqd.types import Offset

OFF: Final = -1
"""Records of the topic do not expire, and their headers are not read."""


def expires_at_ms(record: Record, ttl_ms: int) -> int | None:
    """Wall time at which the record expires; None: never."""
    if ttl_ms == OFF:
        return None
    limits = [ttl_ms] if ttl_ms else []
    of_record = last_number(record.headers, TTL)
    if of_record is not None:
        limits.append(of_record)
    return record.timestamp + min(limits) if limits else None


def are_apart(
    rows: Iterable[tuple[Offset, Offset, int]], expired: Sequence[tuple[Offset, Offset]]
) -> bool:
    """Whether no row (first offset, last offset, ..) has an expired record. Both are in order."""
    at = 0
    for first, last, _ in rows:
        while at < len(expired) and expired[at][1] < first:
            at += 1
        if at < len(expired) and expired[at][0] <= last:
            return False
    return True


def is_expired(record: Record, ttl_ms: int, now_ms: int) -> bool:
    at = expires_at_ms(record, ttl_ms)
    return at is not None and at <= now_ms
