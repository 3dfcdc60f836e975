"""BrokerRegistration (key 62): registers a broker with the controller. Peers only; flexible
from the start.

v1  whether the broker migrates from ZooKeeper
v2  log directories (KIP-858)
v3  the epoch before a clean shutdown (KIP-966)
v4  a feature may have the minimum level 0; earlier versions omit such a feature
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("broker_id", INT32),
    field("cluster_id", STRING),
    field("incarnation_id", UUID),
    field(
        "listeners",
        array(
            field("name", STRING),
            field("host", STRING),
            field("port", UINT16),
            field("security_protocol", INT16),  # 0 plaintext, 1 TLS, 2 SASL, 3 SASL over TLS
        ),
    ),
    field(
        "features",
        array(
            field("name", STRING),
            field("min_supported_version", INT16),
            field("max_supported_version", INT16),
        ),
    ),
    field("rack", STRING, nullable_since=0),
    field("is_migrating_zk_broker", BOOLEAN, since=1),
    field("log_dirs", array(UUID), since=2),
    field("previous_broker_epoch", INT64, since=3, default=-1),
    # only mqd has these: endpoints that are not those of the peers file are configured
    field("disk_serial", INT64, since=3, tag=10_000, default=0),
    field("are_listeners_configured", BOOLEAN, since=3, tag=10_001, default=False),
    field(
        "first_users",
        array(
            field("name", STRING),
            field("mechanism", INT8),
            field("iterations", INT32),
            field("salt", BYTES),
            field("stored_key", BYTES),
            field("server_key", BYTES),
        ),
        since=3,
        tag=10_002,
    ),
    # the newest mqd.metadata.version that it supports
    field("metadata_version_max", INT16, since=3, tag=10_003, default=0),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("broker_epoch", INT64, default=-1),
)

API = Api(
    key=62,
    name="BrokerRegistration",
    versions=(0, 4),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
