"""Metadata (key 3): brokers, topics, and the leader of each partition.

v0  an empty list of topics requests all of them
v1  null requests all topics, an empty list for none; racks, controller id, internal topics
v2  cluster id
v3  throttle time
v4  the client allows or forbids the creation of a missing topic
v5  offline replicas
v7  leader epochs
v8  authorized operations of cluster and topics on request
v9  flexible
v10 topic ids in the response only
v11 without authorized operations of the cluster, which DescribeCluster returns (KIP-700)
v12 requests may name topics by id; the name in a response may be null
v13 an error code for the whole request
"""

from __future__ import annotations

from mqd.protocol.schema import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    BOOLEAN,
    INT16,
    INT32,
    STRING,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field(
        "topics",
        array(field("topic_id", UUID, since=10), field("name", STRING, nullable_since=10)),
        nullable_since=1,
    ),
    field("allow_auto_topic_creation", BOOLEAN, since=4, default=True),
    field("include_cluster_authorized_operations", BOOLEAN, since=8, until=10),
    field("include_topic_authorized_operations", BOOLEAN, since=8),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=3),
    field(
        "brokers",
        array(
            field("node_id", INT32),
            field("host", STRING),
            field("port", INT32),
            field("rack", STRING, since=1, default=None),
        ),
    ),
    field("cluster_id", STRING, since=2, default=None),
    field("controller_id", INT32, since=1, default=-1),
    field(
        "topics",
        array(
            field("error_code", INT16),
            field("name", STRING, nullable_since=12),
            field("topic_id", UUID, since=10),
            field("is_internal", BOOLEAN, since=1),
            field(
                "partitions",
                array(
                    field("error_code", INT16),
                    field("partition_index", INT32),
                    field("leader_id", INT32),
                    field("leader_epoch", INT32, since=7, default=-1),
                    field("replica_nodes", array(INT32)),
                    field("isr_nodes", array(INT32)),
                    field("offline_replicas", array(INT32), since=5),
                ),
            ),
            field(
                "topic_authorized_operations", INT32, since=8, default=AUTHORIZED_OPERATIONS_UNKNOWN
            ),
        ),
    ),
    field(
        "cluster_authorized_operations",
        INT32,
        since=8,
        until=10,
        default=AUTHORIZED_OPERATIONS_UNKNOWN,
    ),
    field("error_code", INT16, since=13),
)

API = Api(
    key=3,
    name="Metadata",
    versions=(0, 13),
    advertised=(0, 13),
    flexible_from=9,
    request=REQUEST,
    response=RESPONSE,
)
