"""The probes on simplified nodes: each violation is found when it happens, and none in a correct
history.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.protocol.batch import LEADER_EPOCH_POSITION, iterate_batches
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.files import ProducerSnapshotEntry
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.testing.probes.probes import Probes
from mqd.types import NodeId, TopicPartition

TP = TopicPartition("t", 0)
ID = UUID(int=7)


class CardboardPartition(SimpleNamespace):
    """The last stable offset is the high watermark, or the value that a test sets."""

    stable: int | None = None

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.stable is None else self.stable


class Replica:
    """One replica of the one partition: its log is a list of batches."""

    def __init__(self, node_id: int, leader: int = 1) -> None:
        self.path = Path(f"/{node_id}/t-0")
        self.data = bytearray()
        self.replaced = bytearray()
        """The contents of the first segment's file while a cleaned segment is already read but not
        renamed.
        """
        self.log: Any = SimpleNamespace(
            topic_partition=TP,
            topic_id=ID,
            path=self.path,
            log_start_offset=0,
            log_end_offset=0,
            written_end_offset=0,
            truncations=0,
            cleanings=0,
            cleaned_to=None,
            failure=None,
            queue=[],
            segments=[SimpleNamespace(base_offset=0, size=0, suffix="")],
            segment_index=lambda offset: 0,
            producers=SimpleNamespace(entries=list),
            epochs=SimpleNamespace(latest=0),
        )
        self.partition: Any = CardboardPartition(
            node_id=node_id,
            log=self.log,
            high_watermark=0,
            leader_epoch=0,
            is_leader=node_id == leader,
            assignment=SimpleNamespace(isr=(1, 2, 3), partition_epoch=0),
        )

    def restart(self) -> None:
        """The next process of the node: the same file, and a new log, which was never truncated."""
        self.log = self.partition.log = SimpleNamespace(
            **{**vars(self.log), "truncations": 0, "cleanings": 0}
        )

    def append(self, value: bytes, *, epoch: int = 0) -> None:
        self.data += build_batch(
            [(None, value)], base_offset=self.log.log_end_offset, partition_leader_epoch=epoch
        )
        self._ends(self.log.log_end_offset + 1)

    def append_of_transaction(self, *, ends: bool = False) -> None:
        batch = (
            build_end_marker(7, 0, EndMarker(True, 0), 0)
            if ends
            else build_batch([(None, b"t")], producer_id=7, transactional=True)
        )
        batch[:8] = self.log.log_end_offset.to_bytes(8, "big")
        batch[LEADER_EPOCH_POSITION : LEADER_EPOCH_POSITION + 4] = bytes(4)
        self.data += batch
        self._ends(self.log.log_end_offset + 1)

    def cut(self, offset: int, size: int) -> None:
        del self.data[size:]
        self.log.truncations += 1
        self._ends(offset)

    def clean(self, *kept: int, suffix: str = "") -> None:
        """Only these batches stay, by their position; all are before the active segment.

        `suffix`: the segment is not renamed yet.
        """
        places = [(position, size) for position, size, _ in iterate_batches(self.data)]
        self.replaced = self.data
        self.data = bytearray().join(
            self.data[position : position + size] for position, size in (places[at] for at in kept)
        )
        self.log.cleanings += 1
        self.log.segments = [
            SimpleNamespace(base_offset=0, size=len(self.data), suffix=suffix),
            SimpleNamespace(base_offset=self.log.log_end_offset, size=0, suffix=""),
        ]
        self.log.cleaned_to = self.log.log_end_offset

    def _ends(self, offset: int) -> None:
        self.log.log_end_offset = self.log.written_end_offset = offset
        self.log.segments[0].size = len(self.data)


class Cardboard:
    """Three nodes with one partition."""

    def __init__(self) -> None:
        self.replicas = {node_id: Replica(node_id) for node_id in (1, 2, 3)}
        self.images = {node_id: MetadataImage() for node_id in (1, 2, 3)}
        self.daemons = {node_id: self.new_daemon(node_id) for node_id in (1, 2, 3)}
        self.probes = Probes(self, (1, 2, 3))

    def new_daemon(self, node_id: int) -> Any:
        partitions = {0: self.replicas[node_id].partition}
        replica = SimpleNamespace(by_name={b"t": partitions}, by_id={ID.bytes: partitions})
        raft = SimpleNamespace(_node=None, _journal=None)
        shards = SimpleNamespace(shards=lambda: ())
        coordinators = SimpleNamespace(groups=shards, transactions=shards)
        machine = SimpleNamespace(image=self.images[node_id])
        return SimpleNamespace(
            raft=raft, machine=machine, replica=replica, coordinators=coordinators
        )

    def daemon(self, node_id: int) -> Any:
        return self.daemons[node_id]

    def contents(self, node_id: int, path: Path) -> bytes | bytearray:
        replica = self.replicas[node_id]
        return (
            replica.data
            if path.suffix == (replica.log.segments[0].suffix or ".log")
            else replica.replaced
        )

    def look(self) -> str | None:
        for node_id in (1, 2, 3):
            self.probes.look(node_id)
        return self.probes.violation


@pytest.fixture
def world() -> Cardboard:
    """All replicas have a and b, both committed."""
    world = Cardboard()
    world.look()
    for value in (b"a", b"b"):
        for replica in world.replicas.values():
            replica.append(value)
            assert world.look() is None
    for replica in world.replicas.values():
        replica.partition.high_watermark = 2
        assert world.look() is None
    return world


def test_a_correct_history_has_no_violations(world: Cardboard) -> None:
    assert world.probes.is_committed(TP, 1) and not world.probes.is_committed(TP, 2)
    world.probes.validate()
    assert world.look() is None


def test_an_uncommitted_end_may_be_truncated(world: Cardboard) -> None:
    size = len(world.replicas[3].data)
    world.replicas[3].append(b"x")
    assert world.look() is None
    world.replicas[3].cut(2, size)
    assert world.look() is None
    assert (
        world.probes.counts.truncations == 1
        and world.probes.counts.truncated_below_high_watermark == 0
    )


def test_a_high_watermark_that_decreases(world: Cardboard) -> None:
    world.replicas[2].partition.high_watermark = 1
    assert "I5" in str(world.look())


def test_a_high_watermark_beyond_the_end(world: Cardboard) -> None:
    world.replicas[2].partition.high_watermark = 3
    assert "I4" in str(world.look())


def test_a_last_stable_offset_that_decreases(world: Cardboard) -> None:
    world.replicas[2].partition.stable = 1
    world.replicas[2].partition.assignment = SimpleNamespace(
        isr=(1, 2, 3), partition_epoch=0, another=True
    )
    assert "went back from 2 to 1" in str(world.look())


def test_a_last_stable_offset_beyond_the_high_watermark(world: Cardboard) -> None:
    world.replicas[1].append(b"c")
    world.replicas[1].partition.stable = 3
    assert "stable 3, high watermark 2" in str(world.look())


@pytest.mark.parametrize("ends", [False, True])
def test_a_last_stable_offset_beyond_the_begin_of_a_transaction(
    world: Cardboard, ends: bool
) -> None:
    for replica in world.replicas.values():
        replica.append_of_transaction()
        if ends:
            replica.append_of_transaction(ends=True)
        replica.partition.stable = 2
        assert world.look() is None
    for replica in world.replicas.values():
        replica.partition.high_watermark = replica.log.log_end_offset
        assert world.look() is None
    world.replicas[1].partition.stable = 3
    world.replicas[1].append(b"d")
    assert (world.look() is None) is ends


def test_a_high_watermark_that_an_in_sync_replica_has_not_reached(world: Cardboard) -> None:
    for node_id in (1, 2):
        world.replicas[node_id].append(b"c")
    assert world.look() is None
    world.replicas[1].partition.high_watermark = 3
    assert "in-sync replica 3" in str(world.look())


def test_a_follower_with_a_higher_watermark_than_any_leader(world: Cardboard) -> None:
    world.replicas[2].append(b"c")
    world.replicas[2].partition.high_watermark = 3
    assert "I2" in str(world.look())


def test_another_record_below_the_high_watermark(world: Cardboard) -> None:
    for node_id, value in ((1, b"c"), (2, b"c"), (3, b"d")):
        world.replicas[node_id].append(value)
    assert world.look() is None
    world.replicas[1].partition.high_watermark = 3
    assert "CRC" in str(world.look())


def test_a_truncation_below_the_high_watermark(world: Cardboard) -> None:
    world.replicas[2].cut(0, 0)
    world.replicas[2].partition.high_watermark = 0
    assert world.look() is not None


def test_a_second_leader_in_one_epoch(world: Cardboard) -> None:
    world.replicas[2].partition.is_leader = True
    assert "two leaders in leader epoch 0" in str(world.look())


def test_a_new_leader_without_committed_records(world: Cardboard) -> None:
    for node_id in (1, 2):
        world.replicas[node_id].append(b"c")
        world.replicas[node_id].partition.assignment = SimpleNamespace(
            isr=(1, 2), partition_epoch=0
        )
    assert world.look() is None
    world.replicas[1].partition.high_watermark = 3
    assert world.look() is None
    world.replicas[3].partition.is_leader, world.replicas[3].partition.leader_epoch = True, 1
    assert "the new leader of epoch 1" in str(world.look())


def test_a_killed_process_that_lost_written_records(world: Cardboard) -> None:
    size = len(world.replicas[3].data)
    world.replicas[3].append(b"c")
    assert world.look() is None
    world.replicas[3].restart()
    world.replicas[3].cut(2, size)
    world.daemons[3] = world.new_daemon(3)
    assert "a restarted process lost" in str(world.look())


def test_a_process_killed_during_a_truncation_has_lost_nothing(world: Cardboard) -> None:
    size = len(world.replicas[3].data)
    world.replicas[3].append(b"c")
    assert world.look() is None
    world.replicas[3].cut(2, size)
    world.replicas[3].restart()
    world.daemons[3] = world.new_daemon(3)
    assert world.look() is None


def test_a_power_failure_may_lose_unsynced_records(world: Cardboard) -> None:
    size = len(world.replicas[3].data)
    world.replicas[3].append(b"c")
    assert world.look() is None
    world.probes.power_cut(3)
    world.replicas[3].cut(2, size)
    world.daemons[3] = world.new_daemon(3)
    assert world.look() is None


def test_a_replica_that_the_metadata_removed_may_be_created_again(world: Cardboard) -> None:
    partition = PartitionImage(NodeId(1), 0, 0, (NodeId(1), NodeId(2)), (NodeId(1), NodeId(2)))
    image = world.images[1]
    image.topics["t"] = TopicImage("t", ID, [partition])
    image.index = 5
    for replica in world.replicas.values():
        replica.partition.assignment = SimpleNamespace(isr=(1, 2), partition_epoch=0)
    assert world.look() is None
    world.replicas[3].cut(0, 0)
    world.replicas[3].partition.high_watermark = 0
    assert world.look() is None


@pytest.mark.parametrize(("isr", "seen"), [((1, 2), False), ((1, 2, 3), True)])
def test_a_leader_with_old_metadata_does_not_commit_with_an_ended_isr(
    world: Cardboard, isr: tuple[int, ...], seen: bool
) -> None:
    nodes = NodeId(1), NodeId(2), NodeId(3)
    newer = PartitionImage(nodes[0], 0, 1, nodes, tuple(map(NodeId, isr)))
    world.images[2].topics["t"] = TopicImage("t", ID, [newer])
    world.images[2].index = 5
    assert world.look() is None
    world.probes.set_aside(3, TP)
    world.replicas[3].cut(0, 0)
    world.replicas[3].partition.high_watermark = 0
    assert world.look() is None
    world.replicas[1].append(b"c")
    found = world.look()
    assert ("I1: in-sync replica 3" in str(found)) is seen, found


def test_two_images_of_one_partition_epoch(world: Cardboard) -> None:
    for node_id, leader in ((1, 1), (2, 2)):
        isr = (NodeId(1), NodeId(2))
        world.images[node_id].topics["t"] = TopicImage(
            "t", ID, [PartitionImage(NodeId(leader), 9, 4, isr, isr)]
        )
        world.images[node_id].index = 5
    assert "two images of t-0 at partition epoch 4" in str(world.look())


def test_two_images_of_one_index_that_differ_beside_partitions(world: Cardboard) -> None:
    for node_id, value in ((1, "300"), (2, "2000")):
        world.images[node_id].index = 5
        world.images[node_id].configs["topic", "t"] = {"segment.ms": value}
    assert (world.look() or "").startswith(
        "I10: at index 5 nodes 1 and 2 hold {('topic', 't'): {'segment.ms': '300'}} and"
    )


@pytest.mark.parametrize(
    ("adding", "isr", "is_early"), [((4,), (1,), False), ((), (1, 4), False), ((), (1,), True)]
)
def test_a_reassignment_that_ends_before_the_new_replica_is_in_sync(
    world: Cardboard, adding: tuple[int, ...], isr: tuple[int, ...], is_early: bool
) -> None:
    def nodes(*ids: int) -> tuple[NodeId, ...]:
        return tuple(map(NodeId, ids))

    before = PartitionImage(
        NodeId(1), 0, 1, nodes(1, 4, 2), nodes(1, 2), adding=nodes(4), removing=nodes(2)
    )
    after = PartitionImage(NodeId(1), 0, 2, nodes(1, 4), nodes(*isr), adding=nodes(*adding))
    image = world.images[1]
    for image.index, partition in enumerate((before, after), start=1):
        image.topics["t"] = TopicImage("t", ID, [partition])
        found = world.look()
    assert (found is not None) == is_early
    if is_early:
        assert found is not None and "leaves {4} as replicas, never in sync" in found


def test_a_follower_with_records_that_its_leader_has_deleted(world: Cardboard) -> None:
    for node_id, replica in world.replicas.items():
        replica.partition.followers = dict.fromkeys({1, 2, 3} - {node_id})
        world.daemons[node_id].replica.get = {TP: replica.partition}.get
    assert world.probes.undeleted() is None
    for node_id in (1, 2):
        world.replicas[node_id].log.log_start_offset = 1
    assert world.probes.undeleted() == "deletion of the records of t-0 below 1 on node 3"


@pytest.mark.parametrize(("held", "unsent"), [(9, 5), (10, 4)])
def test_a_pool_that_counts_bytes_of_no_connection(
    world: Cardboard, held: int, unsent: int
) -> None:
    queue = SimpleNamespace(unsent_bytes=5)
    connection = SimpleNamespace(listener="client", held_bytes=10, send_queue=queue)
    memory = SimpleNamespace(
        request_pools={"client": SimpleNamespace(bytes=10)},
        response_pools={"client": SimpleNamespace(bytes=5)},
    )
    server = SimpleNamespace(_connections=[connection], memory=memory)
    for node_id in (1, 2, 3):
        world.daemons[node_id].server = server if node_id == 2 else None
    assert world.probes.unreleased() is None
    connection.held_bytes, queue.unsent_bytes = held, unsent
    assert (world.probes.unreleased() or "").startswith(
        "release of memory on node 2: (10, 5) bytes"
    )


def test_a_leader_that_is_not_in_sync(world: Cardboard) -> None:
    nodes = NodeId(1), NodeId(2), NodeId(3)
    world.images[1].topics["t"] = TopicImage(
        "t", ID, [PartitionImage(nodes[2], 1, 1, nodes, nodes[:2])]
    )
    world.images[1].index = 5
    assert "not in sync" in str(world.look())


def test_a_changed_byte_on_the_disk(world: Cardboard) -> None:
    world.replicas[2].data[-1] ^= 1
    assert world.look() is None
    world.probes.validate()
    assert "bytes of t-0 on node 2" in str(world.probes.violation)


def test_offsets_with_a_gap(world: Cardboard) -> None:
    world.replicas[2].log.log_end_offset = 3
    world.replicas[2].append(b"c")
    assert "I3" in str(world.look())


def test_nodes_with_different_producers(world: Cardboard) -> None:
    world.replicas[2].log.producers.entries = lambda: [ProducerSnapshotEntry(4, 0, 9, 1, 0, 0)]
    world.probes.validate()
    assert "I7" in str(world.probes.violation)


def test_a_compacted_replica_lacks_only_what_others_have(world: Cardboard) -> None:
    for replica in world.replicas.values():
        replica.append(b"c")
        assert world.look() is None
    for replica in world.replicas.values():
        replica.partition.high_watermark = 3
        assert world.look() is None
    world.replicas[2].clean(1, 2)
    assert world.look() is None
    world.probes.validate()
    assert world.probes.violation is None
    world.replicas[2].restart()
    world.daemons[2] = world.new_daemon(2)
    assert world.look() is None, "it lost nothing when it died"
    world.replicas[1].clean(2)
    world.replicas[3].clean(0, 2)
    assert world.look() is None
    world.replicas[3].partition.is_leader, world.replicas[3].partition.leader_epoch = True, 1
    assert world.look() is None
    world.probes.validate()
    assert world.probes.violation is None


def test_a_cleaned_segment_is_read_before_its_rename(world: Cardboard) -> None:
    for replica in world.replicas.values():
        replica.append(b"c")
    assert world.look() is None
    world.replicas[2].clean(1, 2, suffix=".swap")
    assert world.look() is None
    world.probes.validate()
    assert world.look() is None
    world.replicas[2].data[-1] ^= 1
    for replica in world.replicas.values():
        replica.partition.high_watermark = 3
    world.probes.validate()
    assert "bytes of t-0 on node 2" in str(world.look())


def test_a_compacted_replica_has_no_uncommitted_batch(world: Cardboard) -> None:
    second = list(iterate_batches(world.replicas[2].data))[1][0]
    # of an epoch without a leader
    world.replicas[2].data[second + 12 : second + 16] = (5).to_bytes(4, "big")
    world.replicas[2].clean(0, 1)
    assert "was committed" in str(world.look())


def test_nothing_is_missing_above_the_compacted_part(world: Cardboard) -> None:
    world.replicas[2].clean(1)
    assert world.look() is None
    for number in (1, 3):
        world.replicas[number].append(b"c")
    assert world.look() is None
    world.replicas[1].partition.high_watermark = 3
    assert "in-sync replica 2" in str(world.look())


def test_an_empty_log_may_continue_at_a_later_offset() -> None:
    """A log in memory that was lost begins again beyond its earlier offsets."""
    world = Cardboard()
    world.probes = Probes(world, (1, 2, 3), may_lose=lambda topic: True)
    world.probes.look(1)
    replica = world.replicas[1]
    replica.log.segments = [SimpleNamespace(base_offset=100, size=0, suffix="")]
    replica.log.log_start_offset = replica.partition.high_watermark = 100
    replica.log.log_end_offset = 100
    replica.append(b"x")
    world.probes.look(1)
    assert world.probes.violation is None
