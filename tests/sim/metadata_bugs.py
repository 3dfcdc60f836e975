"""Defects to plant in the metadata: its snapshots, their transfer, and reassignments of
partitions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqd.controller import partition_state, reassignments, snapshot
from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.raft.journal import Journal
from mqd.raft.snapshot_transfer import Loaded, SnapshotReceiver
from mqd.raft.snapshots import OwnSnapshots
from mqd.replica.assignments import Assignments
from tests.sim.planting import Patches, bug

# -- snapshots


def _snapshot_with(**values: Any) -> Patches:
    original = snapshot.snapshot_text
    yield snapshot, "snapshot_text", lambda **how: original(**{**how, **values})


@bug("a snapshot of the metadata lacks the producer ids that were given out")
def snapshot_lacks_producer_ids() -> Patches:
    yield from _snapshot_with(next_producer_id=0)


@bug("a snapshot of the metadata lacks the options of topics")
def snapshot_lacks_configs() -> Patches:
    yield from _snapshot_with(configs=[])


@bug("a snapshot of the metadata lacks the eligible leader replicas (KIP-966)")
def snapshot_lacks_eligible_replicas() -> Patches:
    original = snapshot.snapshot_text

    def without(partition: PartitionImage) -> PartitionImage:
        return replace(partition, elr=())

    def text(*, topics: list[Any], **how: Any) -> Any:
        rows = [
            (name, topic_id, tuple(map(without, partitions)))
            for name, topic_id, partitions in topics
        ]
        return original(topics=rows, **how)

    yield snapshot, "snapshot_text", text


@bug("a snapshot counts for the entries that were applied while it was built")
def snapshot_index_taken_late() -> Patches:
    original = OwnSnapshots._on_built

    def built(
        self: OwnSnapshots, _index: int, applied_bytes: int, now_applied: Any, state: bytes
    ) -> None:
        original(self, now_applied(), applied_bytes, now_applied, state)

    yield OwnSnapshots, "_on_built", built


@bug("the journal is cut off before the snapshot that goes with it is written")
def journal_cut_without_its_snapshot() -> Patches:
    original = Journal.compact

    def compact(self: Journal, *what: Any, **how: Any) -> None:
        before = self._snapshot_pending
        original(self, *what, **how)
        self._snapshot_pending = before

    yield Journal, "compact", compact


# -- InstallSnapshot


@bug("a snapshot from the leader is added to what a node has, instead of replacing it", nodes=5)
def restore_merges() -> Patches:
    original = MetadataImage.become

    def become(self: MetadataImage, fresh: MetadataImage) -> None:
        before: list[TopicImage] = list(self.topics.values())
        original(self, fresh)
        for topic in before:
            if topic.name not in self.topics:
                self.insert_topic(topic)

    yield MetadataImage, "become", become


@bug("a snapshot from the leader is kept in the journal, and not restored", nodes=5)
def installed_snapshot_not_restored() -> Patches:
    original = SnapshotReceiver.take_loaded

    def take_loaded(self: SnapshotReceiver) -> Loaded | None:
        loaded = original(self)
        return None if loaded is None else replace(loaded, take_effect=lambda: None)

    yield SnapshotReceiver, "take_loaded", take_loaded


@bug("a snapshot from the leader is not written to disk", nodes=5)
def installed_snapshot_not_written() -> Patches:
    yield Journal, "install", lambda self, snapshot: self.restart_at(snapshot)


# -- reassignments of partitions


@bug("a move is complete when one of the replicas that stay is in sync", nodes=5)
def move_completed_early() -> Patches:
    original = partition_state._completed

    def completed(partition: PartitionImage) -> PartitionImage:
        if not partition.adding or set(partition.isr) <= set(partition.removing):
            return original(partition)
        return original(replace(partition, adding=()))

    yield partition_state, "_completed", completed


@bug("a replica that was moved away stays in the ISR", nodes=5)
def moved_replica_stays_in_sync() -> Patches:
    original = partition_state.with_replicas

    def with_replicas(before: PartitionImage, *rest: Any) -> PartitionImage:
        return replace(original(before, *rest), isr=before.isr)

    yield partition_state, "with_replicas", with_replicas
    yield reassignments, "with_replicas", with_replicas


@bug("the log of a replica that was moved away stays", nodes=5)
def moved_replica_keeps_its_log() -> Patches:
    def remove_unopened(self: Assignments, topic_partition: Any) -> None:
        self._offline.forget(topic_partition)

    yield Assignments, "remove_unopened", remove_unopened
