"""The contract of a coordinator: one state machine (shard) for each partition of its topic.

A shard decides, and the runtime (service.py) carries out. `handle` reads the state and returns a
`CoordinatorResult`. The runtime appends its records to the partition and calls `replay` with each
of them, without awaits. It responds when the high watermark covers everything that the shard had
replayed. A new leader of the partition reads the log and calls the same `replay`.

Soft state, which no record holds and a failover loses, may change in `handle`: waiting calls,
timers, sessions, rebalances. State in records changes in `replay` only, so a refused append leaves
it unchanged (I32). When a write fails after `replay`, the shard is dropped and loaded again: no
change is ever undone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from mqd.coordinator.account import Account
from mqd.errors import MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

Ticket = int
"""The number of a waiting call. Each gets one response, from its own result or a later one."""

Response: TypeAlias = Mapping[str, Any] | MqError
"""The fields of a response, or the error of the whole request."""

INTERNAL: Ticket = 0
"""The ticket of results without a call."""


class Moment(NamedTuple):
    """Both times of one instant: monotonic for deadlines, wall time for records."""

    seconds: float
    wall_ms: int


class Call(NamedTuple):
    """A decoded request of a client. The response has the fields of the API's response."""

    api: str
    """As `Api.name`, such as JoinGroup."""
    version: int
    request: Any
    client_id: str = ""
    client_host: str = ""
    """Kafka's form: a slash and the address."""
    spare_producer_id: int = NO_PRODUCER_ID
    """A fresh id, if the call may need one (InitProducerId, EndTxn)."""


class CoordinatorRecord(NamedTuple):
    """One record of the internal topic; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """The producer whose transaction the records are part of."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class CoordinatorResult:
    """Kafka's name. The runtime carries it out in this order: append and replay the records, wait
    for their commit, send the responses, carry out the effects."""

    records: Sequence[CoordinatorRecord] = ()
    """Appended as one batch: all of them or none."""
    responses: Sequence[tuple[Ticket, Response]] = ()
    """Also to tickets that earlier results left waiting."""
    producer: Producer = NO_PRODUCER
    """Records are part of this producer's transaction (TxnOffsetCommit)."""
    effects: Sequence[Hashable] = ()
    """For `perform` of the runtime, when the records are committed."""


NOTHING = CoordinatorResult()


class Shard(Protocol):
    """A coordinator's state for one partition. A core: no clock, no socket, no log."""

    @property
    def account(self) -> Account:
        """Its use of memory."""
        ...

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> CoordinatorResult:
        """Handle a `Call`, or an operation of the node itself. MqError is the response to the
        ticket, and changes nothing."""
        ...

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        """The record is in the log. The only change of persistent state, live and while loading.

        RecordFormatError for a record that cannot be decoded; any other exception is a bug."""
        ...

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """The marker that ends this producer's transaction is in the log."""
        ...

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        """The whole log was replayed, and this node leads: set deadlines, resume open work."""
        ...

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        """Topics or their partitions have changed since the last call."""
        ...

    def on_absence(self, seconds: float) -> None:
        """This node had no contact with the controller for `seconds`, refused clients in that time,
        and still leads: deadlines of clients move by as much."""
        ...

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `on_deadline` is wanted; None for never."""
        ...

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        """Called at `next_deadline`, and again while the next deadline is not after `now`."""
        ...

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """These calls no longer wait: they have their responses."""
        ...


class TopicsView(Protocol):
    """The cluster's topics, as coordinators see them."""

    @property
    def version(self) -> int:
        """Grows with each change of the metadata."""
        ...

    def names(self) -> Mapping[str, Any]:
        """The names are its keys."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """None for a topic that does not exist."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None: ...

    def partitions(self, name: str) -> int:
        """How many; 0 for a topic that does not exist."""
        ...

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        """The racks of the replicas of each partition, as far as nodes have one."""
        ...

    def digest(self, name: str) -> bytes:
        """The digest of subscriptions.topic_digest; empty for a topic that does not exist."""
        ...

    def is_internal(self, name: str) -> bool: ...


class GroupOptions(Protocol):
    """Present values of options by Kafka's dotted names: of the node, and of groups (KIP-848)."""

    def node(self, name: str) -> Any:
        """Typed value of a node option, such as `group.initial.rebalance.delay.ms`."""
        ...

    def group(self, group_id: str, name: str) -> Any:
        """Typed value of a group option (such as `consumer.session.timeout.ms`), or the node's
        default for it, within the node's bounds."""
        ...
