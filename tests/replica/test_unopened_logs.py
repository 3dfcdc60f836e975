"""A starting node has found a log and not opened it yet, and the metadata removes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mqd.config import NodeConfig
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import (
    CreateTopic,
    DeleteTopic,
    PartitionUpdate,
    Placement,
    RegisterBroker,
    SetBrokerFencing,
    UpdatePartitions,
)
from mqd.controller.replay import replay
from mqd.log.log_config import LogConfig
from mqd.node.publisher import MetadataPublisher
from mqd.types import NodeId, TopicPartition
from tests.replica.replicas import ME, Replicas

OTHER = NodeId(99)
OLD, NEW = UUID(int=1), UUID(int=2)
LAST = 7
"""A partition that is not among the first to be opened."""


class Starting(Replicas):
    """A node that has logs of a topic of some partitions, and the metadata that gives them
    to it.
    """

    def __init__(self, directory: Path, partitions: int) -> None:
        super().__init__(directory)
        self.partitions = partitions
        self.image = MetadataImage()
        self.publisher = MetadataPublisher(ME, NodeConfig.load(), self.replica)
        self.index = 0

    async def begin(self) -> None:
        await self.service.start()
        for index in range(self.partitions):
            self.service.open(TopicPartition("t", index), OLD, LogConfig())
        self.change(
            RegisterBroker(OTHER, UUID(int=7), "other", 1, None), SetBrokerFencing(OTHER, 1, False)
        )
        self.change(self.created(OLD))

    def change(self, *records: Any) -> None:
        self.index += 1
        delta = Delta(self.index)
        for record in records:
            replay(self.image, record, self.index, delta)
        self.publisher(delta, self.image)

    def created(self, topic_id: UUID) -> CreateTopic:
        return CreateTopic(
            "t", topic_id, (Placement((OTHER, ME), OTHER, (OTHER,)),) * self.partitions, ()
        )

    def topic_ids(self) -> set[UUID]:
        return {log.topic_id for log in self.service.logs.values()}


async def activate(starting: Starting, *changes: Any) -> None:
    """It makes its changes as soon as the first partitions are open."""
    replica, opens = starting.replica, starting.replica.assignments.apply

    def opens_first(*args: Any) -> None:
        patch.undo()
        opens(*args)
        assert 0 < len(replica.partitions()) < starting.partitions
        for change in changes:
            starting.change(change)

    patch = pytest.MonkeyPatch()
    patch.setattr(replica.assignments, "apply", opens_first)
    await starting.publisher.activate(starting.image)


@pytest.mark.parametrize("partitions", [8, 60])
async def test_a_topic_recreated_before_its_log_is_opened_is_served(
    tmp_path: Path, partitions: int
) -> None:
    starting = Starting(tmp_path, partitions)
    await starting.begin()
    await activate(starting, DeleteTopic(OLD), starting.created(NEW))
    assert not starting.replica.offline
    assert starting.topic_ids() == {NEW} and len(starting.service.logs) == partitions
    assert len(starting.replica.partitions()) == partitions


async def test_a_topic_deleted_before_its_log_is_opened_leaves_nothing(tmp_path: Path) -> None:
    starting = Starting(tmp_path, 8)
    await starting.begin()
    await activate(starting, DeleteTopic(OLD))
    assert (
        not starting.service.logs
        and not starting.replica.partitions()
        and not starting.publisher.unopened
    )


async def test_an_unusable_log_of_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    starting = Starting(tmp_path, 8)
    await starting.begin()
    damaged = TopicPartition("t", LAST)
    del starting.service.logs[damaged]
    starting.service.offline[damaged] = "damaged"
    await activate(starting, DeleteTopic(OLD), starting.created(NEW))
    assert not starting.replica.offline and not starting.service.offline
    assert starting.topic_ids() == {NEW}


async def test_a_replica_reassigned_before_its_log_is_opened_leaves_no_log(tmp_path: Path) -> None:
    starting = Starting(tmp_path, 8)
    await starting.begin()
    await activate(starting, UpdatePartitions(OLD, (PartitionUpdate(LAST, replicas=(OTHER,)),)))
    assert TopicPartition("t", LAST) not in starting.service.logs
    starting.change(DeleteTopic(OLD))
    starting.change(starting.created(NEW))
    assert not starting.replica.offline and starting.topic_ids() == {NEW}
