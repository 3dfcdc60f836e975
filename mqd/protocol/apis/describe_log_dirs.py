"""DescribeLogDirs (key 35): sizes of the log directories and of the partitions in them.

v2  flexible
v3  an error code for the whole request
v4  total and usable bytes of the volume (KIP-827)
v5  cordoned directories (KIP-1066)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field(
        "topics", array(field("topic", STRING), field("partitions", array(INT32))), nullable_since=0
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16, since=3),
    field(
        "results",
        array(
            field("error_code", INT16),
            field("log_dir", STRING),
            field(
                "topics",
                array(
                    field("name", STRING),
                    field(
                        "partitions",
                        array(
                            field("partition_index", INT32),
                            field("partition_size", INT64),
                            field("offset_lag", INT64),  # behind the high watermark
                            # of a partition that moves here from another directory
                            field("is_future_key", BOOLEAN),
                        ),
                    ),
                ),
            ),
            field("total_bytes", INT64, since=4, default=-1),
            field("usable_bytes", INT64, since=4, default=-1),
            field("is_cordoned", BOOLEAN, since=5),
        ),
    ),
)

API = Api(
    key=35,
    name="DescribeLogDirs",
    versions=(1, 5),
    advertised=(1, 5),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
