"""What the handlers of transactions share: the call of the coordinator, new producer ids for
it, and error codes that old clients know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mqd.coordinator.txn.operations import EndTransaction, InitializeProducer
from mqd.coordinator.txn.transaction import ProducerIdWanted
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Node


async def call_with_spare_id(
    node: Node, op: InitializeProducer | EndTransaction
) -> Mapping[str, Any]:
    """Call the coordinator, with a new producer id if it needs one.

    That is rare, and producer ids cost a request to the controller.
    """
    try:
        return await node.transactions.call(op.transactional_id, op)
    except ProducerIdWanted:
        spare = await node.controller.next_transactional_producer_id()
        return await node.transactions.call(
            op.transactional_id, replace(op, spare_producer_id=spare)
        )


def known_to(version: int, error: MqError, *, fenced_since: int) -> MqError:
    """The same, or INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED, which came with
    version `fenced_since` (KIP-588).
    """
    if error.code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return MqError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    return error
