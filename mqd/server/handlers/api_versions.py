"""ApiVersions, v0 to v4: the APIs that this listener serves, and the finalized features.

v1 throttle time; v3 flexible, with the client's software name and version (checked, KIP-511); v4
features with level 0. It is the first request of every client; the response determines the versions
of all later requests. APIs that Apache Kafka does not have are listed for clients of this project
only: others may refuse a key that they do not know, as kafka-python 3.0 does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from mqd.controller.features import LEVELS
from mqd.errors import ErrorCode, MqError
from mqd.protocol import apis
from mqd.protocol.apis import FIRST_OWN_KEY, SOFTWARE
from mqd.server import unstable
from mqd.server.context import CLIENT, PEER, Context
from mqd.server.served_apis import (
    SERVED,
    SERVED_TO_CLIENTS,
    SERVED_TO_PEERS,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    if context.header.api_version >= 3:
        for software in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(software):
                raise MqError(
                    ErrorCode.INVALID_REQUEST, f"not a software name or version: {software!r}"
                )
    knows_own = context.listener == PEER or (
        context.header.api_version >= 3 and request.client_software_name == SOFTWARE
    )
    features = context.node.image.features
    return {
        "error_code": 0,
        "api_keys": [
            row
            for row in served(context.listener, unstable.enabled(context.node.config))
            if knows_own or row["api_key"] < FIRST_OWN_KEY
        ],
        "supported_features": [
            {"name": name, "min_version": levels[0], "max_version": levels[-1]}
            for name, levels in LEVELS.items()
        ],
        "finalized_features_epoch": context.node.image.index,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in features.items()
        ],
    }


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": int(error.code), "api_keys": []}


def served(listener: str = CLIENT, enabled: Collection[int] = ()) -> list[Mapping[str, int]]:
    """The APIs of a listener, by key, with the advertised versions. `enabled`: API keys for which
    the node also serves unstable versions.
    """
    names = (
        "fetch",
        *SERVED,
        *(SERVED_TO_PEERS if listener == PEER else ("produce", *SERVED_TO_CLIENTS)),
    )
    found = [api for name in names if (api := apis.by_name(name)) is not None]
    assert len(found) == len(names)
    return [
        {"api_key": api.key, "min_version": low, "max_version": high}
        for api in sorted(found, key=lambda api: api.key)
        for low, high in [api.versions if api.key in enabled else api.advertised or api.versions]
    ]
