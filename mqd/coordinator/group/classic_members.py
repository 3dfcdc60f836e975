"""The members of a classic group, by member id, by instance id and by protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mqd.coordinator.group.classic_member import (
    ClassicGroupMember,
    Protocols,
    member_size,
    protocols_size,
)
from mqd.coordinator.group.records import GroupMetadata
from mqd.coordinator.shard import Ticket
from mqd.errors import ErrorCode, MqError


class ClassicGroupMembers(Mapping[str, ClassicGroupMember]):
    """A mapping by member id, in the order in which they joined.

    Invariants: `static` maps each instance id to its one member. `waiting_to_join` counts members
    with a join ticket. `supports` counts members by protocol name. No pending id is a member's; all
    ids of `not_synced` are members'.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicGroupMember] = {}
        self.leader: str | None = None
        self.static: dict[str, str] = {}
        self.pending: dict[str, None] = {}
        """Member ids that were assigned and have not been used to join yet (KIP-394)."""
        self.not_synced: dict[str, None] = {}
        """Members of this generation that have not sent SyncGroup yet."""
        self.waiting_to_join = 0
        self.supports: dict[str, int] = {}
        self.size = 0
        """Bytes in memory of members and pending members."""
        self.replaced_bytes = 0
        """Bytes of protocols that members had, since the group noted their subscriptions."""

    def __getitem__(self, member_id: str) -> ClassicGroupMember:
        return self._by_id[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    # -- records

    def replayed(self, value: GroupMetadata) -> ClassicGroupMembers:
        """The members of the record. A member that stays keeps its soft state, also a static
        member that gets another member id."""
        static = {one.instance_id: one for one in self.values() if one.instance_id is not None}
        members = ClassicGroupMembers()
        for row in value.members:
            member = ClassicGroupMember.from_record(row, value.protocol)
            former = self.get(row.member_id)
            if former is None and row.group_instance_id is not None:
                former = static.get(row.group_instance_id)
            if former is not None:
                member.take_soft_state_of(former)
            members.add(member)
        if value.leader in members:
            members.leader = value.leader
        for member_id in self.pending:
            if member_id not in members:
                members.expect(member_id)
        members.not_synced = {one: None for one in self.not_synced if one in members}
        return members

    # -- changes

    def add(self, member: ClassicGroupMember) -> None:
        """The first member becomes the leader."""
        assert member.member_id not in self._by_id
        if member.instance_id is not None:
            assert member.instance_id not in self.static, member.instance_id
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._forget_pending(member.member_id)
        self._by_id[member.member_id] = member
        self._count(member, 1)

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member or a pending id. The waiting request must have a response."""
        member = self._by_id.pop(member_id, None)
        if member is not None:
            assert member.join_ticket is None and member.sync_ticket is None
            self._count(member, -1)
            if member.instance_id is not None:
                del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        self._forget_pending(member_id)
        self.not_synced.pop(member_id, None)
        return member

    def replace_static(self, old: ClassicGroupMember, new: ClassicGroupMember) -> None:
        """Replace a static member by the same instance with another member id."""
        assert old.join_ticket is None and old.sync_ticket is None and old.instance_id is not None
        assert new.instance_id == old.instance_id
        del self._by_id[old.member_id]
        self._count(old, -1)
        self.not_synced.pop(old.member_id, None)
        self._by_id[new.member_id] = new
        self._count(new, 1)
        if self.leader == old.member_id:
            self.leader = new.member_id
        self.static[old.instance_id] = new.member_id

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def set_join_ticket(self, member: ClassicGroupMember, ticket: Ticket) -> None:
        assert member.join_ticket is None
        member.join_ticket = ticket
        self.waiting_to_join += 1

    def take_join_ticket(self, member: ClassicGroupMember) -> Ticket | None:
        """The ticket of the member's JoinGroup. The caller sends the response."""
        ticket, member.join_ticket = member.join_ticket, None
        self.waiting_to_join -= ticket is not None
        return ticket

    def expect(self, member_id: str) -> None:
        """Wait for the JoinGroup of a new member with this id."""
        assert member_id not in self._by_id
        self.pending[member_id] = None
        self.size += member_size([member_id])

    def _forget_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            del self.pending[member_id]
            self.size -= member_size([member_id])

    def _count(self, member: ClassicGroupMember, by: int) -> None:
        self.size += by * member.size
        if by < 0:
            self.replaced_bytes += protocols_size(member.protocols)
        self.waiting_to_join += by * (member.join_ticket is not None)
        for name, _ in member.protocols:
            number = self.supports.get(name, 0) + by
            if number:
                self.supports[name] = number
            else:
                del self.supports[name]

    # -- reads

    @property
    def all_joined(self) -> bool:
        return len(self._by_id) == self.waiting_to_join and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest timeout of any member."""
        return max((one.rebalance_timeout_ms for one in self._by_id.values()), default=0)

    def check(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """The member. Raises MqError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has
        the instance id."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise MqError(ErrorCode.FENCED_INSTANCE_ID)
        member = self._by_id.get(member_id)
        if member is None:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def elect_leader(self) -> bool:
        """Make a member the leader that waits in JoinGroup: the present leader, or else the first.
        False if no member waits."""
        if self.leader is None:
            return False
        if self._by_id[self.leader].join_ticket is None:
            joined = next(
                (one.member_id for one in self._by_id.values() if one.join_ticket is not None),
                None,
            )
            if joined is None:
                return False
            self.leader = joined
        return True

    def all_support_one_of(self, protocols: Protocols) -> bool:
        return any(self.supports.get(name, 0) == len(self._by_id) for name, _ in protocols)

    def selected_protocol(
        self, replaced: ClassicGroupMember | None = None, by: ClassicGroupMember | None = None
    ) -> str:
        """The protocol with the most votes. Each member votes for the first of its protocols that
        all members support.

        With `replaced`, as if `by` were in its place.
        """
        members: Iterable[ClassicGroupMember] = self._by_id.values()
        supports = self.supports
        if replaced is not None and by is not None:
            members = [by if one is replaced else one for one in members]
            supports = dict(supports)
            for name, _ in replaced.protocols:
                supports[name] -= 1
            for name, _ in by.protocols:
                supports[name] = supports.get(name, 0) + 1
        votes: dict[str, int] = {}
        for one in members:
            vote = next(name for name, _ in one.protocols if supports[name] == len(self._by_id))
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)
