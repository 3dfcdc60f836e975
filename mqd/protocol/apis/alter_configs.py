"""AlterConfigs (key 33): replaces the whole configuration of resources. IncrementalAlterConfigs has
replaced it.

v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
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
        "resources",
        array(
            field("resource_type", INT8),  # numbers as in DescribeConfigs
            field("resource_name", STRING),
            field(
                "configs", array(field("name", STRING), field("value", STRING, nullable_since=0))
            ),
        ),
    ),
    field("validate_only", BOOLEAN),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "responses",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field("resource_type", INT8),
            field("resource_name", STRING),
        ),
    ),
)

API = Api(
    key=33,
    name="AlterConfigs",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
