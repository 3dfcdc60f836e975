"""ShareFetch (key 78): a member of a share group acquires records, and acknowledges earlier ones
(KIP-932).

v1  the first stable version
v2  the acquire mode (KIP-1206), and renewed acquisition locks (KIP-1222)
"""

from __future__ import annotations

from mqd.protocol.apis.share_acknowledge import ACKNOWLEDGEMENTS, CURRENT_LEADER, NODE_ENDPOINTS
from mqd.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT32_MAX,
    INT64,
    RECORDS,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("group_id", STRING, nullable_since=0, default=None),
    field("member_id", STRING, nullable_since=0),
    field("share_session_epoch", INT32),  # 0 opens a session, -1 closes it
    field("max_wait_ms", INT32),
    field("min_bytes", INT32),
    field("max_bytes", INT32, default=INT32_MAX),
    field("max_records", INT32),  # more, up to the end of a batch, unless the mode is 1
    field("batch_size", INT32),  # records of one batch of acquired records
    field("share_acquire_mode", INT8, since=2),  # 0: whole batches. 1: at most max_records
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
    field(
        "forgotten_topics_data",
        array(field("topic_id", UUID), field("partitions", array(INT32))),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0, default=None),
    field("acquisition_lock_timeout_ms", INT32),
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
                    field("acknowledge_error_code", INT16),
                    field("acknowledge_error_message", TEXT, nullable_since=0, default=None),
                    field("current_leader", CURRENT_LEADER),
                    field("records", RECORDS, default=b""),
                    field(
                        "acquired_records",
                        array(
                            field("first_offset", INT64),
                            field("last_offset", INT64),
                            field("delivery_count", INT16),
                        ),
                    ),
                ),
            ),
        ),
    ),
    field("node_endpoints", NODE_ENDPOINTS),
)

API = Api(
    key=78,
    name="ShareFetch",
    versions=(1, 2),
    advertised=(1, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
