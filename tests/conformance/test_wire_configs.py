"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs; DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .batches import batch
from .wire import Wire, create_topic, metadata, new_topic, nodes_from_here, produce, until

NONE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, INVALID_CONFIG, INVALID_REQUEST = (
    0,
    3,
    10,
    40,
    42,
)
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC_SOURCE, DEFAULT_SOURCE = 1, 5
KEYS = {
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}


def describe(
    wire: Wire,
    name: str,
    keys: list[str] | None = None,
    *,
    kind: int = TOPIC,
    version: int = 4,
    **options: bool,
) -> tuple[int, dict[str, Any]]:
    """(error code, rows by key)."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = wire.ask("DescribeConfigs", version, resources=[resource], **options)
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, {row.name: row for row in result.configs}


def value(wire: Wire, topic: str, key: str) -> str | None:
    """A topic's value now."""
    code, rows = describe(wire, topic, [key])
    assert code == NONE
    found: str | None = rows[key].value
    return found


def alter(
    wire: Wire,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> int:
    """IncrementalAlterConfigs of one resource; the error code."""
    rows = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    answer = wire.ask(
        "IncrementalAlterConfigs", version, resources=[resource], validate_only=validate_only
    )
    (result,) = answer.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return int(result.error_code)


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_in_every_version(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    topic = create_topic(wire, new_name(), configs={"max.message.bytes": "4567"})
    code, rows = describe(
        wire, topic, version=version, include_synonyms=True, include_documentation=True
    )
    assert code == NONE
    assert set(rows) >= KEYS, "null requests every key"
    assert (rows["max.message.bytes"].value, rows["max.message.bytes"].config_source) == (
        "4567",
        TOPIC_SOURCE,
    )
    assert (rows["segment.bytes"].value, rows["segment.bytes"].config_source) == (
        "1073741824",
        DEFAULT_SOURCE,
    )
    assert not any(row.is_sensitive or row.read_only for row in rows.values())
    synonyms = [(row.name, row.value, row.source) for row in rows["max.message.bytes"].synonyms]
    assert synonyms[0] == ("max.message.bytes", "4567", TOPIC_SOURCE)
    assert synonyms[-1] == ("message.max.bytes", "1048588", DEFAULT_SOURCE)
    if version >= 3:
        assert rows["max.message.bytes"].config_type == 3, "INT"
        assert rows["cleanup.policy"].config_type == 7, "LIST"
        assert rows["max.message.bytes"].documentation


def test_describe_some_keys(wire: Wire, topic: str) -> None:
    assert set(describe(wire, topic, ["retention.ms", "no.such.key"])[1]) == {"retention.ms"}
    assert set(describe(wire, topic, [])[1]) >= KEYS, "and so does an empty list"
    assert not describe(wire, topic, ["retention.ms"])[1]["retention.ms"].synonyms, "not requested"


def test_a_resource_named_twice_has_two_rows(wire: Wire, topic: str) -> None:
    node = str(nodes_from_here(wire)[0])
    named = [
        (TOPIC, topic, "retention.ms"),
        (BROKER, node, "node.id"),
        (TOPIC, topic, "segment.ms"),
        (TOPIC, topic, "retention.ms"),
    ]
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
        for kind, name, key in named
    ]
    for version in range(1, 5):
        results = wire.ask("DescribeConfigs", version, resources=resources).results
        assert [
            (row.resource_type, row.resource_name, *(config.name for config in row.configs))
            for row in results
        ] == named


OTHER_CHARACTERS = (
    "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
)


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "sentence"),
    [
        (TOPIC, None, "foo", "1", "Unknown topic config name: foo"),
        (TOPIC, None, "num.partitions", "1", "Unknown topic config name: num.partitions"),
        (
            TOPIC,
            None,
            "retention.ms",
            "abc",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            TOPIC,
            None,
            "retention.ms",
            "-5",
            "Invalid value -5 for configuration retention.ms: Value must be at least -1",
        ),
        (
            TOPIC,
            None,
            "cleanup.policy",
            "x",
            "Invalid value x for configuration cleanup.policy: String must be one of: compact, "
            "delete",
        ),
        (
            TOPIC,
            None,
            "preallocate",
            "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either true "
            "or false",
        ),
        (
            TOPIC,
            None,
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more "
            "than 1",
        ),
        (TOPIC, None, "retention.ms", None, "Null value not supported for : retention.ms"),
        (TOPIC, "a b", "retention.ms", "1", f"Topic name is invalid: 'a b' {OTHER_CHARACTERS}"),
        (TOPIC, "..", "retention.ms", "1", "Topic name is invalid: '..' is not allowed"),
        (TOPIC, "no-such", "retention.ms", "1", "The topic 'no-such' does not exist."),
        (TOPIC, "", "retention.ms", "1", "Default topic resources are not allowed"),
        (
            BROKER,
            "",
            "num.partitions",
            "3",
            "Cannot update these configs dynamically: [num.partitions]",
        ),
        (
            BROKER,
            "",
            "log.retention.ms",
            "abc",
            "Invalid value abc for configuration log.retention.ms: Not a number of type LONG",
        ),
        (BROKER, "x", "log.retention.ms", "1", "Node id must be an integer, but it is: x"),
    ],
)
def test_an_error_begins_with_the_same_sentence(
    wire: Wire, topic: str, kind: int, name: str | None, key: str, value: str | None, sentence: str
) -> None:
    """mqd appends a remedy."""
    configs = [{"name": key, "config_operation": SET, "value": value}]
    resource = {
        "resource_type": kind,
        "resource_name": topic if name is None else name,
        "configs": configs,
    }
    (result,) = wire.ask(
        "IncrementalAlterConfigs", 1, resources=[resource], validate_only=True
    ).responses
    assert result.error_code and result.error_message.startswith(sentence)


