"""SaslAuthenticate (key 36): one token of a SASL mechanism, and the response to it (KIP-152).

v1  the lifetime of the session (KIP-368)
v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import BYTES, INT16, INT64, TEXT, Api, field, message

REQUEST = message(field("auth_bytes", BYTES))

RESPONSE = message(
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field("auth_bytes", BYTES),
    field("session_lifetime_ms", INT64, since=1),
)

API = Api(
    key=36,
    name="SaslAuthenticate",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
