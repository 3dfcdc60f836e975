"""Reads the committed records of a topic, for `mqctl delay` and `mqctl dlq`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.metadata import TopicInfo
    from mqd.protocol.record_reader import Record
    from mqd.types import TopicPartition

_GAP_MAX: Final = 1000
"""To skip fewer offsets than this is not worth another consumer."""


async def described(client: ClusterClient, topic: str, timeout_s: float) -> TopicInfo:
    """Raises ClientError."""
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError

    found = (await Admin(client, timeout_s=timeout_s).describe_topics([topic]))[topic]
    if isinstance(found, ClientError):
        raise found
    return found


async def configs_of(client: ClusterClient, topic: str, timeout_s: float) -> dict[str, str]:
    """The configs of a topic, without those that have no value. Raises ClientError."""
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    resource = Resource(ResourceType.TOPIC, topic)
    found = (await Admin(client, timeout_s=timeout_s).describe_configs([resource]))[resource]
    if isinstance(found, ClientError):
        raise found
    return {entry.name: entry.value for entry in found if entry.value is not None}


async def log_ranges(
    client: ClusterClient, topic: str, timeout_s: float, *, read_committed: bool = True
) -> dict[TopicPartition, tuple[int, int]]:
    """Log start and end of each partition: with `read_committed`, the last stable offset.

    Raises ClientError.
    """
    from mqd.client.offset_specs import resolve_offsets
    from mqd.types import TopicPartition

    partitions = (await described(client, topic, timeout_s)).partitions
    places = [TopicPartition(topic, one.partition) for one in partitions]
    first = await resolve_offsets(client, dict.fromkeys(places, "beginning"), timeout_s=timeout_s)
    last = await resolve_offsets(
        client, dict.fromkeys(places, "end"), timeout_s=timeout_s, read_committed=read_committed
    )
    return {place: (first[place], last[place]) for place in places}


async def committed_records(
    client: ClusterClient,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    timeout_s: float,
) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """The committed records of these ranges of offsets, which are within the logs."""
    from mqd.client.consumer import open_consumer
    from mqd.types import TopicPartition

    wanted = {place: first for place, (first, last) in ranges.items() if first < last}
    if not wanted:
        return
    end: dict[TopicPartition, Any] = {place: ranges[place][1] for place in wanted}
    async with open_consumer(
        client, wanted, end=end, read_committed=True, timeout_s=timeout_s
    ) as consumer:
        async for batch in consumer:
            for record in batch.records:
                yield TopicPartition(batch.topic, batch.partition), record


async def records_at(
    client: ClusterClient, wanted: Iterable[tuple[TopicPartition, int]], timeout_s: float
) -> dict[tuple[TopicPartition, int], Record]:
    """The records at these offsets, as far as they exist, committed or not. Raises ClientError."""
    from mqd.client.consumer import open_consumer
    from mqd.types import TopicPartition

    left = set(wanted)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for topic in {place.topic for place, _ in left}:
        if await exists(client, topic, timeout_s):
            ranges |= await log_ranges(client, topic, timeout_s, read_committed=False)
    left = {
        (place, offset)
        for place, offset in left
        if place in ranges and ranges[place][0] <= offset < ranges[place][1]
    }
    found: dict[tuple[TopicPartition, int], Record] = {}
    while left:
        runs = first_runs(left)
        start: dict[TopicPartition, Any] = {place: first for place, (first, _) in runs.items()}
        end: dict[TopicPartition, Any] = {place: last + 1 for place, (_, last) in runs.items()}
        async with open_consumer(
            client, start, end=end, reset="end", timeout_s=timeout_s
        ) as consumer:
            async for batch in consumer:
                place = TopicPartition(batch.topic, batch.partition)
                for record in batch.records:
                    if (place, record.offset) in left:
                        found[place, record.offset] = record
        left -= {(place, offset) for place, offset in left if offset <= runs[place][1]}
    return found


def first_runs(
    offsets: Iterable[tuple[TopicPartition, int]],
) -> dict[TopicPartition, tuple[int, int]]:
    """The first and last offset to read of each partition: without long gaps between them."""
    runs: dict[TopicPartition, tuple[int, int]] = {}
    for place, offset in sorted(offsets):
        first, last = runs.get(place, (offset, offset))
        if offset - last <= _GAP_MAX:
            runs[place] = (first, offset)
    return runs


async def exists(client: ClusterClient, topic: str, timeout_s: float) -> bool:
    """Whether a topic exists. Raises ClientError, for example if the client may not describe it."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    try:
        await described(client, topic, timeout_s)
    except ClientError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        raise
    return True


def text_of(data: bytes | None) -> str | None:
    """Bytes as text, for a table."""
    return None if data is None else data.decode(errors="backslashreplace")


def headers_of(record: Record) -> dict[str, str]:
    """The last value of each header."""
    return {name: text_of(value) or "" for name, value in record.headers}
