"""Which names topics may have."""

from __future__ import annotations

import re
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import TOPIC_NAME_CHARS_MAX

RESERVED_TOPIC: Final = "__cluster_metadata"
"""Kafka's Raft log; never a topic."""

_INVALID = "Topic name is invalid:"
_SHOWN_CHARACTERS = 60
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def topic_name_problem(name: str) -> str | None:
    """Why `name` is no legal name, in Kafka's words. None for a legal one.

    A name needs 1 to 249 characters of [a-zA-Z0-9._-], and is neither "." nor "..".
    """
    if not name:
        return f"{_INVALID} the empty string is not allowed"
    if name in (".", ".."):
        return f"{_INVALID} '{name}' is not allowed"
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return (
            f"{_INVALID} the length of '{_shown(name)}' is longer than the max allowed length "
            f"{TOPIC_NAME_CHARS_MAX}"
        )
    if not _LEGAL_NAME.match(name):
        return (
            f"{_INVALID} '{_shown(name)}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def _shown(name: str) -> str:
    """The name on one line, shortened."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for an illegal name."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise MqError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
