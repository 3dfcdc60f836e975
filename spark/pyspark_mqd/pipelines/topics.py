"""What pipelines look up in a cluster before they write: partitions, emptiness, missing topics.

Shells over the blocking client, with a sentence for each refusal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from mqd.client import sync
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from pyspark_mqd.pipelines.brokers import log_ends, log_starts
from pyspark_mqd.pipelines.cli import Failure

SHOWN_SECONDS = 30.0
"""The time for which new partitions may be missing in the metadata of a broker."""
POLL_S = 0.1


def partition_counts(client: sync.BlockingClient, topics: Iterable[str]) -> dict[str, int | None]:
    """How many partitions each topic has; None where it does not exist."""
    counts: dict[str, int | None] = {}
    for topic, found in client.admin.describe_topics(list(topics)).items():
        if isinstance(found, ClientError):
            if found.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise found
            counts[topic] = None
        else:
            counts[topic] = len(found.partitions)
    return counts


def require_partitions(client: sync.BlockingClient, topics: Sequence[str]) -> dict[str, int]:
    """How many partitions each topic has. Raises Failure where one does not exist."""
    counts = {}
    for topic, count in partition_counts(client, topics).items():
        if count is None:
            raise Failure(
                f"Topic '{topic}' does not exist.",
                remedy="See which topics exist with `mqctl topic list`.",
            )
        counts[topic] = count
    return counts


def records_in(client: sync.BlockingClient, topic: str, partitions: int) -> int:
    """Offsets between the start and the end of a topic; 0 for an empty topic."""
    every = [TopicPartition(topic, partition) for partition in range(partitions)]
    return sum(log_ends(client, every).values()) - sum(log_starts(client, every).values())


def create_missing(client: sync.BlockingClient, wanted: Mapping[str, int]) -> list[str]:
    """Create the topics that do not exist with these numbers of partitions; returns their names."""
    missing = [name for name, count in partition_counts(client, wanted).items() if count is None]
    results = client.admin.create_topics([sync.NewTopic(name, wanted[name]) for name in missing])
    for result in results.values():
        if isinstance(result, ClientError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise result
    return missing


def add_missing_partitions(client: sync.BlockingClient, wanted: Mapping[str, int]) -> list[str]:
    """Add partitions to topics that have fewer than wanted; returns the names of these topics.

    Waits until the brokers show the new partitions. Raises ClientError, Failure.
    """
    short = {name: wanted[name] for name in _short(client, wanted)}
    for result in client.admin.add_partitions(short).values() if short else ():
        # INVALID_PARTITIONS: another client added them meanwhile.
        if result is not None and result.code is not ErrorCode.INVALID_PARTITIONS:
            raise result
    deadline = time.monotonic() + SHOWN_SECONDS
    while left := _short(client, short):
        if time.monotonic() > deadline:
            raise Failure(
                f"Topic '{left[0]}' does not show its {short[left[0]]} partitions yet.",
                remedy="See `mqctl cluster health`, then start the command again.",
            )
        time.sleep(POLL_S)
    return list(short)


def _short(client: sync.BlockingClient, wanted: Mapping[str, int]) -> list[str]:
    """Topics with fewer partitions than wanted."""
    counts = partition_counts(client, wanted) if wanted else {}
    return [name for name, found in counts.items() if (found or 0) < wanted[name]]
