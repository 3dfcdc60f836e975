"""A member of a consumer group (KIP-848), as the records have it.

    STABLE                 it has what the target assignment of its epoch gives it
    UNREVOKED_PARTITIONS   it must revoke partitions, and report that; until then it stays in its
                           epoch
    UNRELEASED_PARTITIONS  it is in the epoch of the target assignment, and waits for partitions
                           that other members have not released yet

Invariant: a member owns a partition (`assigned` or `revoking`) until it reports the partition as
released, or until it is removed from the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from mqd.coordinator.account import names_bytes, text_bytes, texts_bytes
from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Partitions
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_MEMBER_BYTES

JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_NOW: Final = -2
"""Member epochs with a meaning of their own: the member joins, leaves, or is a static member that
leaves and will return."""

Owned = Mapping[UUID, Mapping[int, int]]
"""By topic and partition: the member epoch in which the partition was assigned."""


class MemberState(IntEnum):
    """Kafka's numbers in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """One member. Steps of a heartbeat make a changed copy."""

    member_id: str
    epoch: int = JOINING
    """-2: a static member that has left and may return."""
    previous_epoch: int = LEAVING
    """Accepted, too: the response with the new epoch may be lost."""
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """Sorted."""
    topic_regex: str = ""
    """Empty for none."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: records.ClassicMemberMetadata | None = None
    """Its JoinGroup request, if it uses the classic protocol."""

    @property
    def uses_classic(self) -> bool:
        return self.classic is not None

    def has_same_subscription(self, other: ConsumerGroupMember) -> bool:
        """Whether `other` is a copy with the very same subscription: a comparison could be slow."""
        return (
            self.topic_names is other.topic_names
            and self.topic_regex is other.topic_regex
            and self.classic is other.classic
        )

    def has_same_size(self, other: ConsumerGroupMember) -> bool:
        """Whether `other` is a copy with the very same texts."""
        return self.has_same_subscription(other) and all(
            one is another for one, another in zip(self._texts(), other._texts())
        )

    @property
    def size(self) -> int:
        """Bytes in memory, without its partitions."""
        protocols = () if self.classic is None else self.classic.supported_protocols
        return (
            GROUP_MEMBER_BYTES
            + texts_bytes(self._texts())
            + names_bytes(self.topic_names)
            + text_bytes(self.topic_regex)
            + sum(
                GROUP_MEMBER_BYTES + text_bytes(one.name) + len(one.metadata) for one in protocols
            )
        )

    def _texts(self) -> tuple[str, ...]:
        """Texts of the member itself. The key of its target assignment is another member id."""
        return (
            self.member_id,
            self.member_id,
            self.instance_id or "",
            self.rack_id or "",
            self.client_id,
            self.client_host,
            self.server_assignor or "",
        )

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def owned_partitions(self) -> Iterator[tuple[UUID, int]]:
        """All of `assigned` and `revoking`."""
        for owned in (self.assigned, self.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    yield topic_id, partition

    def owns(self, topic_id: UUID, partition: int) -> int | None:
        """The member epoch in which it got the partition; None if it does not own it."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found

    # -- records

    def metadata(self) -> records.MemberMetadata:
        return records.MemberMetadata(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topic_names,
            self.topic_regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    def with_metadata(self, value: records.MemberMetadata) -> ConsumerGroupMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(sorted(set(value.subscribed_topic_names))),
            topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def assignment(self) -> records.CurrentMemberAssignment:
        return records.CurrentMemberAssignment(
            self.epoch,
            self.previous_epoch,
            self.state,
            _owned_rows(self.assigned),
            _owned_rows(self.revoking),
        )

    def with_assignment(self, value: records.CurrentMemberAssignment) -> ConsumerGroupMember:
        known = value.state in MemberState.__members__.values()
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        return replace(
            self,
            epoch=LEAVING,
            previous_epoch=LEAVING,
            state=MemberState.STABLE,
            assigned={},
            revoking={},
        )


def _owned_rows(owned: Owned) -> tuple[records.OwnedPartitions, ...]:
    return tuple(
        records.OwnedPartitions(topic_id, tuple(epochs), tuple(epochs.values()))
        for topic_id in sorted(owned)
        for epochs in [dict(sorted(owned[topic_id].items()))]
    )


def _owned(
    rows: Collection[records.OwnedPartitions], member_epoch: int
) -> dict[UUID, dict[int, int]]:
    """Records of Kafka before 4.3 have no epochs: all partitions get the member epoch."""
    found = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = (member_epoch,) * len(row.partitions)
        found[row.topic_id] = dict(zip(row.partitions, epochs))
    return found


def partitions_of(rows: Collection[Any]) -> dict[UUID, frozenset[int]]:
    """The partitions by topic in rows of a request or a record."""
    return {row.topic_id: frozenset(row.partitions) for row in rows}


def check_epoch(member: ConsumerGroupMember, epoch: int, reported: Partitions | None) -> None:
    """A heartbeat must have the member's epoch, or the previous epoch if the response with the new
    one may be lost.

    Raises MqError FENCED_MEMBER_EPOCH.
    """
    if epoch == JOINING or epoch == member.epoch:
        return
    how = "greater" if epoch > member.epoch else "smaller"
    if (
        epoch < member.epoch
        and epoch == member.previous_epoch
        and _is_within(reported, member.assigned)
    ):
        return
    raise MqError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({member.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _is_within(reported: Partitions | None, owned: Owned) -> bool:
    if reported is None:
        return False
    return all(
        topic_id in owned and all(p in owned[topic_id] for p in partitions)
        for topic_id, partitions in reported.items()
    )
