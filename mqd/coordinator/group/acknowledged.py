"""How far groups have acknowledged topics, for their early retention
(`mqd.retention.acknowledged`).

A group is seen if it has a committed offset of the topic, or if it subscribes to the topic. A
subscribed group that has no offset in some partitions has acknowledged nothing there. Share groups
have no committed offsets: their share coordinators know their start offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mqd.coordinator.group.offset_store import OffsetStore
from mqd.coordinator.group.part import Handler, Part
from mqd.coordinator.group.records import OffsetCommit
from mqd.coordinator.group.share_group import ShareGroup
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.types import Offset

LIST_IDS = "ListGroupIds"
ACKNOWLEDGED = "AcknowledgedOffsets"


class Seen(NamedTuple):
    """One group at one topic."""

    offsets: Mapping[int, Offset]
    """Its committed offsets, by partition."""
    subscribed: bool
    """Whether it also waits for the partitions without an offset."""


class AcknowledgedQuery(NamedTuple):
    """A portion of the groups of a shard, at these topics."""

    group_ids: tuple[str, ...]
    topics: tuple[str, ...]


class AcknowledgedOffsets(Part):
    """For the groups of one shard."""

    def __init__(self, state: State, store: OffsetStore) -> None:
        super().__init__(state)
        self._store = store

    def handlers(self) -> Mapping[str, Handler]:
        return {LIST_IDS: self._list_ids, ACKNOWLEDGED: self._acknowledged}

    def _list_ids(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        return CoordinatorResult(responses=((ticket, {"group_ids": list(self.state.by_id)}),))

    def _acknowledged(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Response: `seen`, pairs of topic and Seen."""
        query: AcknowledgedQuery = call.request
        seen: list[tuple[str, Seen]] = []
        for group_id in query.group_ids:
            group = self.state.get(group_id)
            if group is None or isinstance(group, ShareGroup):
                continue
            offsets = self._store.group(group_id)
            subscribed = () if group.is_empty else group.subscribed(query.topics).topics
            for topic in query.topics:
                found = {} if offsets is None else _committed(offsets.listed(topic))
                if found or topic in subscribed:
                    seen.append((topic, Seen(found, topic in subscribed)))
        return CoordinatorResult(responses=((ticket, {"seen": seen}),))


def _committed(
    listed: Iterable[tuple[int, OffsetCommit | None, bool]],
) -> dict[int, Offset]:
    return {partition: commit.offset for partition, commit, _ in listed if commit is not None}
