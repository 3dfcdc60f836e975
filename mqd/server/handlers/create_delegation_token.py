"""CreateDelegationToken (key 38), versions 1 to 3: refused, because mqd has no delegation tokens.

v3 an owner other than the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.security.principal import USER, Principal
from mqd.server.authorization import is_authorized
from mqd.server.context import Context
from mqd.server.delegation_tokens import (
    check_may_request_tokens,
    timestamp_of,
    tokens_are_disabled,
)


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    requester = owner = context.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    try:
        check_may_request_tokens(context)
        if owner != requester and not is_authorized(
            context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
        ):
            raise MqError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        if any(renewer.principal_type != USER for renewer in request.renewers):
            raise MqError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        raise tokens_are_disabled()
    except MqError as error:
        timestamp_ms = timestamp_of(error)
        return {
            "error_code": error.code,
            "principal_type": owner.type,
            "principal_name": owner.name,
            "token_requester_principal_type": requester.type,
            "token_requester_principal_name": requester.name,
            "issue_timestamp_ms": timestamp_ms,
            "expiry_timestamp_ms": timestamp_ms,
            "max_timestamp_ms": timestamp_ms,
        }
