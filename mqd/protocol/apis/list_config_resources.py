"""ListConfigResources (key 74): names of resources that have, or may have, a configuration
(KIP-1142).

v0  subscriptions to client metrics only (KIP-714)
v1  resources of every type
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("resource_types", array(INT8), since=1),  # none: all types
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field(
        "config_resources",
        array(field("resource_name", STRING), field("resource_type", INT8, since=1, default=16)),
    ),
)

API = Api(
    key=74,
    name="ListConfigResources",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
