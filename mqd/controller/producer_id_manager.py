"""Producer ids for clients and transaction coordinators of this node, from blocks of the controller
(I17).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mqd.controller.channel import OWN_REQUEST_TIMEOUT_S, ControllerChannel
from mqd.controller.operations import Operations
from mqd.controller.producer_ids import AllocateProducerIds, ProducerIdBlock
from mqd.errors import ErrorCode, MqError
from mqd.limits import TRANSACTIONAL_PRODUCER_IDS_FROM
from mqd.types import NodeId


class ProducerIdManager:
    """Hands out the ids of one block, then requests the next block."""

    def __init__(self, node_id: NodeId, operations: Operations, channel: ControllerChannel) -> None:
        self._node_id = node_id
        self._operations = operations
        self._channel = channel
        self._block = range(0)
        self._lock = trio.Lock()

    async def next_producer_id(self, *, transactional: bool) -> int:
        """An id that no other producer of this cluster has, had or will have. That of a
        transactional id is at least TRANSACTIONAL_PRODUCER_IDS_FROM.

        Waits for the controller if the block is used up.
        """
        async with self._lock:
            if not self._block:
                first, length = await self._allocate()
                self._block = range(first, first + length)
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id + (TRANSACTIONAL_PRODUCER_IDS_FROM if transactional else 0)

    async def _allocate(self) -> ProducerIdBlock:
        """A new block for this node.

        Raises COORDINATOR_LOAD_IN_PROGRESS, which clients retry, if the controller gives none.
        """
        broker = self._operations.image.brokers.get(self._node_id)
        request = {
            "broker_id": self._node_id,
            "broker_epoch": -1 if broker is None else broker.epoch,
        }

        async def here() -> Mapping[str, Any]:
            block = await self._operations.submit(
                AllocateProducerIds(self._node_id, request["broker_epoch"])
            )
            return {
                "error_code": 0,
                "producer_id_start": block.first,
                "producer_id_len": block.length,
            }

        try:
            response = await self._channel.at_controller(
                here, "allocate_producer_ids", 0, request, timeout=OWN_REQUEST_TIMEOUT_S
            )
        except MqError as error:
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"Cannot allocate producer ids: {error}"
            ) from error
        if response["error_code"]:
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"Cannot allocate producer ids: error code {response['error_code']}",
            )
        return ProducerIdBlock(response["producer_id_start"], response["producer_id_len"])
