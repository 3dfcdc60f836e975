"""Dynamic configuration: overrides of topics, of nodes (one, or all of them), and of consumer
groups, which need not exist; subscriptions of client metrics (KIP-714).

Incremental changes (KIP-339) set, delete, append to or subtract from single keys; a legacy change
replaces all overrides of a resource. Each resource of a request stands alone: one bad key refuses
its resource, not its neighbours. Configs that name other topics are checked as if each resource had
a request of its own (delay_topics.py). Codes are Apache Kafka 4.3's: a bad value is INVALID_CONFIG
for a topic or a group and INVALID_REQUEST for a node.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mqd.client_metrics import (
    CLIENT_METRICS_OPTIONS,
    MATCH,
    check_subscription_name,
    validate_client_metrics_configs,
)
from mqd.config import GROUP_OPTIONS, NODE_OPTIONS, TOPIC_OPTIONS, NodeConfig, Value
from mqd.config_sources import Source
from mqd.controller.commands import check_fits
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delay_topics import (
    Relays,
    check_dead_letter_access,
    check_delay_configs,
)
from mqd.controller.image import CLIENT_METRICS, GROUP, NODE, TOPIC, MetadataImage
from mqd.controller.metadata_version import check_client_metrics_allowed
from mqd.controller.records import MetadataRecord, SetConfigs
from mqd.controller.request_limits import check_config_bytes
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    CLIENT_METRICS_MATCH_BYTES_MAX,
    CLIENT_METRICS_SUBSCRIPTIONS_MAX,
    CONFIG_RESOURCE_BYTES_MAX,
    CONFIG_RESOURCES_MAX,
    CONFIG_VALUE_BYTES_MAX,
    CONFIGURED_GROUPS_MAX,
    COORDINATOR_KEY_BYTES_MAX,
)
from mqd.options import OptionType, Status, nearest
from mqd.resource_configs import (
    FIXED_CONFIGS,
    GROUP_DEAD_LETTERS,
    check_fixed_configs,
    resolve_topic_option,
    validate_group_configs,
    validate_topic_configs,
    without_effect,
)
from mqd.topic_names import validate_topic_name
from mqd.types import NodeId

logger = logging.getLogger(__name__)

_OPTIONS = {
    TOPIC: TOPIC_OPTIONS,
    NODE: NODE_OPTIONS,
    GROUP: GROUP_OPTIONS,
    CLIENT_METRICS: CLIENT_METRICS_OPTIONS,
}
NAMED_MAX = {GROUP: CONFIGURED_GROUPS_MAX, CLIENT_METRICS: CLIENT_METRICS_SUBSCRIPTIONS_MAX}
"""The most resources of a type with configs, where clients choose the names."""
_NAMED_WHAT = {
    GROUP: "groups have config overrides",
    CLIENT_METRICS: "subscriptions of client metrics exist",
}
_NODE_NAME = re.compile(r"0|[1-9][0-9]{0,9}")
_NODE_ID_MAX = 2**31 - 1
_NAME_SHOWN = 64


class ResourceType(IntEnum):
    """Kafka's numbers for what can be configured."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_KINDS: dict[int, str] = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.BROKER: NODE,
    ResourceType.GROUP: GROUP,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS,
}


