"""The ISR: changes that leaders propose (AlterPartition, KIP-497), and replicas that their brokers
report as lost.

A proposal names the leader epoch, the partition epoch, the leader's broker epoch, and the broker
epoch of each member (KIP-903). All must be the present ones (I24). So a proposal of a deposed
leader, or one based on an old replica set, has no effect. The same applies if a follower restarted
after it had caught up. A change that makes the last replica of a reassignment in-sync completes it
(reassignments.py).

A rejection is final, also for copies of the proposal that arrive later on other connections. Such a
copy could be accepted if a missing broker has returned. Then the rejection raises the partition
epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from mqd.controller.brokers import registered_broker
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.controller.partition_state import ElectionConditions, next_partition_state, updated
from mqd.controller.records import LoseReplicas, MetadataRecord, PartitionUpdate
from mqd.controller.result import ControllerResult
from mqd.controller.sweeps import all_update_records, update_records, without_lost_replicas
from mqd.errors import ErrorCode, MqError
from mqd.limits import REQUEST_PARTITIONS_MAX
from mqd.types import NO_EPOCH, NO_NODE, IsrChange, IsrOutcome, NodeId


class IsrChangeRequest(NamedTuple):
    """One partition of AlterPartition."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[NodeId, int], ...]
    """Node id and broker epoch; -1 is not checked."""


@dataclass(frozen=True, slots=True)
class AlterPartitions:
    """A leader proposes ISRs."""

    node_id: NodeId
    broker_epoch: int
    changes: tuple[IsrChangeRequest, ...]

    @classmethod
    def of_request(cls, request: Mapping[str, Any], version: int) -> AlterPartitions:
        """From the fields of Kafka's AlterPartition request; version 2 lacks the broker epochs of
        members.
        """
        return cls(
            NodeId(request["broker_id"]),
            request["broker_epoch"],
            tuple(
                IsrChangeRequest(
                    topic["topic_id"],
                    row["partition_index"],
                    row["leader_epoch"],
                    row["partition_epoch"],
                    tuple(
                        (NodeId(member["broker_id"]), member["broker_epoch"])
                        for member in row["new_isr_with_epochs"]
                    )
                    if version >= 3
                    else tuple((NodeId(node_id), NO_EPOCH) for node_id in row["new_isr"]),
                )
                for topic in request["topics"]
                for row in topic["partitions"]
            ),
        )


class IsrAltered(NamedTuple):
    """The result of one change: the partition after it, or a code."""

    topic_id: UUID
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    leader: NodeId = NO_NODE
    leader_epoch: int = NO_EPOCH
    isr: tuple[NodeId, ...] = ()
    partition_epoch: int = NO_EPOCH


def alter_partition_request(
    node_id: NodeId, broker_epoch: int, changes: Iterable[IsrChange]
) -> dict[str, Any]:
    """The fields of Kafka's AlterPartition request, version 3."""
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for change in changes:
        row = {
            "partition_index": change.topic_partition.partition,
            "leader_epoch": change.leader_epoch,
            "partition_epoch": change.partition_epoch,
            "leader_recovery_state": 0,
            "new_isr_with_epochs": [
                {"broker_id": member, "broker_epoch": epoch} for member, epoch in change.isr
            ],
        }
        topics.setdefault(change.topic_id, []).append(row)
    return {
        "broker_id": node_id,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
    }


def isr_outcomes(changes: Iterable[IsrChange], response: Mapping[str, Any]) -> Iterator[IsrOutcome]:
    """The outcome of each change in a response, in the order of the changes."""
    rows = {
        (topic["topic_id"], row["partition_index"]): row
        for topic in response["topics"]
        for row in topic["partitions"]
    }
    for change in changes:
        row = rows.get((change.topic_id, change.topic_partition.partition))
        if row is None:
            yield IsrOutcome(change.topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            continue
        yield IsrOutcome(
            change.topic_partition,
            ErrorCode(row["error_code"]),
            NodeId(row["leader_id"]),
            row["leader_epoch"],
            tuple(row["isr"]),
            row["partition_epoch"],
        )


def alter_partition_response(results: Iterable[IsrAltered]) -> dict[str, Any]:
    """The fields of Kafka's AlterPartition response."""
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for result in results:
        row = {
            "partition_index": result.partition,
            "error_code": result.error_code,
            "leader_id": result.leader,
            "leader_epoch": result.leader_epoch,
            "isr": result.isr,
            "leader_recovery_state": 0,
            "partition_epoch": result.partition_epoch,
        }
        topics.setdefault(result.topic_id, []).append(row)
    return {
        "error_code": ErrorCode.NONE,
        "topics": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
    }


def decide_alter_partitions(
    image: MetadataImage, op: AlterPartitions, options: DecisionOptions
) -> ControllerResult:
    """Reply: one IsrAltered for each change. Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH.

    Of two changes of one partition the second is rejected: it cannot know the partition epoch after
    the first.
    """
    registered_broker(image, op.node_id, op.broker_epoch)
    if len(op.changes) > REQUEST_PARTITIONS_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request names at most {REQUEST_PARTITIONS_MAX} partitions.",
        )
    may_lead = image.may_lead()
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    results: list[IsrAltered] = []
    for change in op.changes:
        try:
            topic, partition = _partition(image, change)
            # A replaced leader changes nothing (I24).
            _check_epochs(op, change, partition)
            if change.partition in updates.get(topic.name, ()):
                raise MqError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    "The request names the partition more than once.",
                )
            isr = _checked_isr(image, op, change, partition)
        except MqError as error:
            results.append(IsrAltered(change.topic_id, change.partition, error.code))
            if error.code is ErrorCode.INELIGIBLE_REPLICA:
                updates.setdefault(topic.name, {})[change.partition] = PartitionUpdate(
                    change.partition
                )
            continue
        conditions = ElectionConditions(
            without_lost_replicas(image, topic, change.partition, may_lead) | set(isr),
            options.min_insync_replicas_of(image, topic.name),
        )
        update = next_partition_state(partition, conditions, isr=isr)
        after = partition
        if update is not None:
            update = update._replace(partition=change.partition)
            updates.setdefault(topic.name, {})[change.partition] = update
            after = updated(partition, update)
        code = (
            ErrorCode.NONE
            if after.leader_epoch == partition.leader_epoch
            else ErrorCode.NEW_LEADER_ELECTED
        )
        results.append(
            IsrAltered(
                change.topic_id,
                change.partition,
                code,
                after.leader,
                after.leader_epoch,
                after.isr,
                after.partition_epoch,
            )
        )
    return ControllerResult(tuple(all_update_records(image, updates)), tuple(results))


