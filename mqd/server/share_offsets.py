"""Offsets of share groups (KIP-932): the coordinator of a group creates, sets, reads and deletes
its states at the share coordinators.

One change of a group at a time: a state that a heartbeat creates must not be deleted by a request
that came before.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from uuid import UUID

import trio

from mqd.coordinator.group.share_partitions import (
    BeginAlteration,
    ForgetPartitions,
    InitializedPartitions,
    PartitionsDeleted,
    PartitionsInitialized,
    ShareStateRequest,
)
from mqd.errors import MqError
from mqd.server.context import Context, Node
from mqd.server.coordinators import call_of
from mqd.server.lag import log_bounds
from mqd.server.share_state import PASSING
from mqd.server.slices import Pace, listed_in_slices
from mqd.server.unaccepted_records import unaccepted_counts
from mqd.share.ports import ShareKey
from mqd.share.sessions import Place
from mqd.share.unaccepted_counts import Unaccepted
from mqd.types import NO_OFFSET, Offset, TopicPartition

_UNKNOWN_COUNTS: Final = Unaccepted(-1, -1)
_AT_ONCE: Final = 50
"""Operations at share coordinators that one request has in flight."""
_OPERATION_ROWS: Final = 5
"""An operation takes as long as so many rows."""


class SummaryRow(NamedTuple):
    """The state of a share partition, in short."""

    start_offset: Offset = NO_OFFSET
    """-1: not known yet."""
    leader_epoch: int = 0
    """0 also if no leader has read the state yet."""
    lag: int = -1
    """Records between the start offset and the end of the log that are not done; -1: unknown."""
    unaccepted: Unaccepted = _UNKNOWN_COUNTS
    """Records that no member accepted, as the leader counts them; -1: unknown."""
    error: MqError | None = None


@asynccontextmanager
async def one_change(node: Node, group_id: str) -> AsyncIterator[None]:
    """Hold the states of this group: no other request of this node changes them meanwhile."""
    lock = node.share_changes.get(group_id)
    if lock is None:
        lock = node.share_changes[group_id] = trio.Lock()
    async with lock:
        yield


async def at_shard(context: Context, request: ShareStateRequest) -> Mapping[str, Any]:
    """Call the shard of the group. Raises MqError."""
    call = call_of(context, None)._replace(api=type(request).__name__, request=request)
    return await context.node.groups.call(request.group_id, call)


async def initialize(
    context: Context, group_id: str, missing: Mapping[UUID, Iterable[int]], epoch: int
) -> dict[Place, MqError]:
    """Create states without an offset. Returns the errors."""
    node = context.node

    async def create(place: Place) -> None:
        await node.share_state.initialize(ShareKey(group_id, *place), state_epoch=epoch)

    async with one_change(node, group_id):
        places = [Place(topic_id, one) for topic_id, found in missing.items() for one in found]
        errors = await for_each(places, create)
        await _report(context, group_id, (one for one in places if one not in errors))
    return errors


async def set_offsets(
    context: Context, group_id: str, offsets: Mapping[Place, Offset]
) -> dict[Place, MqError]:
    """Set the start offsets of an empty group, which is created if it does not exist. Returns the
    errors of partitions. Raises MqError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
    node = context.node
    async with one_change(node, group_id):
        begun = await at_shard(context, BeginAlteration(group_id, len(offsets)))

        async def write(place: Place) -> None:
            key = ShareKey(group_id, *place)
            await node.share_state.initialize(
                key, state_epoch=begun["group_epoch"], start_offset=offsets[place]
            )

        errors = await for_each(offsets, write)
        await _report(context, group_id, (one for one in offsets if one not in errors))
    return errors


