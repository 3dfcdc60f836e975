"""Which names topics may have."""

from __future__ import annotations

import re
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import TOPIC_NAME_CHARS_MAX

RESERVED_TOPIC: Final = "__cluster_metadata"
"""Kafka's Raft log; never a topic."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def topic_name_problem(name: str) -> str | None:
    """Why `name` is no legal name: it needs 1 to 249 characters of [a-zA-Z0-9._-], and is neither
    "." nor "..". None for a legal one.
    """
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return f"{name!r} is reserved"
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return f"it has {len(name)} characters, {TOPIC_NAME_CHARS_MAX} are allowed"
    if not _LEGAL_NAME.match(name):
        return f"{name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    return None


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for an illegal name."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise MqError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topic name: {problem}.")