class Operation(IntEnum):
    """The effect of an incremental change on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """The change of one key. `operation` is not yet validated: it may be no `Operation`."""

    name: str
    operation: int
    value: str | None


class ResourceChanges(NamedTuple):
    """The changes of one resource. `resource_type` is not yet validated."""

    resource_type: int
    resource_name: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """`incremental` False: the changes, all of them SET, replace all overrides of the resource.

    `config` has the defaults.
    """

    resources: tuple[ResourceChanges, ...]
    config: NodeConfig
    incremental: bool = True
    validate_only: bool = False


class ResourceAltered(NamedTuple):
    """The result for one resource.

    A message without an error names keys that were accepted and have no effect.
    """

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_alter_configs(
    image: MetadataImage, op: AlterConfigs, options: DecisionOptions
) -> ControllerResult:
    """Reply: one ResourceAltered for each resource of the request, in its order."""
    if len(op.resources) > CONFIG_RESOURCES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request alters at most {CONFIG_RESOURCES_MAX} resources: split the request.",
        )
    check_config_bytes(_looked_at(image, op))
    _check_match_bytes(op)
    counts = Counter((resource.resource_type, resource.resource_name) for resource in op.resources)
    room = Room(image, options.image_bytes_max)
    named = _Named(image)
    relays = Relays(image)
    records: list[MetadataRecord] = []
    results: list[ResourceAltered] = []
    for resource in op.resources:
        number, name, _ = resource
        try:
            if counts[number, name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "The request names a resource more than once."
                )
            record = _alter(image, relays, op, resource)
            changed = {name: value for name, value in record.changes if value is not None}
            note = without_effect(_OPTIONS[record.resource_type], changed)
            check_fits(record)
            named.take(record)
            room.take(record)
        except MqError as error:
            results.append(ResourceAltered(number, name, error.code, error.message or None))
            continue
        if record.changes:
            records.append(record)
            relays.take(record)
        results.append(ResourceAltered(number, name, ErrorCode.NONE, note))
    return ControllerResult(() if op.validate_only else tuple(records), tuple(results))


def _check_match_bytes(op: AlterConfigs) -> None:
    """Raise POLICY_VIOLATION if the expressions of a request take too long to validate."""
    total = sum(
        len(change.value or "")
        for resource in op.resources
        if resource.resource_type == ResourceType.CLIENT_METRICS
        for change in resource.changes
        if change.name == MATCH
    )
    if total > CLIENT_METRICS_MATCH_BYTES_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"The values of '{MATCH}' in the request have {total} characters; at most "
            f"{CLIENT_METRICS_MATCH_BYTES_MAX} are allowed. Split the request.",
        )


def _looked_at(image: MetadataImage, op: AlterConfigs) -> Iterator[tuple[str, str | None]]:
    """The configs of the request, and the present ones of its resources."""
    for resource in op.resources:
        yield from ((change.name, change.value) for change in resource.changes)
        kind = _KINDS.get(resource.resource_type)
        if kind is not None:
            yield from image.configs.get((kind, resource.resource_name), {}).items()


def check_overrides_fit(overrides: Mapping[str, str | None]) -> None:
    """Raise INVALID_CONFIG if the overrides of a resource would not fit into a response."""
    total = 0
    for name, value in overrides.items():
        if value is None:
            continue
        size = len(value.encode())
        if size > CONFIG_VALUE_BYTES_MAX:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"The value of {name} has {size} bytes; at most {CONFIG_VALUE_BYTES_MAX} are "
                "allowed.",
            )
        total += len(name.encode()) + size
    if total > CONFIG_RESOURCE_BYTES_MAX:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Names and values have {total} bytes; a resource may have at most "
            f"{CONFIG_RESOURCE_BYTES_MAX}.",
        )


class _Named:
    """Bounds the number of groups with overrides, and of subscriptions of client metrics. Clients
    choose their names, so no other bound applies.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._present: dict[str, int] = {}

    def take(self, record: SetConfigs) -> None:
        """Count a record. Raises POLICY_VIOLATION if it is the first of one name too many."""
        kind = record.resource_type
        key = (kind, record.resource_name)
        if kind not in NAMED_MAX or key in self._image.configs or not record.changes:
            return
        if kind not in self._present:
            self._present[kind] = sum(present == kind for present, _ in self._image.configs)
        if self._present[kind] >= NAMED_MAX[kind]:
            raise MqError(
                ErrorCode.POLICY_VIOLATION,
                f"{NAMED_MAX[kind]} {_NAMED_WHAT[kind]}, which is the maximum: delete the unused "
                "ones.",
            )
        self._present[kind] += 1