def _partition(image: MetadataImage, change: IsrChangeRequest) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics_by_id.get(change.topic_id)
    if topic is None:
        raise MqError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {change.topic_id}.")
    if not 0 <= change.partition < len(topic.partitions):
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic {topic.name!r} has no partition {change.partition}.",
        )
    return topic, topic.partitions[change.partition]


def _check_epochs(op: AlterPartitions, change: IsrChangeRequest, partition: PartitionImage) -> None:
    if (
        change.leader_epoch > partition.leader_epoch
        or change.partition_epoch > partition.partition_epoch
    ):
        raise MqError(
            ErrorCode.NOT_CONTROLLER, "The leader has newer metadata than this controller."
        )
    if change.leader_epoch < partition.leader_epoch:
        raise MqError(
            ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is now {partition.leader_epoch}."
        )
    if op.node_id != partition.leader:
        raise MqError(ErrorCode.INVALID_REQUEST, f"The leader is broker {partition.leader}.")
    if change.partition_epoch < partition.partition_epoch:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch is now {partition.partition_epoch}.",
        )


def _checked_isr(
    image: MetadataImage, op: AlterPartitions, change: IsrChangeRequest, partition: PartitionImage
) -> tuple[NodeId, ...]:
    isr = tuple(node_id for node_id, _ in change.isr)
    if len(set(isr)) < len(isr) or not set(isr) <= set(partition.replicas):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"{isr} must be distinct replicas out of {partition.replicas}.",
        )
    if op.node_id not in isr:
        raise MqError(ErrorCode.INVALID_REQUEST, "The ISR must contain the leader.")
    for node_id, broker_epoch in change.isr:
        broker = image.brokers.get(node_id)
        if (
            broker is None
            or broker.fenced
            or broker.in_controlled_shutdown
            or broker_epoch not in (NO_EPOCH, broker.epoch)
        ):
            raise MqError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"Broker {node_id} is fenced, is shutting down, or has a newer registration.",
            )
    return isr


# -- replicas that are lost


@dataclass(frozen=True, slots=True)
class ReportOfflineReplicas:
    """The logs of these replicas of a broker are corrupt, or their directory failed."""

    node_id: NodeId
    broker_epoch: int
    replicas: tuple[tuple[UUID, int], ...]
    """Topic id and partition."""


def decide_report_offline(
    image: MetadataImage, op: ReportOfflineReplicas, options: DecisionOptions
) -> ControllerResult:
    """Reply: none. Other replicas lead; if none can, the partition waits for an operator, or for
    the broker's next start.

    Unknown partitions are skipped: their topic may be deleted. Raises BROKER_ID_NOT_REGISTERED or
    STALE_BROKER_EPOCH.
    """
    registered_broker(image, op.node_id, op.broker_epoch)
    if len(op.replicas) > REQUEST_PARTITIONS_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request names at most {REQUEST_PARTITIONS_MAX} partitions.",
        )
    lost: dict[UUID, set[int]] = {}
    for topic_id, index in op.replicas:
        topic = image.topics_by_id.get(topic_id)
        if (
            topic is None
            or not 0 <= index < len(topic.partitions)
            or op.node_id not in topic.partitions[index].replicas
        ):
            continue
        # a replica that is lost already may have lost a newer copy too
        lost.setdefault(topic_id, set()).add(index)
    may_lead = image.may_lead()
    records: list[MetadataRecord] = []
    for topic_id, indexes in lost.items():
        topic = image.topics_by_id[topic_id]
        min_insync_replicas = options.min_insync_replicas_of(image, topic.name)
        unclean = options.allows_unclean_election(image, topic.name)
        in_memory = image.is_in_memory(topic.name)
        updates = []
        for index in sorted(indexes):
            with_log = without_lost_replicas(image, topic, index, may_lead)
            conditions = ElectionConditions(
                with_log - {op.node_id},
                min_insync_replicas,
                lost_replicas=(op.node_id,),
                unclean=unclean,
                may_begin_empty=may_lead - with_log - {op.node_id} if in_memory else (),
            )
            update = next_partition_state(topic.partitions[index], conditions)
            # Also if nothing else changes, raise the partition epoch: earlier proposals of the
            # leader rely on a log that is lost (I25).
            updates.append((update or PartitionUpdate(0))._replace(partition=index))
        records += update_records(topic, updates)
        records.append(LoseReplicas(op.node_id, op.broker_epoch, topic_id, tuple(sorted(indexes))))
    return ControllerResult(tuple(records))
