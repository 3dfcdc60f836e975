"""ApiVersions (key 18): the supported APIs and versions; the first request of every client.

v1  throttle time
v3  flexible; name and version of the client software (KIP-511); feature levels, tagged (KIP-584)
v4  a feature may have the minimum level 0; earlier versions omit such a feature (KAFKA-17011,
    KAFKA-17492)

The client does not know the supported versions before this response, so there are two exceptions.
The response header is v0 in every version. A request of an unknown version gets UNSUPPORTED_VERSION
in a v0 body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import Container

from mqd.errors import ErrorCode
from mqd.protocol.schema import (
    API_VERSIONS_KEY,
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    Api,
    Buffer,
    array,
    field,
    message,
)

REQUEST = message(
    field("client_software_name", STRING, since=3),
    field("client_software_version", STRING, since=3),
)

RESPONSE = message(
    field("error_code", INT16),
    field(
        "api_keys",
        array(field("api_key", INT16), field("min_version", INT16), field("max_version", INT16)),
    ),
    field("throttle_time_ms", INT32, since=1),
    field(
        "supported_features",
        array(field("name", STRING), field("min_version", INT16), field("max_version", INT16)),
        since=3,
        tag=0,
    ),
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


class ApiVersions(Api):
    """An Api with the exceptions of this request."""

    def encode_response(self, version: int, mapping: Mapping[str, Any]) -> bytes:
        """Before v4, omits features whose minimum level is 0."""
        features = mapping.get("supported_features", ())
        if version < 4 and features:
            mapping = {
                **mapping,
                "supported_features": [
                    feature for feature in features if feature["min_version"] > 0
                ],
            }
        return Api.encode_response(self, version, mapping)

    def decode_response(self, version: int, buffer: Buffer, position: int = 0) -> Container:
        """A broker that does not know the version of the request responds in v0."""
        if (
            int.from_bytes(buffer[position : position + 2], "big", signed=True)
            == ErrorCode.UNSUPPORTED_VERSION
        ):
            version = 0
        return Api.decode_response(self, version, buffer, position)


API = ApiVersions(
    key=API_VERSIONS_KEY,
    name="ApiVersions",
    versions=(0, 4),
    advertised=(0, 4),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
    response_header_flexible=False,
)
