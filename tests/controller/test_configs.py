"""Incremental and legacy changes: the error codes that Apache Kafka 4.3.1 returned for the same
requests.
"""

from __future__ import annotations

import pytest

from mqd.config import NodeConfig
from mqd.config_sources import Source
from mqd.controller.configs import (
    AlterConfigs,
    Change,
    Operation,
    ResourceChanges,
    check_overrides_fit,
    decide_alter_configs,
    effective_node_config,
    node_id_of,
)
from mqd.errors import MqError
from mqd.limits import CONFIG_RESOURCE_BYTES_MAX, CONFIG_RESOURCES_MAX, CONFIG_VALUE_BYTES_MAX
from mqd.types import NodeId
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers

CONFIG = NodeConfig.load()
SET, DELETE, APPEND, SUBTRACT = Operation
TOPIC, NODE = 2, 4


def replica_with_topic() -> Replica:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t"), new_topic("u"))
    return replica


def alter(replica: Replica, *resources: ResourceChanges, **rest: bool) -> list[int]:
    return [
        int(row.error_code)
        for row in replica.run(decide_alter_configs, AlterConfigs(resources, CONFIG, **rest))
    ]


def of(name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC) -> ResourceChanges:
    return ResourceChanges(kind, name, tuple(Change(*change) for change in changes))


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (of("t", ("retention.ms", SET, "9")), 0),
        (of("t", ("retention.ms", SET, None)), 42),
        (of("t", ("retention.ms", SET, "x")), 40),
        (of("t", ("nope", SET, "1")), 40),
        (of("t", ("nope", DELETE, None)), 0),
        (of("t", ("retention.ms", DELETE, None)), 0),
        (of("t", ("retention.ms", APPEND, "5")), 40),
        (of("t", ("retention.ms", SUBTRACT, "5")), 40),
        (of("t", ("cleanup.policy", APPEND, None)), 42),
        (of("t", ("cleanup.policy", APPEND, "zap")), 40),
        (of("t", ("retention.ms", 9, "5")), 42),
        (of("t", ("retention.ms", SET, "5"), ("retention.ms", SET, "6")), 42),
        (of("t", ("retention.ms", SET, "5"), ("retention.ms", DELETE, None)), 42),
        (of("t"), 0),
        (of("nonesuch", ("retention.ms", SET, "5")), 3),
        (of("a/b", ("retention.ms", SET, "5")), 17),
        (of("", ("retention.ms", SET, "5")), 42),
        (of("1", ("log.retention.ms", SET, "5000"), kind=NODE), 0),
        (of("", ("log.retention.ms", SET, "5000"), kind=NODE), 0),
        (of("1", ("log.retention.ms", SET, "x"), kind=NODE), 42),
        (of("1", ("log.dirs", SET, "/x"), kind=NODE), 42),
        (of("1", ("num.partitions", SET, "3"), kind=NODE), 42),
        (of("1", ("nope", SET, "3"), kind=NODE), 40),
        (of("1", ("nope", DELETE, None), kind=NODE), 0),
        (of("2", ("log.retention.ms", SET, "5000"), kind=NODE), 42),
        (of("x", ("log.retention.ms", SET, "5000"), kind=NODE), 42),
        (of("01", ("log.retention.ms", SET, "5000"), kind=NODE), 42),
        (of("-1", ("log.retention.ms", SET, "5000"), kind=NODE), 42),
        (of("1", ("a", SET, "DEBUG"), kind=0), 42),
        (of("1", ("a", SET, "DEBUG"), kind=99), 42),
    ],
)
def test_one_resource(resource: ResourceChanges, code: int) -> None:
    assert alter(replica_with_topic(), resource) == [code]


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (
            of("1", ("num.partitions", SET, "3"), ("log.dirs", SET, "/x"), kind=NODE),
            "Cannot update these configs dynamically: [num.partitions, log.dirs]; change them in "
            "the configuration file, and restart the broker",
        ),
        (
            of("1", ("log.retention.ms", SET, "abc"), kind=NODE),
            "Invalid value abc for configuration log.retention.ms: Not a number of type LONG; "
            "set it to a whole number of at least -1",
        ),
        (
            of("1", ("log.retention.mss", SET, "3"), kind=NODE),
            "Unknown broker config name: log.retention.mss; did you mean 'log.retention.ms'?",
        ),
        (of("x", ("a", SET, "3"), kind=NODE), "Node id must be an integer, but it is: x"),
        (
            of("t", ("foo", SET, "3")),
            "Unknown topic config name: foo; list all keys with `mqd config list`",
        ),
        (of("v", ("foo", SET, "3")), "The topic 'v' does not exist."),
        (of("t", ("retention.ms", SET, None)), "Null value not supported for : retention.ms"),
        (
            of("t", ("retention.ms", APPEND, "5")),
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
    ],
)
def test_messages_begin_with_kafkas_sentence(resource: ResourceChanges, message: str) -> None:
    """The sentences of Apache Kafka 4.3.1 for the same requests, except that Kafka accepts unknown
    keys of brokers."""
    op = AlterConfigs((resource,), CONFIG)
    (row,) = replica_with_topic().run(decide_alter_configs, op)
    assert row.error_message == message


