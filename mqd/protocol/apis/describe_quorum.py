"""DescribeQuorum (key 55): leader, voters and observers of the metadata log (KIP-595). Flexible
from the start.

v1  the times of the last contact with the leader, and of the last time caught up (KIP-836)
v2  error messages, directory ids, and the addresses of the nodes (KIP-853)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    TEXT,
    UINT16,
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
            field("topic_name", STRING), field("partitions", array(field("partition_index", INT32)))
        ),
    ),
)

_REPLICAS = array(
    field("replica_id", INT32),
    field("replica_directory_id", UUID, since=2),
    field("log_end_offset", INT64),  # -1: not known
    # ms of the leader's wall clock; -1 for the leader itself
    field("last_fetch_timestamp", INT64, since=1, default=-1),
    field("last_caught_up_timestamp", INT64, since=1, default=-1),  # the same; for the leader: now
    # only mqd has it: why the leader has no connection to the node
    field("no_connection_reason", TEXT, since=1, tag=10_000, default=""),
)

RESPONSE = message(
    field("error_code", INT16),
    field("error_message", TEXT, since=2, nullable_since=2),
    field(
        "topics",
        array(
            field("topic_name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, since=2, nullable_since=2),
                    field("leader_id", INT32),  # -1: not known
                    field("leader_epoch", INT32),
                    field("high_watermark", INT64),
                    field("current_voters", _REPLICAS),
                    field("observers", _REPLICAS),
                ),
            ),
        ),
    ),
    field(
        "nodes",
        array(
            field("node_id", INT32),
            field(
                "listeners",
                array(field("name", STRING), field("host", STRING), field("port", UINT16)),
            ),
        ),
        since=2,
    ),
)

API = Api(
    key=55,
    name="DescribeQuorum",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
