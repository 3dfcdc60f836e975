"""Which metadata changes are applied to the replicas, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio
from trio.testing import wait_all_tasks_blocked

from mqd.config import NodeConfig
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import CreateTopic, DeleteTopic, Placement, SetConfigs
from mqd.controller.replay import replay
from mqd.node.publisher import MetadataPublisher
from mqd.replica.throttle import Throttle
from mqd.types import NodeId


class RecordingReplica:
    """Records the calls of the publisher. It is its own `assignments`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.assignments = self
        self.leader_throttle, self.follower_throttle = Throttle(), Throttle()
        self.logs = SimpleNamespace(compactor=SimpleNamespace(options=None))

    def brokers_changed(self) -> None:
        self.calls.append(("brokers", ""))

    def apply(self, assignments: Any, settings: Any) -> None:
        self.calls.append(
            ("apply", [(str(one.topic_partition), one.topic_id.int) for one in assignments])
        )

    def delete(self, topic: str) -> None:
        self.calls.append(("delete", topic))

    def retire(self, topic: str) -> list[str]:
        self.calls.append(("retire", topic))
        return [f"{topic}-{index}" for index in range(60)]

    def remove(self, partition: str) -> None:
        self.calls.append(("remove", partition))

    def configure(self, topic: str, settings: Any) -> None:
        self.calls.append(
            ("configure", (topic, settings.log.segment_bytes, settings.min_insync_replicas))
        )

    def remove_strays(self, known: Any, in_memory: Any) -> None:
        self.calls.append(("strays", {str(one): topic_id.int for one, topic_id in known.items()}))


class Publishing:
    def __init__(self) -> None:
        self.replica = RecordingReplica()
        self.image = MetadataImage()
        self.publisher = MetadataPublisher(NodeId(1), NodeConfig.load(), self.replica)  # type: ignore[arg-type]  # a fake of the replica
        self.index = 0

    def change(self, *records: Any) -> list[tuple[str, Any]]:
        """The calls that the replicas received for the change."""
        self.index += 1
        delta = Delta(self.index)
        for record in records:
            replay(self.image, record, self.index, delta)
        self.publisher(delta, self.image)
        return self.taken()

    def taken(self) -> list[tuple[str, Any]]:
        calls, self.replica.calls = self.replica.calls, []
        return calls


def created(name: str, number: int, node_id: int = 1) -> CreateTopic:
    me = NodeId(node_id)
    return CreateTopic(name, UUID(int=number), (Placement((me,), me, (me,)),), ())


async def test_history_is_not_applied_to_replicas() -> None:
    publishing = Publishing()
    assert publishing.change(created("gone", 1)) == []
    assert publishing.change(created("t", 2)) == []
    assert publishing.change(DeleteTopic(UUID(int=1)), DeleteTopic(UUID(int=2))) == []
    assert publishing.change(created("t", 3), created("elsewhere", 4, 2)) == []
    assert publishing.change(SetConfigs("topic", "t", (("segment.bytes", "2000000"),))) == []
    await publishing.publisher.activate(publishing.image)
    assert publishing.taken() == [
        ("strays", {"t-0": 3}),
        ("apply", [("elsewhere-0", 4), ("t-0", 3)]),
    ]


async def test_each_later_change_is_applied_to_replicas() -> None:
    publishing = Publishing()
    await publishing.publisher.activate(publishing.image)
    publishing.taken()
    assert publishing.change(created("t", 1)) == [("apply", [("t-0", 1)])]
    calls = publishing.change(DeleteTopic(UUID(int=1)), created("t", 2))
    assert calls == [("delete", "t"), ("apply", [("t-0", 2)])]
    calls = publishing.change(SetConfigs("topic", "t", (("segment.bytes", "2000000"),)))
    assert calls == [("apply", []), ("configure", ("t", 2_000_000, 1))]
    calls = publishing.change(SetConfigs("node", "", (("min.insync.replicas", "2"),)))
    assert calls == [("apply", []), ("configure", ("t", 2_000_000, 2))]


async def test_a_large_topic_is_deleted_in_slices_before_its_successor_opens(
    nursery: trio.Nursery,
) -> None:
    publishing = Publishing()
    await publishing.publisher.activate(publishing.image)
    placement = created("t", 1).partitions
    publishing.change(CreateTopic("t", UUID(int=1), placement * 60, ()))
    await publishing.publisher._drain(publishing.image)
    publishing.taken()
    assert publishing.change(DeleteTopic(UUID(int=1)), created("t", 2)) == [("retire", "t")]
    nursery.start_soon(publishing.publisher.run, publishing.image)
    await wait_all_tasks_blocked()
    assert publishing.taken() == [
        *(("remove", f"t-{index}") for index in range(60)),
        ("apply", [("t-0", 2)]),
    ]


async def test_many_small_topics_are_deleted_in_slices_too(nursery: trio.Nursery) -> None:
    publishing = Publishing()
    await publishing.publisher.activate(publishing.image)
    publishing.change(*(created(f"t{number}", number) for number in range(1, 31)))
    await publishing.publisher._drain(publishing.image)
    publishing.taken()
    calls = publishing.change(*(DeleteTopic(UUID(int=number)) for number in range(1, 31)))
    assert calls == [("retire", f"t{number}") for number in range(1, 31)]
    nursery.start_soon(publishing.publisher.run, publishing.image)
    await wait_all_tasks_blocked()
    assert [what for what, _ in publishing.taken()] == ["remove"] * 30 * 60


async def test_the_configuration_of_many_topics_changes_in_slices(nursery: trio.Nursery) -> None:
    publishing = Publishing()
    await publishing.publisher.activate(publishing.image)
    publishing.change(*(created(f"t{number}", number) for number in range(10, 30)))
    publishing.taken()
    calls = publishing.change(SetConfigs("node", "", (("min.insync.replicas", "2"),)))
    assert calls == [("apply", [])]
    change = SetConfigs("topic", "t29", (("segment.bytes", "2000000"),))
    assert publishing.change(change, DeleteTopic(UUID(int=28))) == [
        ("delete", "t28"),
        ("apply", []),
    ]
    nursery.start_soon(publishing.publisher.run, publishing.image)
    await wait_all_tasks_blocked()
    configured = [calls for what, calls in publishing.taken() if what == "configure"]
    assert [name for name, _, _ in configured] == [f"t{n}" for n in range(10, 30) if n != 28]
    assert configured[-1] == ("t29", 2_000_000, 2)
