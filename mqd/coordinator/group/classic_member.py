"""A member of a classic group: fields of the group's record, and soft state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from mqd.coordinator.account import text_bytes, texts_bytes
from mqd.coordinator.group.records import ClassicMember
from mqd.coordinator.shard import Ticket
from mqd.limits import GROUP_MEMBER_BYTES

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The protocols of a JoinGroup request in the member's order of preference: each name once, with
its metadata."""


@dataclass(eq=False, slots=True)
class ClassicGroupMember:
    """One member. Invariant: it waits for at most one of JoinGroup and SyncGroup."""

    member_id: str
    instance_id: str | None
    """`group.instance.id` of a static member (KIP-345)."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    """A record holds only the protocol that the group selected. The others are soft state."""
    assignment: bytes = b""
    # Soft state: no record holds it.
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    is_new: bool = False
    """Not yet in a generation: it cannot send heartbeats, and is removed even while it waits."""

    @classmethod
    def from_record(cls, row: ClassicMember, protocol: str | None) -> ClassicGroupMember:
        """A member of a group that selected `protocol`, as the group's record has it."""
        return cls(
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

    def record(self, protocol: str | None, assignment: bytes) -> ClassicMember:
        """The member in the record of a group that selected `protocol`."""
        return ClassicMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    def take_soft_state_of(self, former: ClassicGroupMember) -> None:
        """Continue `former`, the same member before its record was replayed."""
        self.join_ticket = former.join_ticket
        self.sync_ticket = former.sync_ticket
        self.is_new = former.is_new
        if all(one in former.protocols for one in self.protocols):
            self.protocols = former.protocols

    @property
    def size(self) -> int:
        """Bytes in memory."""
        texts = (self.member_id, self.instance_id, self.client_id, self.client_host)
        return member_size(texts, self.protocols)

    @property
    def waits(self) -> bool:
        """Whether it waits for a response, and so sends no heartbeats now."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next(metadata for name, metadata in self.protocols if name == protocol)


def member_size(texts: Iterable[str | None], protocols: Protocols = ()) -> int:
    """Bytes in memory of a member with these ids and names."""
    return GROUP_MEMBER_BYTES + texts_bytes(texts) + protocols_size(protocols)


def protocols_size(protocols: Protocols) -> int:
    """Bytes in memory."""
    return sum(
        GROUP_MEMBER_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols
    )
