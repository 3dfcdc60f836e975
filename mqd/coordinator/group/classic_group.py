"""One classic group: its members, who waits for what, and where it stands between one generation
and the next.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
               ^  |    ^________________|__________________|
               |  v
              Empty

A generation is decided on twice. When everybody has joined, the members and the protocol are fixed,
in memory only (CompletingRebalance); when the leader has divided the work, the assignments are
written (Stable). A coordinator that fails over has what was written last: the generation before,
whose members then join anew.

No clock and no records here: classic.py moves groups, and knows what is written when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Protocol

from mqd.coordinator.group.records import ClassicMember, GroupMetadata, GroupMetadataKey, tombstone
from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.shard import CoordinatorRecord, Ticket
from mqd.errors import ErrorCode, MqError, ProtocolError, some_of
from mqd.limits import GROUP_MEMBER_BYTES
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE as CONSUMER, decode_subscribed_topics
from mqd.types import NO_TIMESTAMP


class ClassicState(Enum):
    """Values as clients are told. Kafka's fifth, Dead, is told of groups that do not exist."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


EMPTY = ClassicState.EMPTY
PREPARING_REBALANCE = ClassicState.PREPARING_REBALANCE
COMPLETING_REBALANCE = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE
DEAD: Final = "Dead"
_NAMED_AT_MOST: Final = 5

FROM: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, STABLE}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
}
"""Which states each is entered from."""

Protocols = tuple[tuple[str, bytes], ...]
"""Names, each once, in the order of the member's preference, and what the member says under
each.
"""


@dataclass(eq=False, slots=True)
class Member:
    """One member. Invariant: it waits for at most one of JoinGroup and SyncGroup."""

    member_id: str
    instance_id: str | None
    """`group.instance.id` of a static member (KIP-345)."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    """Of a member that was loaded, only the one that the group had chosen."""
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    is_new: bool = False
    """Not yet in a generation: it cannot send heartbeats, and is removed even while it waits."""

    @property
    def size(self) -> int:
        """What it costs in memory, in bytes."""
        return (
            GROUP_MEMBER_BYTES
            + len(self.instance_id or "")
            + len(self.client_id)
            + protocols_size(self.protocols)
        )

    @property
    def heart_beats(self) -> bool:
        """Whether it needs no heartbeat now: it waits for an answer."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next(metadata for name, metadata in self.protocols if name == protocol)


def protocols_size(protocols: Protocols) -> int:
    """What they cost in memory, in bytes."""
    return sum(GROUP_MEMBER_BYTES + len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True)
class InitialDelay:
    """How long an empty group still waits for more members
    (`group.initial.rebalance.delay.ms`), in milliseconds.
    """

    delay_ms: int
    remaining_ms: int
    """What may still be added when somebody comes meanwhile."""


