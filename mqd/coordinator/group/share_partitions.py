"""The partitions of share groups whose states the share coordinators have (KIP-932).

Handlers create and delete these states; here the group records which exist. A handler changes them
in three steps, so that a crash between two of them leaves nothing that blocks the group:

    create  the state at the share coordinator, then PartitionsInitialized
    delete  ForgetPartitions, then the states at the share coordinators, then PartitionsDeleted

Partitions without a record here count as uninitialized: the next heartbeat creates their state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from mqd.coordinator.group import share_records as records
from mqd.coordinator.group.part import Draft, Handler, Part
from mqd.coordinator.group.share_group import ASSIGNED_PARTITION_BYTES, ShareGroup, share_group
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError


class InitializedPartitions(NamedTuple):
    """Request of a `Call`: the initialized partitions of a group, `{"partitions": {topic id:
    partitions}}`. None for a group that does not exist."""

    group_id: str


class BeginAlteration(NamedTuple):
    """Request of a `Call`: offsets of the group are about to be set. It creates the group if it
    does not exist. The response has the new `group_epoch`."""

    group_id: str
    partitions: int
    """Their number."""


class PartitionsInitialized(NamedTuple):
    """Request of a `Call`: the share coordinator has a state for these partitions."""

    group_id: str
    partitions: Mapping[UUID, Iterable[int]]


class ForgetPartitions(NamedTuple):
    """Request of a `Call`: the states of these topics are about to be deleted. The response has the
    `partitions` of each topic."""

    group_id: str
    topic_ids: Collection[UUID] | None
    """None: all topics."""


class PartitionsDeleted(NamedTuple):
    """Request of a `Call`: the share coordinators have deleted the states of these topics."""

    group_id: str
    topic_ids: Collection[UUID]


ShareStateRequest = (
    InitializedPartitions
    | BeginAlteration
    | PartitionsInitialized
    | ForgetPartitions
    | PartitionsDeleted
)


class SharePartitionsOfGroups(Part):
    """The part of a group shard for the partitions of share groups."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "InitializedPartitions": self._describe,
            "BeginAlteration": self._begin_alteration,
            "PartitionsInitialized": self._initialized,
            "ForgetPartitions": self._forget,
            "PartitionsDeleted": self._deleted,
        }

    def _describe(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request: InitializedPartitions = call.request
        group = self.state.get(request.group_id)
        found = group.initialized if isinstance(group, ShareGroup) else {}
        return CoordinatorResult(responses=((ticket, {"partitions": dict(found)}),))

    def _begin_alteration(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Raises MqError: GROUP_ID_NOT_FOUND for a group of another type, NON_EMPTY_GROUP.

        States with this epoch replace older ones: a leader that has an older one cannot write it.
        """
        request: BeginAlteration = call.request
        if self.state.get(request.group_id) is None:
            group = ShareGroup(request.group_id)
            self.state.make_room(request.group_id, 0, now)
        else:
            group = share_group(self.state, request.group_id)
        _check_empty(group)
        self.state.account.make_room(
            ASSIGNED_PARTITION_BYTES * request.partitions,
            f"the offsets of group {request.group_id}",
            now.seconds,
        )
        draft = Draft()
        _raise_epoch(group, draft)
        draft.respond(ticket, {"group_epoch": group.epoch + 1})
        return draft.result()

    def _initialized(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """The group epoch grows, so that the partitions are assigned."""
        request: PartitionsInitialized = call.request
        group = share_group(self.state, request.group_id)
        draft = Draft()
        known = dict(group.initialized)
        for topic_id, partitions in request.partitions.items():
            known[topic_id] = known.get(topic_id, frozenset()) | set(partitions)
        if known != group.initialized:
            deleting = [
                row for row in group.partitions.deleting_topics if row.topic_id not in known
            ]
            self._write(group, known, deleting, draft)
            _raise_epoch(group, draft)
        draft.respond(ticket, {})
        return draft.result()

    def _forget(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Raises MqError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        request: ForgetPartitions = call.request
        group = share_group(self.state, request.group_id)
        _check_empty(group)
        deleting = {row.topic_id: row for row in group.partitions.deleting_topics}
        chosen = {*group.initialized, *deleting}
        if request.topic_ids is not None:
            chosen &= set(request.topic_ids)
        found: dict[UUID, list[int]] = {}
        for topic_id in sorted(chosen):
            name = self.state.topics.topic_name(topic_id)
            if name is not None:  # the share coordinator deletes the states of deleted topics
                deleting[topic_id] = records.DeletingTopic(topic_id, name)
                found[topic_id] = list(range(self.state.topics.partitions(name)))
        draft = Draft()
        if chosen & group.initialized.keys():
            left = {one: rows for one, rows in group.initialized.items() if one not in chosen}
            self._write(group, left, deleting.values(), draft)
        draft.respond(ticket, {"partitions": found})
        return draft.result()

    def _deleted(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request: PartitionsDeleted = call.request
        group = share_group(self.state, request.group_id)
        draft = Draft()
        left = [
            row for row in group.partitions.deleting_topics if row.topic_id not in request.topic_ids
        ]
        if len(left) < len(group.partitions.deleting_topics):
            self._write(group, group.initialized, left, draft)
        draft.respond(ticket, {})
        return draft.result()

    def _write(
        self,
        group: ShareGroup,
        initialized: Mapping[UUID, frozenset[int]],
        deleting: Iterable[records.DeletingTopic],
        draft: Draft,
    ) -> None:
        """Deleted topics are left out."""
        rows = tuple(
            records.SharePartitionsOfTopic(topic_id, name, tuple(sorted(found)))
            for topic_id, found in sorted(initialized.items())
            if (name := self.state.topics.topic_name(topic_id)) is not None
        )
        draft.write(
            records.SharePartitionsKey(group.group_id),
            records.SharePartitions(initialized_topics=rows, deleting_topics=tuple(deleting)),
        )


def _raise_epoch(group: ShareGroup, draft: Draft) -> None:
    draft.write(
        records.ShareGroupMetadataKey(group.group_id),
        records.ShareGroupMetadata(group.epoch + 1, group.metadata_hash),
    )


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise MqError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
