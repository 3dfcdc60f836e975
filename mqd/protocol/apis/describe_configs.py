"""DescribeConfigs (key 32): configurations of topics, brokers, groups and other resources.

v1  the source of each value, and its synonyms (KIP-226)
v3  type and documentation of each key
v4  flexible
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
            # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group
            field("resource_type", INT8),
            field("resource_name", STRING),
            field("configuration_keys", array(STRING), nullable_since=0),  # null: every key
        ),
    ),
    field("include_synonyms", BOOLEAN),
    field("include_documentation", BOOLEAN, since=3),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "results",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field("resource_type", INT8),
            field("resource_name", STRING),
            field(
                "configs",
                array(
                    field("name", STRING),
                    field("value", STRING, nullable_since=0),
                    field("read_only", BOOLEAN),
                    field("config_source", INT8, default=-1),
                    field("is_sensitive", BOOLEAN),
                    field(
                        "synonyms",
                        array(
                            field("name", STRING),
                            field("value", STRING, nullable_since=0),
                            field("source", INT8),
                        ),
                    ),
                    field("config_type", INT8, since=3),
                    field("documentation", TEXT, since=3, nullable_since=0),
                ),
            ),
        ),
    ),
)

API = Api(
    key=32,
    name="DescribeConfigs",
    versions=(1, 4),
    advertised=(1, 4),
    flexible_from=4,
    request=REQUEST,
    response=RESPONSE,
)
