"""What the parts of a group shard share: the groups, their timers, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from mqd.coordinator.account import Account, text_bytes
from mqd.coordinator.group.memory import Memory
from mqd.coordinator.group.timers import Timers
from mqd.coordinator.shard import CoordinatorRecord, GroupOptions, Moment, TopicsView
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_RECORD_BYTES_MAX

CheckPartition: TypeAlias = Callable[[str, UUID, int], None]
"""Called with (topic, topic id, partition). Raises MqError if this partition may not be
committed."""


class Subscribed(NamedTuple):
    """Topics of a question to a group, to which a member subscribes."""

    topics: Collection[str]
    steps: int
    """Work to find them: 0.15 us each."""


class Group(Protocol):
    """The common interface of all types of groups."""

    group_id: str

    @property
    def type_name(self) -> Literal["classic", "consumer", "share"]: ...

    @property
    def protocol_type(self) -> str | None:
        """Such as "consumer" or "connect"; None for a group that has only offsets."""
        ...

    @property
    def generation(self) -> int:
        """The generation or the group epoch. It never decreases while the group exists, also when
        its type changes (I33)."""
        ...

    @property
    def is_empty(self) -> bool:
        """No members, and no rebalance under way."""
        ...

    @property
    def memory(self) -> int:
        """Bytes that its members take."""
        ...

    @property
    def assigned_memory(self) -> int:
        """Bytes that assignments, and topics of expressions, take. Reads every member."""
        ...

    def state_name(self) -> str:
        """The name in DescribeGroups and ListGroups, such as PreparingRebalance."""
        ...

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> CheckPartition | None:
        """Raises MqError if this member of this generation (or member epoch) may not commit.

        A returned check is then called for each partition: with an older member epoch, a member may
        commit partitions that it has owned since then.
        """
        ...

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """Raises MqError if the member may not fetch the group's offsets."""
        ...

    def check_offset_delete(self) -> None:
        """Raises MqError NON_EMPTY_GROUP if members protect all offsets."""
        ...

    def check_delete(self) -> None:
        """Raises MqError NON_EMPTY_GROUP if the group may not be deleted."""
        ...

    def subscribed(self, topics: Collection[str]) -> Subscribed:
        """The names of `topics` whose offsets are in use."""
        ...

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        """Wall time in milliseconds at which the retention of an offset begins that was committed
        at `commit_wall_ms`; None if it does not expire."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group itself, not its offsets."""
        ...


GROUP_BYTES: Final = 1664
"""Memory of a group without members, offsets and its name."""


def group_bytes(group_id: str) -> int:
    """Memory of a group without members and offsets."""
    return GROUP_BYTES + text_bytes(group_id)


class GroupsById(dict[str, "Group"]):
    """The groups of one shard, with their memory without members and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __setitem__(self, group_id: str, group: Group) -> None:
        if group_id not in self:
            self.bytes += group_bytes(group_id)
        super().__setitem__(group_id, group)

    def __delitem__(self, group_id: str) -> None:
        super().__delitem__(group_id)
        self.bytes -= group_bytes(group_id)


@dataclass
class State:
    """The groups of one shard. `by_id` changes in replay only."""

    topics: TopicsView
    options: GroupOptions
    new_id: Callable[[], str]
    """A new random id, as text: the end of a member id."""
    memory: Memory
    account: Account
    by_id: GroupsById = field(default_factory=GroupsById)
    timers: Timers = field(default_factory=Timers)

    def get(self, group_id: str) -> Group | None:
        return self.by_id.get(group_id)

    def record_bytes_max(self) -> int:
        """Bytes of the members in one record, or in the batch of a group that changes its
        protocol.
        """
        size_max: int = self.options.node("message.max.bytes")
        return min(size_max, GROUP_RECORD_BYTES_MAX)

    def make_room(self, group_id: str, size: int, now: Moment) -> None:
        """For `size` more bytes of members. Raises MqError COORDINATOR_NOT_AVAILABLE if the node or
        the shard has no room."""
        self.memory.make_room(group_id, size, self.options, now)
        new = 0 if group_id in self.by_id else group_bytes(group_id)
        self.account.make_room(size + new, f"members of group {group_id}", now.seconds)
        self.account.reserve(size)

    def group(self, group_id: str) -> Group:
        """Raises MqError GROUP_ID_NOT_FOUND if it does not exist."""
        group = self.by_id.get(group_id)
        if group is None:
            raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group
