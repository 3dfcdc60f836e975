"""WriteShareGroupState (key 85): the leader of a partition writes changes of the state of a share
group at the share coordinator (KIP-932). A client needs CLUSTER_ACTION.

v0  flexible
v1  how many records after the start offset are acknowledged or archived
"""

from __future__ import annotations

from mqd.protocol.apis.read_share_group_state import STATE_BATCHES
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
                    field("leader_epoch", INT32),
                    field("start_offset", INT64),
                    # of records after the start offset, for the lag; -1: unknown
                    field("delivery_complete_count", INT32, since=1, default=-1),
                    field("state_batches", STATE_BATCHES),
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
    key=85,
    name="WriteShareGroupState",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
