"""DescribeClientQuotas (key 48): the quotas of the entities that match a filter (KIP-546).

v1  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    FLOAT64,
    INT8,
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
        "components",
        array(
            field("entity_type", STRING),
            field("match_type", INT8),  # 0 this name, 1 the default, 2 any name
            field("match", STRING, nullable_since=0),
        ),
    ),
    field("strict", BOOLEAN),  # no entity with other types than those of the components
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
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
            field("values", array(field("key", STRING), field("value", FLOAT64))),
        ),
        nullable_since=0,
    ),
)

API = Api(
    key=48,
    name="DescribeClientQuotas",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=1,
    request=REQUEST,
    response=RESPONSE,
)
