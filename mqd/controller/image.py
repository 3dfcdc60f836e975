"""The metadata of the whole cluster as this node knows it: the Raft state machine.

Built only by `apply`: live traffic, recovery and tests go through the same door, so that two
replicas that applied the same commands are equal. A command takes effect only if its decider had
seen everything before it (`base_index` is the index of the last command here); otherwise it is
skipped, on every node alike. So no decision of a deposed controller, or of a proposal whose outcome
nobody learned, can meet a state that it did not see.

Invariants: a partition's leader is -1 or an unfenced member of its ISR, and while there is one the
ISR is not empty; ISR and ELR are within the replicas and have no member in common; epochs never go
back; `topics` and `topics_by_id` hold the same topics; producer ids below `next_producer_id` are
spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from mqd.controller.records import (
    AddPartitions,
    ChangePartitions,
    CreateTopic,
    DeleteTopic,
    FormatCluster,
    LoseReplicas,
    NoteDiskSerial,
    PartitionUpdate,
    Placement,
    Record,
    RegisterBroker,
    SetBrokerFencing,
    SetConfigs,
    SetFeature,
    SetNextProducerId,
    ShutDownBroker,
    UnregisterBroker,
    UpdatePartitions,
    decode_command,
)
from mqd.controller.size import (
    GROUP,
    NODE,
    TOPIC,
    empty_size,
    growth,
    is_of_group,
    recount,
    recount_groups,
)
from mqd.controller.snapshot import deflated, inflate, parsed, snapshot_text
from mqd.raft.snapshots import Work, all_steps
from mqd.types import INTERNAL_TOPICS, NO_EPOCH, NO_NODE, NodeId, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. Lists of replicas are in order of preference, or of arrival for `isr`."""

    leader: NodeId
    """-1 while nobody who may lead is alive."""
    leader_epoch: int
    """Rises when the leader changes, also to and from nobody, and when a replica leaves the
    replica set.
    """
    partition_epoch: int
    """Rises with every change: what AlterPartition compares with."""
    replicas: tuple[NodeId, ...]
    """During a reassignment with those that are `adding` and `removing`."""
    isr: tuple[NodeId, ...]
    """In-sync replicas; may be empty while nobody leads."""
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas (KIP-966): out of the ISR, but with everything that was
    committed.
    """
    last_known_elr: tuple[NodeId, ...] = ()
    """Those of the ELR that came back from an unclean stop; where ISR and ELR are empty,
    the last leader.
    """
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()


@dataclass(slots=True)
class TopicImage:
    """One topic; `partitions[i]` is partition i. Only `MetadataImage.apply` changes the list."""

    name: str
    topic_id: UUID
    partitions: list[PartitionImage]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered node.

    `epoch` is the index of its registration; `host` and `port` are what clients are told.
    """

    node_id: NodeId
    host: str
    port: int
    rack: str | None
    epoch: int
    incarnation: UUID
    fenced: bool
    in_controlled_shutdown: bool = False
    """It is about to stop: it leads nothing and joins no ISR, but is not fenced yet (KIP-841)."""
    vouched_epoch: int = NO_EPOCH
    """Until it is unfenced for the first time: the earlier registration that vouched for its logs.
    Nothing was promised on its word since, so whoever names that one again, for it was killed
    before it could write this one down, has everything still.
    """
    disk_serial: int = 0
    """The disk serial that it has reported (log/disk/log_end_checkpoint.py). A broker
    that registers with a lower one has an older copy of a disk, and cannot vouch for its logs.
    """


