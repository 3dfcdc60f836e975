"""DescribeUserScramCredentials (key 50): mechanisms and iterations of users, never a secret
(KIP-554). Flexible from the start.
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field("users", array(field("name", STRING)), nullable_since=0),  # null or empty: all users
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field(
        "results",
        array(
            field("user", STRING),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field(
                "credential_infos",
                array(
                    field("mechanism", INT8),  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
                    field("iterations", INT32),
                ),
            ),
        ),
    ),
)

API = Api(
    key=50,
    name="DescribeUserScramCredentials",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
