"""SyncGroup (key 14): the leader of a classic group sends the assignments of a generation, and each
member receives its assignment.

v1  throttle time
v3  static members (KIP-345)
v4  flexible
v5  protocol type and name in request and response (KIP-559)
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("generation_id", INT32),
    field("member_id", STRING),
    field("group_instance_id", STRING, since=3, default=None, nullable_since=3),
    field("protocol_type", STRING, since=5, default=None, nullable_since=5),
    field("protocol_name", STRING, since=5, default=None, nullable_since=5),
    # of the leader
    field("assignments", array(field("member_id", STRING), field("assignment", BYTES))),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=1),
    field("error_code", INT16),
    field("protocol_type", STRING, since=5, default=None, nullable_since=5),
    field("protocol_name", STRING, since=5, default=None, nullable_since=5),
    field("assignment", BYTES),
)

API = Api(
    key=14,
    name="SyncGroup",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