async def delete_offsets(
    context: Context, group_id: str, topic_ids: Collection[UUID] | None
) -> set[UUID]:
    """Delete the states of these topics, or of all topics, of an empty group. Returns the topics
    that had states. Raises MqError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, and the errors of share
    coordinators; the states that are left are deleted by the next request."""
    node = context.node
    async with one_change(node, group_id):
        forgotten = await at_shard(context, ForgetPartitions(group_id, topic_ids))
        partitions: Mapping[UUID, Iterable[int]] = forgotten["partitions"]

        async def delete(place: Place) -> None:
            await node.share_state.delete(ShareKey(group_id, *place))

        places = [Place(topic_id, one) for topic_id, found in partitions.items() for one in found]
        for error in (await for_each(places, delete)).values():
            raise error
        await at_shard(context, PartitionsDeleted(group_id, tuple(partitions)))
    return set(partitions)


async def partitions_with_states(context: Context, group_id: str) -> list[Place]:
    """All initialized partitions of a group: none if it does not exist."""
    found = await at_shard(context, InitializedPartitions(group_id))
    partitions: Mapping[UUID, Collection[int]] = found["partitions"]
    return [Place(topic_id, one) for topic_id in partitions for one in sorted(partitions[topic_id])]


async def summaries(
    context: Context, group_id: str, places: Collection[Place], *, unaccepted_wanted: bool
) -> dict[Place, SummaryRow]:
    """The start offset and the lag of each partition; with `unaccepted_wanted` the counts, too."""
    node = context.node
    found: dict[Place, Mapping[str, Any]] = {}

    async def read(place: Place) -> None:
        found[place] = await node.share_state.summary(ShareKey(group_id, *place))

    errors = await for_each(places, read)
    named = await listed_in_slices(_logs(node, found))
    bounds = await log_bounds(node, (log for _, log in named), read_committed=False)
    ends = {place: bounds[log][1] for place, log in named if log in bounds}
    unaccepted = await unaccepted_counts(node, group_id, found) if unaccepted_wanted else {}
    rows = {place: SummaryRow(error=error) for place, error in errors.items()}
    pace = Pace()
    for place, row in found.items():
        end, done = ends.get(place, NO_OFFSET), row["delivery_complete_count"]
        rows[place] = SummaryRow(
            row["start_offset"],
            max(0, row["leader_epoch"]),
            -1 if end == NO_OFFSET else max(0, end - row["start_offset"] - max(0, done)),
            unaccepted.get(place, _UNKNOWN_COUNTS),
        )
        await pace.row()
    return rows


def _logs(
    node: Node, found: Mapping[Place, Mapping[str, Any]]
) -> Iterator[tuple[Place, TopicPartition]]:
    """The logs of share partitions with a known start offset."""
    for place, row in found.items():
        topic = node.image.topics_by_id.get(place.topic_id)
        if topic is not None and row["start_offset"] != NO_OFFSET:
            yield place, TopicPartition(topic.name, place.partition)


async def for_each(
    places: Collection[Place], do: Callable[[Place], Awaitable[None]]
) -> dict[Place, MqError]:
    """Do it for all partitions, some at a time. Returns the errors. If a share coordinator stays
    unavailable, the others are not tried, and have the same error."""
    errors: dict[Place, MqError] = {}
    waiting = iter(places)
    unavailable: MqError | None = None
    pace = Pace()

    async def work() -> None:
        nonlocal unavailable
        for place in waiting:
            await pace.row(_OPERATION_ROWS)
            if unavailable is not None:
                errors[place] = unavailable
                continue
            try:
                await do(place)
            except MqError as error:
                errors[place] = error
                if error.code in PASSING:
                    unavailable = error

    async with trio.open_nursery() as nursery:
        for _ in range(min(_AT_ONCE, len(places))):
            nursery.start_soon(work)
    return errors


async def _report(context: Context, group_id: str, places: Iterable[Place]) -> None:
    """Have the group's shard record which partitions have a state now."""
    done: dict[UUID, list[int]] = {}
    for place in places:
        done.setdefault(place.topic_id, []).append(place.partition)
    if done:
        await at_shard(context, PartitionsInitialized(group_id, done))
