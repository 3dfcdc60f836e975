"""DeleteShareGroupOffsets (key 92): deletes the offsets of topics of an empty share group
(KIP-932).

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, TEXT, UUID, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("topics", array(field("topic_name", STRING))),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0, default=None),
    field(
        "responses",
        array(
            field("topic_name", STRING),
            field("topic_id", UUID),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0, default=None),
        ),
    ),
)

API = Api(
    key=92,
    name="DeleteShareGroupOffsets",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
