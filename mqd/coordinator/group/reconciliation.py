"""Reconciliation (KIP-848): one step of a member towards its part of the target assignment.

A member first revokes the partitions outside its target, then it gets those that other members have
released. So `reconcile` never assigns a partition that another member owns (I33).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from uuid import UUID

from mqd.coordinator.group.assignment import Partitions
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState, Owned
from mqd.errors import ErrorCode, MqError


def reconcile(
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: Partitions,
    is_owned: Callable[[UUID, int], bool],
    subscribed: Collection[UUID],
    reported: Partitions | None,
    subscription_changed: bool,
) -> ConsumerGroupMember:
    """The member after its next step, or unchanged.

    `is_owned`: whether any member owns a partition, this one included. `subscribed`: its present
    topics. It must revoke all others, also those that an older target still has. `reported`: the
    partitions that it reports as its own; None if it does not report them.
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
    member: ConsumerGroupMember, epoch: int, state: MemberState, assigned: Owned, revoking: Owned
) -> ConsumerGroupMember:
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def _only_subscribed(
    member: ConsumerGroupMember, subscribed: Collection[UUID], reported: Partitions | None
) -> ConsumerGroupMember:
    """Revoke topics that it is no longer subscribed to, within its epoch."""
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
    member: ConsumerGroupMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_owned: Callable[[UUID, int], bool],
    subscribed: Collection[UUID],
    reported: Partitions | None,
) -> ConsumerGroupMember:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    granted: dict[UUID, list[int]] = {}
    waits = False
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        wanted = frozenset(target.get(topic_id, ())) if topic_id in subscribed else frozenset()
        had = member.assigned.get(topic_id, {})
        retained = {p: at for p, at in had.items() if p in wanted}
        revoked = {p: at for p, at in had.items() if p not in wanted}
        own = member.revoking.get(topic_id, {})
        gets = [
            p
            for p in sorted(wanted)
            if p not in retained and (p in own or not is_owned(topic_id, p))
        ]
        waits = waits or len(retained) + len(gets) < len(wanted)
        if retained:
            assigned[topic_id] = retained
        if revoked:
            revoking[topic_id] = revoked
        if gets:
            granted[topic_id] = gets
    if revoking and _still_has(reported, revoking):
        return _moved_to(member, epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic_id, gets in granted.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(gets, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved_to(member, target_epoch, state, assigned, {})


def _still_has(reported: Partitions | None, revoking: Owned) -> bool:
    """Whether the member may still have any of them, by its report."""
    if reported is None:
        return True
    return any(
        p in revoking.get(topic_id, {})
        for topic_id, partitions in reported.items()
        for p in partitions
    )
