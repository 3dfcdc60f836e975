"""DescribeUserScramCredentials (key 50), version 0: mechanisms and iterations of users, never a
secret.

This node responds from its own metadata, as Apache Kafka does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.image import MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.limits import SCRAM_USERS_MAX
from mqd.security.acls import Operation
from mqd.security.scram_credentials import ScramMechanism
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.slices import finished_soon

_MECHANISMS = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE)
    image = context.node.image
    if not request.users:
        names = dict.fromkeys(user for user, _ in image.scram_credentials)
        counts = Counter(names.keys())
    else:
        if len(request.users) > SCRAM_USERS_MAX:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"A request describes at most {SCRAM_USERS_MAX} users: split the request.",
            )
        counts = Counter(user.name for user in request.users)
    rows = await finished_soon(_rows(image, counts))
    return {"error_code": ErrorCode.NONE, "error_message": "", "results": rows}


def _rows(
    image: MetadataImage, counts: Mapping[str, int]
) -> Generator[int, None, list[dict[str, Any]]]:
    rows = []
    for user, count in counts.items():
        rows.append(_row(image, user, count))
        yield 1
    return rows


def _row(image: MetadataImage, user: str, count: int) -> dict[str, Any]:
    if count > 1:
        return {
            "user": user,
            "error_code": ErrorCode.DUPLICATE_RESOURCE,
            "error_message": "Cannot describe SCRAM credentials for the same user twice in a "
            f"single request: {user}",
        }
    credentials = image.scram_credentials
    infos = [
        {"mechanism": mechanism, "iterations": credentials[user, mechanism].iterations}
        for mechanism in _MECHANISMS
        if (user, mechanism) in credentials
    ]
    if not infos:
        return {
            "user": user,
            "error_code": ErrorCode.RESOURCE_NOT_FOUND,
            "error_message": f"Attempt to describe a user credential that does not exist: {user}",
        }
    return {"user": user, "error_message": "", "credential_infos": infos}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    """Apache Kafka has a row for each user, which does not name it."""
    row = {"error_code": error.code, "error_message": error.message or None}
    rows = [row] * len(request.users or ())
    return {"error_code": error.code, "error_message": error.message or None, "results": rows}
