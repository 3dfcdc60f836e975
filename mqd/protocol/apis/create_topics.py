"""CreateTopics (key 19): creates topics.

v2  throttle time
v4  -1 partitions or replicas mean the broker's defaults (KIP-464)
v5  flexible; the response has the configuration of the new topic (KIP-525)
v6  may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
v7  the response has the topic id
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field(
        "topics",
        array(
            field("name", STRING),
            field("num_partitions", INT32),  # -1: default, or as assigned
            field("replication_factor", INT16),  # -1 as above
            field(
                "assignments",
                array(field("partition_index", INT32), field("broker_ids", array(INT32))),
            ),
            field(
                "configs", array(field("name", STRING), field("value", STRING, nullable_since=0))
            ),
        ),
    ),
    field("timeout_ms", INT32, default=60000),
    field("validate_only", BOOLEAN),
    # for whom another node forwards the request (server/mutation_quotas.py)
    field("client_principal", STRING, since=5, tag=10_000, default=""),
    field("client_id", STRING, since=5, tag=10_001, default=""),
    field("client_api_version", INT16, since=5, tag=10_002, default=0),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("name", STRING),
            field("topic_id", UUID, since=7),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field("topic_config_error_code", INT16, since=5, tag=0),  # reason for missing configs
            field("num_partitions", INT32, since=5, default=-1),
            field("replication_factor", INT16, since=5, default=-1),
            field(
                "configs",
                array(
                    field("name", STRING),
                    field("value", STRING, nullable_since=0),
                    field("read_only", BOOLEAN),
                    field("config_source", INT8, default=-1),
                    field("is_sensitive", BOOLEAN),
                ),
                since=5,
                nullable_since=0,
            ),
        ),
    ),
)

API = Api(
    key=19,
    name="CreateTopics",
    versions=(2, 7),
    advertised=(2, 7),
    flexible_from=5,
    request=REQUEST,
    response=RESPONSE,
)
