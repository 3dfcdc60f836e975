"""One classic group: its state, its generation and its members.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
               ^  |    ^________________|__________________|
               |  v
              Empty

The record of a group holds its last complete generation. Only `replay` makes the group Stable or
Empty, both in live traffic and while the coordinator loads. A rebalance is soft state: the group
enters PreparingRebalance and CompletingRebalance without a record. A new coordinator continues with
the last written generation, and its members join again.

No clock here: classic.py and classic_rebalance.py decide which records are written, and when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from mqd.coordinator.group.classic_member import ClassicGroupMember, Protocols
from mqd.coordinator.group.classic_members import ClassicGroupMembers
from mqd.coordinator.group.classic_subscriptions import ClassicSubscriptions
from mqd.coordinator.group.record_codec import tombstone
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.state import Subscribed
from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.shard import CoordinatorRecord, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE as CONSUMER
from mqd.types import NO_TIMESTAMP


class ClassicState(Enum):
    """Kafka's names in DescribeGroups. Kafka's fifth, Dead, is for groups that do not exist."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


EMPTY = ClassicState.EMPTY
PREPARING_REBALANCE = ClassicState.PREPARING_REBALANCE
COMPLETING_REBALANCE = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE
DEAD: Final = "Dead"

FROM: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, STABLE}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
}
"""The states from which each state is entered."""


@dataclass(slots=True)
class InitialDelay:
    """The time that an empty group waits for more members (`group.initial.rebalance.delay.ms`), in
    milliseconds."""

    delay_ms: int
    remaining_ms: int
    """The time by which the delay may still grow when more members join."""
    has_new_members: bool = False
    """Whether a member joined since the delay began or was prolonged."""


