"""SaslAuthenticate (key 36), versions 0 to 2, where no login is expected: on a listener without
SASL, and after the login. `server/sasl_connection.py` handles all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode
from mqd.server.context import Context


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    message = "SaslAuthenticate request received after successful authentication"
    return {"error_code": int(ErrorCode.ILLEGAL_SASL_STATE), "error_message": message}
