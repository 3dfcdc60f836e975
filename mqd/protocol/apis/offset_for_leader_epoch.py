"""OffsetForLeaderEpoch (key 23): where an epoch ended, so that a reader knows how far it agrees
with the leader.

v2  the leader epoch that the client believes in; throttle time
v3  replica id
v4  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    # -1 a consumer, -2 one that may look beyond the high watermark
    field("replica_id", INT32, since=3, default=-2),
    field(
        "topics",
        array(
            field("topic", STRING),
            field(
                "partitions",
                array(
                    field("partition", INT32),
                    field("current_leader_epoch", INT32, default=-1),  # -1: do not compare
                    field("leader_epoch", INT32),  # the one to look up
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("topic", STRING),
            field(
                "partitions",
                array(
                    field("error_code", INT16),
                    field("partition", INT32),
                    field("leader_epoch", INT32, default=-1),
                    field("end_offset", INT64, default=-1),
                ),
            ),
        ),
    ),
)

API = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    versions=(2, 4),
    advertised=(2, 4),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
