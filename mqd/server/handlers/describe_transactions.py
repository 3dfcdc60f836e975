"""DescribeTransactions (key 65), version 0: what the coordinator knows of transactional ids
(KIP-664).
"""

from __future__ import annotations

from typing import Any

from mqd.coordinator.txn.operations import DescribeTransaction
from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.slices import KEY_CHARS_A_ROW, SLICE_ROWS, others_first


async def handle(context: Context, request: Any) -> dict[str, Any]:
    rows = []
    weight = 0
    for transactional_id in dict.fromkeys(request.transactional_ids):
        weight += 1 + len(transactional_id) // KEY_CHARS_A_ROW
        if weight >= SLICE_ROWS:
            weight = 0
            await others_first()
        try:
            rows.append(
                await context.node.transactions.call(
                    transactional_id, DescribeTransaction(transactional_id)
                )
            )
        except MqError as error:
            rows.append({"transactional_id": transactional_id, "error_code": error.code})
    return {"transaction_states": rows}
