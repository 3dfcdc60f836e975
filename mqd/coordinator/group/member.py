"""A member of a consumer group (KIP-848), and the way from what it has to what it is to have.

    STABLE                 it has what the target of its epoch gives it
    UNREVOKED_PARTITIONS   it must let go of partitions first, and say so; until then it stays in
                           its epoch
    UNRELEASED_PARTITIONS  it is in the target's epoch and waits for partitions that others have not
                           let go of yet

Invariant: a partition that a member was given is its own (`assigned` or `revoking`) until it says
that it no longer has it, or until it is removed from the group. `reconcile` gives nobody a
partition that is somebody's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignors import Partitions
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_MEMBER_BYTES

_NAME_BYTES = 64
"""What one string costs besides its characters, and its place."""
JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2
"""Member epochs of a heartbeat that are none: to (re)join, to leave, and for a static
member to leave and come back.
"""

Owned = Mapping[UUID, Mapping[int, int]]
"""Of each topic its partitions, each with the member epoch in which it was assigned."""


class MemberState(IntEnum):
    """Kafka's numbers, in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the records tell it."""

    member_id: str
    epoch: int = JOINING
    """-2: a static member that has left and may come back."""
    previous_epoch: int = LEAVING
    """Accepted too: the answer that carried the new epoch may have been lost."""
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
    """What it said in JoinGroup, for a member that speaks the classic protocol."""

    @property
    def uses_classic(self) -> bool:
        return self.classic is not None

    def says_the_same(self, other: Member) -> bool:
        """Whether `other` came from it by a step that changed nothing of that."""
        return (
            self.topic_names is other.topic_names
            and self.topic_regex is other.topic_regex
            and self.classic is other.classic
        )

    @property
    def size(self) -> int:
        """What it says of itself, in bytes of memory."""
        said = () if self.classic is None else self.classic.supported_protocols
        return (
            GROUP_MEMBER_BYTES
            + sum(map(len, self.topic_names))
            + _NAME_BYTES * len(self.topic_names)
            + len(self.topic_regex)
            + sum(GROUP_MEMBER_BYTES + len(one.metadata) for one in said)
        )

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def places(self) -> Iterator[tuple[UUID, int]]:
        """All partitions that are its own, those on the way out included."""
        for owned in (self.assigned, self.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    yield topic_id, partition

    def owns(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it got the partition, if that is its own, on the way out included."""
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

    def with_metadata(self, value: records.MemberMetadata) -> Member:
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

    def with_assignment(self, value: records.CurrentMemberAssignment) -> Member:
        known = value.state in MemberState.__members__.values()
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> Member:
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
    """Where no epochs were written (before Kafka 4.3), the member's counts for all."""
    found = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = (member_epoch,) * len(row.partitions)
        found[row.topic_id] = dict(zip(row.partitions, epochs))
    return found


def partitions_of(rows: Collection[Any]) -> dict[UUID, frozenset[int]]:
    """Partitions by topic, of rows of a request or a record."""
    return {row.topic_id: frozenset(row.partitions) for row in rows}


def check_epoch(member: Member, epoch: int, reported: Partitions | None) -> None:
    """A heartbeat must come from the member's epoch, or from the one before when the answer that
    moved it may be lost.

    MqError FENCED_MEMBER_EPOCH.
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


def _still_has(reported: Partitions | None, revoking: Owned) -> bool:
    """Whether the member has any of them, as far as it told."""
    if reported is None:
        return True
    return any(
        p in revoking.get(topic_id, {})
        for topic_id, partitions in reported.items()
        for p in partitions
    )


def reconcile(
    member: Member,
    *,
    target_epoch: int,
    target: Partitions,
    is_owned: Callable[[UUID, int], bool],
    subscribed: Collection[UUID],
    reported: Partitions | None,
    subscription_changed: bool,
) -> Member:
    """The member one step nearer to its target, or as it is.

    `is_owned`: whether anybody owns a partition, this member included. `subscribed`: topics that it
    wants now: it must let go of all others even where its target, computed before, still has them.
    `reported`: what it says it has, None where it does not say.
    """
    if member.state is MemberState.STABLE:
        if member.epoch != target_epoch:
            return _next(member, member.epoch, target_epoch, target, is_owned, subscribed, reported)
        return _only_subscribed(member, subscribed, reported) if subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_has(reported, member.revoking):
            return (
                _only_subscribed(member, subscribed, reported) if subscription_changed else member
            )
        return _next(member, member.epoch, target_epoch, target, is_owned, subscribed, reported)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _next(member, member.epoch, target_epoch, target, is_owned, subscribed, reported)
    if reported is None or any(reported.values()):
        raise MqError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all "
            "its partitions and rejoin.",
        )
    return _next(member, target_epoch, target_epoch, target, is_owned, subscribed, reported)


def _moved_to(
    member: Member, epoch: int, state: MemberState, assigned: Owned, revoking: Owned
) -> Member:
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def _only_subscribed(
    member: Member, subscribed: Collection[UUID], reported: Partitions | None
) -> Member:
    """Within its epoch, what it no longer wants is to be let go of."""
    gone = [topic_id for topic_id in member.assigned if topic_id not in subscribed]
    if not gone:
        return member
    assigned = {
        topic_id: partitions
        for topic_id, partitions in member.assigned.items()
        if topic_id not in gone
    }
    revoking = dict(member.revoking)
    for topic_id in gone:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **member.assigned[topic_id]}
    if _still_has(reported, revoking):
        return _moved_to(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    return _moved_to(member, member.epoch, member.state, assigned, member.revoking)


def _next(
    member: Member,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_owned: Callable[[UUID, int], bool],
    subscribed: Collection[UUID],
    reported: Partitions | None,
) -> Member:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    granted: dict[UUID, list[int]] = {}
    waits = False
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        wanted = frozenset(target.get(topic_id, ())) if topic_id in subscribed else frozenset()
        had = member.assigned.get(topic_id, {})
        keeps = {p: at for p, at in had.items() if p in wanted}
        leaves = {p: at for p, at in had.items() if p not in wanted}
        own = member.revoking.get(topic_id, {})
        gets = [
            p for p in sorted(wanted) if p not in keeps and (p in own or not is_owned(topic_id, p))
        ]
        waits = waits or len(keeps) + len(gets) < len(wanted)
        if keeps:
            kept[topic_id] = keeps
        if leaves:
            revoking[topic_id] = leaves
        if gets:
            granted[topic_id] = gets
    if revoking and _still_has(reported, revoking):
        return _moved_to(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, gets in granted.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(gets, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved_to(member, target_epoch, state, kept, {})
