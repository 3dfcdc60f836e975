"""AlterClientQuotas (key 49), versions 0 to 1: sets and removes quotas of users, client ids and
addresses. Runs on the controller.

v1 flexible. If an entity names a type twice, the last name counts, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.client_quotas import (
    AlterClientQuotas,
    QuotaAlteration,
    QuotasAltered,
    quota_entity,
)
from mqd.controller.metadata_version import check_security_allowed
from mqd.errors import ErrorCode, MqError
from mqd.limits import QUOTA_CHANGES_MAX, QUOTA_ENTITIES_MAX
from mqd.security.acls import Operation
from mqd.security.quotas import QuotaEntity
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller
from mqd.server.handlers.describe_client_quotas import entity_rows


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER_CONFIGS)
    node = context.node
    check_security_allowed(node.image)
    if (
        len(request.entries) > QUOTA_ENTITIES_MAX
        or sum(len(entry.ops) + len(entry.entity) for entry in request.entries) > QUOTA_CHANGES_MAX
    ):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request alters at most {QUOTA_CHANGES_MAX} quotas of {QUOTA_ENTITIES_MAX} "
            "entities: split the request.",
        )
    op = AlterClientQuotas(
        tuple(QuotaAlteration(_entity_of(entry), _changes_of(entry)) for entry in request.entries),
        request.validate_only,
    )

    async def here() -> Mapping[str, Any]:
        return {"entries": [_row(result) for result in await node.controller.submit(op)]}

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def _entity_of(entry: Any) -> QuotaEntity:
    return quota_entity({part.entity_type: part.entity_name for part in entry.entity})


def _changes_of(entry: Any) -> tuple[tuple[str, float | None], ...]:
    return tuple((op.key, None if op.remove else op.value) for op in entry.ops)


def _row(result: QuotasAltered) -> dict[str, Any]:
    return {
        "error_code": result.error_code,
        "error_message": result.error_message,
        "entity": entity_rows(result.entity),
    }


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    rows: dict[QuotaEntity, dict[str, Any]] = {}
    for entry in request.entries:
        entity = _entity_of(entry)
        rows[entity] = _row(QuotasAltered(entity, error.code, error.message or None))
        yield 1 + len(entry.entity)
    return {"entries": list(rows.values())}
