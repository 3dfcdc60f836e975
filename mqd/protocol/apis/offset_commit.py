"""OffsetCommit (key 8): commits offsets of a group.

v2  the retention time of the offsets
v3  throttle time
v5  without the retention time, which the broker now decides
v6  the leader epoch of the last record read (KIP-320)
v7  static members (KIP-345)
v8  flexible
v9  member epochs, and an error for an unknown group (KIP-848)
v10 topics by id
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, UUID, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("generation_id_or_member_epoch", INT32, default=-1),
    field("member_id", STRING),
    field("group_instance_id", STRING, since=7, default=None),
    field("retention_time_ms", INT64, until=4, default=-1),
    field(
        "topics",
        array(
            field("name", STRING, until=9),
            field("topic_id", UUID, since=10),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("committed_offset", INT64),
                    field("committed_leader_epoch", INT32, since=6, default=-1),
                    field("committed_metadata", STRING, nullable_since=0),
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=3),
    field(
        "topics",
        array(
            field("name", STRING, until=9),
            field("topic_id", UUID, since=10),
            field("partitions", array(field("partition_index", INT32), field("error_code", INT16))),
        ),
    ),
)

API = Api(
    key=8,
    name="OffsetCommit",
    versions=(2, 10),
    advertised=(2, 10),
    flexible_from=8,
    request=REQUEST,
    response=RESPONSE,
)