@pytest.mark.parametrize("name", ["a b", "", ".", "bä"])
def test_an_invalid_topic_name_has_the_same_sentence(wire: Wire, name: str) -> None:
    (row,) = wire.ask("CreateTopics", 7, topics=[new_topic(name)], timeout_ms=9000).topics
    reason = {"": "the empty string is not allowed", ".": "'.' is not allowed"}
    expected = reason.get(name, f"'{name}' {OTHER_CHARACTERS}")
    assert row.error_message == f"Topic name is invalid: {expected}"


def test_synonyms_are_in_order_of_precedence(wire: Wire, new_name: Callable[[], str]) -> None:
    """Values of the topic, of this node, of all nodes, by default; from the first entry of the
    node's first key on.
    """
    node = str(nodes_from_here(wire)[0])
    plain, own = (
        create_topic(wire, new_name()),
        create_topic(wire, new_name(), configs={"segment.bytes": "2000000", "segment.ms": "7"}),
    )
    assert alter(wire, plain, ("retention.ms", DELETE, None)) == NONE

    def synonyms(name: str, key: str, kind: int = TOPIC) -> list[tuple[str, str, int]]:
        row = describe(wire, name, [key], kind=kind, include_synonyms=True)[1][key]
        return [(one.name, one.value, one.source) for one in row.synonyms]

    until(lambda: synonyms(plain, "retention.ms") == [], "no value of log.retention.ms")
    assert synonyms(own, "segment.ms") == [("segment.ms", "7", TOPIC_SOURCE)]
    default = ("log.segment.bytes", "1073741824", DEFAULT_SOURCE)
    assert synonyms(own, "segment.bytes") == [("segment.bytes", "2000000", TOPIC_SOURCE), default]
    changes = [
        ("", "log.segment.bytes", "4000000"),
        (node, "log.segment.bytes", "5000000"),
        ("", "log.retention.ms", "6000000000"),
    ]
    try:
        for name, key, new in changes:
            assert alter(wire, name, (key, SET, new), kind=BROKER) == NONE
        nodes = [("log.segment.bytes", "5000000", 2), ("log.segment.bytes", "4000000", 3), default]
        until(lambda: synonyms(plain, "segment.bytes") == nodes, "the values of the node")
        assert synonyms(own, "segment.bytes") == [
            ("segment.bytes", "2000000", TOPIC_SOURCE),
            *nodes,
        ]
        assert synonyms(node, "log.segment.bytes", BROKER) == nodes
        retention = [
            ("log.retention.ms", "6000000000", 3),
            ("log.retention.hours", "168", DEFAULT_SOURCE),
        ]
        until(lambda: synonyms(plain, "retention.ms") == retention, "the value of all nodes")
        assert synonyms(node, "log.retention.ms", BROKER) == retention
    finally:
        for name, key, _ in changes:
            assert alter(wire, name, (key, DELETE, None), kind=BROKER) == NONE


def test_describe_missing_resources(wire: Wire, new_name: Callable[[], str]) -> None:
    assert describe(wire, new_name())[0] == UNKNOWN_TOPIC_OR_PARTITION
    assert describe(wire, "x", kind=99)[0] == INVALID_REQUEST
    assert describe(wire, "4711", kind=BROKER)[0] == INVALID_REQUEST


