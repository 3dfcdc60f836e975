"""Heartbeat (key 12): a member renews its session; an error code may require a rejoin.

v1  throttle time
v3  static members (KIP-345)
v4  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, Api, field, message

REQUEST = message(
    field("group_id", STRING),
    field("generation_id", INT32),
    field("member_id", STRING),
    field("group_instance_id", STRING, since=3, default=None, nullable_since=3),
)

RESPONSE = message(field("throttle_time_ms", INT32, since=1), field("error_code", INT16))

API = Api(
    key=12,
    name="Heartbeat",
    versions=(0, 4),
    advertised=(0, 4),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
