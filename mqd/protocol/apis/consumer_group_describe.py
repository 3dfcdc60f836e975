"""ConsumerGroupDescribe (key 69): groups of the consumer protocol, with the current and the target
assignment of each member (KIP-848).

v1  the protocol of each member
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    INT8,
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

AUTHORIZED_OPERATIONS_OMITTED = -(2**31)

_ASSIGNMENT = message(
    field(
        "topic_partitions",
        array(
            field("topic_id", UUID), field("topic_name", STRING), field("partitions", array(INT32))
        ),
    ),
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
                    field("instance_id", STRING, nullable_since=0, default=None),
                    field("rack_id", STRING, nullable_since=0, default=None),
                    field("member_epoch", INT32),
                    field("client_id", STRING),
                    field("client_host", STRING),
                    field("subscribed_topic_names", array(STRING)),
                    field("subscribed_topic_regex", STRING, nullable_since=0, default=None),
                    field("assignment", _ASSIGNMENT),
                    field("target_assignment", _ASSIGNMENT),
                    # -1 unknown, 0 classic, 1 consumer
                    field("member_type", INT8, since=1, default=-1),
                ),
            ),
            field("authorized_operations", INT32, default=AUTHORIZED_OPERATIONS_OMITTED),
        ),
    ),
)

API = Api(
    key=69,
    name="ConsumerGroupDescribe",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
