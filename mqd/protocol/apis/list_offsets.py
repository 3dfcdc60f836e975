"""ListOffsets (key 2): the offset of a timestamp, or of a special position in the log.

The special timestamps are negative. Each is valid from the version that introduced it:
- -1: the end of the log (v1)
- -2: its start (v1)
- -3: the record with the largest timestamp (v7, KIP-734)
- -4: the start of the local log (v8, KIP-405)
- -5: the end of the tiered log (v9, KIP-1005)
- -6: the first offset not yet tiered (v11, KIP-1023)

v1  one offset for each partition, with its timestamp
v2  isolation level; throttle time
v4  leader epochs
v5  may return OFFSET_NOT_AVAILABLE
v6  flexible
v10 a timeout for lookups in remote storage (KIP-1075)
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("replica_id", INT32),  # -1: a consumer
    # the end of the log is 0: the high watermark, 1: the last stable offset
    field("isolation_level", INT8, since=2),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("current_leader_epoch", INT32, since=4, default=-1),
                    field("timestamp", INT64),  # milliseconds, or a special one
                ),
            ),
        ),
    ),
    field("timeout_ms", INT32, since=10),
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=2),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("timestamp", INT64, default=-1),
                    field("offset", INT64, default=-1),
                    field("leader_epoch", INT32, since=4, default=-1),
                ),
            ),
        ),
    ),
)

API = Api(
    key=2,
    name="ListOffsets",
    versions=(1, 11),
    advertised=(1, 11),
    flexible_from=6,
    request=REQUEST,
    response=RESPONSE,
)
