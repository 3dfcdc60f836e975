"""Values that administrative calls return about groups and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mqd.client.descriptions import ActiveProducer
from mqd.client.errors import ClientError
from mqd.client.offsets import CommittedOffset
from mqd.types import TopicPartition

REBALANCING_STATES = frozenset({"PreparingRebalance", "CompletingRebalance"})
"""States of a classic group in a rebalance: members have no partitions until all have joined again
and their leader has assigned them.
"""
EMPTY_STATES = frozenset({"Empty", "Dead", ""})
"""A group without members: only then its offsets may be changed from outside."""


class ListedGroup(NamedTuple):
    """One line of a list.

    `type` is classic, consumer, share or streams, and empty if the broker does not return it.
    """

    group_id: str
    protocol_type: str
    state: str
    type: str
    node_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member. `epoch` is -1 in classic groups; `target` is its target assignment if that
    differs (KIP-848). `awaited`: a rebalance waits for this member (only mqd brokers report it).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    rack: str | None = None
    epoch: int = -1
    target: tuple[TopicPartition, ...] | None = None
    pattern: str | None = None
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it.

    Members of a protocol type other than consumer have no topics.
    """

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: str
    """host:port"""
    epoch: int
    members: tuple[GroupMember, ...]
    since_ms: int = -1
    """Wall time at which a rebalance came to this state, -1 if the broker does not report it or the
    group does not rebalance.
    """

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in EMPTY_STATES


class PartitionLag(NamedTuple):
    """The progress of a group in one partition.

    `lag` is None if nothing is committed or the partition no longer exists; so are `start` and
    `end`. In a share group, `committed` is the start offset, and no partition has one `member`.
    """

    tp: TopicPartition
    committed: CommittedOffset | None
    start: int | None
    end: int | None
    member: GroupMember | None
    share_lag: int | None = None
    """The lag of a share group: records behind the start offset may be done, too."""
    expired: int | None = None
    """Expired records that a share group did not get, since the leader of the partition began to
    lead."""
    given_up: int | None = None
    """The same for records that were given up without a dead letter: rejected, or delivered as
    often as the group allows."""

    @property
    def lag(self) -> int | None:
        if self.share_lag is not None:
            return self.share_lag
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed.offset, 0)


class ListedTransaction(NamedTuple):
    """One line of a list of transactional ids."""

    transactional_id: str
    producer_id: int
    state: str
    node_id: int
    prepared: bool = False
    """It waits for the decision of another coordinator (KIP-939). Apache Kafka does not tell."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator sees it. `started_ms` is -1 between transactions."""

    transactional_id: str
    coordinator: str
    """host:port"""
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]
    owner: tuple[int, int] | None = None
    """The producer id and epoch that end a prepared transaction. Apache Kafka does not return them.
    """


class OpenTransaction(NamedTuple):
    """A transaction that a partition waits for.

    `transactional_id` is None if no coordinator knows the producer.
    """

    tp: TopicPartition
    producer: ActiveProducer
    transactional_id: str | None


class HangingTransactions(NamedTuple):
    """The hanging transactions that a search found, in order, and the partitions that it could not
    check, with the reason.
    """

    found: list[OpenTransaction]
    unclear: dict[TopicPartition, ClientError]
