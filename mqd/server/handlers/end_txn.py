"""EndTxn (key 26), versions 0 to 5: commit or abort a transaction.

v2 PRODUCER_FENCED. v3 flexible. v4 TRANSACTION_ABORTABLE. v5 the epoch ends with the transaction,
and the response has the next (KIP-890). The response waits until the outcome is committed. Markers
are written after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import EndTransaction
from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.handlers.transactions import call_with_spare_id, known_to
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

_FENCED_SINCE = 2
_SECOND_PROTOCOL_FROM = 5


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    version = context.header.api_version
    op = EndTransaction(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        request.committed,
        client_version=2 if version >= _SECOND_PROTOCOL_FROM else 0,
    )
    try:
        return await call_with_spare_id(context.node, op)
    except MqError as error:
        raise known_to(version, error, fenced_since=_FENCED_SINCE) from error


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
