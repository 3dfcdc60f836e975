"""Reserved names of transactional ids and groups that nodes use for themselves. Pure."""

from __future__ import annotations

from typing import Final
from uuid import UUID

RESERVED_PREFIX: Final = "__mqd_relay"
"""Transactional ids and groups whose names begin so are written by nodes only. Clients can read
them."""


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX)


def delay_transactional_id(topic_id: UUID, partition: int) -> str:
    """The transactional id of the relay of one partition of a delay topic."""
    return f"{RESERVED_PREFIX}.delay.{topic_id}.{partition}"


def delay_group(topic: str) -> str:
    """The group whose committed offsets are the progress of the relays of a delay topic."""
    return f"{RESERVED_PREFIX}.delay.{topic}"
