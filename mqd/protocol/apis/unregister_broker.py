"""UnregisterBroker (key 64): removes the registration of a broker permanently (KIP-500).

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, TEXT, Api, field, message

REQUEST = message(field("broker_id", INT32))

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
)

API = Api(
    key=64,
    name="UnregisterBroker",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