class ClassicGroup:
    """See the head of the file."""

    type_name: Final[Literal["classic"]] = "classic"

    def __init__(self, group_id: str, since_ms: int | None) -> None:
        """An empty group. `since_ms`: wall time, if known."""
        self.group_id = group_id
        self.state = EMPTY
        self.previous_state: ClassicState | None = None
        self.since_ms = since_ms
        """Wall time in milliseconds at which the state began; None if no record has it."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = ClassicGroupMembers()
        self.initial_delay: InitialDelay | None = None
        """The delay of the first rebalance of an empty group."""
        self._subscriptions: ClassicSubscriptions | None = None
        """The subscriptions of the last generation. None if the coordinator cannot know them."""

    # -- records

    def replay(self, value: GroupMetadata) -> None:
        """Take the state of the record, unless a rebalance that will write a later generation is
        under way.
        """
        # The state is the replay of the log, and nothing else (I32).
        if self.is_rebalancing and value.generation < self.next_generation:
            return
        state = STABLE if value.members else EMPTY
        assert not self.is_rebalancing or self.state in FROM[state], (self.group_id, self.state)
        self.previous_state, self.state = self.state, state
        written_ms = value.current_state_timestamp
        self.since_ms = None if written_ms == NO_TIMESTAMP else written_ms
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.members = self.members.replayed(value)
        self.note_subscriptions()

    def record(
        self,
        generation: int,
        assignments: Iterable[tuple[ClassicGroupMember, bytes]],
        since_ms: int | None,
        *,
        leader: str | None = None,
    ) -> GroupMetadata:
        """The record of a complete or empty generation. `leader`: the new leader; by default the
        current one."""
        members = tuple(
            member.record(self.protocol, assignment) for member, assignment in assignments
        )
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation=generation,
            protocol=self.protocol if members else None,
            leader=leader or self.members.leader,
            current_state_timestamp=NO_TIMESTAMP if since_ms is None else since_ms,
            members=members,
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        return [tombstone(GroupMetadataKey(self.group_id))]

    # -- states

    def enter(self, state: ClassicState, wall_ms: int) -> None:
        # No record: a generation without written assignments promises nothing (I33).
        assert self.state in FROM[state], (self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.since_ms = wall_ms

    @property
    def may_rebalance(self) -> bool:
        return self.state in FROM[PREPARING_REBALANCE]

    @property
    def is_rebalancing(self) -> bool:
        return self.state in (PREPARING_REBALANCE, COMPLETING_REBALANCE)

    @property
    def next_generation(self) -> int:
        """The generation that the rebalance under way will write."""
        return self.generation + (self.state is PREPARING_REBALANCE)

    def is_awaited(self, member: ClassicGroupMember) -> bool:
        """Whether the rebalance waits for the member: for its JoinGroup, or for the assignments
        of the leader."""
        if self.state is PREPARING_REBALANCE:
            return member.join_ticket is None
        return self.state is COMPLETING_REBALANCE and self.members.leader == member.member_id

    def begin_generation(self, wall_ms: int) -> None:
        """All members of the next generation have joined: select the protocol."""
        self.generation += 1
        self.protocol = self.members.selected_protocol()
        self.note_subscriptions()
        self.enter(COMPLETING_REBALANCE, wall_ms)
        self.members.not_synced.clear()

    # -- members

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self.members.add(member)

    def update(
        self,
        member: ClassicGroupMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        ticket: Ticket,
    ) -> None:
        """A member joins again and waits. Its previous JoinGroup already has a response."""
        self.members.set_protocols(member, protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.members.set_join_ticket(member, ticket)

    def accepts(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether all members and a new one with `protocols` have one protocol in common."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and self.members.all_support_one_of(protocols)

    # -- subscriptions

    def note_subscriptions(self) -> None:
        """The members' present subscriptions count from now on."""
        self.members.replaced_bytes = 0
        self._subscriptions = None
        if self.protocol_type == CONSUMER and (self.protocol is not None or not self.members):
            self._subscriptions = ClassicSubscriptions(
                one.metadata(self.protocol) for one in self.members.values()
            )

    # -- state.Group

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_simple(self) -> bool:
        """It never had members, only offsets."""
        return self.protocol_type is None and self.is_empty and not self.members.pending

    @property
    def memory(self) -> int:
        """Also subscriptions of the last generation that no member has any more."""
        noted = 0 if self._subscriptions is None else self._subscriptions.bytes
        return self.members.size + min(self.members.replaced_bytes, noted)

    @property
    def assigned_memory(self) -> int:
        return sum(len(member.assignment) for member in self.members.values())

    def state_name(self) -> str:
        return self.state.value

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> None:
        if generation < 0 and self.is_empty:
            # not a member: an administrator, or a consumer that assigns partitions to itself
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise MqError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and not self.is_empty:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is COMPLETING_REBALANCE:
            raise MqError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """Any client may fetch offsets."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and self.protocol_type != CONSUMER:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def subscribed(self, topics: Collection[str]) -> Subscribed:
        if self._subscriptions is not None:
            return self._subscriptions.subscribed(topics)
        return Subscribed(topics if self.protocol_type == CONSUMER else (), 1)

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        if self.protocol_type is None:
            return commit_wall_ms
        if self.state is EMPTY:
            return commit_wall_ms if self.since_ms is None else self.since_ms
        if self.state is STABLE and self.protocol_type == CONSUMER:
            return commit_wall_ms
        return None

    def described(self) -> dict[str, Any]:
        """The row of DescribeGroups.

        A stable group shows the metadata of its members; a rebalancing group shows for which
        members it waits, and since when.
        """
        stable = self.state is STABLE
        return {
            "error_code": ErrorCode.NONE,
            "group_id": self.group_id,
            "group_state": self.state_name(),
            "protocol_type": self.protocol_type or "",
            "protocol_data": (self.protocol or "") if stable else "",
            "members": [
                {
                    "member_id": one.member_id,
                    "group_instance_id": one.instance_id,
                    "client_id": one.client_id,
                    "client_host": one.client_host,
                    "member_metadata": one.metadata(self.protocol) if stable else b"",
                    "member_assignment": one.assignment,
                    **({"awaited": True} if self.is_awaited(one) else {}),
                }
                for one in self.members.values()
            ],
            **({"state_since_ms": self.since_ms} if self.is_rebalancing else {}),
        }


def check_record(group_id: str, value: GroupMetadata) -> None:
    """Raises RecordFormatError if no group can have these members."""
    member_ids = {row.member_id for row in value.members}
    instance_ids = [
        row.group_instance_id for row in value.members if row.group_instance_id is not None
    ]
    if len(member_ids) < len(value.members) or len(set(instance_ids)) < len(instance_ids):
        raise RecordFormatError(f"group {group_id}: a member id or an instance id is there twice")
    if value.members and value.protocol is None:
        raise RecordFormatError(f"group {group_id}: there are members and no protocol")
