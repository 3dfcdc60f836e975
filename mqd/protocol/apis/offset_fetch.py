"""OffsetFetch (key 9): the committed offsets of groups.

v2  null topics request all topics of the group; an error for the whole group
v3  throttle time
v5  the leader epoch of the last record read (KIP-320)
v6  flexible
v7  may require offsets without an open transaction (KIP-447)
v8  several groups (KIP-709)
v9  member id and epoch (KIP-848)
v10 topics by id

From v8 on mqd has its own tagged fields. The response to a request with `lag_wanted` has the start
and end of the log and the lag for each offset, and sets `has_log_ends`. Apache Kafka skips
unknown tags (KIP-482), so its response does not set it.
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Api,
    array,
    field,
    message,
)

LAG_TO_HIGH_WATERMARK, LAG_TO_LAST_STABLE_OFFSET = 1, 2
"""Values of `lag_wanted`: the lag of read_uncommitted consumers, and of read_committed consumers.
0: no lag.
"""

_ROW = (
    field("partition_index", INT32),
    field("committed_offset", INT64),
    field("committed_leader_epoch", INT32, since=5, default=-1),
    field("metadata", STRING, nullable_since=0),
    field("error_code", INT16),
)
_LAG = (
    field("log_start_offset", INT64, since=8, tag=10_000, default=-1),
    field("log_end_offset", INT64, since=8, tag=10_001, default=-1),
    field("lag", INT64, since=8, tag=10_002, default=-1),
)

REQUEST = message(
    field("group_id", STRING, until=7),
    field(
        "topics",
        array(field("name", STRING), field("partition_indexes", array(INT32))),
        until=7,
        nullable_since=2,
    ),
    field(
        "groups",
        array(
            field("group_id", STRING),
            field("member_id", STRING, since=9, default=None),
            field("member_epoch", INT32, since=9, default=-1),
            field(
                "topics",
                array(
                    field("name", STRING, until=9),
                    field("topic_id", UUID, since=10),
                    field("partition_indexes", array(INT32)),
                ),
                nullable_since=8,
            ),
        ),
        since=8,
    ),
    field("require_stable", BOOLEAN, since=7),
    field("lag_wanted", INT8, since=8, tag=10_000, default=0),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=3),
    field("topics", array(field("name", STRING), field("partitions", array(*_ROW))), until=7),
    field("error_code", INT16, since=2, until=7),
    field(
        "groups",
        array(
            field("group_id", STRING),
            field(
                "topics",
                array(
                    field("name", STRING, until=9),
                    field("topic_id", UUID, since=10),
                    field("partitions", array(*_ROW, *_LAG)),
                ),
            ),
            field("error_code", INT16),
        ),
        since=8,
    ),
    field("has_log_ends", BOOLEAN, since=8, tag=10_000, default=False),
)

API = Api(
    key=9,
    name="OffsetFetch",
    versions=(1, 10),
    advertised=(1, 10),
    flexible_from=6,
    request=REQUEST,
    response=RESPONSE,
)
