"""The groups and offsets of one partition of `__consumer_offsets`: passes calls, records and timers
to its parts.

    classic.py        classic groups: the leader of the group assigns partitions
    consumer.py       consumer groups: the coordinator assigns partitions (KIP-848)
    share.py          share groups: members share partitions (KIP-932);
                      share_partitions.py has the partitions whose states exist
    classic_calls.py  passes JoinGroup, SyncGroup, Heartbeat and LeaveGroup to one of the two
    offsets.py        commits; offset_fetch.py reads, offset_deletion.py deletes
    listing.py        ListGroups, DescribeGroups, DeleteGroups
    requests.py       validates requests

Invariant: an id names one group, of one type (`State.by_id`). The first offset of an unknown group
creates the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from mqd.coordinator.account import UNBOUNDED, Account
from mqd.coordinator.group.acknowledged import AcknowledgedOffsets
from mqd.coordinator.group.classic import Classic
from mqd.coordinator.group.classic_calls import ClassicCalls
from mqd.coordinator.group.consumer import ConsumerGroups
from mqd.coordinator.group.consumer_timers import SLICES
from mqd.coordinator.group.listing import Listing
from mqd.coordinator.group.memory import Memory
from mqd.coordinator.group.offset_deletion import OffsetDeletion
from mqd.coordinator.group.offset_fetch import OffsetFetches
from mqd.coordinator.group.offsets import ENDED, Offsets
from mqd.coordinator.group.part import Expire, Handler, Part, Replay
from mqd.coordinator.group.record_codec import decode
from mqd.coordinator.group.requests import check
from mqd.coordinator.group.share import ShareGroups
from mqd.coordinator.group.share_partitions import SharePartitionsOfGroups
from mqd.coordinator.group.share_targets import ASSIGN
from mqd.coordinator.group.state import Group, State, group_bytes
from mqd.coordinator.shard import (
    NO_PRODUCER,
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    GroupOptions,
    Moment,
    Producer,
    Ticket,
    TopicsView,
)
from mqd.types import GROUPS_TOPIC

_LONG: Final = SLICES | {ENDED, ASSIGN}
"""Timers whose handlers take a portion of long work: one in each call of the shard."""
_EXPIRIES_MAX = 100
"""Timers that may expire in one `on_deadline`."""


class GroupShard:
    """A Shard (mqd/coordinator/shard.py)."""

    def __init__(
        self,
        topics: TopicsView,
        options: GroupOptions,
        new_id: Callable[[], str],
        memory: Memory | None = None,
        *,
        name: str = GROUPS_TOPIC,
        share: Callable[[], int] = lambda: UNBOUNDED,
    ) -> None:
        """`memory`: shared with the other shards of the node. `name`: of the partition.

        `share()`: bytes that this shard may take.
        """
        self.account = Account(name, share, self._exact_bytes, self._count_bytes)
        self.state = State(
            topics, options, new_id, memory or Memory(lambda: self.groups), self.account
        )
        self._handlers: dict[str, Handler] = {}
        self._replays: dict[type, Replay] = {}
        self._timers: dict[str, Expire] = {}
        self.classic = Classic(self.state)
        self.consumer = ConsumerGroups(self.state, self.classic.rebalance)
        self.share = ShareGroups(self.state)
        self.offsets = Offsets(self.state, self.classic)
        self._offset_fetches = OffsetFetches(self.state, self.offsets.store)
        self.offset_deletion = OffsetDeletion(self.state, self.offsets.store)
        self.parts: Final[tuple[Part, ...]] = (
            self.classic,
            self.consumer,
            ClassicCalls(self.state, self.classic, self.consumer),
            self.share,
            SharePartitionsOfGroups(self.state),
            Listing(self.state, self.offset_deletion),
            AcknowledgedOffsets(self.state, self.offsets.store),
            self.offsets,
            self._offset_fetches,
            self.offset_deletion,
        )
        """In the order in which they are called when all are."""
        for part in self.parts:
            _add(self._handlers, part.handlers())
            _add(self._replays, part.replays())
            _add(self._timers, part.timers())

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> CoordinatorResult:
        assert isinstance(op, Call), op
        check(op, self.state.options)
        return self._handlers[op.api](ticket, op, now)

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        key, value = decode(record)
        self._replays[type(key)](key, value, producer)

    def replay_end(self, producer: Producer, committed: bool) -> None:
        for part in self.parts:
            part.replay_end(producer, committed)

    def _exact_bytes(self) -> int:
        return self.state.by_id.bytes + self.offsets.store.bytes

    def recount(self) -> int:
        """The exact part of the account from scratch, for tests and the simulation."""
        return sum(map(group_bytes, self.state.by_id)) + self.offsets.store.recount()

    def _count_bytes(self) -> int:
        groups = sum(group.memory + group.assigned_memory for group in self.groups)
        return groups + self.consumer.computation_bytes + self.share.computation_bytes

    @property
    def groups(self) -> Collection[Group]:
        return self.state.by_id.values()

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        self.state.memory.groups_were_loaded()
        self.account.was_loaded()
        return _joined(part.on_loaded(now) for part in self.parts)

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        return _joined(part.on_metadata(now) for part in self.parts)

    def on_absence(self, seconds: float) -> None:
        self.state.timers.put_off(seconds)

    def next_deadline(self) -> float | None:
        return self.state.timers.next()

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        results: list[CoordinatorResult] = []
        for _ in range(_EXPIRIES_MAX):
            key = self.state.timers.take_expired(now.seconds)
            if key is None:
                break
            results.append(self._timers[key[0]](key, now))
            if results[-1].records:  # the next timer must see them replayed
                break
            if key[0] in _LONG:
                break
        return _joined(results)

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        for part in self.parts:
            part.abandoned(tickets)


def _add(table: dict[Any, Any], rows: Mapping[Any, Any]) -> None:
    assert not table.keys() & rows.keys(), table.keys() & rows.keys()
    table.update(rows)


def _joined(results: Iterable[CoordinatorResult]) -> CoordinatorResult:
    """Several results as one. None needs to see the records of another, none is of a transaction,
    and none has effects."""
    all_of = list(results)
    assert all(one.producer == NO_PRODUCER and not one.effects for one in all_of)
    return CoordinatorResult(
        records=[record for one in all_of for record in one.records],
        responses=[reply for one in all_of for reply in one.responses],
    )
