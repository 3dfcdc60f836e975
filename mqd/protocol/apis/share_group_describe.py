"""ShareGroupDescribe (key 77): share groups with their members (KIP-932).

v1  the first stable version
"""

from __future__ import annotations

from mqd.protocol.schema import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    BOOLEAN,
    INT16,
    INT32,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("group_ids", array(STRING)),
    field("include_authorized_operations", BOOLEAN),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "groups",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0, default=None),
            field("group_id", STRING),
            field("group_state", STRING),
            field("group_epoch", INT32),
            field("assignment_epoch", INT32),
            field("assignor_name", STRING),
            field(
                "members",
                array(
                    field("member_id", STRING),
                    field("rack_id", STRING, nullable_since=0, default=None),
                    field("member_epoch", INT32),
                    field("client_id", STRING),
                    field("client_host", STRING),
                    field("subscribed_topic_names", array(STRING)),
                    field(
                        "assignment",
                        message(
                            field(
                                "topic_partitions",
                                array(
                                    field("topic_id", UUID),
                                    field("topic_name", STRING),
                                    field("partitions", array(INT32)),
                                ),
                            )
                        ),
                    ),
                ),
            ),
            field("authorized_operations", INT32, default=AUTHORIZED_OPERATIONS_UNKNOWN),
        ),
    ),
)

API = Api(
    key=77,
    name="ShareGroupDescribe",
    versions=(1, 1),
    advertised=(1, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
