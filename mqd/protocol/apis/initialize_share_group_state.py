"""InitializeShareGroupState (key 83): sets the start offset of a share partition at its share
coordinator (KIP-932). A client needs CLUSTER_ACTION.

v0  flexible
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
                    field("state_epoch", INT32),
                    field("start_offset", INT64),  # -1: not known yet
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
                ),
            ),
        ),
    ),
)

API = Api(
    key=83,
    name="InitializeShareGroupState",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
