"""ListConfigResources (key 74), versions 0 to 1: names of resources that have, or may have, a
configuration (KIP-1142).

v0 only client metrics subscriptions. v1 every type. Groups with an override are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mqd.controller.configs import ResourceType
from mqd.controller.image import CLIENT_METRICS, GROUP, MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.slices import finished_soon

_TYPES = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)
"""In the order in which Apache Kafka responses."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE_CONFIGS)
    wanted = (
        (ResourceType.CLIENT_METRICS,)
        if context.header.api_version == 0
        else request.resource_types or _TYPES
    )
    if not set(wanted) <= set(_TYPES):
        raise MqError(ErrorCode.UNSUPPORTED_VERSION)
    resources = await finished_soon(_resources(context.node.image, wanted))
    return {"error_code": ErrorCode.NONE, "config_resources": resources}


def _resources(image: MetadataImage, wanted: Collection[int]) -> Slices[list[dict[str, Any]]]:
    """The names of one type at a time: those of the next may change between two slices."""
    found: list[dict[str, Any]] = []
    for number in _TYPES:
        if number in wanted:
            for name in _names(image, number):
                found.append({"resource_name": name, "resource_type": number})
                yield 1
    return found


def _names(image: MetadataImage, number: ResourceType) -> Iterable[str]:
    if number in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        wanted = GROUP if number == ResourceType.GROUP else CLIENT_METRICS
        return sorted(name for kind, name in image.configs if kind == wanted)
    if number in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in sorted(image.brokers)]
    return sorted(image.topics)


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code}
