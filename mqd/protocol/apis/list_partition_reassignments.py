"""ListPartitionReassignments (key 46): partitions with a reassignment (KIP-455).

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field("timeout_ms", INT32, default=60_000),
    # null: all
    field(
        "topics",
        array(field("name", STRING), field("partition_indexes", array(INT32))),
        default=None,
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("replicas", array(INT32)),  # includes those being added and removed
                    field("adding_replicas", array(INT32)),
                    field("removing_replicas", array(INT32)),
                ),
            ),
        ),
    ),
)

API = Api(
    key=46,
    name="ListPartitionReassignments",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
