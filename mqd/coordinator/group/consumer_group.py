"""A group of the consumer protocol (KIP-848), as its records tell it.

Three epochs, each never ahead of the one before: the group's grows when a member or a topic
changes; the target assignment's is the group epoch that it was computed for; a member's is the
target epoch that it has been brought to. `apply` alone changes what records say.

Invariant: a partition has at most one owner, the member that was given it and has not let go of it
yet (`owners`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignors import Assignment
from mqd.coordinator.group.member import Member, MemberState
from mqd.coordinator.group.record_codec import tombstone
from mqd.coordinator.group.state import CheckPartition, Draft
from mqd.coordinator.group.subscriptions import Resolution
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE

_FLEXIBLE_COMMIT_VERSION = 9
"""From this version of OffsetCommit on, a generation may be a member epoch."""

ASSIGNED_PARTITION_BYTES: Final = 400
"""What a partition costs in memory that a group assigns: in the target, in what a member
has, and its owner.
"""
MATCHED_TOPIC_BYTES: Final = 256
"""What a topic costs, besides its name, to which an expression of a group was resolved."""


class ConsumerGroup:
    """Fulfils state.Group."""

    type_name: Final[Literal["consumer"]] = "consumer"
    protocol_type: Final = PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        self.assignment_ms = 0
        """Wall time in milliseconds at which the target was computed; 0 where there is none."""
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.expressions: dict[str, records.RegularExpression] = {}
        """What regular expressions of members were resolved to."""
        self._resolved: dict[str, frozenset[str]] = {}
        """The topics of each."""
        self.has_partition_metadata = False
        """Kafka 4.0 wrote such a record; it is to be deleted."""
        self.static: dict[str, str] = {}
        """Member ids by instance id."""
        self.names: Counter[str] = Counter()
        """Members that subscribe to a topic by its name."""
        self.regexes: Counter[str] = Counter()
        """Members that subscribe by an expression."""
        self.owners: dict[tuple[UUID, int], str] = {}
        self._size = 0
        """Of all members, in bytes."""
        # What no record tells, and the next coordinator finds out by itself:
        self.checked_version: int | None = None
        """Version of the metadata at which `metadata_hash` was found to be right."""
        self.resolved_at: dict[str, int] = {}
        """Versions of the metadata on which this node resolved expressions."""
        self.resolution: Resolution | None = None
        """Of expressions, where it takes more than one slice of time."""

    # -- records -----------------------------------------------------------------------------------

    def apply(self, key: Any, value: Any) -> None:
        """Take in what a record of this group says."""
        match key:
            case records.MemberMetadataKey():
                self._apply_member(key.member_id, value)
            case records.CurrentMemberAssignmentKey():
                self._apply_assignment(key.member_id, value)
            case records.TargetAssignmentMemberKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = {
                        row.topic_id: row.partitions for row in value.topic_partitions
                    }
            case records.TargetAssignmentMetadataKey():
                self.assignment_epoch = 1 if value is None else value.assignment_epoch
                self.assignment_ms = 0 if value is None else value.assignment_timestamp
            case records.ConsumerGroupMetadataKey():
                assert value is not None, "the group is deleted as a whole"
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case records.RegularExpressionKey():
                if value is None:
                    self.expressions.pop(key.regular_expression, None)
                    self._resolved.pop(key.regular_expression, None)
                    self.resolved_at.pop(key.regular_expression, None)
                else:
                    self.expressions[key.regular_expression] = value
                    self._resolved[key.regular_expression] = frozenset(value.topics)
            case records.PartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case _:
                raise AssertionError(key)

    def _apply_member(self, member_id: str, value: records.MemberMetadata | None) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._put(old, (old or Member(member_id)).with_metadata(value))
        elif old is not None:
            self._put(old, None)

    def _apply_assignment(
        self, member_id: str, value: records.CurrentMemberAssignment | None
    ) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._put(old, (old or Member(member_id)).with_assignment(value))
        elif old is not None:
            self._put(old, old.without_assignment())

    def _put(self, old: Member | None, new: Member | None) -> None:
        if old is None or new is None or not old.says_the_same(new):  # it may be long
            self._size += (0 if new is None else new.size) - (0 if old is None else old.size)
            _count(self.names, () if old is None else old.topic_names, -1)
            _count(self.names, () if new is None else new.topic_names, 1)
        if old is not None:
            _count(self.regexes, (old.topic_regex,) if old.topic_regex else (), -1)
            for place in old.places():
                if self.owners.get(place) == old.member_id:
                    del self.owners[place]
            if old.instance_id is not None and self.static.get(old.instance_id) == old.member_id:
                del self.static[old.instance_id]
        if new is None:
            assert old is not None
            del self.members[old.member_id]
            return
        self.members[new.member_id] = new
        _count(self.regexes, (new.topic_regex,) if new.topic_regex else (), 1)
        for place in new.places():
            self.owners[place] = new.member_id
        if new.instance_id is not None:
            self.static[new.instance_id] = new.member_id

    def count_owners(self) -> list[Member]:
        """Who has what, when everything is loaded. A log that was compacted in part may have told
        of it in another order.

        Members that have what another has, too: records are missing, or somebody else wrote some.
        """
        self.owners = {
            place: member.member_id for member in self.members.values() for place in member.places()
        }
        # A partition has at most one owner (I33).
        times = Counter(place for member in self.members.values() for place in member.places())
        if len(times) == times.total():
            return []
        return [
            member
            for member in self.members.values()
            if any(times[place] > 1 for place in member.places())
        ]

    # -- what it says ------------------------------------------------------------------------------

    def resolved(self) -> dict[str, frozenset[str]]:
        """Topics of each expression that was resolved."""
        return dict(self._resolved)

    def subscribed_names(
        self, known: Collection[str], leaving: Iterable[Member] = (), joining: Member | None = None
    ) -> set[str]:
        """Which of the `known` topics some member wants by its name, as if some had left
        and one had come. Members may name many others.
        """
        come = frozenset(() if joining is None else joining.topic_names)
        gone = Counter(name for member in leaving for name in member.topic_names if name in known)
        wanted = self.names
        if len(known) > len(wanted):
            return {
                name
                for name in wanted.keys() | come
                if name in known and (name in come or wanted[name] > gone[name])
            }
        return {
            name for name in known if name in come or (name in wanted and wanted[name] > gone[name])
        }

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        return (topic_id, partition) in self.owners

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member(self, member_id: str) -> Member:
        """MqError UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise MqError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return found

    def assignor(self, without: str | None = None, joining: Member | None = None) -> str | None:
        """The one that most members ask for, as if one had left and one had come; None
        where nobody asks for any.
        """
        votes: Counter[str] = Counter()
        for member in (*self.members.values(), *([joining] if joining is not None else [])):
            if member.server_assignor and (member is joining or member.member_id != without):
                votes[member.server_assignor] += 1
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def classic_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.uses_classic]

    def all_classic_without(self, leaving: Collection[str]) -> bool:
        """Whether everybody who stays speaks the classic protocol when these are gone."""
        return all(
            member.uses_classic
            for member in self.members.values()
            if member.member_id not in leaving
        )

    def accepts(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a classic member with these protocols has one that all classic members have."""
        names = list(protocols)
        if protocol_type != PROTOCOL_TYPE:
            return False
        if not self.members:
            return bool(names)
        classic = self.classic_members()
        common = [
            {one.name for one in member.classic.supported_protocols}
            for member in classic
            if member.classic is not None
        ]
        return any(all(name in known for known in common) for name in names)

    def waits_for_others(self, member: Member) -> bool:
        """Whether some partition of its target is somebody else's still."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def awaited(self) -> list[Member]:
        """Who has a step to take towards the target, be it to say that it took it; not who
        waits for them.
        """
        epoch = self.assignment_epoch
        return [
            member
            for member in self.members.values()
            if not member.is_reconciled_to(epoch)
            and not (member.epoch == epoch and self.waits_for_others(member))
        ]

    # -- state.Group -------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self.epoch

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def memory(self) -> int:
        return self._size

    @property
    def assigned_memory(self) -> int:
        targets = sum(
            len(partitions) for target in self.targets.values() for partitions in target.values()
        )
        matched = sum(
            MATCHED_TOPIC_BYTES * len(one.topics) + sum(map(len, one.topics))
            for one in self.expressions.values()
        )
        return ASSIGNED_PARTITION_BYTES * max(targets, len(self.owners)) + matched

    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> CheckPartition | None:
        """STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for who speaks the classic protocol, where the
        epoch is not the member's; an older one is good for partitions that the member has had since
        (KIP-1251).
        """
        if generation < 0 and not self.members:
            return None  # an administrator, or a consumer that assigns itself partitions
        if transactional and generation == -1 and member_id == "" and instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and not member.uses_classic and version < _FLEXIBLE_COMMIT_VERSION:
            raise MqError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer "
                "group protocol",
            )
        if generation == member.epoch:
            return None
        if generation > member.epoch:
            raise _wrong_epoch(
                member,
                f"Received {_epoch_word(member)} {generation} is newer than current member "
                f"epoch {member.epoch}.",
            )
        return _check_partitions_since(member, generation)

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        if member_id is None and generation < 0:
            return
        member = self.member(member_id or "")
        if generation != member.epoch:
            raise _wrong_epoch(
                member,
                f"The received {_epoch_word(member)} {generation} does not match the expected "
                f"member epoch {member.epoch}.",
            )

    def check_offset_delete(self) -> None:
        """Offsets of topics that are not subscribed may always be deleted."""

    def check_delete(self) -> None:
        if self.members:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.names or any(topic in names for names in self._resolved.values())

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        return commit_wall_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        return self.tombstones_with({})

    def tombstones_with(self, renamed: Mapping[str, str]) -> list[CoordinatorRecord]:
        """The records that delete it, in an order in which each can be replayed.

        `renamed`: members that stand under another id by now.
        """
        group_id = self.group_id
        ids = [renamed.get(member_id, member_id) for member_id in self.members]
        return [
            *(
                tombstone(records.CurrentMemberAssignmentKey(group_id, member_id))
                for member_id in ids
            ),
            *(
                tombstone(records.TargetAssignmentMemberKey(group_id, member_id))
                for member_id in ids
            ),
            tombstone(records.TargetAssignmentMetadataKey(group_id)),
            *(tombstone(records.MemberMetadataKey(group_id, member_id)) for member_id in ids),
            *(
                tombstone(records.RegularExpressionKey(group_id, text))
                for text in sorted(self.expressions)
            ),
            *(
                [tombstone(records.PartitionMetadataKey(group_id))]
                if self.has_partition_metadata
                else []
            ),
            tombstone(records.ConsumerGroupMetadataKey(group_id)),
        ]

    # -- ConsumerGroupDescribe ---------------------------------------------------------------------

    def described(
        self, default_assignor: str, topic_name: Callable[[UUID], str | None]
    ) -> dict[str, Any]:
        def rows(*owned: Mapping[UUID, Iterable[int]]) -> dict[str, Any]:
            found: dict[UUID, set[int]] = {}
            for one in owned:
                for topic_id, partitions in one.items():
                    found.setdefault(topic_id, set()).update(partitions)
            return {
                "topic_partitions": [
                    {
                        "topic_id": topic_id,
                        "topic_name": name,
                        "partitions": sorted(found[topic_id]),
                    }
                    for topic_id in sorted(found)
                    if (name := topic_name(topic_id)) is not None
                ]
            }

        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": self.state_name(),
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": self.assignor() or default_assignor,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "rack_id": member.rack_id,
                    "member_epoch": member.epoch,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "subscribed_topic_names": list(member.topic_names),
                    "subscribed_topic_regex": member.topic_regex,
                    "assignment": rows(member.assigned, member.revoking),
                    "target_assignment": rows(self.targets.get(member.member_id, {})),
                    "member_type": 0 if member.uses_classic else 1,
                }
                for member in self.members.values()
            ],
        }


