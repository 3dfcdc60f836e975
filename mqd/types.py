"""The types of all layers: ids, offsets, epochs, and changes of the ISR.

It depends only on the standard library and the error codes. Nothing here awaits, allocates buffers
or knows a wire format.
"""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

from mqd.errors import ErrorCode

NodeId = NewType("NodeId", int)
"""`id` of a `[[node]]` in the peers file: Kafka's broker id. Non-negative."""

Offset = int
"""Position of a record in its partition, from 0.

An `Offset` is never an index, a count or a size.
"""

GROUPS_TOPIC = "__consumer_offsets"
"""Groups and their committed offsets. The leader of a partition coordinates the groups in it."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""Transactional ids. The leader of a partition coordinates them."""
SHARE_STATE_TOPIC = "__share_group_state"
"""The state of share partitions. The leader of a partition coordinates those in it."""
INTERNAL_TOPICS = frozenset({GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
"""Kafka's internal topics: the cluster writes them, clients do not."""

STORAGE = "mqd.storage"
IN_MEMORY = "memory"
"""The value of the topic config `mqd.storage` for records that no node writes to its disk."""

PRODUCER_ACCESS = "mqd.producer.access"
SHARED, EXCLUSIVE, WAIT = "shared", "exclusive", "wait"
"""The values of the topic config `mqd.producer.access`."""
PRODUCER_LEASE = "mqd.producer.lease.ms"
PRODUCER_OWNER, PRODUCERS_FENCED = "mqd.producer.owner", "mqd.producer.fencing"
"""Topic configs that only the cluster sets: the transactional id that owns the topic, and former
owners that are not fenced yet, one a line."""

NO_NODE = NodeId(-1)
NO_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1

ZERO_UUID = UUID(int=0)
"""Kafka's "no topic id" on the wire."""


class TopicPartition(NamedTuple):
    """One partition of one topic. A tuple, so that it hashes and compares in C."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class IsrChange(NamedTuple):
    """A leader's proposal to change the ISR of one partition (AlterPartition, KIP-497)."""

    topic_partition: TopicPartition
    topic_id: UUID
    leader_epoch: int
    partition_epoch: int
    """The partition epoch that the change replaces (compare-and-set)."""
    isr: tuple[tuple[NodeId, int], ...]
    """Node id and broker epoch of each member. An epoch of -1 is not checked (KIP-903)."""


class IsrOutcome(NamedTuple):
    """The controller's response to an IsrChange.

    After success: the current state of the partition. After an error: the known part of that state.
    """

    topic_partition: TopicPartition
    error: ErrorCode
    leader: NodeId = NO_NODE
    leader_epoch: int = NO_EPOCH
    isr: tuple[NodeId, ...] = ()
    partition_epoch: int = NO_EPOCH
