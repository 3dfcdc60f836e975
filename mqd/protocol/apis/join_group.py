"""JoinGroup (key 11): a client joins or rejoins a classic group for its next generation.

v1  the rebalance timeout; in v0 it is the session timeout
v2  throttle time
v4  a new member first gets its id in an error response, and retries with it (KIP-394)
v5  static members (KIP-345)
v6  flexible
v7  the protocol type in the response (KIP-559)
v8  the reason of the join (KIP-800)
v9  a returning leader may skip the assignment (KIP-814)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, BYTES, INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("session_timeout_ms", INT32),
    field("rebalance_timeout_ms", INT32, since=1, default=-1),
    field("member_id", STRING),  # empty for a new member
    field("group_instance_id", STRING, since=5, default=None, nullable_since=5),
    field("protocol_type", STRING),
    # in the order of preference
    field("protocols", array(field("name", STRING), field("metadata", BYTES))),
    field("reason", STRING, since=8, default=None, nullable_since=8),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=2),
    field("error_code", INT16),
    field("generation_id", INT32, default=-1),
    field("protocol_type", STRING, since=7, default=None, nullable_since=7),
    field("protocol_name", STRING, nullable_since=7),
    field("leader", STRING),
    field("skip_assignment", BOOLEAN, since=9),
    field("member_id", STRING),
    field(
        "members",  # for the leader
        array(
            field("member_id", STRING),
            field("group_instance_id", STRING, since=5, default=None, nullable_since=5),
            field("metadata", BYTES),
        ),
    ),
)

API = Api(
    key=11,
    name="JoinGroup",
    versions=(0, 9),
    advertised=(0, 9),
    flexible_from=6,
    request=REQUEST,
    response=RESPONSE,
)
