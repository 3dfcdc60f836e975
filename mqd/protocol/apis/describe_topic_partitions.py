"""DescribeTopicPartitions (key 75): topics and partitions page by page, with eligible leader
replicas (KIP-966).

v0  flexible
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
    field("topics", array(field("name", STRING))),
    field("response_partition_limit", INT32, default=2000),  # the broker may have a lower one
    field(
        "cursor",
        message(field("topic_name", STRING), field("partition_index", INT32)),
        default=None,
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("error_code", INT16),
            field("name", STRING, nullable_since=0),
            field("topic_id", UUID),
            field("is_internal", BOOLEAN),
            field(
                "partitions",
                array(
                    field("error_code", INT16),
                    field("partition_index", INT32),
                    field("leader_id", INT32),
                    field("leader_epoch", INT32, default=-1),
                    field("replica_nodes", array(INT32)),
                    field("isr_nodes", array(INT32)),
                    field("eligible_leader_replicas", array(INT32), default=None),
                    field("last_known_elr", array(INT32), default=None),
                    field("offline_replicas", array(INT32)),
                ),
            ),
            field("topic_authorized_operations", INT32, default=AUTHORIZED_OPERATIONS_UNKNOWN),
        ),
    ),
    field(
        "next_cursor",
        message(field("topic_name", STRING), field("partition_index", INT32)),
        default=None,
    ),
)

API = Api(
    key=75,
    name="DescribeTopicPartitions",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
