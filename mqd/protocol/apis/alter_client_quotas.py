"""AlterClientQuotas (key 49): sets and removes quotas of users, client ids and addresses (KIP-546).

v1  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    FLOAT64,
    INT16,
    INT32,
    STRING,
    TEXT,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field(
        "entries",
        array(
            field(
                "entity",
                array(
                    field("entity_type", STRING),
                    field("entity_name", STRING, nullable_since=0),  # null: the default
                ),
            ),
            field(
                "ops",
                array(field("key", STRING), field("value", FLOAT64), field("remove", BOOLEAN)),
            ),
        ),
    ),
    field("validate_only", BOOLEAN),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "entries",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field(
                "entity",
                array(
                    field("entity_type", STRING),
                    field("entity_name", STRING, nullable_since=0),
                ),
            ),
        ),
    ),
)

API = Api(
    key=49,
    name="AlterClientQuotas",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=1,
    request=REQUEST,
    response=RESPONSE,
)