def renamed_copy(member: Member, member_id: str) -> Member:
    """The same static member as it joins again under another id: in no epoch, with what it had."""
    return replace(member, member_id=member_id, epoch=0, previous_epoch=0)


def remove_member(group: ConsumerGroup, member_id: str, draft: Draft) -> None:
    """The records that remove a member, in the order in which they are replayed."""
    draft.delete(records.CurrentMemberAssignmentKey(group.group_id, member_id))
    draft.delete(records.TargetAssignmentMemberKey(group.group_id, member_id))
    draft.delete(records.MemberMetadataKey(group.group_id, member_id))


def check_static(present: Member | None, member_id: str, instance_id: str) -> Member:
    """The static member, whom the request must come from.

    MqError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another has its place.
    """
    if present is None:
        raise MqError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        raise MqError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{present.member_id}.",
        )
    return present


def _count(counter: Counter[str], names: Iterable[str], by: int) -> None:
    for name in names:
        number = counter.get(name, 0) + by
        if number:
            counter[name] = number
        else:
            del counter[name]


def _epoch_word(member: Member) -> str:
    return "generation id" if member.uses_classic else "member epoch"


def _wrong_epoch(member: Member, message: str) -> MqError:
    return MqError(
        ErrorCode.ILLEGAL_GENERATION if member.uses_classic else ErrorCode.STALE_MEMBER_EPOCH,
        message,
    )


def _check_partitions_since(member: Member, generation: int) -> CheckPartition:
    def check(topic: str, topic_id: UUID, partition: int) -> None:
        since = member.owns(topic_id, partition)
        if since is None:
            raise _wrong_epoch(
                member,
                f"Partition {topic}-{partition} is not assigned or pending revocation for member.",
            )
        if generation < since:
            raise _wrong_epoch(
                member,
                f"Received {_epoch_word(member)} {generation} is older than assignment epoch "
                f"{since} for partition {topic}-{partition}.",
            )

    return check
