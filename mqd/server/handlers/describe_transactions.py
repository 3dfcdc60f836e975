"""DescribeTransactions (key 65), version 0: what the coordinator knows of transactional ids
(KIP-664).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from mqd.coordinator.txn.operations import DescribeTransaction
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, split
from mqd.server.context import Context
from mqd.server.slices import KEY_CHARS_A_ROW, SLICE_ROWS, finished_in_slices, others_first


async def handle(context: Context, request: Any) -> dict[str, Any]:
    rows: list[Mapping[str, Any]] = []
    weight = 0
    for transactional_id in dict.fromkeys(request.transactional_ids):
        weight += 1 + len(transactional_id) // KEY_CHARS_A_ROW
        if weight >= SLICE_ROWS:
            weight = 0
            await others_first()
        if not is_authorized(
            context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            rows.append({"transactional_id": transactional_id, "error_code": error_code})
            continue
        try:
            row = await context.node.transactions.call(
                transactional_id, DescribeTransaction(transactional_id)
            )
            topics, _ = await finished_in_slices(
                split(
                    context,
                    Operation.DESCRIBE,
                    ResourceType.TOPIC,
                    row["topics"],
                    itemgetter("topic"),
                )
            )
            rows.append({**row, "topics": topics})
        except MqError as error:
            rows.append({"transactional_id": transactional_id, "error_code": error.code})
    return {"transaction_states": rows}
