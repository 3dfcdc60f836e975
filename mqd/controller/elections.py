"""Who leads: elections out of the ISR, then out of the eligible leader replicas (KIP-966), and what
follows from them.

`settle` is the one transition of a partition, `settle_reassigned` the same for one on the move. A
member that leaves the ISR while fewer than `min.insync.replicas` remain goes to the ELR: the high
watermark stood still from then on, so it has every committed record and may lead as well as the
rest. The ELR is forgotten as soon as enough are in sync again. Where nobody is left at all, the
last leader alone may lead once it is back; any other replica only where the topic allows unclean
elections, or an operator asks for one.

Whatever is decided here holds for any prefix of its records: sweeps over many partitions come in
portions (`Sweep`), and the next portion is decided on what the one before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.controller.partition_state import updated
from mqd.controller.records import PartitionUpdate, Record, UpdatePartitions
from mqd.controller.rules import Rules
from mqd.errors import ErrorCode, MqError
from mqd.limits import PARTITIONS_PER_REQUEST_MAX
from mqd.types import NO_NODE, Decision, NodeId, TopicPartition

PARTITIONS_PER_DECISION = 2_000
"""A decision about more partitions comes in portions, so that neither it nor its
application holds up a node for long.
"""
UPDATES_PER_RECORD = 1_000
"""Small enough for one command, however many replicas a partition has."""
REBALANCED_AT_ONCE = 1_000
"""Kafka's limit of elections for one look at the balance."""


def settle(
    before: PartitionImage,
    *,
    may_lead: Collection[NodeId],
    least: int,
    isr: Sequence[NodeId] | None = None,
    forgotten: Collection[NodeId] = (),
    unclean: bool = False,
    preferred: bool = False,
) -> PartitionUpdate | None:
    """How a partition changes (with index 0), or None.

    `may_lead`: brokers that may lead it and be in sync now. `least`: min.insync.replicas. `isr`:
    what it is to become; by default what it is. Members that may not lead leave it. `forgotten`:
    replicas that can no longer vouch for what they have; they leave the ELR too. `unclean`: better
    any leader than none. `preferred`: the first replica is to lead if it can.
    """
    replicas = before.replicas
    least = min(least, len(replicas))
    in_sync = tuple(
        node_id
        for node_id in (before.isr if isr is None else isr)
        if node_id in may_lead and node_id not in forgotten
    )
    elr, last_known = _eligible(before, in_sync, least, forgotten)
    leader = _choose(before.leader, replicas, in_sync, preferred)
    if leader == NO_NODE:
        leader = next((node_id for node_id in elr if node_id in may_lead), NO_NODE)
        if leader != NO_NODE:
            elr = tuple(node_id for node_id in elr if node_id != leader)
        elif (
            not elr
            and len(last_known) == 1
            and last_known[0] in may_lead
            and last_known[0] in replicas
        ):
            leader = last_known[0]
        elif unclean:
            oldest_first = sorted(replicas, key=before.adding.__contains__)
            leader = next((node_id for node_id in oldest_first if node_id in may_lead), NO_NODE)
            elr = () if leader != NO_NODE else elr
        if leader != NO_NODE:
            in_sync = (leader,)
            if least == 1:
                elr, last_known = (), ()
    return _update(before, leader, in_sync, elr, last_known)


