"""AlterPartitionReassignments (key 45): moves partitions to other replicas, or cancels a move
(KIP-455). Flexible from the start.

v1  may forbid a change of the replication factor (KIP-860)
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
                # null: cancel the current reassignment
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
