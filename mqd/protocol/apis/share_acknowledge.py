"""ShareAcknowledge (key 79): a member of a share group acknowledges records (KIP-932).

v1  the first stable version
v2  renewed acquisition locks (KIP-1222)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
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

ACKNOWLEDGEMENTS = array(
    field("first_offset", INT64),
    field("last_offset", INT64),
    # one for each offset, or one for all: 0 gap, 1 accept, 2 release, 3 reject, 4 renew
    field("acknowledge_types", array(INT8)),
    # only mqd has it: released records are available again after so long; -1: as the group says
    field("retry_delay_ms", INT32, tag=10_000, default=-1),
)
NODE_ENDPOINTS = array(  # of the leaders that the partitions name (KIP-951)
    field("node_id", INT32),
    field("host", STRING),
    field("port", INT32),
    field("rack", STRING, nullable_since=0, default=None),
)
CURRENT_LEADER = message(field("leader_id", INT32), field("leader_epoch", INT32))

REQUEST = message(
    field("group_id", STRING, nullable_since=0, default=None),
    field("member_id", STRING, nullable_since=0),
    field("share_session_epoch", INT32),  # -1 closes the session
    field("is_renew_ack", BOOLEAN, since=2),
    field(
        "topics",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("acknowledgement_batches", ACKNOWLEDGEMENTS),
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0, default=None),
    field("acquisition_lock_timeout_ms", INT32, since=2),
    field(
        "responses",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, nullable_since=0, default=None),
                    field("current_leader", CURRENT_LEADER),
                ),
            ),
        ),
    ),
    field("node_endpoints", NODE_ENDPOINTS),
)

API = Api(
    key=79,
    name="ShareAcknowledge",
    versions=(1, 2),
    advertised=(1, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