def _alter(
    image: MetadataImage, relays: Relays, op: AlterConfigs, resource: ResourceChanges
) -> SetConfigs:
    kind = _kind(image, resource)
    key = (kind, resource.resource_name)
    present = image.configs.get(key, {})
    _check_changes(resource.changes)
    wanted: dict[str, str | None] = (
        {} if op.incremental else dict.fromkeys(set(present) - FIXED_CONFIGS)
    )
    for change in resource.changes:
        wanted[change.name] = _wanted(image, op, key, change)
    check_overrides_fit({**present, **wanted})
    _validate(image, relays, op.config, key, present, wanted)
    changes = tuple(
        (name, value) for name, value in sorted(wanted.items()) if present.get(name) != value
    )
    return SetConfigs(kind, resource.resource_name, changes)


def _kind(image: MetadataImage, resource: ResourceChanges) -> str:
    """The type of the resource. Raises MqError if it does not exist."""
    number, name, _ = resource
    if number == ResourceType.TOPIC:
        if not name:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                "Default topic resources are not allowed: name a topic, or alter the defaults of "
                "brokers.",
            )
        validate_topic_name(name)
        if name not in image.topics:
            raise MqError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )
        return TOPIC
    if number == ResourceType.BROKER:
        if name and node_id_of(name) not in image.brokers:
            raise MqError(ErrorCode.INVALID_REQUEST, f"Broker {name} is not registered.")
        return NODE
    if number == ResourceType.GROUP:
        if not name:
            raise MqError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        if len(name.encode()) > COORDINATOR_KEY_BYTES_MAX:
            size = len(name.encode())
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"The group id has {size} bytes; at most {COORDINATOR_KEY_BYTES_MAX} are allowed.",
            )
        return GROUP
    if number == ResourceType.CLIENT_METRICS:
        check_client_metrics_allowed(image)
        check_subscription_name(name)
        return CLIENT_METRICS
    raise MqError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {number} cannot be altered with this request.",
    )


def node_id_of(name: str) -> NodeId:
    """The node that a BROKER or BROKER_LOGGER resource names, or INVALID_REQUEST.

    One spelling a node: "1", never "01".
    """
    if not _NODE_NAME.fullmatch(name) or int(name) > _NODE_ID_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"Node id must be an integer, but it is: {name[:_NAME_SHOWN]}",
        )
    return NodeId(int(name))


def _check_changes(changes: Iterable[Change]) -> None:
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys: the request names a key more than once for a "
            "resource.",
        )
    nulls = [
        change.name
        for change in changes
        if change.value is None and change.operation != Operation.DELETE
    ]
    if nulls:
        raise MqError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )


def _wanted(
    image: MetadataImage, op: AlterConfigs, key: tuple[str, str], change: Change
) -> str | None:
    """The value of a key after the change; None = no override."""
    name, operation, value = change
    if operation == Operation.DELETE:
        return None
    assert value is not None
    if operation == Operation.SET:
        return value
    if operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise MqError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}.")
    option = _OPTIONS[key[0]].get(name)
    is_list = option is not None and option.type is OptionType.LIST
    if key[0] == CLIENT_METRICS or not is_list:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {Operation(operation).name} to key {name} because its type is not LIST.",
        )
    elements = dict.fromkeys(_current_list(image, op.config, key, name))
    given = dict.fromkeys(element.strip() for element in value.split(",") if element.strip())
    if operation == Operation.APPEND:
        return ",".join({**elements, **given})
    return ",".join(element for element in elements if element not in given)


def _current_list(
    image: MetadataImage, config: NodeConfig, key: tuple[str, str], name: str
) -> tuple[str, ...]:
    """The present value of a list option: its override or its default."""
    overrides = image.configs.get(key, {})
    value: Value
    if key[0] == TOPIC:
        value = resolve_topic_option(name, config, overrides)[0].value
    else:
        value = NODE_OPTIONS[name].parse(overrides[name]) if name in overrides else config[name]
    return value if isinstance(value, tuple) else ()


