"""Which names topics may have."""

from __future__ import annotations

import re
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import TOPIC_NAME_CHARS_MAX

RESERVED_TOPIC: Final = "__cluster_metadata"
"""Kafka's Raft log; never a topic."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` is 1 to 249 characters of [a-zA-Z0-9._-], and
    neither "." nor "..".
    """
    problem = None
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = f"{name!r} is reserved"
    elif len(name) > TOPIC_NAME_CHARS_MAX:
        problem = f"it has {len(name)} characters, {TOPIC_NAME_CHARS_MAX} are allowed"
    elif not _LEGAL_NAME.match(name):
        problem = f"{name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    if problem is not None:
        raise MqError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topic name: {problem}.")
