"""FindCoordinator (key 10): the broker that coordinates a group, a transactional id or a share
partition.

v1  key type (0 group, 1 transaction); error message and throttle time
v3  flexible
v4  several keys in one request (KIP-699)
v5  may return TRANSACTION_ABORTABLE (KIP-890)
v6  key type 2, share: the key is "group:topic id:partition" (KIP-932)
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field("key", STRING, until=3),
    field("key_type", INT8, since=1),  # 0 group, 1 transaction, 2 share
    field("coordinator_keys", array(STRING), since=4),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=1),
    field("error_code", INT16, until=3),  # this and the next four: the result for the only key
    field("error_message", TEXT, since=1, until=3, nullable_since=0),
    field("node_id", INT32, until=3),
    field("host", STRING, until=3),
    field("port", INT32, until=3),
    field(
        "coordinators",
        array(
            field("key", STRING),
            field("node_id", INT32),
            field("host", STRING),
            field("port", INT32),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
        ),
        since=4,
    ),
)

API = Api(
    key=10,
    name="FindCoordinator",
    versions=(0, 6),
    advertised=(0, 6),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
