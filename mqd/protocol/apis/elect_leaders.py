"""ElectLeaders (key 43): elects the preferred replica, or any live one, as leader (KIP-183,
KIP-460).

v1  the kind of election, and an error for the request as a whole; v0 elects the preferred replica
v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, STRING, TEXT, Api, array, field, message

PREFERRED = 0
UNCLEAN = 1

REQUEST = message(
    field("election_type", INT8, since=1),
    # null: all
    field(
        "topic_partitions",
        array(field("topic", STRING), field("partitions", array(INT32))),
        nullable_since=0,
    ),
    field("timeout_ms", INT32, default=60_000),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16, since=1),
    field(
        "replica_election_results",
        array(
            field("topic", STRING),
            field(
                "partition_result",
                array(
                    field("partition_id", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, nullable_since=0),
                ),
            ),
        ),
    ),
)

API = Api(
    key=43,
    name="ElectLeaders",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
