"""OffsetFetch: the committed offsets of one group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd.coordinator.group.offset_store import GroupOffsets, OffsetStore
from mqd.coordinator.group.part import Handler, Part
from mqd.coordinator.group.records import OffsetCommit
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, NO_OFFSET, ZERO_UUID

BY_ID_SINCE: Final = 10
"""OffsetCommit and OffsetFetch from this version on name topics by their ids."""


class FetchOffsets(NamedTuple):
    """One group of an OffsetFetch, as the request of a `Call`. Its response is one row of the
    `groups` in the response to the client.
    """

    group_id: str
    topics: Sequence[Any] | None
    """With a name or a topic id, and partition_indexes; None for all offsets of the group."""
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class OffsetFetches(Part):
    """For the groups of a shard."""

    def __init__(self, state: State, store: OffsetStore) -> None:
        super().__init__(state)
        self._store = store

    def handlers(self) -> Mapping[str, Handler]:
        return {"OffsetFetch": self.handle_offset_fetch}

    def handle_offset_fetch(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """`call.request` is a FetchOffsets."""
        request: FetchOffsets = call.request
        by_id = call.version >= BY_ID_SINCE
        group = self.state.get(request.group_id)
        if group is not None:
            group.check_fetch(request.member_id, request.member_epoch)
        offsets = self._store.group(request.group_id) or GroupOffsets()
        if request.topics is None:
            topics = list(self._all_of(offsets, request.require_stable, by_id))
        else:
            topics = self._requested(request.topics, offsets, request.require_stable, by_id)
        return CoordinatorResult(
            (), ((ticket, {"group_id": request.group_id, "topics": topics, "error_code": 0}),)
        )

    def _all_of(
        self, offsets: GroupOffsets, require_stable: bool, by_id: bool
    ) -> Iterator[dict[str, Any]]:
        """All partitions with a committed offset. With `require_stable` also those whose first
        offset waits for the end of its transaction: they are UNSTABLE_OFFSET_COMMIT.
        """
        for name in {**offsets.committed, **offsets.pending}:
            topic_id = self.state.topics.topic_id(name) if by_id else ZERO_UUID
            if topic_id is None:  # this version cannot name the topic
                continue
            rows = []
            for partition, commit, unstable in offsets.listed(name):
                if unstable and require_stable:
                    rows.append(_row(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                elif commit is not None:
                    rows.append(_of_commit(partition, commit, topic_id))
            if rows:
                yield {"name": name, "topic_id": topic_id, "partitions": rows}

    def _requested(
        self, topics: Iterable[Any], offsets: GroupOffsets, require_stable: bool, by_id: bool
    ) -> list[dict[str, Any]]:
        found = []
        unknown = []
        for topic in topics:
            name = self.state.topics.topic_name(topic.topic_id) if by_id else topic.name
            topic_id = topic.topic_id if by_id else ZERO_UUID
            if name is None:
                rows = [
                    _row(partition, ErrorCode.UNKNOWN_TOPIC_ID)
                    for partition in topic.partition_indexes
                ]
                unknown.append({"name": "", "topic_id": topic_id, "partitions": rows})
            else:
                rows = [
                    _fetched(offsets, name, partition, topic_id, require_stable)
                    for partition in topic.partition_indexes
                ]
                found.append({"name": name, "topic_id": topic_id, "partitions": rows})
        return found + unknown


def _fetched(
    offsets: GroupOffsets, topic: str, partition: int, topic_id: UUID, require_stable: bool
) -> dict[str, Any]:
    if require_stable and offsets.is_unstable(topic, partition):
        return _row(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    commit = offsets.get(topic, partition)
    if commit is None:
        return _row(partition, ErrorCode.NONE)
    return _of_commit(partition, commit, topic_id)


def _of_commit(partition: int, commit: OffsetCommit, topic_id: UUID) -> dict[str, Any]:
    if commit.topic_id != topic_id and ZERO_UUID not in (commit.topic_id, topic_id):
        return _row(partition, ErrorCode.NONE)
    return {
        "partition_index": partition,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": 0,
    }


def _row(partition: int, code: ErrorCode) -> dict[str, Any]:
    """Without an offset: there is none, or there is an error."""
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET,
        "committed_leader_epoch": NO_EPOCH,
        "metadata": "",
        "error_code": int(code),
    }
