"""The configs of a topic that a producer checks before it relies on them."""

from __future__ import annotations

from collections.abc import Collection

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import Resource, ResourceType
from mqd.client.errors import ClientError


async def topic_configs(
    client: ClusterClient, topic: str, keys: Collection[str], *, timeout_s: float
) -> dict[str, str]:
    """The values of these configs; "" for those without a value, and for those that the broker does
    not know.

    Raises ClientError: UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED without permission to
    DescribeConfigs, DeadlineExceeded.
    """
    resource = Resource(ResourceType.TOPIC, topic)
    described = await Admin(client, timeout_s=timeout_s).describe_configs([resource], keys)
    entries = described[resource]
    if isinstance(entries, ClientError):
        raise entries
    return dict.fromkeys(keys, "") | {entry.name: entry.value or "" for entry in entries}
