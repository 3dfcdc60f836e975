"""The ACL matrix: each API with each operation on each resource that it needs, allowed and denied
by literal, prefixed and wildcard patterns.

A scenario is one request and the resources that it needs. A case is a scenario and the ACLs of a
user who sends it. Every case has a user of its own, so all ACLs exist from the beginning.

`tests/golden/acl` has the responses of Apache Kafka to these bytes, without what differs between
two runs (`shape`). `test_acl_matrix.py` compares mqd with them.
`tests/conformance/test_acl_matrix.py` compares Apache Kafka. To record the files again:
`.venv/bin/python -m tests.conformance.acl_kafka --rewrite`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from mqd.protocol import apis
from mqd.protocol.batch_builder import build_batch
from mqd.security.acls import (
    ANY_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.server.acl_scenario import TOPIC_ID, Needed, Scenario, cluster
from tests.server.acl_token_and_share_scenarios import (
    SHARE_PARTITION,
    SHARE_STATE,
    SHARING_MEMBER,
    TOKENS_AND_SHARES,
)

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "acl"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
OTHER_HOST = "192.0.2.1"

OWN_TOPIC_ID = UUID(int=0xACF)
"""The id of the topic `own-USER`, which the case deletes."""
USER = "{user}"
"""In a name: the user of the case."""

OPERATIONS: Final = {
    TOPIC: (
        *("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS"),
        "ALTER_CONFIGS",
    ),
    GROUP: ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    CLUSTER: (
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        "IDEMPOTENT_WRITE",
    ),
    TRANSACTION: ("WRITE", "DESCRIBE", "TWO_PHASE_COMMIT"),
    ResourceType.DELEGATION_TOKEN: ("DESCRIBE",),
    ResourceType.USER: ("CREATE_TOKENS", "DESCRIBE_TOKENS"),
}


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    title: str
    user: str
    host: str
    """The address of the client. ACLs for `User:*` from this address apply to no other case."""
    acls: tuple[Acl, ...] = field(repr=False)


def _named(rows: list[str]) -> list[dict[str, Any]]:
    return [{"name": name} for name in rows]


def _partitions(name: str = "orders", **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": [{"partition_index": 0, **fields}]}]


_COMMIT: dict[str, Any] = {"committed_offset": 0, "committed_metadata": ""}
_PRODUCER = {"transactional_id": "tx", "producer_id": 4711, "producer_epoch": 0}
_READ_ORDERS = Needed(TOPIC, "orders", "READ")
_WRITE_ORDERS = Needed(TOPIC, "orders", "WRITE")
_DESCRIBE_ORDERS = Needed(TOPIC, "orders", "DESCRIBE")
_WRITE_TX = Needed(TRANSACTION, "tx", "WRITE")
_READ_SHOP = Needed(GROUP, "shop", "READ")
_MEMBER = {"group_id": "shop", "generation_id": 1, "member_id": "nobody"}


_BATCH = build_batch([(None, b"value")])
_TRANSACTIONAL_BATCH = build_batch(
    [(None, b"value")], producer_id=4711, producer_epoch=0, base_sequence=0, transactional=True
)


def _produce(key: Mapping[str, Any], transactional_id: str | None = None) -> dict[str, Any]:
    records = bytes(_BATCH if transactional_id is None else _TRANSACTIONAL_BATCH)
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 5000,
        "topic_data": [{**key, "partition_data": [{"index": 0, "records": records}]}],
    }


def _fetch(key: Mapping[str, Any]) -> dict[str, Any]:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "topics": [{**key, "partitions": [row]}],
        "forgotten_topics_data": [],
    }


def _config(number: int, name: str, key: str) -> dict[str, Any]:
    return {"resource_type": number, "resource_name": name, "configuration_keys": [key]}


def _alter(number: int, name: str, key: str, value: str, **fields: Any) -> dict[str, Any]:
    row = {"name": key, "value": value, **fields}
    return {
        "resources": [{"resource_type": number, "resource_name": name, "configs": [row]}],
        "validate_only": True,
    }


_ANY_ACL = {
    "resource_type_filter": 2,
    "resource_name_filter": "nothing",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_INVALID_ACL = {
    "resource_type": 4,
    "resource_name": "no-cluster",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 8,
    "permission_type": 3,
}
_DESCRIBED_CONFIGS = {"include_synonyms": False, "include_documentation": False}

SCENARIOS: Final = (
    Scenario(
        "ConsumerGroupDescribe",
        "ConsumerGroupDescribe",
        1,
        (Needed(GROUP, "watchers", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"group_ids": ["watchers"], "include_authorized_operations": True},
    ),
    *TOKENS_AND_SHARES,
    Scenario("Produce", "Produce", 9, (_WRITE_ORDERS,), _produce({"name": "orders"})),
    Scenario("Produce by id", "Produce", 13, (_WRITE_ORDERS,), _produce({"topic_id": TOPIC_ID})),
    Scenario(
        "Produce in a transaction",
        "Produce",
        9,
        (_WRITE_TX, _WRITE_ORDERS),
        _produce({"name": "orders"}, "tx"),
    ),
    Scenario(
        "Produce nowhere",
        "Produce",
        9,
        (Needed(TOPIC, "missing", "WRITE"),),
        _produce({"name": "missing"}),
    ),
    Scenario("Fetch", "Fetch", 12, (_READ_ORDERS,), _fetch({"topic": "orders"})),
    Scenario("Fetch by id", "Fetch", 17, (_READ_ORDERS,), _fetch({"topic_id": TOPIC_ID})),
    Scenario(
        "ListOffsets",
        "ListOffsets",
        7,
        (_DESCRIBE_ORDERS,),
        {"replica_id": -1, "topics": _partitions(timestamp=-1)},
    ),
    Scenario(
        "Metadata",
        "Metadata",
        9,
        (_DESCRIBE_ORDERS,),
        {
            "topics": _named(["orders"]),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
    ),
    Scenario(
        "Metadata by id",
        "Metadata",
        12,
        (_DESCRIBE_ORDERS,),
        {"topics": [{"topic_id": TOPIC_ID, "name": None}]},
    ),
    Scenario(
        "Metadata of all topics",
        "Metadata",
        12,
        (_DESCRIBE_ORDERS,),
        {"topics": None},
        only=("orders",),
    ),
    Scenario(
        "Metadata of the cluster",
        "Metadata",
        9,
        (cluster("DESCRIBE"),),
        {"topics": [], "include_cluster_authorized_operations": True},
    ),
    Scenario(
        "Metadata that creates a topic",
        "Metadata",
        9,
        (Needed(TOPIC, "auto-{user}", "DESCRIBE"), cluster("CREATE")),
        {"topics": _named(["auto-{user}"]), "allow_auto_topic_creation": True},
        (Needed(TOPIC, "auto-{user}", "CREATE"),),
    ),
    Scenario(
        "OffsetCommit",
        "OffsetCommit",
        8,
        (_READ_SHOP, _READ_ORDERS),
        {"group_id": "shop", "member_id": "", "topics": _partitions(**_COMMIT)},
    ),
    Scenario(
        "OffsetCommit by id",
        "OffsetCommit",
        10,
        (_READ_SHOP, _READ_ORDERS),
        {
            "group_id": "shop",
            "member_id": "",
            "topics": [{"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, **_COMMIT}]}],
        },
    ),
    Scenario(
        "OffsetFetch",
        "OffsetFetch",
        7,
        (Needed(GROUP, "shop", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"group_id": "shop", "topics": [{"name": "orders", "partition_indexes": [0]}]},
    ),
    Scenario(
        "OffsetFetch of all",
        "OffsetFetch",
        8,
        (Needed(GROUP, "shop", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"groups": [{"group_id": "shop", "topics": None}]},
    ),
    Scenario(
        "FindCoordinator of a group",
        "FindCoordinator",
        3,
        (Needed(GROUP, "shop", "DESCRIBE"),),
        {"key": "shop", "key_type": 0},
    ),
    Scenario(
        "FindCoordinator of a transaction",
        "FindCoordinator",
        4,
        (Needed(TRANSACTION, "tx", "DESCRIBE"),),
        {"coordinator_keys": ["tx"], "key_type": 1},
    ),
    Scenario(
        "JoinGroup",
        "JoinGroup",
        7,
        (_READ_SHOP,),
        {
            "group_id": "shop",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "nobody",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    Scenario(
        "SyncGroup",
        "SyncGroup",
        5,
        (_READ_SHOP,),
        {
            **_MEMBER,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
    ),
    Scenario("Heartbeat", "Heartbeat", 4, (_READ_SHOP,), _MEMBER),
    Scenario(
        "LeaveGroup",
        "LeaveGroup",
        5,
        (_READ_SHOP,),
        {"group_id": "shop", "members": [{"member_id": "nobody"}]},
    ),
    Scenario(
        "DescribeGroups",
        "DescribeGroups",
        5,
        (Needed(GROUP, "shop", "DESCRIBE"),),
        {"groups": ["shop"], "include_authorized_operations": True},
    ),
    Scenario(
        "ListGroups",
        "ListGroups",
        4,
        (Needed(GROUP, "shop", "DESCRIBE"),),
        {},
        (cluster("DESCRIBE"),),
        only=("shop",),
    ),
    Scenario(
        "DeleteGroups",
        "DeleteGroups",
        2,
        (Needed(GROUP, "absent", "DELETE"),),
        {"groups_names": ["absent"]},
    ),
    Scenario(
        "OffsetDelete",
        "OffsetDelete",
        0,
        (Needed(GROUP, "kept", "DELETE"), _READ_ORDERS),
        {"group_id": "kept", "topics": _partitions()},
    ),
    Scenario(
        "CreateTopics",
        "CreateTopics",
        7,
        (cluster("CREATE"), Needed(TOPIC, "new", "DESCRIBE_CONFIGS")),
        {
            "topics": [
                {
                    "name": "new",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
            ],
            "validate_only": True,
        },
        (Needed(TOPIC, "new", "CREATE"),),
    ),
    Scenario(
        "DeleteTopics",
        "DeleteTopics",
        5,
        (Needed(TOPIC, "missing", "DELETE"),),
        {"topic_names": ["missing"], "timeout_ms": 5000},
        (cluster("DELETE"),),
    ),
    Scenario(
        "DeleteTopics by id",
        "DeleteTopics",
        6,
        (Needed(TOPIC, "own-{user}", "DELETE"),),
        {"topics": [{"name": None, "topic_id": OWN_TOPIC_ID}], "timeout_ms": 5000},
        own_topic=True,
    ),
    Scenario(
        "DeleteRecords",
        "DeleteRecords",
        2,
        (Needed(TOPIC, "orders", "DELETE"),),
        {"topics": _partitions(offset=0), "timeout_ms": 5000},
    ),
    Scenario(
        "InitProducerId",
        "InitProducerId",
        4,
        (cluster("IDEMPOTENT_WRITE"),),
        {"transactional_id": None, "transaction_timeout_ms": 60_000},
        (Needed(TOPIC, "orders", "WRITE"),),
    ),
    Scenario(
        "InitProducerId of a transaction",
        "InitProducerId",
        4,
        (Needed(TRANSACTION, "tx-2", "WRITE"),),
        {"transactional_id": "tx-2", "transaction_timeout_ms": 60_000},
    ),
    Scenario(
        "AddPartitionsToTxn",
        "AddPartitionsToTxn",
        3,
        (_WRITE_TX, _WRITE_ORDERS),
        {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": 4711,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "orders", "partitions": [0]}],
        },
    ),
    Scenario(
        "AddPartitionsToTxn of brokers",
        "AddPartitionsToTxn",
        4,
        (cluster("CLUSTER_ACTION"),),
        {
            "transactions": [
                {
                    **_PRODUCER,
                    "verify_only": True,
                    "topics": [{"name": "orders", "partitions": [0]}],
                }
            ]
        },
    ),
    Scenario(
        "AddOffsetsToTxn",
        "AddOffsetsToTxn",
        3,
        (_WRITE_TX, _READ_SHOP),
        {**_PRODUCER, "group_id": "shop"},
    ),
    Scenario("EndTxn", "EndTxn", 3, (_WRITE_TX,), {**_PRODUCER, "committed": True}),
    Scenario(
        "TxnOffsetCommit",
        "TxnOffsetCommit",
        3,
        (_WRITE_TX, _READ_SHOP, _READ_ORDERS),
        {**_PRODUCER, "group_id": "shop", "member_id": "", "topics": _partitions(**_COMMIT)},
    ),
    Scenario(
        "WriteTxnMarkers",
        "WriteTxnMarkers",
        1,
        (cluster("CLUSTER_ACTION"),),
        {
            "markers": [
                {
                    "producer_id": 4711,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": "missing", "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        (cluster("ALTER"),),
    ),
    Scenario(
        "OffsetForLeaderEpoch",
        "OffsetForLeaderEpoch",
        4,
        (_DESCRIBE_ORDERS,),
        {
            "replica_id": -1,
            "topics": [{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0}]}],
        },
        (cluster("CLUSTER_ACTION"),),
    ),
    Scenario(
        "DescribeConfigs of a topic",
        "DescribeConfigs",
        4,
        (Needed(TOPIC, "orders", "DESCRIBE_CONFIGS"),),
        {"resources": [_config(2, "orders", "cleanup.policy")], **_DESCRIBED_CONFIGS},
    ),
    Scenario(
        "DescribeConfigs of a group",
        "DescribeConfigs",
        4,
        (Needed(GROUP, "shop", "DESCRIBE_CONFIGS"),),
        {
            "resources": [_config(32, "shop", "consumer.session.timeout.ms")],
            **_DESCRIBED_CONFIGS,
        },
    ),
    Scenario(
        "DescribeConfigs of a broker",
        "DescribeConfigs",
        4,
        (cluster("DESCRIBE_CONFIGS"),),
        {"resources": [_config(4, "1", "log.retention.ms")], **_DESCRIBED_CONFIGS},
    ),
    Scenario(
        "DescribeConfigs of client metrics",
        "DescribeConfigs",
        4,
        (cluster("DESCRIBE_CONFIGS"),),
        {"resources": [_config(16, "subscription", "interval.ms")], **_DESCRIBED_CONFIGS},
    ),
    Scenario(
        "DescribeConfigs of loggers",
        "DescribeConfigs",
        4,
        (cluster("DESCRIBE_CONFIGS"),),
        {"resources": [_config(8, "1", "root")], **_DESCRIBED_CONFIGS},
    ),
    Scenario(
        "AlterConfigs of a topic",
        "AlterConfigs",
        2,
        (Needed(TOPIC, "orders", "ALTER_CONFIGS"),),
        _alter(2, "orders", "retention.ms", "1000000"),
    ),
    Scenario(
        "AlterConfigs of a broker",
        "AlterConfigs",
        2,
        (cluster("ALTER_CONFIGS"),),
        _alter(4, "1", "log.retention.ms", "1000000"),
    ),
    Scenario(
        "IncrementalAlterConfigs of a topic",
        "IncrementalAlterConfigs",
        1,
        (Needed(TOPIC, "orders", "ALTER_CONFIGS"),),
        _alter(2, "orders", "retention.ms", "1000000", config_operation=0),
    ),
    Scenario(
        "IncrementalAlterConfigs of a group",
        "IncrementalAlterConfigs",
        1,
        (Needed(GROUP, "shop", "ALTER_CONFIGS"),),
        _alter(32, "shop", "consumer.session.timeout.ms", "50000", config_operation=0),
    ),
    Scenario(
        "IncrementalAlterConfigs of a broker",
        "IncrementalAlterConfigs",
        1,
        (cluster("ALTER_CONFIGS"),),
        _alter(4, "1", "log.retention.ms", "1000000", config_operation=0),
    ),
    Scenario(
        "AlterConfigs of client metrics",
        "AlterConfigs",
        2,
        (cluster("ALTER_CONFIGS"),),
        _alter(16, "subscription", "interval.ms", "60000"),
    ),
    Scenario(
        "IncrementalAlterConfigs of client metrics",
        "IncrementalAlterConfigs",
        1,
        (cluster("ALTER_CONFIGS"),),
        _alter(16, "subscription", "interval.ms", "60000", config_operation=0),
    ),
    Scenario(
        "IncrementalAlterConfigs of loggers",
        "IncrementalAlterConfigs",
        1,
        (cluster("ALTER_CONFIGS"),),
        _alter(8, "1", "root", "INFO", config_operation=0),
    ),
    Scenario(
        "ListConfigResources",
        "ListConfigResources",
        1,
        (cluster("DESCRIBE_CONFIGS"),),
        {"resource_types": [4]},
        only=("1",),
    ),
    Scenario(
        "ListConfigResources of client metrics",
        "ListConfigResources",
        1,
        (cluster("DESCRIBE_CONFIGS"),),
        {"resource_types": [16]},
    ),
    Scenario(
        "CreatePartitions",
        "CreatePartitions",
        3,
        (Needed(TOPIC, "orders", "ALTER"),),
        {
            "topics": [{"name": "orders", "count": 3, "assignments": None}],
            "timeout_ms": 5000,
            "validate_only": True,
        },
    ),
    Scenario(
        "DescribeLogDirs",
        "DescribeLogDirs",
        4,
        (cluster("DESCRIBE"),),
        {"topics": []},
        deep=False,
    ),
    Scenario(
        "ElectLeaders",
        "ElectLeaders",
        2,
        (cluster("ALTER"),),
        {"election_type": 0, "topic_partitions": [{"topic": "orders", "partitions": [0]}]},
    ),
    Scenario(
        "AlterPartitionReassignments",
        "AlterPartitionReassignments",
        0,
        (cluster("ALTER"),),
        {"topics": [{"name": "missing", "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
    ),
    Scenario(
        "ListPartitionReassignments",
        "ListPartitionReassignments",
        0,
        (cluster("DESCRIBE"),),
        {"topics": None},
    ),
    Scenario(
        "UpdateFeatures",
        "UpdateFeatures",
        1,
        (cluster("ALTER"),),
        {"feature_updates": [], "validate_only": True},
        deep=False,
    ),
    Scenario(
        "DescribeQuorum",
        "DescribeQuorum",
        1,
        (cluster("DESCRIBE"),),
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        deep=False,
    ),
    Scenario(
        "DescribeCluster",
        "DescribeCluster",
        1,
        (cluster("DESCRIBE"),),
        {"include_cluster_authorized_operations": True},
    ),
    Scenario(
        "DescribeProducers",
        "DescribeProducers",
        0,
        (_READ_ORDERS,),
        {"topics": [{"name": "orders", "partition_indexes": [0]}]},
    ),
    Scenario(
        "DescribeTransactions",
        "DescribeTransactions",
        0,
        (Needed(TRANSACTION, "tx", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"transactional_ids": ["tx"]},
    ),
    Scenario(
        "ListTransactions",
        "ListTransactions",
        1,
        (Needed(TRANSACTION, "tx", "DESCRIBE"),),
        {"state_filters": [], "producer_id_filters": []},
        only=("tx",),
    ),
    Scenario(
        "DescribeTopicPartitions",
        "DescribeTopicPartitions",
        0,
        (_DESCRIBE_ORDERS,),
        {"topics": _named(["orders"]), "cursor": None},
    ),
    Scenario(
        "DescribeTopicPartitions of all",
        "DescribeTopicPartitions",
        0,
        (_DESCRIBE_ORDERS,),
        {"topics": [], "cursor": None},
        only=("orders",),
    ),
    Scenario(
        "ConsumerGroupHeartbeat",
        "ConsumerGroupHeartbeat",
        1,
        (Needed(GROUP, "modern-{user}", "READ"), _DESCRIBE_ORDERS),
        {
            "group_id": "modern-{user}",
            "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        },
    ),
    Scenario("DescribeAcls", "DescribeAcls", 3, (cluster("DESCRIBE"),), _ANY_ACL),
    Scenario("CreateAcls", "CreateAcls", 3, (cluster("ALTER"),), {"creations": [_INVALID_ACL]}),
    Scenario("DeleteAcls", "DeleteAcls", 3, (cluster("ALTER"),), {"filters": [_ANY_ACL]}),
    Scenario(
        "DescribeUserScramCredentials",
        "DescribeUserScramCredentials",
        0,
        (cluster("DESCRIBE"),),
        {"users": [{"name": "nobody"}]},
    ),
    Scenario(
        "AlterUserScramCredentials",
        "AlterUserScramCredentials",
        0,
        (cluster("ALTER"),),
        {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
    ),
    Scenario(
        "DescribeClientQuotas",
        "DescribeClientQuotas",
        1,
        (cluster("DESCRIBE_CONFIGS"),),
        {
            "components": [{"entity_type": "user", "match_type": 0, "match": "nobody"}],
            "strict": False,
        },
    ),
    Scenario(
        "AlterClientQuotas",
        "AlterClientQuotas",
        1,
        (cluster("ALTER_CONFIGS"),),
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": True,
        },
    ),
    Scenario("UnregisterBroker", "UnregisterBroker", 0, (cluster("ALTER"),), {"broker_id": 4711}),
)


def _two(
    title: str, api: str, version: int, needed: Needed, request: Mapping[str, Any]
) -> Scenario:
    """A request for two resources. The client may use one of them, or none."""
    return Scenario(f"Two in {title}", api, version, (needed,), request, few=True)


def _both(rows: list[dict[str, Any]], key: str = "name") -> list[dict[str, Any]]:
    """A row for `other`, and the same for `orders`."""
    return [{**row, key: name} for row in rows for name in ("other", "orders")]


_NEW_TOPIC = {
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
}
_SHOP = Needed(GROUP, "shop", "DESCRIBE")

MIXED: Final = (
    # requests that also fail for another reason, or in part
    _two(
        "Produce",
        "Produce",
        9,
        _WRITE_ORDERS,
        {**_produce({}), "topic_data": _both(_produce({})["topic_data"])},
    ),
    _two(
        "Fetch",
        "Fetch",
        12,
        _READ_ORDERS,
        {**_fetch({}), "topics": _both(_fetch({})["topics"], "topic")},
    ),
    _two(
        "ListOffsets",
        "ListOffsets",
        7,
        _DESCRIBE_ORDERS,
        {"replica_id": -1, "topics": _both(_partitions(timestamp=-1))},
    ),
    _two("Metadata", "Metadata", 9, _DESCRIBE_ORDERS, {"topics": _named(["other", "orders"])}),
    _two(
        "OffsetCommit",
        "OffsetCommit",
        8,
        _READ_ORDERS,
        {"group_id": "", "member_id": "", "topics": _both(_partitions(**_COMMIT))},
    ),
    _two(
        "OffsetFetch",
        "OffsetFetch",
        8,
        _SHOP,
        {
            "groups": [
                {"group_id": group, "topics": [{"name": "orders", "partition_indexes": [0]}]}
                for group in ("kept", "shop")
            ]
        },
    ),
    _two(
        "FindCoordinator",
        "FindCoordinator",
        4,
        _SHOP,
        {"coordinator_keys": ["kept", "shop"], "key_type": 0},
    ),
    _two("DescribeGroups", "DescribeGroups", 5, _SHOP, {"groups": ["kept", "shop"]}),
    _two(
        "DeleteGroups",
        "DeleteGroups",
        2,
        Needed(GROUP, "absent", "DELETE"),
        {"groups_names": ["kept", "absent", "absent"]},
    ),
    _two(
        "CreateTopics",
        "CreateTopics",
        7,
        Needed(TOPIC, "new", "CREATE"),
        {
            "topics": [{"name": name, **_NEW_TOPIC} for name in ("newer", "new", "twice", "twice")],
            "validate_only": True,
        },
    ),
    _two(
        "DeleteTopics",
        "DeleteTopics",
        5,
        Needed(TOPIC, "missing", "DELETE"),
        {"topic_names": ["missing", "other", "twice", "twice"], "timeout_ms": 5000},
    ),
    _two(
        "DeleteRecords",
        "DeleteRecords",
        2,
        Needed(TOPIC, "orders", "DELETE"),
        {"topics": _both(_partitions(offset=0)), "timeout_ms": 5000},
    ),
    _two(
        "CreatePartitions",
        "CreatePartitions",
        3,
        Needed(TOPIC, "orders", "ALTER"),
        {
            "topics": [
                {"name": name, "count": 3, "assignments": None}
                for name in ("other", "orders", "twice", "twice")
            ],
            "timeout_ms": 5000,
            "validate_only": True,
        },
    ),
    _two(
        "OffsetForLeaderEpoch",
        "OffsetForLeaderEpoch",
        4,
        _DESCRIBE_ORDERS,
        {
            "replica_id": -1,
            "topics": _both([{"partitions": [{"partition": 0, "leader_epoch": 0}]}], "topic"),
        },
    ),
    _two(
        "DescribeConfigs",
        "DescribeConfigs",
        4,
        Needed(TOPIC, "orders", "DESCRIBE_CONFIGS"),
        {
            "resources": [
                _config(4, "1", "log.retention.ms"),
                _config(2, "orders", "cleanup.policy"),
            ],
            **_DESCRIBED_CONFIGS,
        },
    ),
    _two(
        "IncrementalAlterConfigs",
        "IncrementalAlterConfigs",
        1,
        Needed(TOPIC, "orders", "ALTER_CONFIGS"),
        {
            "resources": [
                row
                for name in ("other", "orders")
                for row in _alter(2, name, "retention.ms", "1000000", config_operation=0)[
                    "resources"
                ]
            ],
            "validate_only": True,
        },
    ),
    _two(
        "IncrementalAlterConfigs, one twice",
        "IncrementalAlterConfigs",
        1,
        Needed(TOPIC, "orders", "ALTER_CONFIGS"),
        {
            "resources": [
                row
                for name in ("other", "other", "orders")
                for row in _alter(2, name, "retention.ms", "1000000", config_operation=0)[
                    "resources"
                ]
            ],
            "validate_only": True,
        },
    ),
    _two(
        "DescribeProducers",
        "DescribeProducers",
        0,
        _READ_ORDERS,
        {"topics": _both([{"partition_indexes": [0]}])},
    ),
    _two(
        "DescribeTransactions",
        "DescribeTransactions",
        0,
        Needed(TRANSACTION, "tx", "DESCRIBE"),
        {"transactional_ids": ["tx-2", "tx"]},
    ),
    _two(
        "DescribeTopicPartitions",
        "DescribeTopicPartitions",
        0,
        _DESCRIBE_ORDERS,
        {"topics": _named(["other", "orders"]), "cursor": None},
    ),
    _two(
        "ConsumerGroupDescribe",
        "ConsumerGroupDescribe",
        1,
        _SHOP,
        {"group_ids": ["watchers", "shop"], "include_authorized_operations": False},
    ),
    Scenario(
        "OffsetDelete of an absent group",
        "OffsetDelete",
        0,
        (Needed(GROUP, "absent", "DELETE"), _READ_ORDERS),
        {"group_id": "absent", "topics": _partitions()},
        few=True,
    ),
)


# -- cases -----------------------------------------------------------------------------------------


ALL: Final = (*SCENARIOS, *MIXED)


def cases() -> list[Case]:
    """All cases, in the order in which they are sent."""
    found: list[Case] = []
    for scenario in ALL:
        for title, acls in _variants(scenario):
            number = len(found)
            user, host = f"u{number:04}", f"127.1.{number // 250}.{number % 250 + 1}"
            own = tuple(_of(user, host, acl) for acl in acls)
            found.append(Case(scenario, title, user, host, own))
    titles = {(case.scenario.title, case.title) for case in found}
    assert len(titles) == len(found), "two cases have one title: only one of them is recorded"
    return found


def _of(user: str, host: str, acl: Acl) -> Acl:
    if acl.principal == ANY_PRINCIPAL:
        if acl.resource_type is TOPIC or USER not in acl.resource_name:
            acl = acl._replace(host=host)  # other cases have the resource, too, or list it
    else:
        acl = acl._replace(principal=f"User:{user}")
    return acl._replace(resource_name=acl.resource_name.replace(USER, user))


def _acl(
    needed: Needed,
    operation: str,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
    name: str | None = None,
    host: str = "*",
) -> Acl:
    return Acl(
        needed.type,
        needed.name if name is None else name,
        pattern,
        "",
        host,
        Operation[operation],
        permission,
    )


def _variants(scenario: Scenario) -> Iterator[tuple[str, list[Acl]]]:
    """Each resource in turn has the ACLs of a variant; the others are allowed. An alternative is
    tested without what it replaces.
    """
    everything = (*scenario.needs, *scenario.alternatives)
    for position, target in enumerate(everything):
        others = [
            _acl(needed, needed.operation)
            for index, needed in enumerate(scenario.needs)
            if index != position and not _is_replaced(scenario, target, needed)
        ]
        label = f"{target.type.name} {target.name}"
        if sum(each[:2] == target[:2] for each in everything) > 1:  # needed for two operations
            label += f" to {target.operation}"
        variants = _of_resource(target)
        if scenario.few:
            variants = iter([("no ACL", []), ("allow", [_acl(target, target.operation)])])
        for title, acls in variants:
            yield f"{label}: {title}", [*others, *acls]


def _is_replaced(scenario: Scenario, target: Needed, needed: Needed) -> bool:
    if target not in scenario.alternatives:
        return False
    return scenario.title not in _SECOND or needed is not scenario.needs[_SECOND[scenario.title]]


_SECOND: Final = {"Metadata that creates a topic": 0, "CreateTopics": 1}
"""A resource of these that is needed beside the alternative, too."""


def _of_resource(target: Needed) -> Iterator[tuple[str, list[Acl]]]:
    operation = target.operation
    yield "no ACL", []
    for one in (*OPERATIONS[target.type], "ALL"):
        yield f"allow {one}", [_acl(target, one)]
    yield f"allow {operation} from another host", [_acl(target, operation, host=OTHER_HOST)]
    everything = _acl(target, "ALL")
    yield f"allow ALL, deny {operation}", [everything, _acl(target, operation, DENY)]
    yield "allow ALL, deny ALL", [everything, _acl(target, "ALL", DENY)]
    yield f"allow {operation} to User:*", [_of_anyone(target)]
    yield f"allow ALL, deny {operation} to User:*", [everything, _of_anyone(target, DENY)]
    yield (
        f"allow {operation} to User:*, deny it",
        [_of_anyone(target), _acl(target, operation, DENY)],
    )
    if target.type is CLUSTER:
        return  # its name is no pattern
    prefix = target.name[:3]
    yield f"allow {operation} prefixed to User:*", [_of_anyone(target, ALLOW, PREFIXED, prefix)]
    yield f"allow {operation} on * to User:*", [_of_anyone(target, name="*")]
    yield (
        f"allow ALL, deny {operation} prefixed to User:*",
        [everything, _of_anyone(target, DENY, PREFIXED, prefix)],
    )
    yield (
        f"allow ALL, deny {operation} on * to User:*",
        [everything, _of_anyone(target, DENY, name="*")],
    )
    yield f"allow {operation} prefixed", [_acl(target, operation, ALLOW, PREFIXED, prefix)]
    yield f"allow {operation} of another prefix", [_acl(target, operation, ALLOW, PREFIXED, "zzz")]
    yield f"allow {operation} on *", [_acl(target, operation, name="*")]
    yield (
        f"allow ALL, deny {operation} prefixed",
        [
            everything,
            _acl(target, operation, DENY, PREFIXED, prefix),
        ],
    )
    yield f"allow ALL, deny {operation} on *", [everything, _acl(target, operation, DENY, name="*")]


def _of_anyone(
    target: Needed,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
    name: str | None = None,
) -> Acl:
    return _acl(target, target.operation, permission, pattern, name)._replace(
        principal=ANY_PRINCIPAL
    )


# -- requests and responses ------------------------------------------------------------------------

_TIMEOUT_MS = 15 * 60_000
"""The transaction is open until all requests are sent: this is Apache Kafka's maximum."""