def test_set_and_delete() -> None:
    replica = replica_with_topic()
    alter(replica, of("t", ("retention.ms", SET, "9"), ("segment.bytes", SET, "2000000")))
    assert replica.image.topic_configs("t") == {"retention.ms": "9", "segment.bytes": "2000000"}
    alter(replica, of("t", ("retention.ms", DELETE, None)))
    assert replica.image.topic_configs("t") == {"segment.bytes": "2000000"}
    commands = len(replica.log)
    assert alter(replica, of("t", ("segment.bytes", SET, "2000000"))) == [0]
    assert len(replica.log) == commands  # nothing changed, nothing was logged
    alter(replica, of("t", ("segment.bytes", DELETE, None)))
    assert ("topic", "t") not in replica.image.configs


def test_append_and_subtract_start_from_the_default_without_duplicates() -> None:
    replica = replica_with_topic()

    def policy(operation: int, value: str) -> str:
        assert alter(replica, of("t", ("cleanup.policy", operation, value))) == [0]
        return replica.image.topic_configs("t").get("cleanup.policy", "unset")

    assert policy(APPEND, "compact") == "delete,compact"
    assert policy(APPEND, "compact") == "delete,compact"
    assert policy(APPEND, "compact,delete") == "delete,compact"
    assert policy(SUBTRACT, "delete") == "compact"
    assert policy(SUBTRACT, "zap") == "compact"
    assert policy(SUBTRACT, "compact") == ""


def test_a_legacy_change_replaces_everything() -> None:
    replica = replica_with_topic()
    alter(replica, of("t", ("retention.ms", SET, "9"), ("segment.bytes", SET, "2000000")))
    assert alter(replica, of("t", ("retention.ms", SET, "5")), incremental=False) == [0]
    assert replica.image.topic_configs("t") == {"retention.ms": "5"}
    assert alter(replica, of("t", ("retention.ms", SET, None)), incremental=False) == [42]
    assert alter(replica, of("t"), incremental=False) == [0]
    assert replica.image.topic_configs("t") == {}


def test_each_resource_is_independent_and_named_once() -> None:
    replica = replica_with_topic()
    twice = of("t", ("retention.ms", SET, "5"))
    assert alter(replica, twice, twice, of("u", ("retention.ms", SET, "6")), of("zz")) == [
        42,
        42,
        0,
        3,
    ]
    assert replica.image.topic_configs("t") == {}
    assert replica.image.topic_configs("u") == {"retention.ms": "6"}
    assert alter(replica, of("u", ("retention.ms", SET, "7")), validate_only=True) == [0]
    assert replica.image.topic_configs("u") == {"retention.ms": "6"}


