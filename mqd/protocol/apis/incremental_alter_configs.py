"""IncrementalAlterConfigs (key 44): changes single configuration keys of resources (KIP-339).

v1  flexible
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
                "configs",
                array(
                    field("name", STRING),
                    field("config_operation", INT8),
                    field("value", STRING, nullable_since=0),
                ),
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
    key=44,
    name="IncrementalAlterConfigs",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=1,
    request=REQUEST,
    response=RESPONSE,
)
