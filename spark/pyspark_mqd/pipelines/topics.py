"""What pipelines ask of a cluster before they write: partitions, emptiness, missing topics.

Shells over the blocking client, with sentences for what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mqd.client import sync
from mqd.client.descriptions import EARLIEST, LATEST
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from pyspark_mqd.pipelines.cli import Failure


@contextmanager
def connected(bootstrap: str) -> Iterator[sync.BlockingClient]:
    """A client for the length of a block."""
    with sync.connect(bootstrap, client_id="mqd-spark") as client:
        yield client


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


def ends_of(
    client: sync.BlockingClient, topics: Mapping[str, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end offset of each partition."""
    partitions = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    places = []
    for which in (EARLIEST, LATEST):
        found = client.admin.list_offsets(dict.fromkeys(partitions, which))
        offsets = {}
        for tp, listed in found.items():
            if isinstance(listed, ClientError):
                raise listed
            offsets[tp] = listed.offset
        places.append(offsets)
    return {tp: (places[0][tp], places[1][tp]) for tp in partitions}


def records_in(client: sync.BlockingClient, topic: str, partitions: int) -> int:
    """Offsets between the first and the end of a topic; 0 for an empty topic."""
    return sum(end - start for start, end in ends_of(client, {topic: partitions}).values())


def create_missing(client: sync.BlockingClient, wanted: Mapping[str, int]) -> list[str]:
    """Create the topics that do not exist with these numbers of partitions; returns their names."""
    missing = [name for name, count in partition_counts(client, wanted).items() if count is None]
    results = client.admin.create_topics([sync.NewTopic(name, wanted[name]) for name in missing])
    for result in results.values():
        if isinstance(result, ClientError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise result
    return missing
