"""Responses of the controller to other nodes: whether they report an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError

_ROWS = ("topics", "responses", "results", "filter_results", "entries")
"""Fields that repeat the error of a whole request in each of their rows."""


def check_response(response: Mapping[str, Any]) -> None:
    """Raise MqError if the response rejects the whole request."""
    if response["error_code"]:
        code = ErrorCode(response["error_code"])
        raise MqError(code, f"The controller rejected the request with {code.name}.")


def names_not_controller(response: Mapping[str, Any]) -> bool:
    """Whether the peer rejected the whole request because it is no longer the controller."""
    rows = [response, *(row for key in _ROWS for row in response.get(key) or ())]
    rows += [
        row
        for topic in response.get("replica_election_results") or ()
        for row in topic["partition_result"]
    ]
    return any(row.get("error_code") == ErrorCode.NOT_CONTROLLER for row in rows)
