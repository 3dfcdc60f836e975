"""Reserved names of transactional ids and groups that nodes use for themselves. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from uuid import UUID

from mqd.delay_names import RESERVED_PREFIX

_PART_BYTES_MAX: Final = 1000


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX)


def shortened(name: str) -> str:
    """A name that is part of another one; a long one as its digest."""
    if len(name.encode()) <= _PART_BYTES_MAX:
        return name
    return "sha256-" + sha256(name.encode()).hexdigest()


def delay_transactional_id(topic_id: UUID, partition: int) -> str:
    """The transactional id of the relay of one partition of a delay topic."""
    return f"{RESERVED_PREFIX}.delay.{topic_id}.{partition}"


def delay_group(topic: str) -> str:
    """The group whose committed offsets are the progress of the relays of a delay topic."""
    return f"{RESERVED_PREFIX}.delay.{topic}"
