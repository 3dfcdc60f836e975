"""DeleteTopics (key 20): deletes topics.

v1  throttle time
v3  may return TOPIC_DELETION_DISABLED
v4  flexible
v5  error messages; may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
v6  topics by name or by id
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, TEXT, UUID, Api, array, field, message

REQUEST = message(
    field("topics", array(field("name", STRING, default=None), field("topic_id", UUID)), since=6),
    field("topic_names", array(STRING), until=5),
    field("timeout_ms", INT32),
    # for whom another node forwards the request (server/mutation_quotas.py)
    field("client_principal", STRING, since=4, tag=10_000, default=""),
    field("client_id", STRING, since=4, tag=10_001, default=""),
    field("client_api_version", INT16, since=4, tag=10_002, default=0),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "responses",
        array(
            field("name", STRING, nullable_since=6),
            field("topic_id", UUID, since=6),
            field("error_code", INT16),
            field("error_message", TEXT, since=5, default=None),
        ),
    ),
)

API = Api(
    key=20,
    name="DeleteTopics",
    versions=(1, 6),
    advertised=(1, 6),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
