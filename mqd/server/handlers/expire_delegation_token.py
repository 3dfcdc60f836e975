"""ExpireDelegationToken (key 40), versions 1 and 2. Refused: mqd has no delegation tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.delegation_tokens import (
    check_may_request_tokens,
    timestamp_of,
    tokens_are_disabled,
)


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    check_may_request_tokens(context)
    raise tokens_are_disabled()


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "expiry_timestamp_ms": timestamp_of(error)}