@dataclass(slots=True)
class Delta:
    """What one command (or one snapshot) changed.

    Deletions come before creations: a name may be in both.
    """

    index: int
    topics_deleted: list[TopicImage] = field(default_factory=list)
    topics_created: list[TopicImage] = field(default_factory=list)
    partitions_changed: set[TopicPartition] = field(default_factory=set)
    """New, or with another leader, epoch, ISR or replica set; partitions of created topics
    are in it too.
    """
    configs_changed: set[tuple[str, str]] = field(default_factory=set)
    """Keys of `MetadataImage.configs`.

    Overrides that a topic was created with, or that went with it, are in it too.
    """
    brokers_changed: set[NodeId] = field(default_factory=set)
    _in_order: list[TopicPartition] | None = None

    def partitions_in_order(self) -> list[TopicPartition]:
        """`partitions_changed`, sorted."""
        return sorted(self.partitions_changed) if self._in_order is None else self._in_order


Subscriber = Callable[[Delta, "MetadataImage"], None]

_SNAPSHOT_FORMAT = 2
_SNAPSHOT_KEYS = (
    "brokers",
    "cluster_id",
    "configs",
    "features",
    "format",
    "index",
    "next_producer_id",
    "topics",
)
_COMPARED_AT_ONCE = 1_000
_SNAPSHOT_FORMATS_READ = (1, 2)
"""Format 1 had neither reassignments nor controlled shutdowns nor lost replicas."""


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


