"""DescribeCluster (key 60): cluster id, controller and brokers (KIP-700). Flexible from the start.

v1  brokers or controllers, as the client requests (KIP-919)
v2  fenced brokers on request (KIP-1073)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TEXT,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("include_cluster_authorized_operations", BOOLEAN),
    field("endpoint_type", INT8, since=1, default=1),  # 1 brokers, 2 controllers
    field("include_fenced_brokers", BOOLEAN, since=2),
    # only mqd has it, and its response
    field("usage_wanted", BOOLEAN, tag=10_000, default=False),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, default=None),
    field("endpoint_type", INT8, since=1, default=1),
    field("cluster_id", STRING),
    field("controller_id", INT32, default=-1),
    field(
        "brokers",
        array(
            field("broker_id", INT32),
            field("host", STRING),
            field("port", INT32),
            field("rack", STRING, default=None),
            field("is_fenced", BOOLEAN, since=2),
        ),
    ),
    field("cluster_authorized_operations", INT32, default=AUTHORIZED_OPERATIONS_UNKNOWN),
    field(
        "usage",
        array(field("bound", STRING), field("used_bytes", INT64), field("bytes_max", INT64)),
        tag=10_000,
    ),
)

API = Api(
    key=60,
    name="DescribeCluster",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
