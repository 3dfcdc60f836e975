"""InitProducerId (key 22), versions 0 to 6: an id and epoch for an idempotent or transactional
producer.

v2 flexible. v3 a producer may name the id and epoch it has, to have its epoch raised (KIP-360). v4
PRODUCER_FENCED. v5 TRANSACTION_ABORTABLE. Without a transactional id every call gives a fresh id
with epoch 0, whatever it named.

v6 `enable_2_pc` and `keep_prepared_txn` (KIP-939), served only where an option of the node enables
it (server/unstable.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import InitializeProducer
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import (
    is_authorized_for_any,
    is_authorized_for_cluster,
    require,
    require_cluster,
)
from mqd.server.context import Context
from mqd.server.handlers.transactions import call_with_spare_id, known_to
from mqd.server.slices import finished_soon
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

_FENCED_SINCE = 4


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    await _check_authorized(context, request)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "A producer id comes with its epoch, and an epoch with its id.",
        )
    if request.transactional_id is None:
        producer_id = await context.node.controller.next_producer_id()
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}
    op = InitializeProducer(
        request.transactional_id,
        request.transaction_timeout_ms,
        Producer(request.producer_id, request.producer_epoch)
        if request.producer_id != NO_PRODUCER_ID
        else None,
        two_phase=request.enable_2_pc,
        keep_prepared=request.keep_prepared_txn,
    )
    try:
        return await call_with_spare_id(context.node, op)
    except MqError as error:
        raise known_to(context.header.api_version, error, fenced_since=_FENCED_SINCE) from error


async def _check_authorized(context: Context, request: Any) -> None:
    """An idempotent producer must be able to write to some topic (KIP-679); IDEMPOTENT_WRITE is the
    older way to say that.
    """
    name = request.transactional_id
    if name is not None:
        require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        if request.enable_2_pc:
            require(context, Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    elif not is_authorized_for_cluster(
        context, Operation.IDEMPOTENT_WRITE, is_logged=False
    ) and not await finished_soon(
        is_authorized_for_any(context, Operation.WRITE, ResourceType.TOPIC)
    ):
        require_cluster(context, Operation.IDEMPOTENT_WRITE)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
