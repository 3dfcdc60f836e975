"""What the parts of a group shard share: the groups, their deadlines, and how a part plugs into the
shard.

A part (classic groups, consumer groups, offsets) decides on its own APIs, replays its own kinds of
records and hears its own deadlines. All of them look at the same groups: an id names one group, of
one type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from mqd.coordinator.account import Account, text_bytes
from mqd.coordinator.group.memory import Memory
from mqd.coordinator.group.record_codec import encode, tombstone
from mqd.coordinator.group.records import Key, Value
from mqd.coordinator.shard import (
    NOTHING,
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    GroupOptions,
    Moment,
    Producer,
    Response,
    Ticket,
    TopicsView,
)
from mqd.errors import ErrorCode, MqError

TimerKey: TypeAlias = tuple[str, ...]
"""A kind, which names the part that hears of it, and then whose deadline it is, such as a
group and a member.
"""
Handler: TypeAlias = Callable[[Ticket, Call, Moment], CoordinatorResult]
Replay: TypeAlias = Callable[[Any, Any, Producer], None]
"""(key, value or None for a tombstone, whose transaction): takes what a record says into memory."""
CheckPartition: TypeAlias = Callable[[str, UUID, int], None]
"""(topic, topic id, partition): MqError where this partition may not be committed."""
Expire: TypeAlias = Callable[[TimerKey, Moment], CoordinatorResult]


class Timers:
    """Deadlines by key, in monotonic seconds.

    To put one off, as each heartbeat does, costs no entry in the heap.
    """

    def __init__(self) -> None:
        self._at: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._entry: dict[TimerKey, tuple[float, int]] = {}
        """The entry of the heap that counts for a key: never later than its deadline."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._at)

    def set(self, key: TimerKey, at: float) -> None:
        """In place of the deadline that the key has, if it has one."""
        self._at[key] = at
        entry = self._entry.get(key)
        if entry is None or at < entry[0]:
            number = next(self._numbers)
            self._entry[key] = at, number
            heappush(self._heap, (at, number, key))

    def put_off(self, seconds: float) -> None:
        """All of them, by so much."""
        for key in self._at:
            self._at[key] += seconds

    def cancel(self, key: TimerKey) -> None:
        """No deadline under this key any more, if there was one."""
        self._at.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline."""
        heap = self._heap
        while heap:
            at, number, key = heap[0]
            if self._entry.get(key) != (at, number):
                heappop(heap)
                continue
            wanted = self._at.get(key)
            if wanted is None:
                heappop(heap)
                del self._entry[key]
            elif wanted > at:
                number = next(self._numbers)
                self._entry[key] = wanted, number
                heapreplace(heap, (wanted, number, key))
            else:
                return at
        return None

    def take_expired(self, now: float) -> TimerKey | None:
        """The key with the earliest deadline, if that is not after `now`; it has none then."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, key = heappop(self._heap)
        del self._entry[key]
        del self._at[key]
        return key


class Group(Protocol):
    """What every type of group tells those who only know its id."""

    group_id: str

    @property
    def type_name(self) -> Literal["classic", "consumer"]: ...

    @property
    def protocol_type(self) -> str | None:
        """Such as "consumer" or "connect"; None for a group that only keeps offsets."""
        ...

    @property
    def generation(self) -> int:
        """Or the group epoch.

        It never falls while the group exists, also when it becomes one of another type.
        """
        ...

    @property
    def is_empty(self) -> bool:
        """No members, and no rebalance under way."""
        ...

    @property
    def memory(self) -> int:
        """What its members cost, in bytes."""
        ...

    @property
    def assigned_memory(self) -> int:
        """What their assignments, and the topics of their expressions, cost in bytes.

        Takes a look at each member.
        """
        ...

    def state_name(self) -> str:
        """As DescribeGroups and ListGroups tell it, such as PreparingRebalance."""
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
        """May this member, of this generation (or member epoch), commit? MqError says why not. A
        check that comes back is for each partition to pass: a member epoch that is not the newest
        may still be good for partitions that it was assigned.
        """
        ...

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """May it ask for the group's offsets? MqError says why not."""
        ...

    def check_offset_delete(self) -> None:
        """MqError NON_EMPTY_GROUP where no offset may be deleted while there are members."""
        ...

    def check_delete(self) -> None:
        """MqError NON_EMPTY_GROUP where the group may not be deleted."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether the topic's offsets are in use."""
        ...

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        """Wall time in milliseconds from which the retention of an offset that was
        committed then counts; None: it is kept.
        """
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group itself, not its offsets."""
        ...


@dataclass(slots=True)
class Draft:
    """A result while it is made."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    responses: list[tuple[Ticket, Response]] = field(default_factory=list)

    def write(self, key: Key, value: Value) -> None:
        self.records.append(encode(key, value))

    def delete(self, key: Key) -> None:
        self.records.append(tombstone(key))

    def answer(self, ticket: Ticket, response: Response) -> None:
        self.responses.append((ticket, response))

    def result(self) -> CoordinatorResult:
        if not self.records and not self.responses:
            return NOTHING
        return CoordinatorResult(self.records, self.responses)


GROUP_BYTES: Final = 1536
"""What a group costs in memory without members, offsets and its name."""


def group_bytes(group_id: str) -> int:
    """What a group costs in memory without members and offsets."""
    return GROUP_BYTES + text_bytes(group_id)


class GroupsById(dict[str, "Group"]):
    """Of one shard, with what they cost in memory without members and offsets."""

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
    """A fresh random id, as text: what member ids end with."""
    memory: Memory
    account: Account
    by_id: GroupsById = field(default_factory=GroupsById)
    timers: Timers = field(default_factory=Timers)

    def get(self, group_id: str) -> Group | None:
        return self.by_id.get(group_id)

    def make_room(self, group_id: str, size: int, now: Moment) -> None:
        """For members that say so many bytes more.

        MqError COORDINATOR_NOT_AVAILABLE where the node or the shard has none.
        """
        self.memory.make_room(group_id, size, self.options, now)
        new = 0 if group_id in self.by_id else group_bytes(group_id)
        self.account.make_room(size + new, f"members of group {group_id}", now.seconds)
        self.account.let_in(size)

    def group(self, group_id: str) -> Group:
        """MqError GROUP_ID_NOT_FOUND for one that does not exist."""
        group = self.by_id.get(group_id)
        if group is None:
            raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group


class Part:
    """One part of the shard: what it does not care about stays as it is here."""

    def __init__(self, state: State) -> None:
        self.state = state

    def handlers(self) -> Mapping[str, Handler]:
        """By the API's name."""
        return {}

    def replays(self) -> Mapping[type, Replay]:
        """By the class of a record's key (records.py)."""
        return {}

    def timers(self) -> Mapping[str, Expire]:
        """By the first word of the timer's key.

        Several may be heard in a row, until one writes records.
        """
        return {}

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """As Shard.replay_end."""

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        """As Shard.on_loaded; the other parts' decisions are joined with it."""
        return NOTHING

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        """As Shard.on_metadata; the other parts' decisions are joined with it."""
        return NOTHING

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """As Shard.abandoned."""