def test_values_are_checked_against_existing_values() -> None:
    replica = replica_with_topic()
    assert alter(replica, of("t", ("max.compaction.lag.ms", SET, "10"))) == [0]
    assert alter(replica, of("t", ("min.compaction.lag.ms", SET, "20"))) == [40]


def test_a_node_s_own_value_overrides_the_cluster_default() -> None:
    replica = replica_with_topic()
    one, two = NodeId(1), NodeId(2)
    alter(
        replica,
        of("", ("log.retention.ms", SET, "6000"), ("log.segment.bytes", SET, "2000000"), kind=NODE),
    )
    alter(replica, of("1", ("log.retention.ms", SET, "5000"), kind=NODE))
    config = effective_node_config(CONFIG, replica.image, one)
    assert (config["log.retention.ms"], config.source("log.retention.ms")) == (5000, Source.DYNAMIC)
    assert (config["log.segment.bytes"], config.source("log.segment.bytes")) == (
        2000000,
        Source.DYNAMIC_DEFAULT,
    )
    assert effective_node_config(CONFIG, replica.image, two)["log.retention.ms"] == 6000


THROTTLED = "follower.replication.throttled.replicas"


def test_a_value_must_fit_in_a_response() -> None:
    replica = replica_with_topic()
    for life in range(2):
        rows = ",".join(f"{life}{row:07d}:1" for row in range(1300))
        codes = alter(replica, of("t", (THROTTLED, APPEND, rows)))
        assert codes == ([0] if life == 0 else [40])
    assert len(replica.image.topic_configs("t")[THROTTLED]) <= CONFIG_VALUE_BYTES_MAX
    longest = ":".join(["1"] * (CONFIG_VALUE_BYTES_MAX // 2)) + ":"
    assert len(longest) == CONFIG_VALUE_BYTES_MAX
    for incremental in (True, False):
        for kind, name in ((TOPIC, THROTTLED), (NODE, "log.cleanup.policy")):
            (row,) = replica.run(
                decide_alter_configs,
                AlterConfigs(
                    (of("t" if kind == TOPIC else "1", (name, SET, longest + "1"), kind=kind),),
                    CONFIG,
                    incremental=incremental,
                ),
            )
            assert (int(row.error_code), str(CONFIG_VALUE_BYTES_MAX) in row.error_message) == (
                40,
                True,
            )
    created = create_topics(replica, new_topic("v", configs=((THROTTLED, longest + "1"),)))
    assert [int(row.error_code) for row in created] == [40]


def test_the_overrides_of_a_resource_have_a_total_bound() -> None:
    replica = replica_with_topic()
    names = [f"unknown.{row}" for row in range(CONFIG_RESOURCE_BYTES_MAX // CONFIG_VALUE_BYTES_MAX)]
    with pytest.raises(MqError, match=r"INVALID_CONFIG.*bytes"):
        check_overrides_fit(dict.fromkeys(names, "x" * CONFIG_VALUE_BYTES_MAX))
    check_overrides_fit(dict.fromkeys(names[1:], "x" * CONFIG_VALUE_BYTES_MAX) | {"deleted": None})
    many = tuple(of(f"t{row}") for row in range(CONFIG_RESOURCES_MAX + 1))
    with pytest.raises(MqError, match="INVALID_REQUEST"):
        alter(replica, *many)
    assert len(alter(replica, *many[1:])) == CONFIG_RESOURCES_MAX


@pytest.mark.parametrize(
    "name", ["9" * 5000, "01", "", "-1", "+1", "1_0", "\u0661", "2147483648", "1\n"]
)
def test_a_node_has_one_name(name: str) -> None:
    with pytest.raises(MqError, match="INVALID_REQUEST") as refused:
        node_id_of(name)
    assert len(str(refused.value)) < 300
    assert node_id_of("2147483647") == 2**31 - 1 and node_id_of("0") == 0
