"""CreateDelegationToken (key 38): creates a token that logs in its owner (KIP-48).

v2  flexible
v3  the owner may be another principal, the requester is in the response (KIP-373)
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("owner_principal_type", STRING, since=3, nullable_since=3),
    field("owner_principal_name", STRING, since=3, nullable_since=3),  # null: who requests it
    field("renewers", array(field("principal_type", STRING), field("principal_name", STRING))),
    field("max_lifetime_ms", INT64),  # -1: the broker's maximum
)

RESPONSE = message(
    field("error_code", INT16),
    field("principal_type", STRING),
    field("principal_name", STRING),
    field("token_requester_principal_type", STRING, since=3),
    field("token_requester_principal_name", STRING, since=3),
    field("issue_timestamp_ms", INT64),
    field("expiry_timestamp_ms", INT64),
    field("max_timestamp_ms", INT64),
    field("token_id", STRING, default=""),
    field("hmac", BYTES, default=b""),
    field("throttle_time_ms", INT32),
)

API = Api(
    key=38,
    name="CreateDelegationToken",
    versions=(1, 3),
    advertised=(1, 3),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
