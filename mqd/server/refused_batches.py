"""Batches that a connection sends after one that was refused. A core.

An idempotent producer has up to five batches of a partition in flight. The first one may get an
error that the client retries, for example because this node has not applied its leadership yet. The
next ones may arrive before the client has that response, and when this node can append. Apache
Kafka then returns OUT_OF_ORDER_SEQUENCE_NUMBER for them, or appends them before the first one if
the producer is new. librdkafka continues after OUT_OF_ORDER_SEQUENCE_NUMBER with a new producer
epoch, and repeats all batches without a response in it. Batches that are in a log already are
appended twice (https://github.com/confluentinc/librdkafka/issues/4953).

So these batches get the error of the first one here, and the client repeats all of them, in order
and in the same epoch.
"""

from __future__ import annotations

from mqd.errors import ErrorCode
from mqd.limits import PRODUCER_BATCHES_CACHED, REFUSED_PARTITIONS_MAX
from mqd.types import TopicPartition

_RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""The batch is not in the log of the next leader, or may not be, and each client sends it again."""


class RefusedBatches:
    """The partitions of one connection whose last batch was refused with a retriable error.
    Bounded.
    """

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[TopicPartition, tuple[ErrorCode, int]] = {}
        """The error, and how many later batches may still get it. A client that does not send the
        first batch again must get the real error in the end."""

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._refusals

    def note(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        """A batch was refused with `code`."""
        if code not in _RETRIED:
            return
        refusals = self._refusals
        refusals.pop(topic_partition, None)
        if len(refusals) >= REFUSED_PARTITIONS_MAX:
            del refusals[next(iter(refusals))]
        refusals[topic_partition] = code, PRODUCER_BATCHES_CACHED - 1

    def error_of_next(self, topic_partition: TopicPartition) -> ErrorCode | None:
        """The error for a batch that cannot follow the log. None: its own error."""
        refusal = self._refusals.pop(topic_partition, None)
        if refusal is None:
            return None
        code, left = refusal
        if left > 1:
            self._refusals[topic_partition] = code, left - 1
        return code

    def forget(self, topic_partition: TopicPartition) -> None:
        """A batch was appended, or was in the log already."""
        self._refusals.pop(topic_partition, None)