def _validate(
    image: MetadataImage,
    relays: Relays,
    config: NodeConfig,
    key: tuple[str, str],
    present: Mapping[str, str],
    wanted: Mapping[str, str | None],
) -> None:
    """Validate each value; for a topic or a group, also the relation between all its values."""
    kind, name = key
    after = {name: value for name, value in {**present, **wanted}.items() if value is not None}
    if kind == TOPIC:
        validate_topic_configs(after)
        check_delay_configs(relays, name, present, after)
        check_fixed_configs(present, after)
        return
    if kind == GROUP:
        validate_group_configs(after, effective_node_config(config, image, None))
        dead_letters = after.get(GROUP_DEAD_LETTERS, "").strip()
        if dead_letters != present.get(GROUP_DEAD_LETTERS):
            check_dead_letter_access(relays, dead_letters)
        return
    if kind == CLIENT_METRICS:
        validate_client_metrics_configs(after)
        return
    _validate_node_configs({name: value for name, value in wanted.items() if value is not None})


def _validate_node_configs(values: Mapping[str, str]) -> None:
    unknown = [name for name in values if name not in NODE_OPTIONS]
    if unknown:
        close = nearest(unknown[0], NODE_OPTIONS)
        remedy = f"did you mean '{close}'?" if close else "list all keys with `mqd config list`"
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {unknown[0]}; {remedy}"
        )
    static = [name for name in values if not NODE_OPTIONS[name].dynamic]
    if static:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{', '.join(static)}]; change them in the "
            "configuration file, and restart the broker",
        )
    for name, value in values.items():
        option = NODE_OPTIONS[name]
        try:
            parsed = option.parse(value)
        except ValueError as error:
            raise MqError(ErrorCode.INVALID_REQUEST, option.problem(error)) from error
        if option.status is Status.REFUSED and parsed != option.default:
            raise MqError(ErrorCode.INVALID_CONFIG, f"'{name}' is not supported: {option.note}")


def effective_node_config(
    config: NodeConfig, image: MetadataImage, node_id: NodeId | None
) -> NodeConfig:
    """The effective options of a node: its own dynamic options, those of every node, those of its
    start, in this order.

    `node_id` None: any node. Options that are not dynamic keep the value of the start, although an
    earlier version may have written others into the metadata.
    """
    for texts, source in (
        (image.node_configs(None), Source.DYNAMIC_DEFAULT),
        (image.node_configs(node_id), Source.DYNAMIC),
    ):
        options = ((NODE_OPTIONS[name], text) for name, text in texts.items())
        dynamic = {option.name: option.parse(text) for option, text in options if option.dynamic}
        if dynamic:
            config = config.replaced(dynamic, source)
    return config


def warn_of_static_overrides(image: MetadataImage, node_id: NodeId) -> None:
    """Log the values in the metadata, from an earlier version, that only a start can set."""
    for resource in (None, node_id):
        texts = image.node_configs(resource).items()
        static = sorted(
            f"{name}={text[:_NAME_SHOWN]}" for name, text in texts if not NODE_OPTIONS[name].dynamic
        )
        if static:
            logger.warning(
                "ignoring configs in the metadata that only the file, the environment or -o "
                "can set:"
                " delete them resource=broker:%s configs=%s",
                "<default>" if resource is None else resource,
                ",".join(static),
            )


class CurrentConfig:
    """A callable that returns the effective options of a node. It recalculates them only after the
    metadata changed.
    """

    def __init__(
        self, started_with: NodeConfig, image: Callable[[], MetadataImage], node_id: NodeId
    ) -> None:
        self._started_with = started_with
        self._image = image
        self._node_id = node_id
        self._config = started_with
        self._index = -1

    def __call__(self) -> NodeConfig:
        image = self._image()
        if image.index != self._index:
            self._index = image.index
            self._config = effective_node_config(self._started_with, image, self._node_id)
        return self._config
