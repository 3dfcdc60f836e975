"""ListTransactions (key 66), versions 0 to 2: the transactional ids that this node coordinates
(KIP-664).

v1 only transactions that began longer ago than a duration (KIP-994). v2 only ids that match a
pattern (KIP-1152). While one partition of the transaction log is loading, the error is
COORDINATOR_LOAD_IN_PROGRESS: the list would be incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mqd.coordinator.expressions import matching_steps
from mqd.coordinator.txn.operations import ListTransactions, compiled_pattern
from mqd.coordinator.txn.transaction import STATES_BY_LABEL
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, permissions_of
from mqd.server.context import Context
from mqd.server.slices import finished_in_slices

_STEPS_A_ROW = 2_000
"""So many matching steps are as much work as a row."""


async def handle(context: Context, request: Any) -> dict[str, Any]:
    expression = compiled_pattern(request.transactional_id_pattern or "")
    op = ListTransactions(
        frozenset(request.producer_id_filters),
        frozenset(request.state_filters),
        request.duration_filter,
    )
    responses = await context.node.transactions.call_everywhere(op)
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [
            name for name in dict.fromkeys(request.state_filters) if name not in STATES_BY_LABEL
        ],
        "transaction_states": await finished_in_slices(
            _describable(
                context,
                expression,
                (row for response in responses for row in response["transaction_states"]),
            )
        ),
    }


def _describable(
    context: Context, expression: Any, rows: Iterable[Mapping[str, Any]]
) -> Slices[list[Mapping[str, Any]]]:
    """The rows that match the expression, if there is one, and that the client may DESCRIBE."""
    if permissions_of(context) is None and expression is None:
        return list(rows)
    found = []
    for row in rows:
        name = row["transactional_id"]
        weight = 1
        if expression is not None:
            weight += matching_steps(expression, name) // _STEPS_A_ROW
        if (expression is None or expression.fullmatch(name) is not None) and is_authorized(
            context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name, is_logged=False
        ):
            found.append(row)
        yield weight
    return found


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "unknown_state_filters": [], "transaction_states": []}
