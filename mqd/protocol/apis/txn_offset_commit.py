"""TxnOffsetCommit (key 28): commits offsets of a group with a transaction (KIP-98).

v2  the leader epoch of the last record read (KIP-320)
v3  flexible; member id and generation (KIP-447)
v4  may return TRANSACTION_ABORTABLE (KIP-890)
v5  adds the group to the transaction implicitly (KIP-890)
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("transactional_id", STRING),
    field("group_id", STRING),
    field("producer_id", INT64),
    field("producer_epoch", INT16),
    field("generation_id", INT32, since=3, default=-1),
    field("member_id", STRING, since=3),
    field("group_instance_id", STRING, since=3, default=None),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("committed_offset", INT64),
                    field("committed_leader_epoch", INT32, since=2, default=-1),
                    field("committed_metadata", STRING, nullable_since=0),
                ),
            ),
        ),
    ),
)

RESPONSE = message(
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
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
