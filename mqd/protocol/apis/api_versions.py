"""ApiVersions (key 18): which APIs in which versions; the first request of every client.

v1  throttle time
v3  flexible, and the client introduces itself (KIP-511); feature levels, tagged (KIP-584)
v4  a feature may have 0 as its lowest level; below v4 such a feature must be left out (KAFKA-17011, KAFKA-17492)

Two exceptions from the rules, as the client cannot know our versions before it has read the answer: the response header is
v0 in every version, and a request of an unknown version is answered with UNSUPPORTED_VERSION in a v0 body.
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("client_software_name", STRING, since=3),
    field("client_software_version", STRING, since=3),
)

RESPONSE = message(
    field("error_code", INT16),
    field("api_keys", array(field("api_key", INT16), field("min_version", INT16), field("max_version", INT16))),
    field("throttle_time_ms", INT32, since=1),
    field("supported_features", array(field("name", STRING), field("min_version", INT16), field("max_version", INT16)), since=3, tag=0),
    field("finalized_features_epoch", INT64, since=3, tag=1, default=-1),
    field(
        "finalized_features",
        array(
            field("name", STRING),
            field("max_version_level", INT16),
            field("min_version_level", INT16),
        ),
        since=3,
        tag=2,
    ),
    field("zk_migration_ready", BOOLEAN, since=3, tag=3),
)

API = Api(key=18, name="ApiVersions", versions=(0, 4), advertised=(0, 4), flexible_from=3, request=REQUEST, response=RESPONSE)
