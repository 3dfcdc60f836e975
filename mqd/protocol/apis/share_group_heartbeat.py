"""ShareGroupHeartbeat (key 76): a member joins, renews its session, or leaves a share group
(KIP-932).

v1  the first stable version
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, TEXT, UUID, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("member_id", STRING),  # the member generates it
    field("member_epoch", INT32),  # 0 to join, -1 to leave
    # null, here and below: as in an earlier request
    field("rack_id", STRING, nullable_since=0, default=None),
    field("subscribed_topic_names", array(STRING), nullable_since=0, default=None),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0, default=None),
    field("member_id", STRING, nullable_since=0, default=None),
    field("member_epoch", INT32),
    field("heartbeat_interval_ms", INT32),
    # null: as in an earlier response
    field(
        "assignment",
        message(
            field(
                "topic_partitions",
                array(field("topic_id", UUID), field("partitions", array(INT32))),
            )
        ),
        nullable_since=0,
        default=None,
    ),
)

API = Api(
    key=76,
    name="ShareGroupHeartbeat",
    versions=(1, 1),
    advertised=(1, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
