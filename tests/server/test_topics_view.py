"""The topics that coordinators see equal the metadata, and are read again only after a change."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    MetadataRecord,
    PartitionUpdate,
    Placement,
    RegisterBroker,
    SetBrokerFencing,
    UpdatePartitions,
)
from mqd.controller.replay import replay
from mqd.coordinator.group import subscriptions
from mqd.server import topics_view
from mqd.server.topics_view import ImageTopics
from mqd.types import NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Cluster:
    """Metadata, the view of it, and the number of topics that it read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.image = MetadataImage()
        self.view = ImageTopics(lambda: self.image)
        self.digested: list[str] = []

        def counted(topic_id: UUID, name: str, racks: list[frozenset[str]]) -> bytes:
            self.digested.append(name)
            return subscriptions.topic_digest(topic_id, name, racks)

        monkeypatch.setattr(topics_view, "topic_digest", counted)
        for node_id, rack in ((ONE, "r1"), (TWO, "r2"), (THREE, None)):
            self.change(RegisterBroker(node_id, UUID(int=node_id), "host", 9092, rack))
            self.change(SetBrokerFencing(node_id, self.image.brokers[node_id].epoch, False))
        for name in ("a", "b"):
            self.create(name)
        self.look()

    def change(self, record: MetadataRecord) -> None:
        self.image.index += 1
        delta = Delta(self.image.index)
        replay(self.image, record, self.image.index, delta)
        version = self.view.version
        assert self.view.changed(delta) and self.view.version > version

    def create(self, name: str) -> None:
        self.change(
            CreateTopic(
                name,
                UUID(int=0x1000 + self.image.index, version=4),
                (Placement((ONE, TWO), ONE, (ONE, TWO)),) * 3,
                (),
            )
        )

    def update(self, name: str, update: PartitionUpdate) -> None:
        self.change(UpdatePartitions(self.image.topics[name].topic_id, (update,)))

    def look(self) -> list[str]:
        """The view equals a new view.

        Returns the topics that had to be read again.
        """
        self.digested.clear()
        names = ["a", "b", "missing"]
        said = [(self.view.digest(name), list(self.view.racks(name))) for name in names]
        looked_at = self.digested.copy()
        fresh = ImageTopics(lambda: self.image)
        assert said == [(fresh.digest(name), list(fresh.racks(name))) for name in names]
        return looked_at


def test_an_unchanged_topic_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    assert (
        cluster.view.racks("a") == [frozenset({"r1", "r2"})] * 3
        and cluster.view.digest("missing") == b""
    )
    assert cluster.look() == []
    cluster.update("a", PartitionUpdate(1, leader=TWO))
    cluster.update("b", PartitionUpdate(2, isr=(ONE,)))
    assert cluster.look() == [], "it does not contain leaders and in-sync replicas"
    cluster.create("c")
    assert cluster.look() == []
    cluster.change(SetBrokerFencing(THREE, cluster.image.brokers[THREE].epoch, True))
    assert cluster.look() == [], "an absent node keeps its rack"


def test_a_changed_topic_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.update("a", PartitionUpdate(1, replicas=(ONE, THREE), isr=(ONE,)))
    assert cluster.look() == ["a"] and cluster.view.racks("a")[1] == {"r1"}
    cluster.change(
        AddPartitions(cluster.image.topics["b"].topic_id, 3, (Placement((TWO,), TWO, (TWO,)),))
    )
    assert cluster.look() == ["b"] and cluster.view.racks("b")[3] == {"r2"}
    cluster.change(RegisterBroker(THREE, UUID(int=30), "host", 9092, "r3"))
    assert cluster.look() == ["a", "b"] and cluster.view.racks("a")[1] == {"r1", "r3"}
    cluster.change(DeleteTopic(cluster.image.topics["a"].topic_id))
    assert (
        cluster.look() == [] and cluster.view.digest("a") == b"" and cluster.view.racks("a") == ()
    )
    cluster.create("a")
    assert cluster.look() == ["a"]
