"""UpdateFeatures (key 57): upgrades or downgrades features (KIP-584). Flexible from the start.

v1  upgrade, safe or unsafe downgrade, in place of a flag; may only validate (KIP-778)
v2  without a result for each feature (KIP-1022)
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

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3

REQUEST = message(
    field("timeout_ms", INT32, default=60_000),
    field(
        "feature_updates",
        array(
            field("feature", STRING),
            field("max_version_level", INT16),  # below 1: delete the finalized feature
            field("allow_downgrade", BOOLEAN, until=0),
            field("upgrade_type", INT8, since=1, default=UPGRADE),
        ),
    ),
    field("validate_only", BOOLEAN, since=1),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field(
        "results",
        array(
            field("feature", STRING),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
        ),
        until=1,
    ),
)

API = Api(
    key=57,
    name="UpdateFeatures",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
