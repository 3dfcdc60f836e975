"""LeaveGroup (key 13): members leave a classic group, or are removed.

v1  throttle time
v3  several members at once, static ones by their instance id (KIP-345)
v4  flexible
v5  the reason (KIP-800)
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("member_id", STRING, until=2),
    field(
        "members",
        array(
            field("member_id", STRING),  # empty: the member with the instance id
            field("group_instance_id", STRING, default=None, nullable_since=3),
            field("reason", STRING, since=5, default=None, nullable_since=5),
        ),
        since=3,
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=1),
    field("error_code", INT16),
    field(
        "members",
        array(
            field("member_id", STRING),
            field("group_instance_id", STRING, default=None, nullable_since=3),
            field("error_code", INT16),
        ),
        since=3,
    ),
)

API = Api(
    key=13,
    name="LeaveGroup",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
