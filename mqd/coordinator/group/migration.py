"""Online migration of a group between the classic and the consumer protocol (KIP-848), as
`group.consumer.migration.policy` allows.

Upgrade: the first ConsumerGroupHeartbeat makes a classic group a consumer group. The classic
members stay in it: their assignment is also their target, and the generation is the epoch. They
notice when a heartbeat makes them join again. A member may have partitions from before it joined
that the leader assigned to no member. It still owns them and must revoke them: it may not have sent
SyncGroup yet.

Downgrade: when the last member of the consumer protocol has left, the others are a classic group
again. Each is assigned the partitions that it has. Apache Kafka assigns the targets. But a member
that does not know its target yet still reads its former partitions. If the next heartbeat upgrades
the group again, no other member may own them (I33).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_group import STABLE, ClassicGroup
from mqd.coordinator.group.classic_member import ClassicGroupMember
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState, Owned
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import topics_hash
from mqd.coordinator.shard import Moment, TopicsView
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import (
    GROUP_MIGRATION_ELEMENTS_MAX,
    GROUP_RECORD_BYTES_MAX,
    SUBSCRIBED_NAMES_MAX,
)
from mqd.protocol import consumer_protocol
from mqd.protocol.consumer_protocol import Elements, topics_count
from mqd.types import TopicPartition

logger = logging.getLogger(__name__)

BIDIRECTIONAL, UPGRADE, DOWNGRADE, DISABLED = "bidirectional", "upgrade", "downgrade", "disabled"
"""Policies. Any other value counts as the last."""
_MEMBER_ELEMENTS = 20
_PROTOCOL_ELEMENTS = 5
"""The work for a member, and for each of its protocols, in elements."""


def policy(state: State) -> str:
    found: str = state.options.node("group.consumer.migration.policy").lower()
    return found if found in (BIDIRECTIONAL, UPGRADE, DOWNGRADE) else DISABLED


# -- upgrade


def _refusal(classic: ClassicGroup, why: str) -> MqError:
    return MqError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}.",
    )


def check_upgrade(state: State, classic: ClassicGroup) -> None:
    """Check what needs no decoding. Raises MqError GROUP_ID_NOT_FOUND.

    The upgrade is one step of the event loop and one batch, so its size is bounded.
    """
    refuse = partial(_refusal, classic)
    if policy(state) not in (BIDIRECTIONAL, UPGRADE):
        raise refuse("online upgrade is disabled")
    if classic.protocol_type != consumer_protocol.PROTOCOL_TYPE:
        raise refuse("the group does not use the consumer embedded protocol")
    if len(classic.members) > state.options.node("group.consumer.max.size"):
        raise refuse("the group size exceeds the consumer group maximum size")
    size, names, size_max = 0, 0, state.record_bytes_max()
    for member in classic.members.values():
        try:
            names_of_member = topics_count(_metadata(classic, member))
        except ProtocolError:
            raise refuse("the embedded consumer protocol is malformed") from None
        names += names_of_member + _MEMBER_ELEMENTS + _PROTOCOL_ELEMENTS * len(member.protocols)
        size += sum(len(data) for _, data in member.protocols) + len(member.assignment)
        if names_of_member > SUBSCRIBED_NAMES_MAX or names > GROUP_MIGRATION_ELEMENTS_MAX:
            raise refuse(
                f"a member names more than {SUBSCRIBED_NAMES_MAX} topics, or all members name "
                f"about {GROUP_MIGRATION_ELEMENTS_MAX} or more"
            )
        if size > size_max:
            raise refuse(
                f"the metadata of its members exceeds {size_max} bytes (message.max.bytes, at most "
                f"{GROUP_RECORD_BYTES_MAX})"
            )


def upgrade(state: State, classic: ClassicGroup, draft: Draft) -> ConsumerGroup:
    """The classic group, after `check_upgrade`, as a consumer group. The draft deletes the one and
    writes the other.

    Raises MqError GROUP_ID_NOT_FOUND if that is not possible.
    """
    group_id = classic.group_id
    refuse = partial(_refusal, classic)
    elements = Elements(GROUP_MIGRATION_ELEMENTS_MAX)
    try:
        joined = [
            _consumer_member(classic, member, state, elements)
            for member in classic.members.values()
        ]
    except ProtocolError:
        raise refuse(
            "the embedded consumer protocol is malformed, or has more than "
            f"{GROUP_MIGRATION_ELEMENTS_MAX} topics and partitions"
        ) from None
    except _CustomAssignor:
        raise refuse(
            "an unsupported custom assignor is in use. Please refer to the documentation or "
            "switch to a default assignor before "
            "re-attempting the upgrade"
        ) from None
    places = [place for member, _ in joined for place in member.owned_partitions()]
    if len(places) > len(set(places)):
        raise refuse("its leader has assigned a partition to several members")
    members = _with_partitions_to_revoke(joined, set(places), state.topics)
    draft.records.extend(classic.tombstones())
    group = ConsumerGroup(group_id)
    for key, value in _records_of(group_id, classic.generation, members, state.topics):
        draft.write(key, value)
        group.replay(key, value)
    logger.info(
        "a classic group becomes a consumer group group=%s members=%d", group_id, len(members)
    )
    return group


class _CustomAssignor(Exception):
    """The assignment has user data, which a consumer group would lose."""


def _metadata(group: ClassicGroup, member: ClassicGroupMember) -> bytes:
    """A member that has just joined may lack the selected protocol."""
    return dict(member.protocols).get(group.protocol or "", member.protocols[0][1])


def _consumer_member(
    group: ClassicGroup, member: ClassicGroupMember, state: State, elements: Elements
) -> tuple[ConsumerGroupMember, consumer_protocol.Subscription]:
    """The member, and its subscription when it joined. Raises ProtocolError for bytes that are not
    of the embedded protocol, or that have more `elements`."""
    owned: dict[UUID, dict[int, int]] = {}
    if member.assignment:
        assignment = consumer_protocol.decode_whole_assignment(member.assignment, elements)
        if assignment.user_data:
            raise _CustomAssignor
        for topic, partition in assignment.partitions:
            topic_id = state.topics.topic_id(topic)
            if topic_id is not None:
                owned.setdefault(topic_id, {})[partition] = group.generation
    subscription = consumer_protocol.decode_subscription(_metadata(group, member), elements)
    found = ConsumerGroupMember(
        member.member_id,
        epoch=group.generation,
        previous_epoch=group.generation,
        state=MemberState.STABLE,
        assigned=owned,
        instance_id=member.instance_id,
        rack_id=subscription.rack or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=records.ClassicMemberMetadata(
            member.session_timeout_ms,
            tuple(records.ClassicProtocol(name, data) for name, data in member.protocols),
        ),
    )
    return found, subscription


def _with_partitions_to_revoke(
    joined: Collection[tuple[ConsumerGroupMember, consumer_protocol.Subscription]],
    taken: set[tuple[UUID, int]],
    topics: TopicsView,
) -> list[ConsumerGroupMember]:
    """The members, to revoke partitions that they had when they joined and that are not `taken`.
    If two members had the same partition, the later generation counts."""
    revoking: dict[str, dict[UUID, dict[int, int]]] = {}
    for member, subscription in sorted(joined, key=lambda one: -one[1].generation):
        for topic, partition in subscription.owned:
            topic_id = topics.topic_id(topic)
            if (
                topic_id is not None
                and 0 <= partition < topics.partitions(topic)
                and (topic_id, partition) not in taken
            ):
                taken.add((topic_id, partition))
                revoking.setdefault(member.member_id, {}).setdefault(topic_id, {})[partition] = (
                    member.epoch
                )
    return [
        member
        if (had := revoking.get(member.member_id)) is None
        else replace(member, state=MemberState.UNREVOKED_PARTITIONS, revoking=had)
        for member, _ in joined
    ]


def _records_of(
    group_id: str, generation: int, members: Collection[ConsumerGroupMember], topics: TopicsView
) -> Iterator[tuple[records.Key, records.Value]]:
    """A consumer group whose members have reached their target."""
    for member in members:
        yield records.MemberMetadataKey(group_id, member.member_id), member.metadata()
    metadata_hash = topics_hash(topics, {name for member in members for name in member.topic_names})
    yield (
        records.ConsumerGroupMetadataKey(group_id),
        records.ConsumerGroupMetadata(generation, metadata_hash),
    )
    for member in members:
        rows = tuple(
            records.TopicPartitions(topic_id, tuple(sorted(owned)))
            for topic_id, owned in sorted(member.assigned.items())
        )
        yield (
            records.TargetAssignmentMemberKey(group_id, member.member_id),
            records.TargetAssignmentMember(rows),
        )
    yield (
        records.TargetAssignmentMetadataKey(group_id),
        records.TargetAssignmentMetadata(generation),
    )
    for member in members:
        yield records.CurrentMemberAssignmentKey(group_id, member.member_id), member.assignment()


# -- downgrade


def may_downgrade(
    state: State, group: ConsumerGroup, leaving: Collection[str], *, besides: str = ""
) -> bool:
    """Whether the group becomes a classic group when these members leave.

    `besides`: a member that stays and changes to the classic protocol.
    """
    staying = len(group.members) - len(leaving)
    others = {*leaving, besides}
    return (
        staying > 0
        and all(
            member.uses_classic or member.member_id in others for member in group.members.values()
        )
        and policy(state) in (BIDIRECTIONAL, DOWNGRADE)
        and staying <= state.options.node("group.max.size")
        and _is_small(state, group)
    )


def _is_small(state: State, group: ConsumerGroup) -> bool:
    """Whether one step of the event loop, and one batch, can write it as a classic group. Another
    group stays a consumer group of classic members. Apache Kafka fails to write the batch."""
    names = sum(len(member.topic_names) for member in group.members.values())
    if len(group.owners) + names > GROUP_MIGRATION_ELEMENTS_MAX:
        return False
    metadata = sum(
        len(member.classic.supported_protocols[0].metadata)
        for member in group.members.values()
        if member.classic is not None
    )
    return metadata <= state.record_bytes_max()


def downgrade(
    state: State,
    group: ConsumerGroup,
    leaving: Collection[str],
    draft: Draft,
    now: Moment,
    joining: ConsumerGroupMember | None = None,
    *,
    rebalance: bool = True,
) -> tuple[ClassicGroup, bool]:
    """The members that stay as a classic group, and whether it must rebalance. The draft deletes
    the consumer group.

    `joining` replaces the static member with its instance id; the draft has replaced that member's
    records already. Without `rebalance`, the members continue if they have reached their targets.
    """
    replaced = None if joining is None else group.static_member(joining.instance_id or "")
    renamed = {} if joining is None or replaced is None else {replaced.member_id: joining.member_id}
    draft.records.extend(group.tombstones_with(renamed))
    classic = ClassicGroup(group.group_id, now.wall_ms)
    classic.generation = group.epoch
    owned: dict[str, dict[UUID, list[int]]] = {}
    for member in group.members.values():
        if member.member_id in leaving:
            continue
        staying = joining if replaced is member and joining is not None else member
        assert staying.classic is not None
        protocols = tuple((one.name, one.metadata) for one in staying.classic.supported_protocols)
        classic.add(
            ClassicGroupMember(
                staying.member_id,
                staying.instance_id,
                staying.client_id,
                staying.client_host,
                staying.rebalance_timeout_ms,
                staying.classic.session_timeout_ms,
                protocols,
            ),
            consumer_protocol.PROTOCOL_TYPE,
        )
        has = owned[staying.member_id] = {}
        for topic_id, partition in staying.owned_partitions():
            has.setdefault(topic_id, []).append(partition)
        target = group.targets.get(member.member_id, {})
        rebalance = rebalance or set(staying.owned_partitions()) != {
            (topic_id, one) for topic_id, some in target.items() for one in some
        }
    classic.protocol = classic.members.selected_protocol()
    for member_id, one in classic.members.items():
        one.assignment = embedded_assignment(
            owned[member_id], state.topics, one.metadata(classic.protocol)
        )
    classic.state = STABLE
    classic.note_subscriptions()
    logger.info(
        "a consumer group becomes a classic group group=%s members=%d",
        group.group_id,
        len(classic.members),
    )
    return classic, rebalance


def embedded_assignment(
    owned: Mapping[UUID, Collection[int]] | Owned, topics: TopicsView, subscription: bytes
) -> bytes:
    """The bytes of an assignment for a classic member, in the version of its subscription."""
    partitions = [
        TopicPartition(name, partition)
        for topic_id, found in owned.items()
        if (name := topics.topic_name(topic_id)) is not None
        for partition in found
    ]
    return consumer_protocol.encode_assignment(
        partitions, consumer_protocol.version_of(subscription)
    )
