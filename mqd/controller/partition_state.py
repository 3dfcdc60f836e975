"""The state of one partition: its leader, ISR, ELR and replica set, and how they change together.

`next_partition_state` is the only transition. A leader is elected from the ISR, then from the
eligible leader replicas (ELR, KIP-966). If fewer than `min.insync.replicas` remain in the ISR, a
member that leaves it joins the ELR. The high watermark has not moved since then, so this replica
has every committed record and may lead (I21). The ELR is cleared as soon as enough replicas are in
sync again. If ISR and ELR are empty, only the last leader may lead, once it is alive. Any other
replica leads only if the topic allows unclean elections, or an operator requests one.

A partition in memory is lost with the processes of its in-sync and eligible replicas. As soon as
all of them have reported that, one of them leads again, with an empty log (I59).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mqd.controller.image import PartitionImage
from mqd.controller.records import PartitionUpdate
from mqd.types import NO_NODE, NodeId


@dataclass(frozen=True, slots=True)
class ElectionConditions:
    """The input of an election in addition to the partition."""

    may_lead: Collection[NodeId]
    """Brokers that may lead this partition and be in sync now. All others leave the ISR."""
    min_insync_replicas: int
    lost_replicas: Collection[NodeId] = ()
    """Replicas that may lack committed records. They leave the ELR too."""
    unclean: bool = False
    """Elect any replica rather than none."""
    preferred: bool = False
    """Elect the first replica if it is in sync."""
    may_begin_empty: Collection[NodeId] = ()
    """Live replicas that have lost the records of a partition in memory. If no other replica may
    have them, one of these begins an empty log (I59)."""


def next_partition_state(
    before: PartitionImage,
    conditions: ElectionConditions,
    *,
    isr: Sequence[NodeId] | None = None,
    reassigned: PartitionImage | None = None,
) -> PartitionUpdate | None:
    """The change of a partition; None if nothing changes. The result has partition index 0: the
    caller sets the real one. The change also completes a reassignment (KIP-455) that is due.

    `isr`: the proposed ISR; by default the current one. `reassigned`: the partition with a new
    replica set and its old leader.
    """
    if reassigned is None and not before.adding and not before.removing:
        return elect(before, conditions, isr=isr)
    target = before if reassigned is None else reassigned
    target = _completed(target if isr is None else replace(target, isr=tuple(isr)))
    # The former ISR counts for the ELR, but only as far as it is within the new replica set.
    former = replace(
        target, isr=tuple(node_id for node_id in before.isr if node_id in target.replicas)
    )
    update = elect(former, conditions, isr=target.isr)
    after = former if update is None else updated(former, update)
    # The election may have added a replica to the ISR that is not being removed.
    if (completed := _completed(after)) is not after:
        update = elect(completed, conditions)
        after = completed if update is None else updated(completed, update)
    return difference(before, after)


def elect(
    before: PartitionImage,
    conditions: ElectionConditions,
    *,
    isr: Sequence[NodeId] | None = None,
) -> PartitionUpdate | None:
    """As `next_partition_state`, but ignores reassignments."""
    may_lead, lost_replicas = conditions.may_lead, conditions.lost_replicas
    replicas = before.replicas
    min_insync_replicas = min(conditions.min_insync_replicas, len(replicas))
    in_sync = tuple(
        node_id
        for node_id in (before.isr if isr is None else isr)
        if node_id in may_lead and node_id not in lost_replicas
    )
    elr, last_known_elr = _eligible(before, in_sync, min_insync_replicas, lost_replicas)
    leader = _leader_in_sync(before.leader, replicas, in_sync, conditions.preferred)
    if leader == NO_NODE:
        leader = next((node_id for node_id in elr if node_id in may_lead), NO_NODE)
        if leader != NO_NODE:
            elr = tuple(node_id for node_id in elr if node_id != leader)
        elif (
            not elr
            and len(last_known_elr) == 1
            and last_known_elr[0] in may_lead
            and last_known_elr[0] in replicas
        ):
            leader = last_known_elr[0]
        elif not elr and conditions.may_begin_empty:
            # Every replica that was in sync or eligible has reported the loss.
            for node_id in replicas:
                if node_id in conditions.may_begin_empty and node_id not in before.adding:
                    leader = node_id
                    break
        elif conditions.unclean:
            oldest_first = sorted(replicas, key=before.adding.__contains__)
            leader = next((node_id for node_id in oldest_first if node_id in may_lead), NO_NODE)
            elr = () if leader != NO_NODE else elr
        if leader != NO_NODE:
            in_sync = (leader,)
            if min_insync_replicas == 1:
                elr, last_known_elr = (), ()
    return difference(
        before,
        replace(before, leader=leader, isr=in_sync, elr=elr, last_known_elr=last_known_elr),
    )


def _eligible(
    before: PartitionImage,
    in_sync: tuple[NodeId, ...],
    min_insync_replicas: int,
    lost_replicas: Collection[NodeId],
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """The ELR and the last known ELR that belong to the ISR `in_sync`."""
    if len(in_sync) >= min_insync_replicas:
        return (), ()
    candidates = tuple(
        node_id
        for node_id in before.replicas
        if (node_id in before.isr or node_id in before.elr) and node_id not in in_sync
    )
    elr = (
        tuple(node_id for node_id in candidates if node_id not in lost_replicas)
        if lost_replicas
        else candidates
    )
    last_known_elr = before.last_known_elr
    if not in_sync:
        if before.leader != NO_NODE:
            last_known_elr = (before.leader,)
        elif not elr and not last_known_elr:
            # An earlier release ended the last leadership, and did not store the leader.
            last_known_elr = candidates[:1]
    return elr, last_known_elr


def _leader_in_sync(
    leader: NodeId, replicas: Sequence[NodeId], in_sync: Sequence[NodeId], preferred: bool
) -> NodeId:
    """The current leader if it is in sync, else the first in-sync replica of the list. With
    `preferred`, the first replica of the list has priority. NO_NODE if none is in sync.
    """
    if not in_sync:
        return NO_NODE
    if preferred and replicas[0] in in_sync:
        return replicas[0]
    if leader in in_sync:
        return leader
    return next(node_id for node_id in replicas if node_id in in_sync)


def _completed(partition: PartitionImage) -> PartitionImage:
    """The partition after its reassignment, if all added replicas are in sync; otherwise the
    partition itself.

    A reassignment that only removes replicas waits until a replica that stays is in sync.
    """
    staying = {node_id for node_id in partition.isr if node_id not in partition.removing}
    if (
        not (partition.adding or partition.removing)
        or not staying
        or not staying.issuperset(partition.adding)
    ):
        return partition
    return with_replicas(
        partition,
        tuple(node_id for node_id in partition.replicas if node_id not in partition.removing),
        (),
        (),
    )


def with_replicas(
    before: PartitionImage,
    replicas: tuple[NodeId, ...],
    adding: tuple[NodeId, ...],
    removing: tuple[NodeId, ...],
) -> PartitionImage:
    """The partition with another replica set. A removed replica leaves the ISR and the ELR."""
    return replace(
        before,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=tuple(node_id for node_id in before.isr if node_id in replicas),
        elr=tuple(node_id for node_id in before.elr if node_id in replicas),
        last_known_elr=tuple(node_id for node_id in before.last_known_elr if node_id in replicas),
    )


def difference(before: PartitionImage, after: PartitionImage) -> PartitionUpdate | None:
    """The update that changes `before` to `after`, without epochs. None if nothing but
    the epochs differs.
    """
    if (
        replace(after, leader_epoch=before.leader_epoch, partition_epoch=before.partition_epoch)
        == before
    ):
        return None
    return PartitionUpdate(
        0,
        after.leader if after.leader != before.leader else None,
        *(
            new if new != old else None
            for new, old in (
                (after.isr, before.isr),
                (after.elr, before.elr),
                (after.last_known_elr, before.last_known_elr),
                (after.replicas, before.replicas),
                (after.adding, before.adding),
                (after.removing, before.removing),
            )
        ),
    )


def updated(before: PartitionImage, update: PartitionUpdate) -> PartitionImage:
    """The partition after an update, with the epochs that follow from it."""
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
    rises = leader != before.leader or (
        replicas is not before.replicas and not set(replicas).issuperset(before.replicas)
    )
    return PartitionImage(
        leader,
        before.leader_epoch + rises,
        before.partition_epoch + 1,
        replicas,
        isr,
        elr,
        last_known_elr,
        adding,
        removing,
    )
