"""Checks of arguments about the things of a cluster: partitions, offsets, topics to create and
configurations. As `arguments.py`: InvalidType or InvalidValue, before anything is sent. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mqd.client.arguments import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    as_list,
    check_mapping,
    check_member,
    check_string,
    check_text,
    check_topic,
    check_whole,
    check_wholes,
    shown,
)
from mqd.client.descriptions import (
    END_OF_LOG,
    LATEST_TIERED,
    PLACES,
    ConfigChange,
    ConfigOperation,
    NewTopic,
    Resource,
    ResourceType,
)
from mqd.client.errors import invalid_type, invalid_value
from mqd.types import TopicPartition

_PARTITION_EXAMPLE = "TopicPartition('orders', 0)"
_RESOURCE_EXAMPLE = "Resource(ResourceType.TOPIC, 'orders')"
_CONFIGS_EXAMPLE = "{'retention.ms': '86400000'}"


# -- partitions and offsets


def check_topic_partition(name: str, value: object) -> None:
    """A TopicPartition with a legal topic and a partition from 0 on."""
    if not isinstance(value, TopicPartition):
        raise invalid_type(
            f"{name} is {shown(value)}", f"give a TopicPartition, for example {_PARTITION_EXAMPLE}"
        )
    check_topic(value.topic, f"the topic of {name}")
    check_whole(f"the partition of {name}", value.partition, 0)


def check_partitions(name: str, values: object) -> list[TopicPartition]:
    """Several TopicPartitions."""
    if isinstance(values, TopicPartition):
        raise invalid_type(f"{name} is {shown(values)}", f"give a list: [{_PARTITION_EXAMPLE}]")
    partitions = as_list(name, values, f"[{_PARTITION_EXAMPLE}]")
    for each in partitions:
        check_topic_partition(f"a partition in {name}", each)
    return partitions


def check_by_partition(name: str, values: object, example: str) -> None:
    """A mapping from TopicPartitions; `example` is one of its values."""
    check_mapping(name, values, f"{{{_PARTITION_EXAMPLE}: {example}}}")
    assert isinstance(values, Mapping)
    for each in values:
        check_topic_partition(f"a key of {name}", each)


def as_timestamps(name: str, specs: object) -> dict[TopicPartition, int]:
    """Timestamps of ListOffsets by partition; words as the special timestamps that they mean."""
    check_by_partition(name, specs, "'beginning'")
    assert isinstance(specs, Mapping)
    allowed = "give milliseconds since 1970, 'beginning', 'end', EARLIEST, LATEST or MAX_TIMESTAMP"
    return {
        tp: _place(f"{name} of {tp}", spec, LATEST_TIERED, PLACES, allowed)
        for tp, spec in specs.items()
    }


def as_first_offsets(name: str, before: object) -> dict[TopicPartition, int]:
    """Offsets of DeleteRecords by partition; "end" and "latest" as END_OF_LOG."""
    check_by_partition(name, before, "'end'")
    assert isinstance(before, Mapping)
    allowed = "give the first offset to keep, from 0 on, or 'end' to delete all"
    ends = {"end": END_OF_LOG, "latest": END_OF_LOG}
    return {
        tp: _place(f"{name} of {tp}", offset, END_OF_LOG, ends, allowed)
        for tp, offset in before.items()
    }


def _place(name: str, value: object, low: int, words: Mapping[str, int], allowed: str) -> int:
    if isinstance(value, str):
        if value in words:
            return words[value]
        raise invalid_value(f"{name} is {shown(value)}", allowed)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_type(f"{name} is {shown(value)}", allowed)
    if not low <= value <= INT64_MAX:
        raise invalid_value(f"{name} is {value}", allowed)
    return value


def check_targets(name: str, targets: object) -> None:
    """Broker ids, or None, by partition."""
    check_by_partition(name, targets, "[1, 2, 3]")
    assert isinstance(targets, Mapping)
    for tp, brokers in targets.items():
        if brokers is not None:
            check_wholes(f"{name} of {tp}", brokers, 0, INT32_MAX)


def check_totals(name: str, totals: object) -> None:
    """Numbers of partitions by topic."""
    check_mapping(name, totals, "{'orders': 6}")
    assert isinstance(totals, Mapping)
    for topic, count in totals.items():
        check_topic(topic, f"a key of {name}")
        check_whole(f"the number of partitions of {topic!r}", count, 1)


def check_levels(name: str, levels: object) -> None:
    """Levels by the name of a feature."""
    check_mapping(name, levels, "{'transaction.version': 2}")
    assert isinstance(levels, Mapping)
    for feature, level in levels.items():
        check_text(f"a key of {name}", feature, "transaction.version")
        check_whole(f"the level of {feature!r}", level, 0, INT16_MAX)


# -- topics to create


def check_new_topics(name: str, topics: object) -> list[NewTopic]:
    """Several NewTopics."""
    if isinstance(topics, NewTopic):
        raise invalid_type(f"{name} is one NewTopic", "give a list: [NewTopic('orders')]")
    new = as_list(name, topics, "[NewTopic('orders', partitions=3)]")
    for each in new:
        _check_new_topic(name, each)
    return new


def _check_new_topic(name: str, topic: object) -> None:
    if not isinstance(topic, NewTopic):
        remedy = "give a NewTopic, for example NewTopic('orders', partitions=3)"
        raise invalid_type(f"one of {name} is {shown(topic)}", remedy)
    check_topic(topic.name, "the name of a NewTopic")
    check_count(f"partitions of {topic.name!r}", topic.partitions, INT32_MAX)
    check_count(f"replication_factor of {topic.name!r}", topic.replication_factor, INT16_MAX)
    as_configs(topic.configs)
    check_mapping("assignments", topic.assignments, "{0: [1, 2, 3]}")
    for index, brokers in topic.assignments.items():
        check_whole("a partition in assignments", index, 0)
        check_wholes(f"assignments of partition {index}", brokers, 0, INT32_MAX)


def check_count(name: str, value: object, high: int) -> None:
    """A number from 1 on, or -1 for the default of the cluster."""
    allowed = f"give a whole number from 1 to {high}, or leave it out for the cluster's default"
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_type(f"{name} is {shown(value)}", allowed)
    if value != -1 and not 1 <= value <= high:
        raise invalid_value(f"{name} is {value}", allowed)


# -- configurations


def as_configs(configs: object) -> dict[str, str]:
    """Keys and values of a topic to create, as Kafka's text."""
    check_mapping("configs", configs, _CONFIGS_EXAMPLE)
    assert isinstance(configs, Mapping)
    for key in configs:
        check_text("a key of configs", key, "retention.ms")
    return {key: as_config_text(key, value) for key, value in configs.items()}


