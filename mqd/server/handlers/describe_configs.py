"""DescribeConfigs (key 32), versions 1 to 4: every key of a topic, of a group, of this node, of all nodes, of this node's loggers.

v1 sources and synonyms. v3 types and documentation. v4 flexible. An empty list of keys asks for all, as null does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping
from typing import Any

from mqd.config import GROUP_OPTIONS, NODE_OPTIONS, TOPIC_OPTIONS, Option, Source, Value, resolve_group_option, resolve_topic_option
from mqd.controller.configs import ResourceType, effective_node_config, node_id_of
from mqd.controller.topics import validate_topic_name
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_RESOURCES_MAX
from mqd.server.context import Context, Node
from mqd.server.loggers import logger_levels
from mqd.server.slices import listed_in_slices

_LOGGER_SOURCE = 6
_RESOURCES_AT_ONCE = 3

Candidates = list[tuple[str, Value, Source]]
"""Name, value and source of each place that has a value for a key, the one in force first."""


def handle(context: Context, request: Any) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    """The same question twice in a request is answered once."""
    if len(request.resources) > CONFIG_RESOURCES_MAX:
        raise MqError(ErrorCode.INVALID_REQUEST, f"A request asks for at most {CONFIG_RESOURCES_MAX} resources: send several.")
    asked = {(row.resource_type, row.resource_name, tuple(row.configuration_keys or ())): row for row in request.resources}
    rows = (_resource(context.node, request, row) for row in asked.values())
    if len(asked) > _RESOURCES_AT_ONCE:
        return _answer_in_slices(rows)
    return {"results": list(rows)}


async def _answer_in_slices(rows: Iterable[dict[str, Any]]) -> Mapping[str, Any]:
    return {"results": await listed_in_slices(rows, lambda row: 1 + len(row["configs"]))}


def _resource(node: Node, request: Any, resource: Any) -> dict[str, Any]:
    row = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "error_message": ""}
    keys = resource.configuration_keys
    try:
        configs = [config for config in _configs(node, request, resource) if not keys or config["name"] in keys]
    except MqError as error:
        return {**row, "error_code": error.code, "error_message": error.message, "configs": []}
    return {**row, "error_code": ErrorCode.NONE, "configs": configs}


def _configs(node: Node, request: Any, resource: Any) -> Iterator[dict[str, Any]]:
    """The rows of a resource that exists, every key. Refusals are raised here, before the first row."""
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        validate_topic_name(name)
        if name not in node.image.topics:
            raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _topic(node, name, request)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return _all_nodes(node, request)
        _require_self(node, name)
        return _node(node, request)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        _require_self(node, name)
        return _loggers()
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise MqError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return _group(node, name, request)
    raise MqError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource.resource_type} have no configuration here.")


def _require_self(node: Node, name: str) -> None:
    if node_id_of(name) != node.node_id:
        raise MqError(ErrorCode.INVALID_REQUEST, f"This is node {node.node_id}; ask node {name} for its own configuration.")


def _topic(node: Node, name: str, request: Any) -> Iterator[dict[str, Any]]:
    config = effective_node_config(node.config, node.image, node.node_id)
    overrides = node.image.topic_configs(name)
    for key in sorted(TOPIC_OPTIONS):
        candidates: Candidates = [(at, value, source) for at, value, source in resolve_topic_option(key, config, overrides)]
        yield _row(key, TOPIC_OPTIONS[key], candidates, request, read_only=False)


def _group(node: Node, group_id: str, request: Any) -> Iterator[dict[str, Any]]:
    """Of any group: one that does not exist has the values that it would have."""
    config = effective_node_config(node.config, node.image, node.node_id)
    overrides = node.image.group_configs(group_id)
    for key in sorted(GROUP_OPTIONS):
        candidates: Candidates = [(at, value, source) for at, value, source in resolve_group_option(key, config, overrides)]
        yield _row(key, GROUP_OPTIONS[key], candidates, request, read_only=False)


def _node(node: Node, request: Any) -> Iterator[dict[str, Any]]:
    dynamic = ((node.image.node_configs(node.node_id), Source.DYNAMIC), (node.image.node_configs(None), Source.DYNAMIC_DEFAULT))
    for key in sorted(NODE_OPTIONS):
        option = NODE_OPTIONS[key]
        candidates: Candidates = [(key, option.parse(texts[key]), source) for texts, source in dynamic if key in texts]
        if node.config.source(key) is not Source.DEFAULT:
            candidates.append((key, node.config[key], node.config.source(key)))
        if option.default is not None or not candidates:
            candidates.append((key, option.default, Source.DEFAULT))
        yield _row(key, option, candidates, request, read_only=not option.dynamic)


def _all_nodes(node: Node, request: Any) -> Iterator[dict[str, Any]]:
    """What was set for every node, and nothing else: there is no node whose other values these could be."""
    for key, text in sorted(node.image.node_configs(None).items()):
        option = NODE_OPTIONS[key]
        yield _row(key, option, [(key, option.parse(text), Source.DYNAMIC_DEFAULT)], request, read_only=False)


def _row(key: str, option: Option, candidates: Candidates, request: Any, *, read_only: bool) -> dict[str, Any]:
    def shown(value: Value) -> str | None:
        return None if option.sensitive else option.format(value)

    _, value, source = candidates[0]
    synonyms = [
        {"name": name, "value": shown(value), "source": source.config_source}
        for name, value, source in candidates
        if value is not None and (source is not Source.DEFAULT or name in NODE_OPTIONS)
    ]
    return {
        "name": key,
        "value": shown(value),
        "read_only": read_only,
        "config_source": source.config_source,
        "is_sensitive": option.sensitive,
        "synonyms": synonyms if request.include_synonyms else [],
        "config_type": option.type,
        "documentation": option.meaning if request.include_documentation else None,
    }


def _loggers() -> Iterator[dict[str, Any]]:
    for name, level in logger_levels().items():
        yield {
            "name": name,
            "value": level,
            "read_only": False,
            "config_source": _LOGGER_SOURCE,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": 0,
            "documentation": None,
        }


def failed(request: Any, error: MqError) -> Generator[int, None, Mapping[str, Any]]:
    rows = []
    for resource in request.resources:
        rows.append(
            {
                "error_code": error.code,
                "error_message": error.message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [],
            }
        )
        yield 1
    return {"results": rows}
