"""DescribeGroups (key 15): state and members of classic groups.

v1  throttle time
v3  the authorized operations of the client (KIP-430)
v4  static members (KIP-345)
v5  flexible
v6  GROUP_ID_NOT_FOUND, with a message, for an unknown group; earlier versions return the state Dead
    (KIP-1043)

From v5 on, mqd has its own tagged fields. With `awaited_wanted`, the response for a group in a
rebalance has the start time of its state and the members that it waits for. Apache Kafka ignores
unknown tags (KIP-482), so its response omits these fields.
"""

from __future__ import annotations

from mqd.protocol.schema import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    BOOLEAN,
    BYTES,
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
    field("groups", array(STRING)),
    field("include_authorized_operations", BOOLEAN, since=3),
    field("awaited_wanted", BOOLEAN, since=5, tag=10_000, default=False),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=1),
    field(
        "groups",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, since=6, default=None, nullable_since=6),
            field("group_id", STRING),
            field("group_state", STRING),
            field("protocol_type", STRING),
            field("protocol_data", STRING),  # the protocol chosen by the group
            field(
                "members",
                array(
                    field("member_id", STRING),
                    field("group_instance_id", STRING, since=4, default=None, nullable_since=4),
                    field("client_id", STRING),
                    field("client_host", STRING),
                    field("member_metadata", BYTES),
                    field("member_assignment", BYTES),
                    field("awaited", BOOLEAN, since=5, tag=10_000, default=False),
                ),
            ),
            field("authorized_operations", INT32, since=3, default=AUTHORIZED_OPERATIONS_UNKNOWN),
            field("state_since_ms", INT64, since=5, tag=10_000, default=-1),
        ),
    ),
)

API = Api(
    key=15,
    name="DescribeGroups",
    versions=(0, 6),
    advertised=(0, 6),
    flexible_from=5,
    request=REQUEST,
    response=RESPONSE,
)
