"""SaslHandshake (key 17), versions 0 and 1, where no login is expected. So it is on a listener
without SASL, or on an authenticated connection whose session does not end.
`server/sasl_connection.py` handles all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return {"error_code": int(ErrorCode.ILLEGAL_SASL_STATE), "mechanisms": ()}


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": int(error.code), "mechanisms": ()}
