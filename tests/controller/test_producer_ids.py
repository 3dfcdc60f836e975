"""Blocks never overlap and are never reused."""

from __future__ import annotations

import pytest

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.producer_ids import (
    AllocateProducerIds,
    ProducerIdBlock,
    decide_allocate_producer_ids,
)
from mqd.controller.records import SetNextProducerId
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId
from tests.controller.cluster import Replica, with_brokers

ONE = NodeId(1)


def allocate(replica: Replica) -> ProducerIdBlock:
    block = replica.run(
        decide_allocate_producer_ids, AllocateProducerIds(ONE, replica.image.brokers[ONE].epoch)
    )
    assert isinstance(block, ProducerIdBlock)
    return block


def test_blocks_are_consecutive() -> None:
    replica = with_brokers(1)
    assert [allocate(replica) for _ in range(3)] == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert replica.image.next_producer_id == 3000


def test_only_a_registered_broker_gets_one() -> None:
    replica = with_brokers(1)
    for op, code in (
        (AllocateProducerIds(ONE, 0), ErrorCode.STALE_BROKER_EPOCH),
        (AllocateProducerIds(NodeId(2), 1), ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(MqError) as refusal:
            decide_allocate_producer_ids(replica.image, op, DecisionOptions())
        assert refusal.value.code is code


def test_no_block_follows_the_last_one() -> None:
    replica = with_brokers(1)
    replica.commit([SetNextProducerId(2**48 - 1001)])
    assert allocate(replica) == (2**48 - 1001, 1000)
    with pytest.raises(MqError, match="used up"):
        allocate(replica)
