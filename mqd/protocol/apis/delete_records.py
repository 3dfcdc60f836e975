"""DeleteRecords (key 21): advances the log start offset of partitions.

v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field(
        "topics",
        array(
            field("name", STRING),
            field("partitions", array(field("partition_index", INT32), field("offset", INT64))),
        ),
    ),
    field("timeout_ms", INT32),  # to wait for all replicas
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("low_watermark", INT64),
                    field("error_code", INT16),
                ),
            ),
        ),
    ),
)

API = Api(
    key=21,
    name="DeleteRecords",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
