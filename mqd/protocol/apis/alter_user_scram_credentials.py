"""AlterUserScramCredentials (key 51): sets and deletes SCRAM credentials of users (KIP-554).
Flexible from the start. The client salts the password; the request has no password.
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT8, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field(
        "deletions",
        array(field("name", STRING), field("mechanism", INT8)),  # 1 SHA-256, 2 SHA-512
    ),
    field(
        "upsertions",
        array(
            field("name", STRING),
            field("mechanism", INT8),
            field("iterations", INT32),
            field("salt", BYTES),
            field("salted_password", BYTES),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "results",
        array(
            field("user", STRING),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
        ),
    ),
)

API = Api(
    key=51,
    name="AlterUserScramCredentials",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
