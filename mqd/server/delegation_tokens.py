"""Requests for delegation tokens (KIP-48), which mqd does not have. The errors are those of a
broker of Apache Kafka without `delegation.token.secret.key`.
"""

from __future__ import annotations

from mqd.errors import ErrorCode, MqError
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.principal import ANONYMOUS
from mqd.server.context import Context


def check_may_request_tokens(context: Context) -> None:
    """Raise DELEGATION_TOKEN_REQUEST_NOT_ALLOWED unless the client has proved who it is."""
    listener = context.client_listener
    if (
        listener is None
        or listener.protocol is SecurityProtocol.PLAINTEXT
        or (listener.protocol is SecurityProtocol.SSL and context.principal == ANONYMOUS)
    ):
        raise MqError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on "
            "delegation token authenticated channels.",
        )


def tokens_are_disabled() -> MqError:
    return MqError(
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Delegation Token feature is not enabled."
    )


def timestamp_of(error: MqError) -> int:
    """The timestamps in a response: the controller of Apache Kafka returns 0, a broker -1."""
    return 0 if error.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else -1
