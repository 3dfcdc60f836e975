"""DescribeDelegationToken (key 41): lists tokens (KIP-48).

v2  flexible
v3  the owner may be another principal, the requester is in the response (KIP-373)
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field(
        "owners",
        array(field("principal_type", STRING), field("principal_name", STRING)),
        nullable_since=0,
    ),  # null: of all owners
)

RESPONSE = message(
    field("error_code", INT16),
    field(
        "tokens",
        array(
            field("principal_type", STRING),
            field("principal_name", STRING),
            field("token_requester_principal_type", STRING, since=3),
            field("token_requester_principal_name", STRING, since=3),
            field("issue_timestamp", INT64),
            field("expiry_timestamp", INT64),
            field("max_timestamp", INT64),
            field("token_id", STRING),
            field("hmac", BYTES),
            field(
                "renewers", array(field("principal_type", STRING), field("principal_name", STRING))
            ),
        ),
    ),
    field("throttle_time_ms", INT32),
)

API = Api(
    key=41,
    name="DescribeDelegationToken",
    versions=(1, 3),
    advertised=(1, 3),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
