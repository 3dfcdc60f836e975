"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch, with which a replica or consumer
finds where its log diverges from the leader's.

v2  the leader epoch that the client knows; throttle time
v3  replica id
v4  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    # -1: a consumer; -2: one that may read above the high watermark
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
                    field("leader_epoch", INT32),  # to look up
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
