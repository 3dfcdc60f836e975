"""What coordinators know of topics is what the metadata says, and is looked up anew only
where that is another.
"""

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
    """Metadata, the view of it, and how often a topic was looked at as a whole."""

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
        """What the view says is what a view says that has looked at nothing yet.

        Topics that had to be looked at anew.
        """
        self.digested.clear()
        names = ["a", "b", "missing"]
        said = [(self.view.digest(name), list(self.view.racks(name))) for name in names]
        looked_at = self.digested.copy()
        fresh = ImageTopics(lambda: self.image)
        assert said == [(fresh.digest(name), list(fresh.racks(name))) for name in names]
        return looked_at


def test_nothing_is_looked_up_twice_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    assert (
        cluster.view.racks("a") == [frozenset({"r1", "r2"})] * 3
        and cluster.view.digest("missing") == b""
    )
    assert cluster.look() == []
    cluster.update("a", PartitionUpdate(1, leader=TWO))
    cluster.update("b", PartitionUpdate(2, isr=(ONE,)))
    assert cluster.look() == [], "leaders and in-sync replicas are nothing of it"
    cluster.create("c")
    assert cluster.look() == []
    cluster.change(SetBrokerFencing(THREE, cluster.image.brokers[THREE].epoch, True))
    assert cluster.look() == [], "a node that is away keeps its rack"


def test_what_changes_is_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
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
