"""Producer ids: blocks of numbers that nodes get, each block once (I17).

Invariant: blocks of one cluster never overlap, also after restarts and losses, because the record
is committed before the block is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.brokers import registered_broker
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.records import SetNextProducerId
from mqd.controller.result import ControllerResult
from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCER_IDS_PER_BLOCK, TRANSACTIONAL_PRODUCER_IDS_FROM
from mqd.types import NodeId


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """A registered broker requests a block."""

    node_id: NodeId
    broker_epoch: int


class ProducerIdBlock(NamedTuple):
    """Ids first .. first + length - 1."""

    first: int
    length: int


def decide_allocate_producer_ids(
    image: MetadataImage, op: AllocateProducerIds, options: DecisionOptions
) -> ControllerResult:
    """Reply: ProducerIdBlock. Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH."""
    registered_broker(image, op.node_id, op.broker_epoch)
    first = image.next_producer_id
    if first > TRANSACTIONAL_PRODUCER_IDS_FROM - PRODUCER_IDS_PER_BLOCK:
        raise MqError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids of this cluster are used up."
        )
    return ControllerResult(
        (SetNextProducerId(first + PRODUCER_IDS_PER_BLOCK),),
        ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK),
    )
