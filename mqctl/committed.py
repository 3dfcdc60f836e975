"""Reads the committed records of a topic, for `mqctl delay` and `mqctl dlq`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.metadata import TopicInfo
    from mqd.protocol.record_reader import Record
    from mqd.types import TopicPartition


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


async def committed_records(
    client: ClusterClient, topic: str, starts: Mapping[TopicPartition, int], timeout_s: float
) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """All records up to the present end, from `starts` or the beginning of each partition on."""
    from mqd.client.consumer import open_consumer
    from mqd.client.offset_specs import resolve_offsets
    from mqd.types import TopicPartition

    partitions = (await described(client, topic, timeout_s)).partitions
    places = [TopicPartition(topic, one.partition) for one in partitions]
    first = await resolve_offsets(client, dict.fromkeys(places, "beginning"))
    last = await resolve_offsets(client, dict.fromkeys(places, "end"))
    start: dict[TopicPartition, Any] = {
        place: max(first[place], starts.get(place, 0)) for place in places
    }
    wanted = {place: offset for place, offset in start.items() if offset < last[place]}
    if not wanted:
        return
    end: dict[TopicPartition, Any] = {place: last[place] for place in wanted}
    async with open_consumer(
        client, wanted, end=end, read_committed=True, timeout_s=timeout_s
    ) as consumer:
        async for batch in consumer:
            for record in batch.records:
                yield TopicPartition(batch.topic, batch.partition), record


def text_of(data: bytes | None) -> str | None:
    """Bytes as text, for a table."""
    return None if data is None else data.decode(errors="backslashreplace")


def headers_of(record: Record) -> dict[str, str]:
    """The last value of each header."""
    return {name: text_of(value) or "" for name, value in record.headers}
