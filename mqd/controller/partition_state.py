"""How one partition of the metadata changes."""

from __future__ import annotations

from mqd.controller.image import PartitionImage
from mqd.controller.records import PartitionUpdate


def updated(before: PartitionImage, update: PartitionUpdate) -> PartitionImage:
    """A partition after one change, with the epochs that it gives it."""
    _, leader, *lists = update
    if leader is None:
        leader = before.leader
    old = (
        before.isr,
        before.elr,
        before.last_known_elr,
        before.replicas,
        before.adding,
        before.removing,
    )
    isr, elr, last_known_elr, replicas, adding, removing = (
        before_nodes if nodes is None else nodes
        for nodes, before_nodes in zip(lists, old, strict=True)
    )
    moved = leader != before.leader or (
        replicas is not before.replicas and not set(replicas).issuperset(before.replicas)
    )
    return PartitionImage(
        leader,
        before.leader_epoch + moved,
        before.partition_epoch + 1,
        replicas,
        isr,
        elr,
        last_known_elr,
        adding,
        removing,
    )
