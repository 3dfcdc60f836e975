"""DescribeConfigs (key 32), versions 1 to 4. Every key of a topic, a group, this node, all nodes,
this node's loggers, or a subscription of client metrics.

v1 sources and synonyms. v3 types and documentation. v4 flexible. An empty list of keys means all,
like null. A resource that a request names twice has two rows; a request that repeats one more than
ten times is refused.

The synonyms of a key are Apache Kafka's: first the value of the topic or group, then the
corresponding broker key. The latter is listed as set for this node, for all nodes, at the start,
and by default. If that key has synonyms of its own (log.retention.ms: .minutes, .hours), they
follow within each of these four. The list begins with the first entry of the key's own name. Values
are in the unit of the named key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Generator, Iterable, Iterator, Mapping
from itertools import dropwhile
from typing import Any, Final

from mqd.client_metrics import CLIENT_METRICS_OPTIONS, parse_client_metrics_option
from mqd.config import GROUP_OPTIONS, NODE_OPTIONS, TOPIC_OPTIONS, Option, Value
from mqd.config_sources import Source
from mqd.controller.configs import ResourceType, effective_node_config, node_id_of
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_KEY_CHARS_MAX, CONFIG_RESOURCE_REPEATS_MAX, CONFIG_RESOURCES_MAX
from mqd.resource_configs import resolve_group_option, resolve_topic_option
from mqd.security.acls import Operation
from mqd.server.authorization import is_authorized, refusal
from mqd.server.context import Context, Node
from mqd.server.handlers.alter_configs import acl_resource
from mqd.server.loggers import logger_levels
from mqd.server.slices import listed_in_slices
from mqd.topic_names import validate_topic_name

_LOGGER_SOURCE = 6
_RESOURCES_AT_ONCE = 1
"""The description of a node with all keys takes 4 ms."""

Wanted = frozenset[str] | None
"""The keys to describe; None for all."""

Candidates = list[tuple[str, Value, Source]]
"""Name, value and source of each place that has a value for a key."""

_NODE_SYNONYMS: Final = {
    name: tuple(synonym for synonym, _ in option.synonyms)
    for option in TOPIC_OPTIONS.values()
    for name, _ in option.synonyms
}
"""Node key -> the node keys that are its synonyms, the strongest first."""


def handle(context: Context, request: Any) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    if len(request.resources) > CONFIG_RESOURCES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request may have at most {CONFIG_RESOURCES_MAX} resources. Send several requests.",
        )
    rows = _rows(context, request)
    if len(request.resources) > _RESOURCES_AT_ONCE:
        return _respond_in_slices(rows)
    return {"results": list(rows)}


async def _respond_in_slices(rows: Iterable[dict[str, Any]]) -> Mapping[str, Any]:
    return {"results": await listed_in_slices(rows, lambda row: 1 + len(row["configs"]))}


def _rows(context: Context, request: Any) -> Iterator[dict[str, Any]]:
    denied: list[dict[str, Any]] = []
    seen: Counter[tuple[int, str, Wanted]] = Counter()
    for resource in request.resources:
        wanted = _wanted(resource.configuration_keys)
        resource_key = (resource.resource_type, resource.resource_name, wanted)
        seen[resource_key] += 1
        protected = acl_resource(resource)
        if protected is not None and not is_authorized(
            context, Operation.DESCRIBE_CONFIGS, *protected
        ):
            denied.append(_refused(resource, refusal(protected[0])))
        elif seen[resource_key] > CONFIG_RESOURCE_REPEATS_MAX:
            yield _refused(
                resource,
                MqError(
                    ErrorCode.INVALID_REQUEST,
                    "The request repeats this resource too often. Name it once.",
                ),
            )
        else:
            yield _resource(context.node, request, resource, wanted)
    yield from denied


def _wanted(keys: Collection[str] | None) -> Wanted:
    """The requested keys, None for all keys. Those that are longer than every key are left out:
    their hashes could take long.
    """
    return frozenset(key for key in keys if len(key) <= CONFIG_KEY_CHARS_MAX) if keys else None


def _those(keys: Iterable[str], wanted: Wanted) -> Iterator[str]:
    """The wanted keys, before their rows are built."""
    return (key for key in keys if wanted is None or key in wanted)


def _resource(node: Node, request: Any, resource: Any, wanted: Wanted) -> dict[str, Any]:
    try:
        configs = list(_configs(node, request, resource, wanted))
    except MqError as error:
        return _refused(resource, error)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }


def _refused(resource: Any, error: MqError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }


def _configs(node: Node, request: Any, resource: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """A row for each wanted key of a resource. Errors are raised before the first row."""
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        validate_topic_name(name)
        if name not in node.image.topics:
            raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _topic(node, name, request, wanted)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return _all_nodes(node, request, wanted)
        _require_self(node, name)
        return _node(node, request, wanted)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        _require_self(node, name)
        return _loggers(wanted)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise MqError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return _group(node, name, request, wanted)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            raise MqError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        return _client_metrics(node, name, request, wanted)
    raise MqError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource.resource_type} have no configuration here.",
    )


def _require_self(node: Node, name: str) -> None:
    if node_id_of(name) != node.node_id:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"This is node {node.node_id}. Send the request for node '{name}' to that node.",
        )


def _topic(node: Node, name: str, request: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    config = effective_node_config(node.config, node.image, node.node_id)
    overrides = node.image.topic_configs(name)
    for key in _those(sorted(TOPIC_OPTIONS), wanted):
        option = TOPIC_OPTIONS[key]
        _, value, source = resolve_topic_option(key, config, overrides)[0]
        synonyms: Candidates = [(key, value, source)] if key in overrides else []
        if option.synonyms:
            synonyms += _node_candidates(node, option.synonyms[0][0])
        yield _row(key, option, value, source, synonyms, request, read_only=False)


def _group(node: Node, group_id: str, request: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The configs of any group: one that does not exist has the values that it would have."""
    config = effective_node_config(node.config, node.image, node.node_id)
    overrides = node.image.group_configs(group_id)
    for key in _those(sorted(GROUP_OPTIONS), wanted):
        candidates: Candidates = [
            (at, value, source)
            for at, value, source in resolve_group_option(key, config, overrides)
        ]
        _, value, source = candidates[0]
        yield _row(key, GROUP_OPTIONS[key], value, source, candidates, request, read_only=False)