class MetadataImage:
    """See the head of the file. Read its fields freely between awaits; change nothing."""

    def __init__(self) -> None:
        self.index = 0
        """Raft index of the last command that took effect."""
        self.cluster_id = ""
        self.features: dict[str, int] = {}
        self.brokers: dict[NodeId, BrokerImage] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[UUID, TopicImage] = {}
        self.configs: dict[tuple[str, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self.lost: set[tuple[UUID, int, NodeId]] = set()
        """Replicas (topic id, partition, broker) whose broker says, under its present
        registration, that they hold nothing of use.
        """
        self.size = empty_size()
        """Bytes that all of it counts for (size.py). What `Room` compares with the bound."""
        self.groups_size = 0
        """Bytes of these that overrides of groups count for."""
        self._names: dict[str, set[str]] = {}

    # -- reading

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        image = self.topics.get(topic)
        if image is None or not 0 <= partition < len(image.partitions):
            return None
        return image.partitions[partition]

    def topic_configs(self, topic: str) -> dict[str, str]:
        """The overrides of a topic, dotted name to text."""
        return self.configs.get((TOPIC, topic), {})

    def group_configs(self, group_id: str) -> dict[str, str]:
        """Overrides of a consumer group (KIP-848), which need not exist."""
        return self.configs.get((GROUP, group_id), {})

    def node_configs(self, node_id: NodeId | None) -> dict[str, str]:
        """The dynamic options of one node, or with None those of every node."""
        return self.configs.get((NODE, "" if node_id is None else str(node_id)), {})

    def alive_brokers(self) -> list[BrokerImage]:
        """Unfenced, by id."""
        return [
            self.brokers[node_id]
            for node_id in sorted(self.brokers)
            if not self.brokers[node_id].fenced
        ]

    def is_alive(self, node_id: NodeId) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def may_lead(self) -> frozenset[NodeId]:
        """Brokers that may lead and be in sync: unfenced, and not about to stop.

        `lost` replicas are left to the caller.
        """
        return frozenset(
            node_id
            for node_id, broker in self.brokers.items()
            if not broker.fenced and not broker.in_controlled_shutdown
        )

    def is_offline(self, topic: TopicImage, partition: int, node_id: NodeId) -> bool:
        """Whether a replica is of no use now: its broker is fenced or gone, or its log is lost."""
        return not self.is_alive(node_id) or (topic.topic_id, partition, node_id) in self.lost

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs only in '.' against '_' (they share a metric name in
        Apache Kafka), or None.
        """
        others = self._names.get(name.replace(".", "_"), set()) - {name}
        return min(others) if others else None

    # -- the only mutation

    def apply(self, record: Record, index: int, delta: Delta) -> None:
        """Let one record of the command at `index` take effect, and note in `delta` what it
        changed.
        """
        more = growth(self, record)
        self.size += more
        if is_of_group(record):
            self.groups_size += more
        # The only mutation (I10).
        _APPLY[type(record)](self, record, index, delta)

    def _format_cluster(self, record: FormatCluster, index: int, delta: Delta) -> None:
        assert self.cluster_id in ("", record.cluster_id), (self.cluster_id, record.cluster_id)
        self.cluster_id = record.cluster_id
        self.features.update(record.features)

    def _set_feature(self, record: SetFeature, index: int, delta: Delta) -> None:
        if record.level:
            self.features[record.name] = record.level
        else:
            self.features.pop(record.name, None)

    def _register_broker(self, record: RegisterBroker, index: int, delta: Delta) -> None:
        known = self.brokers.get(record.node_id)
        self.brokers[record.node_id] = BrokerImage(
            record.node_id,
            record.host,
            record.port,
            record.rack,
            index,
            record.incarnation,
            fenced=True,
            vouched_epoch=record.vouched_epoch,
            disk_serial=known.disk_serial
            if known is not None and record.vouched_epoch != NO_EPOCH
            else 0,
        )
        self.lost = {replica for replica in self.lost if replica[2] != record.node_id}
        delta.brokers_changed.add(record.node_id)

    def _set_broker_fencing(self, record: SetBrokerFencing, index: int, delta: Delta) -> None:
        broker = self.brokers[record.node_id]
        assert broker.epoch == record.broker_epoch, (broker.epoch, record)
        vouched_epoch = broker.vouched_epoch if record.fenced else NO_EPOCH
        self.brokers[record.node_id] = replace(
            broker, fenced=record.fenced, in_controlled_shutdown=False, vouched_epoch=vouched_epoch
        )
        delta.brokers_changed.add(record.node_id)

    def _shut_down_broker(self, record: ShutDownBroker, index: int, delta: Delta) -> None:
        broker = self.brokers[record.node_id]
        assert broker.epoch == record.broker_epoch, (broker.epoch, record)
        self.brokers[record.node_id] = replace(broker, in_controlled_shutdown=True)
        delta.brokers_changed.add(record.node_id)

    def _note_disk_serial(self, record: NoteDiskSerial, index: int, delta: Delta) -> None:
        broker = self.brokers[record.node_id]
        assert broker.epoch == record.broker_epoch and broker.disk_serial < record.serial, (
            broker,
            record,
        )
        self.brokers[record.node_id] = replace(broker, disk_serial=record.serial)

    def _unregister_broker(self, record: UnregisterBroker, index: int, delta: Delta) -> None:
        broker = self.brokers.pop(record.node_id)
        assert broker.epoch == record.broker_epoch, (broker.epoch, record)
        delta.brokers_changed.add(record.node_id)

    def _lose_replicas(self, record: LoseReplicas, index: int, delta: Delta) -> None:
        topic = self.topics_by_id[record.topic_id]
        for partition in record.partitions:
            image = topic.partitions[partition]
            assert record.node_id not in image.isr and record.node_id not in image.elr, (
                topic.name,
                partition,
                record.node_id,
            )
            # a move that was completed by the loss may have taken it away
            if record.node_id in image.replicas:
                self.lost.add((record.topic_id, partition, record.node_id))
            delta.partitions_changed.add(TopicPartition(topic.name, partition))

    def _create_topic(self, record: CreateTopic, index: int, delta: Delta) -> None:
        assert record.name not in self.topics, record.name
        assert record.topic_id not in self.topics_by_id, record.topic_id
        topic = TopicImage(record.name, record.topic_id, [])
        self._insert_topic(topic)
        delta.topics_created.append(topic)
        self._append_partitions(topic, record.partitions, delta)
        if record.configs:
            self.configs[TOPIC, record.name] = dict(record.configs)
            delta.configs_changed.add((TOPIC, record.name))

    def _delete_topic(self, record: DeleteTopic, index: int, delta: Delta) -> None:
        topic = self.topics_by_id.pop(record.topic_id)
        del self.topics[topic.name]
        self._names[topic.name.replace(".", "_")].remove(topic.name)
        self.lost = {replica for replica in self.lost if replica[0] != record.topic_id}
        if self.configs.pop((TOPIC, topic.name), None) is not None:
            delta.configs_changed.add((TOPIC, topic.name))
        delta.topics_deleted.append(topic)
        delta.topics_created = [created for created in delta.topics_created if created is not topic]
        delta.partitions_changed = {
            changed for changed in delta.partitions_changed if changed.topic != topic.name
        }

    def _add_partitions(self, record: AddPartitions, index: int, delta: Delta) -> None:
        topic = self.topics_by_id[record.topic_id]
        assert len(topic.partitions) == record.first, (topic.name, record.first)
        self._append_partitions(topic, record.partitions, delta)

    def _change_partitions(self, record: ChangePartitions, index: int, delta: Delta) -> None:
        topic = self.topics_by_id[record.topic_id]
        for partition, leader, isr in record.changes:
            before = topic.partitions[partition]
            assert isr and set(isr) <= set(before.replicas), (topic.name, partition, isr)
            assert leader == NO_NODE or (leader in isr and self.is_alive(leader)), (
                topic.name,
                partition,
                leader,
            )
            topic.partitions[partition] = replace(
                before,
                leader=leader,
                leader_epoch=before.leader_epoch + 1,
                partition_epoch=before.partition_epoch + 1,
                isr=isr,
            )
            delta.partitions_changed.add(TopicPartition(topic.name, partition))

    def _update_partitions(self, record: UpdatePartitions, index: int, delta: Delta) -> None:
        topic = self.topics_by_id[record.topic_id]
        for update in record.updates:
            before = topic.partitions[update.partition]
            after = updated(before, update)
            # The leader is alive and in sync; ISR and ELR have no common member (I21).
            leader, isr, replicas = after.leader, after.isr, set(after.replicas)
            assert leader == NO_NODE if not isr else leader in isr, (topic.name, update)
            assert leader == NO_NODE or self.is_alive(leader), (topic.name, update)
            assert replicas.issuperset(isr) and replicas.issuperset(after.elr), (topic.name, update)
            assert set(isr).isdisjoint(after.elr), (topic.name, update)
            assert replicas.issuperset(after.adding) and replicas.issuperset(after.removing), (
                topic.name,
                update,
            )
            topic.partitions[update.partition] = after
            if self.lost:
                mended = {
                    *isr,
                    *(node_id for node_id in before.replicas if node_id not in replicas),
                }
                self.lost.difference_update(
                    [(record.topic_id, update.partition, node_id) for node_id in mended]
                )
            delta.partitions_changed.add(TopicPartition(topic.name, update.partition))

    def _set_configs(self, record: SetConfigs, index: int, delta: Delta) -> None:
        key = (record.resource_type, record.resource_name)
        # a new object: a snapshot may hold the old one
        configs = {**self.configs.get(key, {}), **dict(record.changes)}
        present = {name: value for name, value in configs.items() if value is not None}
        if present:
            self.configs[key] = present
        else:
            self.configs.pop(key, None)
        delta.configs_changed.add(key)

    def _set_next_producer_id(self, record: SetNextProducerId, index: int, delta: Delta) -> None:
        # Never assigned twice (I17).
        assert record.next_producer_id > self.next_producer_id, (record, self.next_producer_id)
        self.next_producer_id = record.next_producer_id

    def _insert_topic(self, topic: TopicImage) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic
        self._names.setdefault(topic.name.replace(".", "_"), set()).add(topic.name)

    def _append_partitions(
        self, topic: TopicImage, placements: tuple[Placement, ...], delta: Delta
    ) -> None:
        for replicas, leader, isr in placements:
            assert isr and set(isr) <= set(replicas), (topic.name, replicas, isr)
            assert leader == NO_NODE or leader in isr, (topic.name, leader, isr)
            delta.partitions_changed.add(TopicPartition(topic.name, len(topic.partitions)))
            topic.partitions.append(PartitionImage(leader, 0, 0, replicas, isr))

    # -- snapshots

    def snapshot(self) -> bytes:
        """Everything, as deflated JSON: equal images give equal bytes."""
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """`snapshot` in pieces.

        Their content is that of the time of this call; any thread may make them, each in some
        milliseconds.
        """
        text = snapshot_text(
            version=_SNAPSHOT_FORMAT,
            index=self.index,
            cluster_id=self.cluster_id,
            features=dict(self.features),
            next_producer_id=self.next_producer_id,
            brokers=list(self.brokers.values()),
            topics=[
                (topic.name, topic.topic_id, tuple(topic.partitions))
                for topic in self.topics.values()
            ],
            configs=list(self.configs.items()),
            lost=list(self.lost),
        )
        return deflated(text)

    def restore(self, data: bytes) -> Delta:
        """Become what a snapshot says. Returns the difference.

        Raises ValueError for bytes that are no snapshot; then nothing changed.
        """
        return self.become(*all_steps(self.restoring(data)))

    def restoring(self, data: bytes) -> Work[tuple[MetadataImage, Delta]]:
        """What `restore` makes, for `become`, in steps of some milliseconds; any thread may make
        them. This image does not change then.

        Raises ValueError for bytes that are no snapshot.
        """
        text = inflate(data)
        yield
        fresh = MetadataImage()
        try:
            missing = set(_SNAPSHOT_KEYS)
            for key, values in parsed(text):
                missing.discard(key)
                fresh._fill(key, values)
                yield
            if missing:
                raise KeyError(*sorted(missing))
            fresh.size = recount(fresh)
            fresh.groups_size = recount_groups(fresh)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"metadata snapshot of another shape: {error!r}") from error
        delta = yield from _difference(self, fresh)
        return fresh, delta

    def become(self, fresh: MetadataImage, delta: Delta) -> Delta:
        """Be `fresh` from now on. Returns `delta`, the difference."""
        for name in vars(fresh):
            setattr(self, name, getattr(fresh, name))
        return delta

    def _fill(self, key: str, values: list[Any]) -> None:
        """Take over a part of a snapshot (snapshot.py, `parsed`)."""
        match key, values:
            case "format", [version]:
                if version not in _SNAPSHOT_FORMATS_READ:
                    raise ValueError(
                        f"metadata snapshot of unknown format {version}: written by another "
                        "version of mqd?"
                    )
            case (("index" | "cluster_id" | "next_producer_id"), [value]):
                setattr(self, key, value)
            case "features", [features]:
                self.features = dict(features)
            case "brokers", [rows]:
                for node_id, host, port, rack, epoch, incarnation, *flags in rows:
                    self.brokers[node_id] = BrokerImage(
                        node_id, host, port, rack, epoch, UUID(incarnation), *flags
                    )
            case "topics", [name, topic_id]:
                self._insert_topic(TopicImage(name, UUID(topic_id), []))
            case "partitions", rows:
                next(reversed(self.topics.values())).partitions.extend(
                    PartitionImage(
                        leader,
                        leader_epoch,
                        partition_epoch,
                        *(tuple(nodes) for nodes in node_lists),
                    )
                    for leader, leader_epoch, partition_epoch, *node_lists in rows
                )
            case "configs", rows:
                for resource_type, resource_name, overrides in rows:
                    self.configs[resource_type, resource_name] = dict(overrides)
            case "lost", rows:
                self.lost.update(
                    (UUID(topic_id), partition, node_id) for topic_id, partition, node_id in rows
                )


_APPLY: dict[type, Callable[[MetadataImage, Any, int, Delta], None]] = {
    FormatCluster: MetadataImage._format_cluster,
    RegisterBroker: MetadataImage._register_broker,
    SetBrokerFencing: MetadataImage._set_broker_fencing,
    CreateTopic: MetadataImage._create_topic,
    DeleteTopic: MetadataImage._delete_topic,
    AddPartitions: MetadataImage._add_partitions,
    ChangePartitions: MetadataImage._change_partitions,
    SetConfigs: MetadataImage._set_configs,
    SetNextProducerId: MetadataImage._set_next_producer_id,
    UpdatePartitions: MetadataImage._update_partitions,
    ShutDownBroker: MetadataImage._shut_down_broker,
    UnregisterBroker: MetadataImage._unregister_broker,
    NoteDiskSerial: MetadataImage._note_disk_serial,
    LoseReplicas: MetadataImage._lose_replicas,
    SetFeature: MetadataImage._set_feature,
}


def _difference(old: MetadataImage, new: MetadataImage) -> Work[Delta]:
    """In steps. `new` takes over the partitions of `old` that are equal."""
    delta = Delta(new.index)
    delta.topics_deleted = [
        topic for topic_id, topic in old.topics_by_id.items() if topic_id not in new.topics_by_id
    ]
    delta.topics_created = [
        topic for topic_id, topic in new.topics_by_id.items() if topic_id not in old.topics_by_id
    ]
    in_order: list[TopicPartition] = []
    for name in sorted(new.topics):
        topic = new.topics[name]
        before = (
            old.topics_by_id[topic.topic_id].partitions
            if topic.topic_id in old.topics_by_id
            else []
        )
        for partition, image in enumerate(topic.partitions):
            if partition < len(before) and before[partition] == image:
                topic.partitions[partition] = before[partition]
            else:
                in_order.append(TopicPartition(name, partition))
            if not (partition + 1) % _COMPARED_AT_ONCE:
                yield
        yield
    delta.partitions_changed.update(in_order)
    delta._in_order = in_order
    delta.configs_changed = {
        key
        for key in old.configs.keys() | new.configs.keys()
        if old.configs.get(key) != new.configs.get(key)
    }
    delta.brokers_changed = {
        node_id
        for node_id in old.brokers.keys() | new.brokers.keys()
        if old.brokers.get(node_id) != new.brokers.get(node_id)
    }
    return delta


_SKIPPED_REMEMBERED = 1_000


class MetadataMachine:
    """The image behind the door that Raft knocks on: `RaftService(machine=...)`, and the news for
    everyone else.

    `apply` is total for every command that `encode_command` wrote. Bytes that it did not write mean
    that another version of mqd is at work: ValueError, which stops the daemon before it can drift
    from its peers.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._subscribers: list[Subscriber] = []
        self._skipped: deque[int] = deque(maxlen=_SKIPPED_REMEMBERED)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` after each change, in order of subscription,
        without an await between.
        """
        self._subscribers.append(subscriber)

    def apply(self, index: int, command: bytes) -> None:
        image = self.image
        base_index, records = decode_command(command)
        if base_index != image.index:
            self._skipped.append(index)
            return
        delta = Delta(index)
        for record in records:
            image.apply(record, index, delta)
        image.index = index
        self._publish(delta)

    def took_effect(self, index: int) -> bool:
        """Whether the command at an index that was just applied changed the image.

        Asked by whoever proposed it.
        """
        return index not in self._skipped

    def snapshot(self) -> Iterator[bytes]:
        return self.image.snapshot_pieces()

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        fresh, delta = yield from self.image.restoring(data)
        return lambda: self._publish(self.image.become(fresh, delta))

    def restore(self, data: bytes) -> None:
        """`restoring` and what it returns, at once."""
        all_steps(self.restoring(data))()

    def _publish(self, delta: Delta) -> None:
        for subscriber in self._subscribers:
            subscriber(delta, self.image)
