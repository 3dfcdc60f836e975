"""InitProducerId (key 22), versions 0 to 5: an id for an idempotent producer.

v2 flexible. v3 a producer may name the id and epoch it has, to have its epoch raised (KIP-360). v4 PRODUCER_FENCED.
v5 TRANSACTION_ABORTABLE. Without a transactional id every call gives a fresh id with epoch 0, whatever it named.

There is no transaction coordinator yet. A transactional id is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: with it
librdkafka 2.16, aiokafka 0.14 and kafka-python 3.0 fail within half a second, as tried against this handler, where librdkafka
retried UNSUPPORTED_VERSION until its time-out. The name of the code misleads; the Java client was not tried.
"""

from __future__ import annotations

from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.types import NO_EPOCH, NO_PRODUCER_ID


async def handle(context: Context, request: Any) -> dict[str, Any]:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise MqError(ErrorCode.INVALID_REQUEST, "A producer id comes with its epoch, and an epoch with its id.")
    if request.transactional_id is not None:
        _refuse_transactions(context, request)
    producer_id = await context.node.controller.next_producer_id()
    return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}


def _refuse_transactions(context: Context, request: Any) -> None:
    if request.transactional_id == "":
        raise MqError(ErrorCode.INVALID_REQUEST, "A transactional id is null or has at least one character.")
    if not 0 < request.transaction_timeout_ms <= context.node.config.integer("transaction.max.timeout.ms"):
        raise MqError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transaction.timeout.ms is not between 1 and transaction.max.timeout.ms.")
    raise MqError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "This version of mqd has no transactions.")


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
