"""Reads the progress of the relays of a delay topic, for `mqctl delay`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from mqctl.app import Failure, print_message
from mqctl.committed import described

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.metadata import TopicInfo
    from mqd.client.offsets import CommittedOffset
    from mqd.relay.delay_progress import Counts, TimerProgress
    from mqd.types import TopicPartition

_OPEN_S: Final = 2.0
"""Transactions of relays take milliseconds. After this time, the open one counts as stuck."""


class Committed(NamedTuple):
    """What the relay of a partition has committed."""

    start: int
    """No record below this offset is pending."""
    progress: TimerProgress
    counts: Counts


async def committed_of(
    client: ClusterClient, topic: str, timeout_s: float
) -> dict[TopicPartition, Committed]:
    """The progress of each partition that has one. Prints a message if transactions of relays stay
    open: their progress is unknown, so it is that before them. Raises ClientError, Failure."""
    from mqd.errors import ProtocolError
    from mqd.relay.delay_progress import decode_metadata

    info = await described(client, topic, timeout_s)
    found = await _offsets(client, topic, min(timeout_s, _OPEN_S), stable=True)
    if found is None:
        found = await _offsets(client, topic, timeout_s, stable=False)
        assert found is not None
        for line in await _open_transactions(client, info, timeout_s):
            print_message(line)
    committed = {}
    for place, one in found.items():
        try:
            decoded = decode_metadata(one.metadata, info.topic_id)
        except ProtocolError as error:
            raise Failure(f"the progress of {place} is unreadable: {error}") from None
        if decoded is not None:
            committed[place] = Committed(one.offset, *decoded)
    return committed


async def _offsets(
    client: ClusterClient, topic: str, timeout_s: float, *, stable: bool
) -> dict[TopicPartition, CommittedOffset] | None:
    """None: with `stable`, a transaction stays open."""
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError, DeadlineExceeded
    from mqd.errors import ErrorCode
    from mqd.relay.names import delay_group

    group = delay_group(topic)
    admin = Admin(client, timeout_s=timeout_s)
    found = (await admin.list_group_offsets([group], stable=stable))[group]
    if not isinstance(found, ClientError):
        return found
    cause = found.cause if isinstance(found, DeadlineExceeded) else None
    if cause is not None and cause.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return None
    raise found


async def _open_transactions(
    client: ClusterClient, info: TopicInfo, timeout_s: float
) -> Iterable[str]:
    """Sentences: which relays have open transactions, and which partitions these wait for."""
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError
    from mqd.relay.names import delay_transactional_id
    from mqd.types import GROUPS_TOPIC

    ids = {
        delay_transactional_id(info.topic_id, one.partition): f"{info.name}-{one.partition}"
        for one in info.partitions
    }
    lines = []
    try:
        transactions = await Admin(client, timeout_s=timeout_s).describe_transactions(ids)
    except ClientError:
        transactions = {}
    before_ms = (time.time() - _OPEN_S) * 1000
    for transactional_id, found in transactions.items():
        if isinstance(found, ClientError) or not 0 <= found.started_ms < before_ms:
            continue
        waits = [str(place) for place in found.partitions if place.topic != GROUPS_TOPIC]
        lines.append(
            f"A transaction of the relay of {ids[transactional_id]} is open ({found.state})"
            + (f", and waits for {', '.join(waits)}." if waits else ".")
        )
    return [
        *(lines or [f"A transaction of a relay of {info.name!r} is open."]),
        "What it changes is not shown. See `mqctl partition list --leaderless` and "
        "`mqctl partition list --under-min-isr`.",
    ]
