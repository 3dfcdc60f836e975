"""DescribeTransactions (key 65), version 0: what the coordinator knows of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import Any

from mqd.coordinator.txn.shard import DescribeTransaction
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context


async def handle(context: Context, request: Any) -> dict[str, Any]:
    rows = []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        try:
            if not transactional_id:
                raise MqError(ErrorCode.INVALID_REQUEST, "A transactional id has at least one character.")
            rows.append(await context.node.transactions.call(transactional_id, DescribeTransaction(transactional_id)))
        except MqError as error:
            rows.append({"transactional_id": transactional_id, "error_code": error.code})
    return {"transaction_states": rows}