def as_config_text(key: str, value: object) -> str:
    """A value as Kafka's text: True as "true", 1000 as "1000", 0.5 as "0.5"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise invalid_value(f"{key} is {value}", "give a finite number")
        return repr(float(value))
    if not isinstance(value, str):
        remedy = "give a str, an int, a float or a bool; join a list with commas"
        raise invalid_type(f"{key} is {shown(value)}", remedy)
    check_string(key, value, "1000")
    return value


def check_resource(name: str, value: object) -> None:
    """A Resource with a type and a name."""
    if not isinstance(value, Resource):
        remedy = f"give a Resource, for example {_RESOURCE_EXAMPLE}"
        raise invalid_type(f"{name} is {shown(value)}", remedy)
    check_member(f"the type of {name}", value.type, ResourceType)
    if value.type is ResourceType.TOPIC:
        check_topic(value.name, f"the name of {name}")
    else:
        check_string(f"the name of {name}", value.name, "1")


def check_resources(name: str, values: object) -> list[Resource]:
    """Several Resources."""
    if isinstance(values, Resource):
        raise invalid_type(f"{name} is one Resource", f"give a list: [{_RESOURCE_EXAMPLE}]")
    resources = as_list(name, values, f"[{_RESOURCE_EXAMPLE}]")
    for each in resources:
        check_resource(f"one of {name}", each)
    return resources


def as_changes(name: str, changes: object) -> dict[Resource, list[dict[str, Any]]]:
    """The changes of each resource as rows of IncrementalAlterConfigs."""
    example = "ConfigChange('retention.ms', ConfigOperation.SET, '86400000')"
    check_mapping(name, changes, f"{{{_RESOURCE_EXAMPLE}: [{example}]}}")
    assert isinstance(changes, Mapping)
    rows: dict[Resource, list[dict[str, Any]]] = {}
    for resource, wanted in changes.items():
        check_resource(f"a key of {name}", resource)
        if isinstance(wanted, ConfigChange | Mapping):
            raise invalid_type(
                f"{name} of {resource.name!r} is {shown(wanted)}", f"give [{example}]"
            )
        rows[resource] = [
            _change_row(each, f"a change of {resource.name!r}", example)
            for each in as_list(f"{name} of {resource.name!r}", wanted, f"[{example}]")
        ]
    return rows


def _change_row(change: object, name: str, example: str) -> dict[str, Any]:
    if not isinstance(change, ConfigChange):
        raise invalid_type(f"{name} is {shown(change)}", f"give a ConfigChange: {example}")
    check_text(f"the key of {name}", change.name, "retention.ms")
    check_member(f"the operation of {name}", change.operation, ConfigOperation)
    is_delete = change.operation is ConfigOperation.DELETE
    return {
        "name": change.name,
        "config_operation": change.operation,
        "value": None
        if is_delete and change.value is None
        else as_config_text(change.name, change.value),
    }
