"""The bytes that each part of the metadata counts for (I45).

A part counts as the most that it can ever take in a snapshot's text, about what it takes in memory.
A replica counts for all the lists that may name it. So elections, changes of the ISR and lost
replicas change no size. `size.py` adds the parts up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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


def feature_size(name: str) -> int:
    return _FEATURE_BYTES + text_size(name)


def text_size(value: str) -> int:
    """JSON escapes a quote and a backslash with two bytes, an unprintable character with six."""
    if value.isascii() and value.isprintable():
        return 2 + len(value) + value.count('"') + value.count("\\")
    return 2 + _ESCAPED_MAX * len(value.encode())