Ask = Callable[[str, int, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(API, version, request) -> response, as one user."""


def substituted(value: Any, user: str, ids: Mapping[UUID, UUID]) -> Any:
    """A request with the names and ids of a case."""
    if isinstance(value, str):
        return value.replace(USER, user)
    if isinstance(value, UUID):
        return ids.get(value, value)
    if isinstance(value, Mapping):
        return {key: substituted(one, user, ids) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [substituted(one, user, ids) for one in value]
    return value


_NAMES = frozenset(
    {
        *("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name"),
        *("resource_type", "key", "user", "is_internal", "partition_index", "partition"),
        *("partition_id", "topic_authorized_operations", "cluster_authorized_operations"),
        *("authorized_operations", "num_partitions", "replication_factor", "index"),
    }
)
_PRESENT = frozenset({"configs", "members", "brokers"})
"""Lists that are compared only by whether they are empty."""
_IDS = frozenset({"topic_id"})


def shape(case: Case, response: Mapping[str, Any]) -> str:
    """What a response says about authorization, as text: error codes, names, operations, and the
    structure of rows. Without ids, offsets, addresses and messages.
    """
    found = _shape(response, case.user, case.scenario.only, deep=case.scenario.deep)
    return json.dumps(found, sort_keys=True)


def _shape(value: Any, user: str, only: tuple[str, ...], *, deep: bool) -> Any:
    if isinstance(value, Mapping):
        found = {}
        for key, one in value.items():
            if key.endswith("error_code") or key in _NAMES:
                found[key] = one.replace(user, USER) if isinstance(one, str) else one
            elif key in _PRESENT:
                found[key] = bool(one)
            elif key in _IDS:
                found[key] = bool(one.int)
            elif deep and isinstance(one, list | tuple | Mapping):
                found[key] = _shape(one, user, only, deep=deep)
        return found
    if isinstance(value, list | tuple):
        rows = [
            _shape(row, user, only, deep=deep) if isinstance(row, Mapping) else row
            for row in value
            if not (isinstance(row, Mapping) and only and not _is_one_of(row, only))
        ]
        return sorted(
            (row for row in rows if isinstance(row, dict)),
            key=lambda row: json.dumps(row, sort_keys=True),
        )
    return value


_LISTED_BY = ("name", "group_id", "transactional_id", "resource_name")


def _is_one_of(row: Mapping[str, Any], only: tuple[str, ...]) -> bool:
    names = [row[key] for key in _LISTED_BY if key in row]
    return not names or names[0] in only


CLOSED: Final = "the connection is closed"


def denied_in_all_versions(requested: list[Case]) -> list[tuple[Case, int]]:
    """The first case of each scenario, which lacks an ACL, in each version that mqd has."""
    first: dict[str, Case] = {}
    for case in requested:
        if not case.scenario.few:
            first.setdefault(case.scenario.title, case)
    found = []
    for case in first.values():
        api = apis.by_name(case.scenario.api)
        assert api is not None
        low, high = api.versions
        found += [(case, version) for version in range(low, high + 1)]
    return found


def is_expressible(case: Case, version: int) -> bool:
    """Whether the request exists in a version: some name topics by id, or several groups."""
    try:
        encoded(case.scenario.api, version, substituted(case.scenario.request, case.user, {}))
    except Exception:
        return False
    return True


# -- the same in a file ----------------------------------------------------------------------------


def file_of(scenario: Scenario) -> Path:
    return GOLDEN / f"{scenario.title.lower().replace(' ', '_')}.acls"


def as_text(scenario: Scenario, shapes: Mapping[str, str]) -> str:
    """The file of a scenario: each different response, and the cases that get it. `shapes`: by the
    title of the case.
    """
    by_response: dict[str, list[str]] = {}
    for title, found in shapes.items():
        by_response.setdefault(found, []).append(title)
    lines = [f"# {scenario.title}: {scenario.api}, version {scenario.version}"]
    for response, titles in by_response.items():
        lines += ["", response, *(f"  {title}" for title in titles)]
    return "\n".join(lines) + "\n"


VERSIONS_FILE: Final = GOLDEN / "versions.acls"


def versions_as_text(shapes: Mapping[tuple[str, int], str]) -> str:
    """The responses to denied requests: by title and version."""
    by_title: dict[str, dict[str, list[int]]] = {}
    for (title, version), found in shapes.items():
        by_title.setdefault(title, {}).setdefault(found, []).append(version)
    lines = ["# Responses to a user without ACLs, in each version"]
    for title, by_response in by_title.items():
        lines += ["", f"## {title}"]
        for response, versions in by_response.items():
            lines += [response, f"  versions {', '.join(map(str, versions))}"]
    return "\n".join(lines) + "\n"


# -- preparation -----------------------------------------------------------------------------------


def orders_of(cases: list[Case]) -> list[str]:
    """The topics that the cases need."""
    own = [f"own-{case.user}" for case in cases if case.scenario.own_topic]
    return ["orders", "other", *own]


async def prepare(ask: Ask, cases: list[Case], *, leader: int = 1) -> dict[str, UUID]:
    """Create topics and the ACLs, as a super user. Returns the ids of the topics. `leader`: the
    node of all partitions.
    """
    ids: dict[str, UUID] = {}
    assignments = [{"partition_index": 0, "broker_ids": [leader]}]
    names = orders_of(cases)
    for start in range(0, len(names), 20):
        topics = [
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": assignments,
                # the records are old: retention would remove them during a slow run
                "configs": [{"name": "retention.ms", "value": "-1"}],
            }
            for name in names[start : start + 20]
        ]
        found = await ask("CreateTopics", 7, {"topics": topics, "timeout_ms": 30_000})
        for row in found["topics"]:
            assert row["error_code"] == 0, row
            ids[row["name"]] = row["topic_id"]
    acls = [acl for case in cases for acl in case.acls]
    for start in range(0, len(acls), 500):
        creations = [
            {
                "resource_type": acl.resource_type,
                "resource_name": acl.resource_name,
                "resource_pattern_type": acl.pattern_type,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in acls[start : start + 500]
        ]
        found = await ask("CreateAcls", 3, {"creations": creations})
        assert not any(row["error_code"] for row in found["results"]), found
    return ids


async def prepare_groups(ask: Ask) -> bool:
    """Groups and a transaction, which the coordinators may not have loaded yet. Returns whether all
    exist; call it again otherwise.
    """
    if not await _prepare_share_group(ask):
        return False  # later: a second InitProducerId would abort the transaction
    codes = []
    for group_id, topic in (("shop", "orders"), ("kept", "other")):
        request = {
            "group_id": group_id,
            "member_id": "",
            "topics": _partitions(topic, **_COMMIT),
        }
        found = await ask("OffsetCommit", 8, request)
        codes.append(found["topics"][0]["partitions"][0]["error_code"])
    found = await ask(
        "InitProducerId", 4, {"transactional_id": "tx", "transaction_timeout_ms": _TIMEOUT_MS}
    )
    codes.append(found["error_code"])
    if not any(codes):
        producer = {key: found[key] for key in ("producer_id", "producer_epoch")}
        added = await ask(
            "AddPartitionsToTxn",
            3,
            {
                "v3_and_below_transactional_id": "tx",
                "v3_and_below_producer_id": producer["producer_id"],
                "v3_and_below_producer_epoch": producer["producer_epoch"],
                "v3_and_below_topics": [{"name": "orders", "partitions": [0]}],
            },
        )
        codes += [
            row["partition_error_code"]
            for topic in added["results_by_topic_v3_and_below"]
            for row in topic["results_by_partition"]
        ]
        heartbeat = {
            "group_id": "watchers",
            "member_id": "BBBBBBBBBBBBBBBBBBBBBB",
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        }
        codes.append((await ask("ConsumerGroupHeartbeat", 1, heartbeat))["error_code"])
    else:
        for key, key_type in (("shop", 0), ("tx", 1)):
            await ask("FindCoordinator", 3, {"key": key, "key_type": key_type})
    return not any(codes)


_NOT_LOADED: Final = {14, 15, 16}
"""Error codes of a coordinator that does not serve yet."""


async def _prepare_share_group(ask: Ask) -> bool:
    """Returns whether the group has a member with a partition, and a share coordinator."""
    await ask("FindCoordinator", 3, {"key": "sharers", "key_type": 0})
    member = await ask("ShareGroupHeartbeat", 1, SHARING_MEMBER)
    if member["error_code"] or not (member["assignment"] or {}).get("topic_partitions"):
        return False
    keys = {"coordinator_keys": [SHARE_PARTITION], "key_type": 2}
    found = await ask("FindCoordinator", 6, keys)
    if found["coordinators"][0]["error_code"]:
        return False
    state = await ask("ReadShareGroupStateSummary", 0, SHARE_STATE)
    return state["results"][0]["partitions"][0]["error_code"] not in _NOT_LOADED


def ids_of(case: Case, ids: Mapping[str, UUID]) -> dict[UUID, UUID]:
    return {
        TOPIC_ID: ids["orders"],
        OWN_TOPIC_ID: ids.get(f"own-{case.user}", OWN_TOPIC_ID),
    }


def encoded(api_name: str, version: int, request: Mapping[str, Any]) -> bytes:
    api = apis.by_name(api_name)
    assert api is not None, api_name
    return bytes(api.encode_request(version, request))


# -- the table of docs/SECURITY.md ---------------------------------------------------------------

OPEN_APIS: Final = ("ApiVersions", "SaslAuthenticate", "SaslHandshake")
"""APIs that need no permission."""

OWN_APIS: Final = {"FindRecords": "READ on the topic"}
"""APIs that Apache Kafka lacks, and what they need; tests/client/test_finding.py asks them."""


_RESOURCES: Final = {
    TOPIC: "the topic",
    GROUP: "the group",
    CLUSTER: "the cluster",
    TRANSACTION: "the transactional id",
    ResourceType.USER: "the owner of the token, a User resource",
}


def table() -> str:
    """Which operation each API needs, as a table in Markdown."""
    needed: dict[str, dict[str, None]] = {}
    for scenario in sorted(SCENARIOS, key=lambda scenario: scenario.api):
        needed.setdefault(scenario.api, {})[_formula(scenario)] = None
    needed = dict(
        sorted({**needed, **{api: {text: None} for api, text in OWN_APIS.items()}}.items())
    )
    rows = [f"| {api} | {'; '.join(formulas)} |" for api, formulas in needed.items()]
    return "\n".join(["| API | Needs |", "|---|---|", *rows, ""])


def _formula(scenario: Scenario) -> str:
    if scenario.note:
        return scenario.note
    parts = []
    for needed in scenario.needs:
        replaced_by = [one for one in scenario.alternatives if _is_replaced(scenario, one, needed)]
        parts.append(" or ".join(map(_text_of, (needed, *replaced_by))))
    return ", and ".join(parts)


def _text_of(needed: Needed) -> str:
    return f"{needed.operation} on {_RESOURCES[needed.type]}"
