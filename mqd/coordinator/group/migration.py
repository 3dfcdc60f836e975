"""A live group from the classic protocol to the consumer protocol and back (KIP-848), as
`group.consumer.migration.policy` allows.

Up: the first member that heartbeats in a classic group turns it into a consumer group. The classic
members stay in it as they are: what they had is their assignment and their target, the generation
is the epoch. They learn of it when they are told to join again. What a member had when it joined,
and the leader gave to nobody, is still its own: it may not have asked yet for what it is to let go
of.

Down: when the last member that spoke the consumer protocol is gone, the rest is a classic group
again, with what each has as its assignment. Apache Kafka takes the targets; but who has not heard
of his still reads what he has, and if the next heartbeat turns the group back, that must not belong
to another.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_group import STABLE, ClassicGroup
from mqd.coordinator.group.classic_member import ClassicGroupMember
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.member import Member, MemberState, Owned
from mqd.coordinator.group.state import Draft, State
from mqd.coordinator.group.subscriptions import topics_hash
from mqd.coordinator.shard import Moment, TopicsView
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import SUBSCRIBED_NAMES_MAX
from mqd.protocol import consumer_protocol
from mqd.types import TopicPartition

logger = logging.getLogger(__name__)

BOTH_WAYS, UP, DOWN, NEITHER = "bidirectional", "upgrade", "downgrade", "disabled"
"""Policies; any other word is the last."""


def policy(state: State) -> str:
    word: str = state.options.node("group.consumer.migration.policy").lower()
    return word if word in (BOTH_WAYS, UP, DOWN) else NEITHER


# -- up


def upgrade(state: State, classic: ClassicGroup, draft: Draft) -> ConsumerGroup:
    """The classic group as one of the consumer protocol; the draft deletes the one and writes the
    other.

    MqError GROUP_ID_NOT_FOUND where that may not be.
    """
    group_id = classic.group_id

    def refuse(why: str) -> MqError:
        return MqError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group_id} to consumer group because {why}.",
        )

    if policy(state) not in (BOTH_WAYS, UP):
        raise refuse("online upgrade is disabled")
    if classic.protocol_type != consumer_protocol.PROTOCOL_TYPE:
        raise refuse("the group does not use the consumer embedded protocol")
    if len(classic.members) > state.options.node("group.consumer.max.size"):
        raise refuse("the group size exceeds the consumer group maximum size")
    try:
        told = [_consumer_member(classic, member, state) for member in classic.members.values()]
    except _SaysTooMuch:
        raise refuse(
            "a member says more than message.max.bytes, or subscribes to more than "
            f"{SUBSCRIBED_NAMES_MAX} topics"
        ) from None
    except ProtocolError:
        raise refuse("the embedded consumer protocol is malformed") from None
    except _CustomAssignor:
        raise refuse(
            "an unsupported custom assignor is in use. Please refer to the documentation or "
            "switch to a default assignor before "
            "re-attempting the upgrade"
        ) from None
    places = [place for member, _ in told for place in member.places()]
    if len(places) > len(set(places)):
        raise refuse("its leader has assigned a partition to several members")
    members = _with_what_they_had(told, set(places), state.topics)
    draft.records.extend(classic.tombstones())
    group = ConsumerGroup(group_id)
    for key, value in _records_of(group_id, classic.generation, members, state.topics):
        draft.write(key, value)
        group.apply(key, value)
    logger.info(
        "a classic group becomes a consumer group group=%s members=%d", group_id, len(members)
    )
    return group


class _SaysTooMuch(Exception):
    """For one record, or for a consumer group."""


class _CustomAssignor(Exception):
    """An assignment that says more than which partitions: what it says would be lost."""


def _consumer_member(
    group: ClassicGroup, member: ClassicGroupMember, state: State
) -> tuple[Member, consumer_protocol.Subscription]:
    """The member, and what it said when it joined.

    ProtocolError for bytes that are none of the embedded protocol.
    """
    owned: dict[UUID, dict[int, int]] = {}
    if member.assignment:
        if consumer_protocol.assignment_user_data(member.assignment):
            raise _CustomAssignor
        for topic, partition in consumer_protocol.decode_assignment(member.assignment):
            topic_id = state.topics.topic_id(topic)
            if topic_id is not None:
                owned.setdefault(topic_id, {})[partition] = group.generation
    protocols = dict(member.protocols)
    # it need not have what was chosen before it joined (again)
    said = protocols.get(group.protocol or "", member.protocols[0][1])
    if len(said) > state.options.node("message.max.bytes"):
        raise _SaysTooMuch
    subscription = consumer_protocol.decode_subscription(said)
    if len(subscription.topics) > SUBSCRIBED_NAMES_MAX:
        raise _SaysTooMuch
    known = Member(
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
            tuple(records.ClassicProtocol(name, metadata) for name, metadata in member.protocols),
        ),
    )
    return known, subscription


def _with_what_they_had(
    told: Collection[tuple[Member, consumer_protocol.Subscription]],
    taken: set[tuple[UUID, int]],
    topics: TopicsView,
) -> list[Member]:
    """Members that are to let go of what they had when they joined and is not `taken`: the
    newest word counts where two had the same.
    """
    revoking: dict[str, dict[UUID, dict[int, int]]] = {}
    for member, subscription in sorted(told, key=lambda one: -one[1].generation):
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
        for member, _ in told
    ]


def _records_of(
    group_id: str, generation: int, members: Collection[Member], topics: TopicsView
) -> Iterator[tuple[records.Key, records.Value]]:
    """A consumer group in which everybody has what is meant for him."""
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


# -- down


def may_downgrade(
    state: State, group: ConsumerGroup, leaving: Collection[str], *, besides: str = ""
) -> bool:
    """Whether what is left when these are gone is a classic group.

    `besides`: who does not leave, but will speak that protocol too.
    """
    staying = len(group.members) - len(leaving)
    return (
        staying > 0
        and group.all_classic_without({*leaving, besides})
        and policy(state) in (BOTH_WAYS, DOWN)
        and staying <= state.options.node("group.max.size")
    )


def downgrade(
    state: State,
    group: ConsumerGroup,
    leaving: Collection[str],
    draft: Draft,
    now: Moment,
    joining: Member | None = None,
    *,
    rebalance: bool = True,
) -> tuple[ClassicGroup, bool]:
    """The group as a classic one of those who stay, and whether it is to rebalance; the draft
    deletes the one of the consumer protocol.

    `joining` stands in the place of the static member with its instance id, whose records the draft
    has replaced already. Without `rebalance`, everybody goes on with what he has, if that is what
    is meant for him.
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
        for topic_id, partition in staying.places():
            has.setdefault(topic_id, []).append(partition)
        meant = group.targets.get(member.member_id, {})
        rebalance = rebalance or set(staying.places()) != {
            (topic_id, one) for topic_id, some in meant.items() for one in some
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