def _eligible(
    before: PartitionImage, in_sync: tuple[NodeId, ...], least: int, forgotten: Collection[NodeId]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """ELR and last known leader beside this ISR."""
    if len(in_sync) >= least:
        return (), ()
    candidates = tuple(
        node_id
        for node_id in before.replicas
        if (node_id in before.isr or node_id in before.elr) and node_id not in in_sync
    )
    elr = (
        tuple(node_id for node_id in candidates if node_id not in forgotten)
        if forgotten
        else candidates
    )
    last_known = before.last_known_elr
    if not in_sync:
        if before.leader != NO_NODE:
            last_known = (before.leader,)
        elif not elr and not last_known:
            # a partition that had no leader when this was not yet remembered
            last_known = candidates[:1]
    return elr, last_known


def _choose(
    leader: NodeId, replicas: Sequence[NodeId], in_sync: Sequence[NodeId], preferred: bool
) -> NodeId:
    """Out of the in-sync replicas: the present leader, else the first in order of preference."""
    if not in_sync:
        return NO_NODE
    if preferred and replicas[0] in in_sync:
        return replicas[0]
    if leader in in_sync:
        return leader
    return next(node_id for node_id in replicas if node_id in in_sync)


def _update(
    before: PartitionImage,
    leader: NodeId,
    isr: tuple[NodeId, ...],
    elr: tuple[NodeId, ...],
    last_known: tuple[NodeId, ...],
) -> PartitionUpdate | None:
    update = PartitionUpdate(
        0,
        leader if leader != before.leader else None,
        isr if isr != before.isr else None,
        elr if elr != before.elr else None,
        last_known if last_known != before.last_known_elr else None,
    )
    return update if update != _NOTHING else None


_NOTHING = PartitionUpdate(0)


# -- partitions on the move


def settle_reassigned(
    before: PartitionImage,
    *,
    may_lead: Collection[NodeId],
    least: int,
    isr: Sequence[NodeId] | None = None,
    wished: PartitionImage | None = None,
    forgotten: Collection[NodeId] = (),
    unclean: bool = False,
    preferred: bool = False,
) -> PartitionUpdate | None:
    """`settle` for a partition that may be on the move (KIP-455), or whose replica set changes;
    completes the move when that is due.

    `wished`: the partition with its new replica set, its leader still the one before.
    """
    if wished is None and not before.adding and not before.removing:
        return settle(
            before,
            may_lead=may_lead,
            least=least,
            isr=isr,
            forgotten=forgotten,
            unclean=unclean,
            preferred=preferred,
        )
    target = before if wished is None else wished
    target = _completed(target if isr is None else replace(target, isr=tuple(isr)))
    # The former ISR counts for the ELR, but only as far as it is within the new replica set.
    former = replace(
        target, isr=tuple(node_id for node_id in before.isr if node_id in target.replicas)
    )
    update = settle(
        former,
        may_lead=may_lead,
        least=least,
        isr=target.isr,
        forgotten=forgotten,
        unclean=unclean,
        preferred=preferred,
    )
    after = former if update is None else updated(former, update)
    # the election put a replica in sync that stays
    if (completed := _completed(after)) is not after:
        update = settle(
            completed,
            may_lead=may_lead,
            least=least,
            forgotten=forgotten,
            unclean=unclean,
            preferred=preferred,
        )
        after = completed if update is None else updated(completed, update)
    return difference(before, after)


def _completed(partition: PartitionImage) -> PartitionImage:
    """Without those that leave, when all that join are in sync; the partition itself while that is
    not so.

    A move that only takes replicas away waits until one that stays is in sync.
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
    """The partition on this replica set: who is not in it leaves the ISR and the ELR."""
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
    """The update that makes `after` of `before`, epochs apart; None where nothing changes."""
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


# -- sweeps


class Sweep(NamedTuple):
    """A portion of the changes that follow for all partitions together."""

    records: tuple[Record, ...]
    complete: bool
    """Whether nothing is left to change after them."""


def sweep(
    image: MetadataImage,
    rules: Rules,
    may_lead: frozenset[NodeId],
    touched: Callable[[PartitionImage], bool],
    *,
    forgotten: Collection[NodeId] = (),
) -> Sweep:
    """Settle every partition that is `touched` when only `may_lead` may lead, as many as
    one decision may change.
    """
    records: list[Record] = []
    room = PARTITIONS_PER_DECISION
    for topic in image.topics.values():
        touched_here = [
            index for index, partition in enumerate(topic.partitions) if touched(partition)
        ]
        if not touched_here:
            continue
        least = rules.least_of(image, topic.name)
        unclean = rules.allows_unclean(image, topic.name)
        updates: list[PartitionUpdate] = []
        for index in touched_here:
            update = settle_reassigned(
                topic.partitions[index],
                may_lead=without_lost(image, topic, index, may_lead),
                least=least,
                forgotten=forgotten,
                unclean=unclean,
            )
            if update is None:
                continue
            if room == 0:
                return Sweep((*records, *update_records(topic, updates)), complete=False)
            room -= 1
            updates.append(update._replace(partition=index))
        records += update_records(topic, updates)
    return Sweep(tuple(records), complete=True)


def without_lost(
    image: MetadataImage, topic: TopicImage, partition: int, may_lead: frozenset[NodeId]
) -> frozenset[NodeId]:
    """Those of `may_lead` whose replica of this partition is not lost."""
    if not image.lost_replicas:
        return may_lead
    return may_lead - {
        node_id
        for node_id in topic.partitions[partition].replicas
        if (topic.topic_id, partition, node_id) in image.lost_replicas
    }


def update_records(
    topic: TopicImage, updates: Sequence[PartitionUpdate]
) -> Iterator[UpdatePartitions]:
    """Records of a size that always fits one command."""
    for start in range(0, len(updates), UPDATES_PER_RECORD):
        yield UpdatePartitions(topic.topic_id, tuple(updates[start : start + UPDATES_PER_RECORD]))


@dataclass(frozen=True, slots=True)
class SettleAll:
    """Look at every partition: after an election of the controller, or where options
    changed that elections depend on.
    """


def decide_settle_all(image: MetadataImage, op: SettleAll, rules: Rules) -> Decision[Record]:
    """Finish what another controller left half done, elect where somebody may lead, forget
    ELRs that are not needed. No reply.
    """
    may_lead = image.may_lead()

    def touched(partition: PartitionImage) -> bool:
        moves = bool(partition.adding or partition.removing)
        return (
            moves
            or partition.leader not in may_lead
            or bool(partition.elr)
            or not may_lead.issuperset(partition.isr)
        )

    swept = sweep(image, rules, may_lead, touched)
    return Decision(swept.records, more=not swept.complete)


# -- elections that are asked for


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """`partitions` None: every partition that is not led as the type of election wants it."""

    election_type: int
    partitions: tuple[TopicPartition, ...] | None


class Elected(NamedTuple):
    """Answer for one partition."""

    topic_partition: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def check_number(partitions: int) -> None:
    """MqError POLICY_VIOLATION for more partitions than one request may name."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request names at most {PARTITIONS_PER_REQUEST_MAX} partitions: send several.",
        )


