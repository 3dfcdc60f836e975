"""What the probe of groups reads in a coordinator, and what it ignores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mqd.testing.probes.groups import GroupProbe
from mqd.testing.violation import Violation
from mqd.types import TopicPartition

TOPIC = UUID(int=1)
GROUPS = UUID(int=2)
T0 = TopicPartition("t", 0)


class Held(SimpleNamespace):
    """Equal instances are still distinct."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # SimpleNamespace has no hash


class Cardboard:
    """One consumer group, coordinated by node 1 in leader epoch 5; each `look` follows another
    record.
    """

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self.group: Any = SimpleNamespace(
            group_id="g", type_name="consumer", epoch=3, members=self.members
        )
        partition = SimpleNamespace(log=SimpleNamespace(topic_id=GROUPS))
        shard = SimpleNamespace(state=SimpleNamespace(by_id={"g": self.group}))
        self.held = Held(is_active=True, end=0, leader_epoch=5, partition=partition, shard=shard)
        self.daemon = SimpleNamespace(
            coordinators=SimpleNamespace(groups=SimpleNamespace(_contexts={0: self.held})),
            machine=SimpleNamespace(
                image=SimpleNamespace(topics={"t": SimpleNamespace(topic_id=TOPIC)})
            ),
        )
        self.leader = (1, 5)
        self.reads: dict[str, frozenset[TopicPartition]] = {}
        self.probe = GroupProbe(lambda: self.reads)

    def member(
        self,
        name: str,
        assigned: tuple[int, ...] = (),
        revoking: tuple[int, ...] = (),
        epoch: int = 3,
    ) -> None:
        rows = [{TOPIC: dict.fromkeys(partitions, epoch)} for partitions in (assigned, revoking)]
        self.members[name] = SimpleNamespace(
            member_id=name,
            epoch=epoch,
            previous_epoch=epoch - 1,
            uses_classic=False,
            assigned=rows[0],
            revoking=rows[1],
        )

    def look(self) -> str | None:
        self.held.end += 1
        image = SimpleNamespace(leader=self.leader[0], leader_epoch=self.leader[1])
        try:
            self.probe.look(1, self.daemon, lambda topic_id, partition: image)
        except Violation as violation:
            return str(violation)
        return None


@pytest.fixture
def world() -> Cardboard:
    world = Cardboard()
    world.member("m", (0,), (1,))
    world.member("n", (2,))
    world.reads = {"m": frozenset({T0}), "gone": frozenset({T0})}
    assert world.look() is None and world.probe.looks == 1
    return world


def test_a_partition_assigned_while_another_member_revokes_it(world: Cardboard) -> None:
    world.member("n", (1, 2))
    assert "partition 1 belongs to m and to n" in str(world.look())


def test_a_member_that_reads_another_member_s_partition(world: Cardboard) -> None:
    world.reads["n"] = frozenset({T0})
    assert "member n reads t-0, whose owner is m" in str(world.look())


def test_a_removed_classic_member_that_rejoins_is_not_yet_notified(
    world: Cardboard,
) -> None:
    """It keeps its partitions, however often it joins before its SyncGroup (seed 500152 of 3
    nodes); it takes no further partition, and none again.
    """
    world.member("n", (2,))
    world.reads["n"] = frozenset({T0})
    world.members["n"].uses_classic, world.members["n"].previous_epoch = True, 0
    assert world.look() is None
    world.members["n"].previous_epoch = 2
    assert world.look() is None
    world.reads["n"] = frozenset({T0, TopicPartition("t", 1)})
    assert "member n reads t-1, whose owner is m" in str(world.look())
    world.reads["n"] = frozenset({TopicPartition("t", 2)})
    assert world.look() is None
    world.reads["n"] = frozenset({T0})
    assert "member n reads t-0, whose owner is m" in str(world.look())


def test_epochs_that_decrease_or_are_ahead(world: Cardboard) -> None:
    world.member("o", epoch=4)
    assert "member o has epoch 4, the group 3" in str(world.look())
    del world.members["o"]
    assert world.look() is None
    world.group.epoch = 2
    assert "its epoch went back to 2" in str(world.look())


def test_a_group_that_had_the_other_protocol_meanwhile_starts_again(world: Cardboard) -> None:
    world.group.type_name = "classic"
    assert world.look() is None
    world.group.type_name, world.group.epoch = "consumer", 2
    for member in world.members.values():
        member.epoch = 2
    assert world.look() is None


def test_a_deposed_coordinator_may_have_any_state(world: Cardboard) -> None:
    world.member("n", (1, 2))
    world.leader = (2, 6)
    assert world.look() is None


def test_nothing_is_checked_without_a_new_record(world: Cardboard) -> None:
    world.member("n", (1, 2))
    world.held.end -= 1
    assert world.look() is None
