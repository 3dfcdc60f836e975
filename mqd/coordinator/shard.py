"""What a coordinator is made of: one state machine for each partition of its internal topic.

A shard decides, and the runtime (service.py) carries out. `handle` reads the state and returns a
`Decision`. The runtime appends its records to the partition and calls `replay` with each of them,
without awaits. It answers when the high watermark covers everything that the shard had replayed. A
new leader of the partition reads the log and calls the same `replay`.

State that a restart may lose (waiting calls, ends of sessions) may change in `handle`. State in
records changes in `replay` only, so a refused decision leaves it unchanged. When a write fails
after `replay`, the shard is dropped and loaded again: no change is ever undone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from mqd.coordinator.account import Account
from mqd.errors import MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

Ticket = int
"""The number of a call that waits for its answer. Each is answered once, by the decision on the
call or by a later one.
"""

INTERNAL: Ticket = 0
"""The ticket of what nobody waits for."""


class Moment(NamedTuple):
    """Both times of one instant: deadlines are monotonic, what is written down is wall time."""

    seconds: float
    wall_ms: int


class Call(NamedTuple):
    """A decoded request of a client. The answer has the fields of the API's response."""

    api: str
    """As `Api.name`, such as JoinGroup."""
    version: int
    request: Any
    client_id: str = ""
    client_host: str = ""
    """Kafka's form: a slash and the address."""
    spare_producer_id: int = NO_PRODUCER_ID
    """A fresh id, where the call may need one (InitProducerId, EndTxn)."""


class CoordinatorRecord(NamedTuple):
    """One record of the internal topic; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """In whose transaction records are written."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the runtime is to do, in this order: append and replay the records, wait for their
    commit, send the replies, carry out the effects."""

    records: Sequence[CoordinatorRecord] = ()
    """Appended as one batch: all of them or none."""
    replies: Sequence[tuple[Ticket, Mapping[str, Any] | MqError]] = ()
    """Also of tickets that earlier decisions left waiting."""
    producer: Producer = NO_PRODUCER
    """Records are part of this producer's transaction (TxnOffsetCommit)."""
    effects: Sequence[Hashable] = ()
    """For `perform` of the runtime, when the records are committed."""


NOTHING = Decision()


class Shard(Protocol):
    """A coordinator's state for one partition. A core: no clock, no socket, no log."""

    @property
    def account(self) -> Account:
        """What it takes in memory."""
        ...

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> Decision:
        """Decide on a `Call`, or on an operation of the node itself. MqError answers the ticket and
        changes nothing."""
        ...

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        """The record is in the log. The only change of persistent state, live and while loading.

        RecordFormatError for a record that cannot be decoded; any other exception is a bug."""
        ...

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """The marker that ends this producer's transaction is in the log."""
        ...

    def on_loaded(self, now: Moment) -> Decision:
        """The whole log was replayed, and this node leads: set deadlines, resume open work."""
        ...

    def on_metadata(self, now: Moment) -> Decision:
        """Topics or their partitions have changed since the last call."""
        ...

    def on_absence(self, seconds: float) -> None:
        """This node had no contact with the controller for `seconds`, refused clients meanwhile,
        and still leads: deadlines of clients move by as much.
        """
        ...

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `on_deadline` is wanted; None for never."""
        ...

    def on_deadline(self, now: Moment) -> Decision:
        """Its time has come. Called again at once while the next deadline is not after `now`."""
        ...

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """Nobody waits for these any more: they were answered by the runtime."""
        ...


class TopicsView(Protocol):
    """What coordinators know of the cluster's topics; the daemon plugs it in."""

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
        """Of each partition: of the nodes that hold a replica and tell their rack."""
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
