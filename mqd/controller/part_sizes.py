"""The bytes that each part of the metadata counts for (I45).

A part counts as the most that it can ever take in a snapshot's text, about what it takes in memory.
A replica counts for all the lists that may name it. So elections, changes of the ISR and lost
replicas change no size. `size.py` adds the parts up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.controller.endpoints import Endpoints
from mqd.security.acls import Acl
from mqd.security.quotas import QuotaEntity
from mqd.security.scram_credentials import ScramCredential

_EMPTY_BYTES: Final = 1_024
"""An image without content."""
_TOPIC_BYTES: Final = 512
_PARTITION_BYTES: Final = 256
REPLICA_BYTES: Final = 112
"""A node id in four lists of its partition, and in the list of lost replicas."""
_RESOURCE_BYTES: Final = 256
_OVERRIDE_BYTES: Final = 128
_BROKER_BYTES: Final = 512
_FEATURE_BYTES: Final = 128
_ENDPOINT_BYTES: Final = 128
_CREDENTIAL_BYTES: Final = 256
_ACL_BYTES: Final = 256
_QUOTA_ENTITY_BYTES: Final = 128
_QUOTA_BYTES: Final = 64
"""A number has at most 24 characters."""
_ESCAPED_MAX: Final = 6
"""Bytes of JSON for one byte of UTF-8: a control character is \\u0001."""


def empty_size() -> int:
    """The size of an image without content."""
    return _EMPTY_BYTES + text_size("")


def topic_size(name: str) -> int:
    return _TOPIC_BYTES + text_size(name)


def partition_size(replicas: int) -> int:
    return _PARTITION_BYTES + REPLICA_BYTES * replicas


def resource_size(resource: str) -> int:
    return _RESOURCE_BYTES + text_size(resource)


def overrides_size(resource: str, overrides: Mapping[str, str]) -> int:
    return (
        resource_size(resource) + sum(override_size(*pair) for pair in overrides.items())
        if overrides
        else 0
    )


def override_size(name: str, value: str) -> int:
    return _OVERRIDE_BYTES + text_size(name) + text_size(value)


def broker_size(host: str, rack: str | None) -> int:
    return _BROKER_BYTES + text_size(host) + text_size(rack or "")


def endpoints_size(endpoints: Endpoints) -> int:
    return sum(_ENDPOINT_BYTES + text_size(one.name) + text_size(one.host) for one in endpoints)


def feature_size(name: str) -> int:
    return _FEATURE_BYTES + text_size(name)


def credential_size(user: str, credential: ScramCredential) -> int:
    secrets = len(credential.salt) + len(credential.stored_key) + len(credential.server_key)
    return _CREDENTIAL_BYTES + text_size(user) + 2 * secrets


def acl_size(acl: Acl) -> int:
    return (
        _ACL_BYTES + text_size(acl.resource_name) + text_size(acl.principal) + text_size(acl.host)
    )


def quotas_size(entity: QuotaEntity, quotas: Mapping[str, float]) -> int:
    return quota_entity_size(entity) + sum(map(quota_size, quotas)) if quotas else 0


def quota_entity_size(entity: QuotaEntity) -> int:
    return _QUOTA_ENTITY_BYTES + sum(
        text_size(kind) + text_size(name or "") for kind, name in entity
    )


def quota_size(key: str) -> int:
    return _QUOTA_BYTES + text_size(key)


def text_size(value: str) -> int:
    """JSON escapes a quote and a backslash with two bytes, an unprintable character with six."""
    if value.isascii() and value.isprintable():
        return 2 + len(value) + value.count('"') + value.count("\\")
    return 2 + _ESCAPED_MAX * len(value.encode())