def test_describe_broker(wire: Wire) -> None:
    node = str(metadata(wire, []).brokers[0].node_id)
    code, rows = describe(wire, node, kind=BROKER)
    assert code == NONE
    assert rows["message.max.bytes"].value == "1048588"
    assert rows["node.id"].value == node
    assert {"log.retention.ms", "num.partitions", "auto.create.topics.enable", "log.dirs"} <= set(
        rows
    )
    assert rows["node.id"].read_only


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_in_every_version(wire: Wire, topic: str, version: int) -> None:
    change = ("max.message.bytes", SET, "500")
    assert alter(wire, topic, change, version=version, validate_only=True) == NONE
    assert value(wire, topic, "max.message.bytes") == "1048588"
    assert alter(wire, topic, change, ("segment.bytes", SET, "2000000"), version=version) == NONE
    until(lambda: value(wire, topic, "max.message.bytes") == "500", "the change")
    assert (value(wire, topic, "segment.bytes"), value(wire, topic, "retention.ms")) == (
        "2000000",
        "-1",
    ), "others stay"
    until(
        lambda: produce(wire, topic, batch(b"x" * 600)).error_code == MESSAGE_TOO_LARGE,
        "the partition to know",
    )
    assert alter(wire, topic, ("max.message.bytes", DELETE, None), version=version) == NONE
    until(lambda: value(wire, topic, "max.message.bytes") == "1048588", "the change")
    until(
        lambda: produce(wire, topic, batch(b"x" * 600)).error_code == NONE, "the partition to know"
    )


def test_append_and_subtract(wire: Wire, topic: str) -> None:
    assert alter(wire, topic, ("cleanup.policy", APPEND, "compact")) == NONE
    until(
        lambda: (
            set((value(wire, topic, "cleanup.policy") or "").split(",")) == {"delete", "compact"}
        ),
        "both",
    )
    assert alter(wire, topic, ("cleanup.policy", APPEND, "compact")) == NONE, "twice is once"
    assert alter(wire, topic, ("cleanup.policy", SUBTRACT, "delete")) == NONE
    until(lambda: value(wire, topic, "cleanup.policy") == "compact", "one")
    assert alter(wire, topic, ("max.message.bytes", APPEND, "1")) == INVALID_CONFIG, "not a list"


def test_alter_refusals(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert alter(wire, topic, ("max.message.bytes", SET, "many")) == INVALID_CONFIG
    assert alter(wire, topic, ("max.message.bytes", SET, "-5")) == INVALID_CONFIG
    assert alter(wire, topic, ("no.such.key", SET, "1")) == INVALID_CONFIG
    assert alter(wire, topic, ("max.message.bytes", SET, None)) == INVALID_REQUEST
    assert alter(wire, topic, ("max.message.bytes", 9, "1")) != NONE, "no such operation"
    assert (
        alter(wire, topic, ("retention.ms", SET, "5"), ("max.message.bytes", SET, "many"))
        == INVALID_CONFIG
    )
    assert value(wire, topic, "retention.ms") == "-1", "all or nothing"
    assert alter(wire, new_name(), ("max.message.bytes", SET, "1")) == UNKNOWN_TOPIC_OR_PARTITION
    assert (
        alter(wire, topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        == INVALID_REQUEST
    )


def test_the_same_resource_twice(wire: Wire, topic: str) -> None:
    rows = [{"name": "max.message.bytes", "config_operation": SET, "value": "77"}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": rows}
    answer = wire.ask("IncrementalAlterConfigs", 1, resources=[resource, resource])
    assert {row.error_code for row in answer.responses} == {INVALID_REQUEST}
    assert value(wire, topic, "max.message.bytes") == "1048588"


@pytest.mark.parametrize("version", range(3))
def test_legacy_alter_replaces_everything(wire: Wire, topic: str, version: int) -> None:
    def replace(configs: dict[str, str], validate_only: bool = False) -> int:
        rows = [{"name": key, "value": new} for key, new in configs.items()]
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": rows}
        (result,) = wire.ask(
            "AlterConfigs", version, resources=[resource], validate_only=validate_only
        ).responses
        return int(result.error_code)

    assert replace({"max.message.bytes": "900"}, validate_only=True) == NONE
    assert value(wire, topic, "retention.ms") == "-1"
    assert replace({"max.message.bytes": "900"}) == NONE
    until(lambda: value(wire, topic, "max.message.bytes") == "900", "the change")
    assert value(wire, topic, "retention.ms") == "604800000", (
        "a missing key returned to its default"
    )
    assert replace({"max.message.bytes": "many"}) == INVALID_CONFIG


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    topic = create_topic(wire, new_name(), partitions=2)
    sent = batch(b"x" * 1000)
    produce(wire, topic, sent)
    for wanted in (None, [{"topic": topic, "partitions": [0, 1]}]):
        answer = wire.ask("DescribeLogDirs", version, topics=wanted)
        sizes: dict[tuple[str, int], tuple[int, int, bool]] = {}
        for directory in answer.results:
            assert (directory.error_code, directory.log_dir[:1]) == (NONE, "/")
            for row in directory.topics:
                sizes |= {
                    (row.name, p.partition_index): (p.partition_size, p.offset_lag, p.is_future_key)
                    for p in row.partitions
                }
            if version >= 4:
                assert 0 < directory.usable_bytes <= directory.total_bytes
        assert sizes[topic, 0] == (len(sent), 0, False)
        assert sizes[topic, 1] == (0, 0, False)
