"""Questions of the operator's commands to the brokers: connect, and where logs begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from mqd.client.descriptions import EARLIEST, LATEST
from mqd.client.errors import ClientError
from mqd.client.sync import BlockingClient, connect
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from pyspark_mqd.connection import connection_of
from pyspark_mqd.pipelines.cli import Failure, Settings

TIMEOUTS = {
    "default.api.timeout.ms": "15000",
    "request.timeout.ms": "15000",
    "socket.connection.setup.timeout.ms": "5000",
}
"""Shorter than those of queries: a user waits for the result. --client overrides them."""
PLACES = {"earliest": EARLIEST, "latest": LATEST}


@contextmanager
def connected(settings: Settings) -> Iterator[BlockingClient]:
    """A client of the cluster for the length of a block. Raises ClientError."""
    wanted = connection_of({**TIMEOUTS, **settings.source_options()})
    with connect(
        wanted.bootstrap,
        timeout_s=wanted.api_timeout_ms / 1000,
        **wanted.client_options(),
    ) as client:
        yield client


def require_brokers(settings: Settings) -> None:
    """Raises Failure unless the brokers respond: pipelines check this before Spark starts."""
    try:
        with connected(settings):
            pass
    except ClientError as error:
        if error.code is not ErrorCode.INVALID_REQUEST:
            raise Failure(error.message, remedy=error.remedy) from error
        raise Failure(
            f"--bootstrap is '{settings.bootstrap}', but {error.message}.",
            remedy=f"Correct it: {error.remedy}.",
        ) from error


def log_starts(
    client: BlockingClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The first offset of each partition's log. Raises the first ClientError."""
    return offsets_at(client, dict.fromkeys(partitions, EARLIEST))


def log_ends(
    client: BlockingClient, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """Where each partition's readable log ends: the high watermark, or the last stable offset."""
    return offsets_at(client, dict.fromkeys(partitions, LATEST), read_committed=read_committed)


def offsets_at(
    client: BlockingClient, specs: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The first offset at or after each timestamp in ms, or EARLIEST or LATEST.

    A timestamp after the last record gives the end. Raises the first ClientError.
    """
    found = _listed(client, specs, read_committed)
    late = {tp: LATEST for tp, offset in found.items() if offset < 0}
    return {**found, **_listed(client, late, read_committed)}


def _listed(
    client: BlockingClient, specs: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    if specs:
        answers = client.admin.list_offsets(specs, read_committed=read_committed)
        for tp, outcome in answers.items():
            if isinstance(outcome, ClientError):
                raise outcome
            offsets[tp] = outcome.offset
    return offsets


def partitions_of(client: BlockingClient, topics: Iterable[str]) -> list[TopicPartition]:
    """Every partition of these topics, sorted. Raises the first ClientError."""
    found = []
    for outcome in client.admin.describe_topics(topics).values():
        if isinstance(outcome, ClientError):
            raise outcome
        found += [TopicPartition(outcome.name, each.partition) for each in outcome.partitions]
    return sorted(found)


def parse_partition(text: str) -> TopicPartition:
    """`topic:3` as a partition. Raises Failure."""
    topic, separator, index = text.rpartition(":")
    if not separator or not topic or not index.isdigit():
        raise Failure(f"'{text}' is not a partition.", remedy="Write topic:partition, as orders:0.")
    return TopicPartition(topic, int(index))
