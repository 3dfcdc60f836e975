"""AlterUserScramCredentials (key 51), version 0: sets and deletes SCRAM credentials of users. Runs
on the controller.

Secrets are copied out of the receive buffer at once, and never logged.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.metadata_version import check_security_allowed
from mqd.controller.scram_credentials import AlterScramCredentials, ScramDeletion, ScramUpsertion
from mqd.errors import ErrorCode, MqError
from mqd.limits import SCRAM_USERS_MAX
from mqd.security.acls import Operation
from mqd.security.scram_credentials import ScramMechanism
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.acls import number_of
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller


def handle(context: Context, request: Any) -> Any:
    require_cluster(context, Operation.ALTER)
    node = context.node
    check_security_allowed(node.image)
    if len(request.deletions) + len(request.upsertions) > SCRAM_USERS_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request alters at most {SCRAM_USERS_MAX} credentials: split the request.",
        )
    for row in request.upsertions:
        # Later requests of this connection overwrite the buffer.
        row.salt, row.salted_password = bytes(row.salt), bytes(row.salted_password)
    deletions = (
        ScramDeletion(row.name, number_of(ScramMechanism, row.mechanism))
        for row in request.deletions
    )
    upsertions = (
        ScramUpsertion(
            row.name,
            number_of(ScramMechanism, row.mechanism),
            row.iterations,
            row.salt,
            row.salted_password,
        )
        for row in request.upsertions
    )
    op = AlterScramCredentials((*deletions, *upsertions))

    async def here() -> Mapping[str, Any]:
        return {
            "results": [
                {
                    "user": result.user,
                    "error_code": result.error_code,
                    "error_message": result.error_message,
                }
                for result in await node.controller.submit(op)
            ]
        }

    return at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    rows = {}
    for row in (*request.deletions, *request.upsertions):
        rows[row.name] = {
            "user": row.name,
            "error_code": error.code,
            "error_message": error.message or None,
        }
        yield 1
    return {"results": list(rows.values())}