class ClassicGroup:
    """Invariants: static maps each instance id to its one member; waiting_to_join counts members
    with a join ticket; supports counts members by protocol name; pending and members have no id in
    common; not_synced are members.
    """

    type_name: Final[Literal["classic"]] = "classic"

    def __init__(self, group_id: str, since_ms: int | None) -> None:
        """An empty one. `since_ms`: wall time, as far as it is known."""
        self.group_id = group_id
        self.state = EMPTY
        self.previous_state: ClassicState | None = None
        self.since_ms = since_ms
        """Wall time in milliseconds at which the state began; None where it was not written."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.pending: dict[str, None] = {}
        """Ids that were given out and have not been used to join yet."""
        self.not_synced: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment yet."""
        self.waiting_to_join = 0
        self.supports: dict[str, int] = {}
        self.size = 0
        """Of members and pending members, in bytes."""
        self.initial_delay: InitialDelay | None = None
        self.somebody_came = False
        """Since the initial delay began or was prolonged."""
        self._subscriptions: list[bytes] | None = None
        self._topics: frozenset[str] | None = None

    @classmethod
    def loaded(cls, group_id: str, value: GroupMetadata) -> ClassicGroup:
        """As it was written. RecordFormatError for members that no group can have."""
        member_ids = {row.member_id for row in value.members}
        instance_ids = [
            row.group_instance_id for row in value.members if row.group_instance_id is not None
        ]
        if len(member_ids) < len(value.members) or len(set(instance_ids)) < len(instance_ids):
            raise RecordFormatError(
                f"group {group_id}: a member id or an instance id is there twice"
            )
        if value.members and value.protocol is None:
            raise RecordFormatError(f"group {group_id}: there are members and no protocol")
        group = cls(
            group_id,
            None
            if value.current_state_timestamp == NO_TIMESTAMP
            else value.current_state_timestamp,
        )
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        for row in value.members:
            group.add(_loaded_member(row, value.protocol), value.protocol_type)
        group.protocol = value.protocol
        if value.leader in group.members:
            group.leader = value.leader
        if group.members:
            group.state = STABLE
        group.note_subscriptions()
        return group

    def record(
        self, generation: int, assignments: Mapping[str, bytes], since_ms: int | None
    ) -> GroupMetadata:
        """What is written about it when every member has its assignment, or there are none."""
        assert not self.members or self.protocol is not None
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation=generation,
            protocol=self.protocol if self.members else None,
            leader=self.leader,
            current_state_timestamp=NO_TIMESTAMP if since_ms is None else since_ms,
            members=tuple(
                self._row(one, assignments[one.member_id]) for one in self.members.values()
            ),
        )

    def _row(self, member: Member, assignment: bytes) -> ClassicMember:
        return ClassicMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(self.protocol),
            assignment=assignment,
        )

    # -- states

    def enter(self, state: ClassicState, wall_ms: int) -> None:
        assert self.state in FROM[state], (self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.since_ms = wall_ms

    @property
    def may_rebalance(self) -> bool:
        return self.state in FROM[PREPARING_REBALANCE]

    @property
    def everybody_joined(self) -> bool:
        return len(self.members) == self.waiting_to_join and not self.pending

    def is_awaited(self, member: Member) -> bool:
        """Whether a rebalance cannot go on without it: it is to join again, or, as the
        leader, to divide the work.
        """
        if self.state is PREPARING_REBALANCE:
            return member.join_ticket is None
        return self.state is COMPLETING_REBALANCE and self.leader == member.member_id

    @property
    def rebalance_timeout_ms(self) -> int:
        """Of the most patient member."""
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    def next_generation(self, wall_ms: int) -> None:
        """Everybody who is to be in it has joined."""
        self.generation += 1
        self.protocol = self.selected_protocol()
        self.note_subscriptions()
        self.enter(COMPLETING_REBALANCE, wall_ms)
        self.not_synced.clear()

    def become_empty(self, generation: int, wall_ms: int) -> None:
        """Nobody is left."""
        assert not self.members
        self.generation = generation
        self.protocol = None
        self.note_subscriptions()
        self.enter(EMPTY, wall_ms)
        self.not_synced.clear()

    # -- members

    def add(self, member: Member, protocol_type: str) -> None:
        """A member that was pending, is new, or was loaded."""
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static, (self.group_id, member.instance_id)
            self.static[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._forget_pending(member.member_id)
        self.members[member.member_id] = member
        self.size += member.size
        self._count(member, 1)
        self.waiting_to_join += member.join_ticket is not None

    def remove(self, member_id: str) -> Member | None:
        """A member, or an id that was given out. Whoever waits must have been answered."""
        member = self.members.pop(member_id, None)
        if member is not None:
            assert member.join_ticket is None and member.sync_ticket is None
            self.size -= member.size
            self._count(member, -1)
            if member.instance_id is not None:
                del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._forget_pending(member_id)
        self.not_synced.pop(member_id, None)
        return member

    def replace_static(self, old: Member, new: Member) -> None:
        """The same instance under another member id.

        Whoever waits under the old one must have been answered.
        """
        assert old.join_ticket is None and old.sync_ticket is None and old.instance_id is not None
        assert new.instance_id == old.instance_id
        del self.members[old.member_id]
        self.size += new.size - old.size
        self._count(old, -1)
        self.not_synced.pop(old.member_id, None)
        self.members[new.member_id] = new
        self._count(new, 1)
        self.waiting_to_join += new.join_ticket is not None
        if self.leader == old.member_id:
            self.leader = new.member_id
        self.static[old.instance_id] = new.member_id

    def update(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        ticket: Ticket,
    ) -> None:
        """It joins again, and waits. What it waited for before must have been answered."""
        assert member.join_ticket is None
        self.size -= member.size
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        self.size += member.size
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        member.join_ticket = ticket
        self.waiting_to_join += 1

    def take_join_ticket(self, member: Member) -> Ticket | None:
        """Who waits for the member's JoinGroup, to be answered now."""
        ticket, member.join_ticket = member.join_ticket, None
        self.waiting_to_join -= ticket is not None
        return ticket

    def expect(self, member_id: str) -> None:
        """An id was given out; its JoinGroup is waited for."""
        assert member_id not in self.members
        self.pending[member_id] = None
        self.size += GROUP_MEMBER_BYTES

    def _forget_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            del self.pending[member_id]
            self.size -= GROUP_MEMBER_BYTES

    def elect_leader_who_joined(self) -> bool:
        """Whether there is a leader that has joined: the one before, or else anybody."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is None:
            joined = next(
                (one.member_id for one in self.members.values() if one.join_ticket is not None),
                None,
            )
            if joined is None:
                return False
            self.leader = joined
        return True

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """MqError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member has taken
        the instance id over.
        """
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise MqError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # -- protocols

    def _count(self, member: Member, by: int) -> None:
        for name, _ in member.protocols:
            number = self.supports.get(name, 0) + by
            if number:
                self.supports[name] = number
            else:
                del self.supports[name]

    def accepts(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these would leave the group a protocol that all have."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supports.get(name, 0) == everybody for name, _ in protocols
        )

    def selected_protocol(self, replaced: Member | None = None, by: Member | None = None) -> str:
        """The one with the most votes: each member's first of those that all have.

        With `replaced`, as if `by` stood in its place.
        """
        members: Iterable[Member] = self.members.values()
        supports = self.supports
        if replaced is not None and by is not None:
            members = [by if one is replaced else one for one in members]
            supports = dict(supports)
            for name, _ in replaced.protocols:
                supports[name] -= 1
            for name, _ in by.protocols:
                supports[name] = supports.get(name, 0) + 1
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for one in members:
            vote = next(name for name, _ in one.protocols if supports[name] == everybody)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def note_subscriptions(self) -> None:
        """From now on the members' subscriptions count as they are; they are read when
        somebody asks.
        """
        self._topics = None
        self._subscriptions = None
        if self.protocol_type == CONSUMER and (self.protocol is not None or not self.members):
            self._subscriptions = [one.metadata(self.protocol) for one in self.members.values()]

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of all members together; None where the coordinator cannot know them."""
        if self._topics is None and self._subscriptions is not None:
            try:
                self._topics = frozenset(
                    topic
                    for data in self._subscriptions
                    for topic in decode_subscribed_topics(data)
                )
            except ProtocolError:  # made by a client that means something else by "consumer"
                self._subscriptions = None
        return self._topics

    # -- what the other parts of the shard ask (state.Group)

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_simple(self) -> bool:
        """It has only ever kept offsets."""
        return self.protocol_type is None and self.is_empty and not self.pending

    @property
    def memory(self) -> int:
        return self.size

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
            # whoever takes no part in the group: an administrator, or a consumer with partitions of
            # its own choice
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise MqError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and not self.is_empty:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is COMPLETING_REBALANCE:
            raise MqError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """Anybody may ask."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and self.protocol_type != CONSUMER:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed(self, topic: str) -> bool:
        topics = self.subscribed_topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        if self.protocol_type is None:
            return commit_wall_ms
        if self.state is EMPTY:
            return commit_wall_ms if self.since_ms is None else self.since_ms
        if (
            self.state is STABLE
            and self.protocol_type == CONSUMER
            and self.subscribed_topics() is not None
        ):
            return commit_wall_ms
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        return [tombstone(GroupMetadataKey(self.group_id))]

    def described(self) -> dict[str, Any]:
        """As DescribeGroups tells it.

        What members said is told of a generation that stands; who is awaited, of one that does not.
        """
        stable = self.state is STABLE
        rebalances = self.state in (PREPARING_REBALANCE, COMPLETING_REBALANCE)
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
            **({"state_since_ms": self.since_ms} if rebalances else {}),
        }


class _Named(Protocol):
    """A member of any protocol."""

    @property
    def member_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...


def named(members: Iterable[_Named]) -> str:
    """Members for a log line: who they are and where they come from."""
    return some_of([f"{one.member_id} at {one.client_host}" for one in members], _NAMED_AT_MOST)


def _loaded_member(row: ClassicMember, protocol: str | None) -> Member:
    return Member(
        member_id=row.member_id,
        instance_id=row.group_instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        rebalance_timeout_ms=row.session_timeout
        if row.rebalance_timeout == -1
        else row.rebalance_timeout,
        session_timeout_ms=row.session_timeout,
        protocols=() if protocol is None else ((protocol, row.subscription),),
        assignment=row.assignment,
    )
