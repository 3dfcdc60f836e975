"""ReadShareGroupState (key 84): the leader of a partition reads the state of a share group at the
share coordinator (KIP-932). A client needs CLUSTER_ACTION.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

STATE_BATCHES = array(
    field("first_offset", INT64),
    field("last_offset", INT64),
    field("delivery_state", INT8),  # 0 available, 2 acknowledged, 3 archiving, 4 archived
    field("delivery_count", INT16),
    # only mqd has it: wall time before which an available record is not delivered, or since when it
    # is archiving
    field("time_ms", INT64, tag=10_000, default=0),
)

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
                    field("start_offset", INT64),
                    field("state_batches", STATE_BATCHES),
                ),
            ),
        ),
    ),
)

API = Api(
    key=84,
    name="ReadShareGroupState",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
