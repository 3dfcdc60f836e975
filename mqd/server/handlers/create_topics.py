"""CreateTopics (key 19), versions 2 to 7. Runs on the controller.

v4 -1 means the defaults. v5 the response has the partitions, replicas and configs of the new topic.
v7 its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from mqd.config import TOPIC_OPTIONS, NodeConfig
from mqd.controller.configs import effective_node_config
from mqd.controller.create_topics import CreateTopics, TopicCreated
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.resource_configs import resolve_topic_option
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, is_authorized_for_cluster, permissions_of
from mqd.server.context import Context
from mqd.server.delay_access import relay_refusal
from mqd.server.handlers.admin import log_without_effect
from mqd.server.mutation_quotas import THROTTLED, at_counting_controller, without_throttled
from mqd.server.portions import with_fields
from mqd.server.slices import finished_in_slices, listed_in_slices

_STRICT_SINCE = 6
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    config = effective_node_config(node.config, node.image, node.node_id)
    request, denied = await finished_in_slices(_without_denied(context, request))
    if denied and not request.topics:
        return {"topics": denied}

    async def here() -> Mapping[str, Any]:
        node.controller.check_is_controller()
        allowed, throttled, throttle_ms = await finished_in_slices(
            _without_throttled(context, request, config)
        )
        topics: list[dict[str, Any]] = []
        if allowed.topics or not throttled:
            uuid, nodes = node.entropy.uuid, len(node.peers.nodes)
            op = CreateTopics.of_request(allowed, config, uuid, nodes)
            results = await node.controller.submit(op)
            known: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
            rows = (_row(result, config, known) for result in results)
            topics = await listed_in_slices(rows, lambda row: 1 + len(row["configs"]))
        return {"throttle_time_ms": throttle_ms, "topics": [*topics, *throttled]}

    response = await at_counting_controller(context, request, here, request.timeout_ms)
    if permissions_of(context) is None:
        return {**response, "topics": [*response["topics"], *denied]} if denied else response
    visible = await finished_in_slices(_without_hidden_configs(context, response["topics"]))
    return {**response, "topics": [*visible, *denied]}


def _without_denied(context: Context, request: Any) -> Slices[tuple[Any, list[dict[str, Any]]]]:
    """The request without topics that the client may not CREATE, and a row for each of these. A
    topic that is named twice stays: the controller refuses it.
    """
    if permissions_of(context) is None:
        return request, []
    may_create = is_authorized_for_cluster(context, Operation.CREATE, is_logged=False)
    times = Counter(topic.name for topic in request.topics)
    allowed, denied = [], []
    for topic in request.topics:
        yield 1
        error = None
        if times[topic.name] == 1:
            if may_create or is_authorized(
                context, Operation.CREATE, ResourceType.TOPIC, topic.name
            ):
                configs = {one.name: one.value for one in topic.configs}
                error = relay_refusal(context, configs)
            else:
                error = MqError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        if error is None:
            allowed.append(topic)
            continue
        denied.append(
            {
                "name": topic.name,
                "error_code": error.code,
                "error_message": error.message,
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": [],
            }
        )
    return with_fields(request, topics=allowed), denied


def _without_throttled(
    context: Context, request: Any, config: NodeConfig
) -> Slices[tuple[Any, list[dict[str, Any]], int]]:
    """The request without topics that the client's quota does not allow, a row for each of these,
    and the throttle time.
    """
    default = config.integer("num.partitions")

    def partitions_of(topic: Any) -> int:
        if request.validate_only or topic.name in context.node.image.topics:
            return 0
        if topic.assignments:
            return len(topic.assignments)
        return topic.num_partitions if topic.num_partitions > 0 else default

    allowed, refused, throttle_ms = yield from without_throttled(
        context, request, request.topics, partitions_of, _STRICT_SINCE
    )
    if not refused:
        return request, [], throttle_ms
    rows = [
        {
            "name": topic.name,
            **THROTTLED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }
        for topic in refused
    ]
    return with_fields(request, topics=allowed), rows, throttle_ms


def _without_hidden_configs(
    context: Context, topics: Iterable[Mapping[str, Any]]
) -> Slices[list[Mapping[str, Any]]]:
    """The rows of created topics, without the configs that the client may not describe."""
    rows: list[Mapping[str, Any]] = []
    for row in topics:
        if not row["error_code"] and not is_authorized(
            context,
            Operation.DESCRIBE_CONFIGS,
            ResourceType.TOPIC,
            row["name"],
            is_logged=False,
        ):
            row = {
                **row,
                "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": [],
            }
        rows.append(row)
        yield 1
    return rows


def _row(
    result: TopicCreated,
    config: NodeConfig,
    known: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]],
) -> dict[str, Any]:
    """`known`: the configs of topics with the same overrides."""
    if not result.error_code and result.error_message:
        log_without_effect("topic", result.name, result.error_message)
    if not result.error_code and result.configs not in known:
        known[result.configs] = _configs(dict(result.configs), config)
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": result.error_code,
        "error_message": result.error_message,
        "num_partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "configs": [] if result.error_code else known[result.configs],
    }


def _configs(overrides: Mapping[str, str], config: NodeConfig) -> list[dict[str, Any]]:
    rows = []
    for name in sorted(TOPIC_OPTIONS):
        option = TOPIC_OPTIONS[name]
        _, value, source = resolve_topic_option(name, config, overrides)[0]
        rows.append(
            {
                "name": name,
                "value": None if option.sensitive else option.format(value),
                "read_only": False,
                "config_source": source.config_source,
                "is_sensitive": option.sensitive,
            }
        )
    return rows


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    names: dict[str, None] = {}
    for topic in request.topics:
        names[topic.name] = None
        yield 1
    rows = []
    for name in names:
        rows.append(
            {
                "name": name,
                "error_code": error.code,
                "error_message": error.message or None,
                "configs": [],
            }
        )
        yield 1
    return {"topics": rows}
