"""ConsumerGroupHeartbeat (key 68): a member joins, renews its session, or leaves a group of the
consumer protocol (KIP-848).

v1  the member generates its own id; subscription by regular expression
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, TEXT, UUID, Api, array, field, message

_PARTITIONS = array(field("topic_id", UUID), field("partitions", array(INT32)))

REQUEST = message(
    field("group_id", STRING),
    field("member_id", STRING),
    field("member_epoch", INT32),  # 0 to join, -1 to leave, -2 to leave temporarily (static)
    field("instance_id", STRING, nullable_since=0, default=None),
    field("rack_id", STRING, nullable_since=0, default=None),
    field("rebalance_timeout_ms", INT32, default=-1),  # -1: as in an earlier request
    # null, here and below: as in an earlier request
    field("subscribed_topic_names", array(STRING), nullable_since=0, default=None),
    field("subscribed_topic_regex", STRING, since=1, nullable_since=1, default=None),
    field("server_assignor", STRING, nullable_since=0, default=None),
    field("topic_partitions", _PARTITIONS, nullable_since=0, default=None),  # owned by the member
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0, default=None),
    field("member_id", STRING, nullable_since=0, default=None),
    field("member_epoch", INT32),
    field("heartbeat_interval_ms", INT32),
    # null: as in an earlier request
    field(
        "assignment",
        message(field("topic_partitions", _PARTITIONS)),
        nullable_since=0,
        default=None,
    ),
)

API = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