def decide_elect_leaders(image: MetadataImage, op: ElectLeaders, rules: Rules) -> Decision[Record]:
    """Reply: one Elected for each partition asked for; with None, for each that was tried."""
    try:
        kind = ElectionType(op.election_type)
    except ValueError:
        raise MqError(
            ErrorCode.INVALID_REQUEST, f"There is no election type {op.election_type}."
        ) from None
    check_number(len(op.partitions or ()))
    may_lead = image.may_lead()
    results: list[Elected] = []
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    for topic_partition in (
        _all_partitions(image) if op.partitions is None else dict.fromkeys(op.partitions)
    ):
        try:
            update = _elect(image, topic_partition, kind, may_lead, rules)
        except MqError as error:
            if op.partitions is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(Elected(topic_partition, error.code, error.message or None))
            continue
        updates.setdefault(topic_partition.topic, {})[topic_partition.partition] = update
        results.append(Elected(topic_partition))
    return Decision(tuple(_records_of(image, updates)), tuple(results))


def _records_of(
    image: MetadataImage, updates: Mapping[str, Mapping[int, PartitionUpdate]]
) -> Iterator[UpdatePartitions]:
    for name, by_index in updates.items():
        yield from update_records(
            image.topics[name], [by_index[index] for index in sorted(by_index)]
        )


def _all_partitions(image: MetadataImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            yield TopicPartition(topic.name, index)


def _elect(
    image: MetadataImage,
    topic_partition: TopicPartition,
    kind: ElectionType,
    may_lead: frozenset[NodeId],
    rules: Rules,
) -> PartitionUpdate:
    topic = image.topics.get(topic_partition.topic)
    if topic is None:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic_partition.topic}."
        )
    partition = image.partition(*topic_partition)
    if partition is None:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic_partition}."
        )
    preferred = kind is ElectionType.PREFERRED
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_NODE:
        raise MqError(ErrorCode.ELECTION_NOT_NEEDED)
    update = settle_reassigned(
        partition,
        may_lead=without_lost(image, topic, topic_partition.partition, may_lead),
        least=rules.least_of(image, topic.name),
        preferred=preferred,
        unclean=not preferred or rules.allows_unclean(image, topic.name),
    )
    if update is None or update.leader is None:
        if preferred:
            raise MqError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                "The preferred replica is not alive and in sync.",
            )
        raise MqError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")
    return update._replace(partition=topic_partition.partition)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Give partitions back to their preferred leaders."""


def decide_rebalance(image: MetadataImage, op: Rebalance, rules: Rules) -> Decision[Record]:
    """Reply: how many partitions change hands; not more than REBALANCED_AT_ONCE."""
    may_lead = image.may_lead()
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    count = 0
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            if (
                partition.leader == first
                or first not in partition.isr
                or partition.leader == NO_NODE
                or count == REBALANCED_AT_ONCE
            ):
                continue
            try:
                update = _elect(
                    image,
                    TopicPartition(topic.name, index),
                    ElectionType.PREFERRED,
                    may_lead,
                    rules,
                )
            except MqError:
                continue
            updates.setdefault(topic.name, {})[index] = update
            count += 1
    return Decision(tuple(_records_of(image, updates)), count)