def _client_metrics(
    node: Node, name: str, request: Any, wanted: Wanted
) -> Iterator[dict[str, Any]]:
    """The configs of any subscription: one that does not exist has the defaults."""
    texts = node.image.client_metrics_configs(name)
    for key in _those(CLIENT_METRICS_OPTIONS, wanted):
        option = CLIENT_METRICS_OPTIONS[key]
        value, source, candidates = option.default, Source.DEFAULT, Candidates()
        if key in texts:
            value = parse_client_metrics_option(key, texts[key])
            source = Source.CLIENT_METRICS
            candidates = [(key, value, source)]
        yield _row(key, option, value, source, candidates, request, read_only=False)


def _node(node: Node, request: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    config = effective_node_config(node.config, node.image, node.node_id)
    for key in _those(sorted(NODE_OPTIONS), wanted):
        option = NODE_OPTIONS[key]
        synonyms = _node_candidates(node, key)
        yield _row(
            key,
            option,
            config[key],
            config.source(key),
            synonyms,
            request,
            read_only=not option.dynamic,
        )


def _node_candidates(node: Node, key: str) -> Candidates:
    """Every value that a node key and its synonyms have on this node, the strongest place first."""
    names = _NODE_SYNONYMS.get(key, (key,))
    found: Candidates = []
    for texts, source in (
        (node.image.node_configs(node.node_id), Source.DYNAMIC),
        (node.image.node_configs(None), Source.DYNAMIC_DEFAULT),
    ):
        dynamic = [
            NODE_OPTIONS[name] for name in names if name in texts and NODE_OPTIONS[name].dynamic
        ]
        found += [(option.name, option.parse(texts[option.name]), source) for option in dynamic]
    for name in names:
        if (source := node.config.source(name)) is not Source.DEFAULT:
            found.append((name, node.config[name], source))
    found += [(name, NODE_OPTIONS[name].default, Source.DEFAULT) for name in names]
    return list(
        dropwhile(
            lambda candidate: candidate[0] != key, [one for one in found if one[1] is not None]
        )
    )


def _all_nodes(node: Node, request: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Only values that are set for all nodes: no single node has these.

    A static option that an earlier version stored has no effect; it is shown with its value, so
    that it can be deleted.
    """
    texts = node.image.node_configs(None)
    for key in _those(sorted(texts), wanted):
        option, text = NODE_OPTIONS[key], texts[key]
        value, source = option.parse(text) if option.dynamic else text, Source.DYNAMIC_DEFAULT
        yield _row(
            key,
            option,
            value,
            source,
            [(key, value, source)],
            request,
            read_only=not option.dynamic,
        )


def _row(
    key: str,
    option: Option,
    value: Value,
    source: Source,
    synonyms: Candidates,
    request: Any,
    *,
    read_only: bool,
) -> dict[str, Any]:
    def shown(value: Value) -> str | None:
        return None if option.sensitive else option.format(value)

    return {
        "name": key,
        "value": shown(value),
        "read_only": read_only,
        "config_source": source.config_source,
        "is_sensitive": option.sensitive,
        "synonyms": [
            {"name": name, "value": shown(value), "source": source.config_source}
            for name, value, source in synonyms
        ]
        if request.include_synonyms
        else [],
        "config_type": option.type,
        "documentation": option.documentation if request.include_documentation else None,
    }


def _loggers(wanted: Wanted) -> Iterator[dict[str, Any]]:
    levels = logger_levels()
    for name in _those(levels, wanted):
        yield {
            "name": name,
            "value": levels[name],
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
        rows.append(_refused(resource, error))
        yield 1
    return {"results": rows}
