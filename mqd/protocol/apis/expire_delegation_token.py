"""ExpireDelegationToken (key 40): lets a token expire earlier, or at once (KIP-48).

v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT16, INT32, INT64, Api, field, message

REQUEST = message(
    field("hmac", BYTES),
    field("expiry_time_period_ms", INT64),
)

RESPONSE = message(
    field("error_code", INT16),
    field("expiry_timestamp_ms", INT64),
    field("throttle_time_ms", INT32),
)

API = Api(
    key=40,
    name="ExpireDelegationToken",
    versions=(1, 2),
    advertised=(1, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
