"""CreateTopics, DeleteTopics, CreatePartitions: created and refused rows, and that one bad row does
not affect others.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from .batches import batch
from .wire import (
    Wire,
    create_topic,
    create_topics,
    fetch_one,
    has_leaders,
    metadata,
    new_topic,
    nodes_from_here,
    produce,
    topic_id,
    until,
)

(
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    INVALID_TOPIC,
    TOPIC_EXISTS,
    INVALID_PARTITIONS,
    INVALID_REPLICATION,
) = 0, 3, 17, 36, 37, 38
INVALID_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION, UNKNOWN_TOPIC_ID = (
    39,
    40,
    42,
    44,
    100,
)
CREATE_VERSIONS = range(2, 8)
TOPIC_CONFIG = 1


def assigned(name: str, *replicas: list[int]) -> dict[str, Any]:
    """A row of CreateTopics with a manual assignment."""
    rows = [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(replicas)]
    return new_topic(name, partitions=-1, replicas=-1, assignments=rows)


@pytest.mark.parametrize("version", CREATE_VERSIONS)
def test_create_in_every_version(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    name = new_name()
    wanted = new_topic(
        name,
        partitions=3,
        configs={"max.message.bytes": "12345", "cleanup.policy": "compact,delete"},
    )
    row = create_topics(wire, wanted, version=version)[name]
    assert row.error_code == NONE
    if version >= 5:
        assert (row.num_partitions, row.replication_factor) == (3, 1)
        configs = {config.name: (config.value, config.config_source) for config in row.configs}
        assert configs["max.message.bytes"] == ("12345", TOPIC_CONFIG)
        assert configs["cleanup.policy"] == ("compact,delete", TOPIC_CONFIG)
        assert configs["retention.ms"][1] != TOPIC_CONFIG
    until(lambda: has_leaders(wire, name, 3), "leaders")
    if version >= 7:
        assert row.topic_id == topic_id(wire, name)


@pytest.mark.parametrize("version", CREATE_VERSIONS)
def test_validate_only_changes_nothing(
    wire: Wire, new_name: Callable[[], str], version: int
) -> None:
    name = new_name()
    assert (
        create_topics(wire, new_topic(name, partitions=3), version=version, validate_only=True)[
            name
        ].error_code
        == NONE
    )
    assert metadata(wire, [name]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_defaults_of_the_broker(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    row = create_topics(wire, new_topic(name, partitions=-1, replicas=-1))[name]
    assert (row.error_code, row.num_partitions, row.replication_factor) == (
        NONE,
        1,
        len(nodes_from_here(wire)),
    )


def test_assignment_by_hand(wire: Wire, new_name: Callable[[], str]) -> None:
    node = metadata(wire, []).brokers[0].node_id
    name = new_name()
    assert create_topics(wire, assigned(name, [node], [node]))[name].error_code == NONE
    until(lambda: has_leaders(wire, name, 2), "leaders")
    invalid: list[list[list[int]]] = [[[node, node]], [[]], [[node], [node, 4711]], [[4711]]]
    for replicas in invalid:
        name = new_name()
        assert (
            create_topics(wire, assigned(name, *replicas))[name].error_code == INVALID_ASSIGNMENT
        ), replicas
    name = new_name()
    both = assigned(name, [node]) | {"num_partitions": 1}
    assert create_topics(wire, both)[name].error_code == INVALID_REQUEST
    name = new_name()
    gap = assigned(name, [node]) | {"assignments": [{"partition_index": 1, "broker_ids": [node]}]}
    assert create_topics(wire, gap)[name].error_code == INVALID_ASSIGNMENT


def test_refused_rows_do_not_affect_others(wire: Wire, new_name: Callable[[], str]) -> None:
    good, existing = new_name(), create_topic(wire, new_name())
    refused = {
        existing: (new_topic(existing), TOPIC_EXISTS),
        "": (new_topic(""), INVALID_TOPIC),
        ".": (new_topic("."), INVALID_TOPIC),
        "..": (new_topic(".."), INVALID_TOPIC),
        "a/b": (new_topic("a/b"), INVALID_TOPIC),
        "nul\0": (new_topic("nul\0"), INVALID_TOPIC),
        "x" * 250: (new_topic("x" * 250), INVALID_TOPIC),
    }
    for change, code in (
        ({"num_partitions": 0}, INVALID_PARTITIONS),
        ({"num_partitions": -5}, INVALID_PARTITIONS),
        ({"replication_factor": 0}, INVALID_REPLICATION),
        ({"replication_factor": -2}, INVALID_REPLICATION),
        ({"replication_factor": 99}, INVALID_REPLICATION),
        ({"configs": [{"name": "max.message.bytes", "value": None}]}, INVALID_CONFIG),
        ({"configs": [{"name": "max.message.bytes", "value": "many"}]}, INVALID_CONFIG),
        ({"configs": [{"name": "max.message.bytes", "value": "-1"}]}, INVALID_CONFIG),
        ({"configs": [{"name": "no.such.key", "value": "1"}]}, INVALID_CONFIG),
        ({"configs": [{"name": "cleanup.policy", "value": "burn"}]}, INVALID_CONFIG),
    ):
        name = new_name()
        refused[name] = (new_topic(name) | change, code)
    rows = create_topics(wire, *(row for row, _ in refused.values()), new_topic(good))
    assert {name: row.error_code for name, row in rows.items()} == {good: NONE} | {
        name: code for name, (_, code) in refused.items()
    }
    assert all(row.error_message for name, row in rows.items() if name != good)
    until(lambda: has_leaders(wire, good, 1), "leaders")


def test_the_same_name_twice(wire: Wire, new_name: Callable[[], str]) -> None:
    twice, once = new_name(), new_name()
    answer = wire.ask(
        "CreateTopics",
        7,
        topics=[new_topic(twice), new_topic(once), new_topic(twice)],
        timeout_ms=10_000,
    )
    assert sorted((row.name, row.error_code) for row in answer.topics) == sorted(
        [(twice, INVALID_REQUEST), (once, NONE)]
    )
    assert metadata(wire, [twice]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_names_that_differ_in_dot_and_underscore_only(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    stem = new_name()
    create_topic(wire, f"{stem}.a_b")
    clash = f"{stem}_a.b"
    assert create_topics(wire, new_topic(clash))[clash].error_code == INVALID_TOPIC


def test_too_many_partitions_in_one_request(wire: Wire, new_name: Callable[[], str]) -> None:
    for count in (10_001, 1_000_000, 2**31 - 1):
        name = new_name()
        assert (
            create_topics(wire, new_topic(name, partitions=count))[name].error_code
            == POLICY_VIOLATION
        )
        assert metadata(wire, [name]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION


# -- deletion


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_in_every_version(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    name, missing = create_topic(wire, new_name()), new_name()
    produce(wire, name, batch(b"a"))
    fields = (
        {"topics": [{"name": n} for n in (name, missing)]}
        if version >= 6
        else {"topic_names": [name, missing]}
    )
    answer = wire.ask("DeleteTopics", version, timeout_ms=10_000, **fields)
    assert {row.name: row.error_code for row in answer.responses} == {
        name: NONE,
        missing: UNKNOWN_TOPIC_OR_PARTITION,
    }
    until(
        lambda: metadata(wire, [name]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION,
        "the topic to go",
    )
    until(
        lambda: produce(wire, name, batch(b"a")).error_code == UNKNOWN_TOPIC_OR_PARTITION,
        "its leader to know",
    )


def test_delete_by_id(wire: Wire, topic: str) -> None:
    identity, unknown = topic_id(wire, topic), uuid.uuid4()
    rows = [{"name": None, "topic_id": identity}, {"name": None, "topic_id": unknown}]
    answer = wire.ask("DeleteTopics", 6, timeout_ms=10_000, topics=rows)
    assert {(row.topic_id, row.error_code) for row in answer.responses} == {
        (identity, NONE),
        (unknown, UNKNOWN_TOPIC_ID),
    }
    until(
        lambda: metadata(wire, [topic]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION,
        "the topic to go",
    )


def test_delete_edge_cases(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    twice = create_topic(wire, new_name())
    rows = [
        {"name": twice},
        {"name": twice},
        {"name": topic, "topic_id": topic_id(wire, topic)},
        {"name": None},
    ]
    answer = wire.ask("DeleteTopics", 6, timeout_ms=10_000, topics=rows)
    assert {row.error_code for row in answer.responses} == {INVALID_REQUEST}
    assert {row.error_code for row in metadata(wire, [twice, topic]).topics} == {NONE}, (
        "nothing was deleted"
    )


def test_a_recreated_name_is_another_topic(wire: Wire, topic: str) -> None:
    before = topic_id(wire, topic)
    produce(wire, topic, batch(b"old"))
    wire.ask("DeleteTopics", 6, timeout_ms=10_000, topics=[{"name": topic}])
    until(
        lambda: metadata(wire, [topic]).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION,
        "the topic to go",
    )
    create_topic(wire, topic)
    assert topic_id(wire, topic) != before
    assert fetch_one(wire, topic, 0, max_wait_ms=0).high_watermark == 0
    assert produce(wire, before, batch(b"late"), version=13).error_code == UNKNOWN_TOPIC_ID
    assert produce(wire, topic, batch(b"new")).base_offset == 0


# -- more partitions


def create_partitions(
    wire: Wire, *rows: dict[str, Any], version: int = 3, validate_only: bool = False
) -> list[tuple[str, int]]:
    """(topic, error code) of each row of the response."""
    fields = [{"assignments": None} | row for row in rows]
    answer = wire.ask(
        "CreatePartitions", version, topics=fields, timeout_ms=10_000, validate_only=validate_only
    )
    return [(row.name, row.error_code) for row in answer.results]


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_in_every_version(wire: Wire, topic: str, version: int) -> None:
    produce(wire, topic, batch(b"a"))
    assert create_partitions(
        wire, {"name": topic, "count": 3}, version=version, validate_only=True
    ) == [(topic, NONE)]
    assert len(metadata(wire, [topic]).topics[0].partitions) == 1
    assert create_partitions(wire, {"name": topic, "count": 3}, version=version) == [(topic, NONE)]
    until(lambda: has_leaders(wire, topic, 3), "three partitions")
    leader = next(
        row.leader_id
        for row in metadata(wire, [topic]).topics[0].partitions
        if row.partition_index == 2
    )
    (port,) = (row.port for row in metadata(wire, []).brokers if row.node_id == leader)
    with Wire("127.0.0.1", port) as other:
        until(
            lambda: produce(other, topic, batch(b"b"), partition=2).error_code == NONE,
            "the new leader",
        )
    assert fetch_one(wire, topic, 0).high_watermark == 1


def test_create_partitions_refusals(wire: Wire, new_name: Callable[[], str]) -> None:
    replicas = nodes_from_here(wire)
    names = [create_topic(wire, new_name(), partitions=2) for _ in range(5)]
    missing = new_name()
    rows = [
        {"name": names[0], "count": 1},
        {"name": names[1], "count": 2},
        {"name": names[2], "count": 3, "assignments": [{"broker_ids": [4711]}]},
        {"name": names[3], "count": 4, "assignments": [{"broker_ids": replicas}]},
        {"name": names[4], "count": 3, "assignments": [{"broker_ids": replicas}]},
        {"name": missing, "count": 2},
    ]
    assert dict(create_partitions(wire, *rows)) == {
        names[0]: INVALID_PARTITIONS,
        names[1]: INVALID_PARTITIONS,
        names[2]: INVALID_ASSIGNMENT,
        names[3]: INVALID_ASSIGNMENT,
        names[4]: NONE,
        missing: UNKNOWN_TOPIC_OR_PARTITION,
    }
    twice = {"name": names[0], "count": 4}
    assert create_partitions(wire, twice, twice) == [(names[0], INVALID_REQUEST)]
