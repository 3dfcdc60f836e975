"""OffsetDelete (key 47): deletes the committed offsets of a group for some partitions (KIP-496)."""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field(
        "topics",
        array(field("name", STRING), field("partitions", array(field("partition_index", INT32)))),
    ),
)

RESPONSE = message(
    field("error_code", INT16),
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("name", STRING),
            field("partitions", array(field("partition_index", INT32), field("error_code", INT16))),
        ),
    ),
)

API = Api(
    key=47,
    name="OffsetDelete",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=1,
    request=REQUEST,
    response=RESPONSE,
)
