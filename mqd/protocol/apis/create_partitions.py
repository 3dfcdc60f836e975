"""CreatePartitions (key 37): adds partitions to topics.

v2  flexible
v3  may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field(
        "topics",
        array(
            field("name", STRING),
            field("count", INT32),  # total, with existing partitions
            field("assignments", array(field("broker_ids", array(INT32))), nullable_since=0),
        ),
    ),
    field("timeout_ms", INT32),
    field("validate_only", BOOLEAN),
    # for whom another node forwards the request (server/mutation_quotas.py)
    field("client_principal", STRING, since=2, tag=10_000, default=""),
    field("client_id", STRING, since=2, tag=10_001, default=""),
    field("client_api_version", INT16, since=2, tag=10_002, default=0),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "results",
        array(
            field("name", STRING),
            field("error_code", INT16),
            field("error_message", TEXT, default=None),
        ),
    ),
)

API = Api(
    key=37,
    name="CreatePartitions",
    versions=(0, 3),
    advertised=(0, 3),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
