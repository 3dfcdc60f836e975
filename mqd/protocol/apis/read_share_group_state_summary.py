"""ReadShareGroupStateSummary (key 87): reads the start offsets of share partitions at their share
coordinator (KIP-932). A client needs CLUSTER_ACTION.

v0  flexible
v1  how many records after the start offset are acknowledged or archived
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, TEXT, UUID, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field(
        "topics",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition", INT32),
                    field("leader_epoch", INT32),
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field(
        "results",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, nullable_since=0, default=None),
                    field("state_epoch", INT32),
                    field("leader_epoch", INT32),
                    field("start_offset", INT64),
                    field("delivery_complete_count", INT32, since=1, default=-1),
                ),
            ),
        ),
    ),
)

API = Api(
    key=87,
    name="ReadShareGroupStateSummary",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
