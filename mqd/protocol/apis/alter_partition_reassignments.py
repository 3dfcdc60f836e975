"""AlterPartitionReassignments (key 45): partitions move to other replicas, or a move is cancelled
(KIP-455). Flexible from the start.

v1  the number of replicas may be said to be kept (KIP-860)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field("timeout_ms", INT32, default=60_000),
    field("allow_replication_factor_change", BOOLEAN, since=1, default=True),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                # null: cancel what is under way
                array(
                    field("partition_index", INT32), field("replicas", array(INT32), default=None)
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("allow_replication_factor_change", BOOLEAN, since=1, default=True),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field(
        "responses",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, nullable_since=0),
                ),
            ),
        ),
    ),
)

API = Api(
    key=45,
    name="AlterPartitionReassignments",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
