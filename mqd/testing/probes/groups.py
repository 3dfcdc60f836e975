"""Invariants inside the group coordinators, checked after every event that adds records.

Only the coordinator of the newest leader epoch counts: a former one may have state that will never
be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from mqd.testing.violation import Violation
from mqd.types import TopicPartition

Owned = Callable[[], Mapping[str, frozenset[TopicPartition]]]
"""Member id -> the partitions that this member reads: it has not revoked them, and does not know
that it has lost them.
"""


class GroupProbe:
    """In groups with server-side assignment (KIP-848), each partition has one owner, and members
    own only partitions that the coordinator has assigned to them.
    """

    def __init__(self, owned: Owned) -> None:
        self.looks = 0
        self._owned = owned
        self._seen: dict[tuple[int, int], tuple[Any, int]] = {}
        self._epochs: dict[Any, dict[str, int]] = {}
        """The epochs of a shard's groups at the last check. A group that was deleted, or used the
        classic protocol meanwhile, begins again.
        """
        self._uninformed: dict[tuple[str, str], frozenset[TopicPartition]] = {}
        """(group, member) -> the partitions that a classic member read when it rejoined after its
        removal. The coordinator accepts its JoinGroup, as Apache Kafka does. Only the response to
        SyncGroup shows the lost partitions, and other members can delay it by any number of
        JoinGroups.
        """

    def look(self, node_id: int, daemon: Any, newest: Callable[[UUID, int], Any]) -> None:
        """Check after a step of this node. Raises Violation. `newest(topic id, partition)`: the
        newest image of the partition.
        """
        for index, held in daemon.coordinators.groups._contexts.items():
            if not held.is_active:
                continue
            known = self._seen.get((node_id, index))
            if known is not None and known[0] is held and known[1] == held.end:
                continue
            self._seen[node_id, index] = held, held.end
            image = newest(held.partition.log.topic_id, index)
            if image is None or image.leader != node_id or image.leader_epoch != held.leader_epoch:
                continue
            self.looks += 1
            before = self._epochs.get(held, {})
            self._epochs[held] = now = {}
            for group in held.shard.state.by_id.values():
                if group.type_name != "consumer":
                    continue
                now[group.group_id] = group.epoch
                text = self._group(group, before.get(group.group_id, 0), daemon.machine.image)
                if text is not None:
                    where = (
                        f"on node {node_id}, at offset {held.end} in epoch "
                        f"{held.leader_epoch} of its log"
                    )
                    raise Violation(f"group {group.group_id} {where}: {text}")

    def _group(self, group: Any, epoch_before: int, image: Any) -> str | None:
        if group.epoch < epoch_before:
            return f"its epoch went back to {group.epoch}"
        owners: dict[tuple[UUID, int], str] = {}
        for member in group.members.values():
            if member.epoch > group.epoch:
                return (
                    f"member {member.member_id} has epoch {member.epoch}, the group {group.epoch}"
                )
            for what in (member.assigned, member.revoking):
                for topic_id, partitions in what.items():
                    for partition in partitions:
                        owner = owners.setdefault((topic_id, partition), member.member_id)
                        if owner != member.member_id:
                            return (
                                f"partition {partition} belongs to {owner} and to "
                                f"{member.member_id}"
                            )
        for member_id, mine in self._owned().items():
            member = group.members.get(member_id)
            if (
                member is None or member.epoch < 0
            ):  # it has left, or its next response reports the removal
                continue
            foreign = [
                place
                for place in sorted(mine)
                if (topic := image.topics.get(place.topic)) is not None
                and owners.get((topic.topic_id, place.partition)) != member_id
            ]
            key = group.group_id, member_id
            if not foreign:
                self._uninformed.pop(key, None)
                continue
            if member.uses_classic and member.previous_epoch == 0:
                self._uninformed.setdefault(key, mine)
            for place in foreign:
                if place not in self._uninformed.get(key, ()):
                    holder = owners.get((image.topics[place.topic].topic_id, place.partition))
                    return f"member {member_id} reads {place}, whose owner is {holder}"
        return None
