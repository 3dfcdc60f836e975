"""The only changes of the metadata image: each committed record takes effect here (I10).

Live traffic, recovery and tests call the same `replay`. So two replicas that applied the same
commands are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mqd.controller.delta import Delta
from mqd.controller.image import TOPIC, BrokerImage, MetadataImage, PartitionImage, TopicImage
from mqd.controller.partition_state import updated
from mqd.controller.records import (
    AddPartitions,
    ChangePartitions,
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteScramCredential,
    DeleteTopic,
    FormatCluster,
    LoseReplicas,
    MetadataRecord,
    NoteDiskSerial,
    Placement,
    RegisterBroker,
    SetBrokerEndpoints,
    SetBrokerFencing,
    SetClientQuotas,
    SetConfigs,
    SetFeature,
    SetNextProducerId,
    SetScramCredential,
    ShutDownBroker,
    UnregisterBroker,
    UpdatePartitions,
)
from mqd.controller.size import growth, is_of_access, is_of_group
from mqd.types import NO_EPOCH, NO_NODE, TopicPartition


def replay(image: MetadataImage, record: MetadataRecord, index: int, delta: Delta) -> None:
    """Apply one record of the command at `index`, and add what it changed to `delta`."""
    more = growth(image, record)
    image.size += more
    if is_of_group(record):
        image.groups_size += more
    if is_of_access(record):
        image.access_size += more
    # The only mutation (I10).
    _REPLAY[type(record)](image, record, index, delta)


def _format_cluster(image: MetadataImage, record: FormatCluster, index: int, delta: Delta) -> None:
    assert image.cluster_id in ("", record.cluster_id), (image.cluster_id, record.cluster_id)
    image.cluster_id = record.cluster_id
    image.features.update(record.features)


def _set_feature(image: MetadataImage, record: SetFeature, index: int, delta: Delta) -> None:
    if record.level:
        image.features[record.name] = record.level
    else:
        image.features.pop(record.name, None)


def _register_broker(
    image: MetadataImage, record: RegisterBroker, index: int, delta: Delta
) -> None:
    known = image.brokers.get(record.node_id)
    image.brokers[record.node_id] = BrokerImage(
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
    image.lost_replicas = {
        replica for replica in image.lost_replicas if replica[2] != record.node_id
    }
    delta.brokers_changed.add(record.node_id)


def _set_broker_fencing(
    image: MetadataImage, record: SetBrokerFencing, index: int, delta: Delta
) -> None:
    broker = image.brokers[record.node_id]
    assert broker.epoch == record.broker_epoch, (broker.epoch, record)
    vouched_epoch = broker.vouched_epoch if record.fenced else NO_EPOCH
    image.brokers[record.node_id] = replace(
        broker, fenced=record.fenced, in_controlled_shutdown=False, vouched_epoch=vouched_epoch
    )
    delta.brokers_changed.add(record.node_id)


def _shut_down_broker(
    image: MetadataImage, record: ShutDownBroker, index: int, delta: Delta
) -> None:
    broker = image.brokers[record.node_id]
    assert broker.epoch == record.broker_epoch, (broker.epoch, record)
    image.brokers[record.node_id] = replace(broker, in_controlled_shutdown=True)
    delta.brokers_changed.add(record.node_id)


def _set_broker_endpoints(
    image: MetadataImage, record: SetBrokerEndpoints, index: int, delta: Delta
) -> None:
    broker = image.brokers[record.node_id]
    assert record.broker_epoch in (broker.epoch, 0), (broker, record)
    image.brokers[record.node_id] = replace(broker, endpoints=record.endpoints)
    delta.brokers_changed.add(record.node_id)


def _note_disk_serial(
    image: MetadataImage, record: NoteDiskSerial, index: int, delta: Delta
) -> None:
    broker = image.brokers[record.node_id]
    assert broker.epoch == record.broker_epoch and broker.disk_serial < record.serial, (
        broker,
        record,
    )
    image.brokers[record.node_id] = replace(broker, disk_serial=record.serial)


def _unregister_broker(
    image: MetadataImage, record: UnregisterBroker, index: int, delta: Delta
) -> None:
    broker = image.brokers.pop(record.node_id)
    assert broker.epoch == record.broker_epoch, (broker.epoch, record)
    delta.brokers_changed.add(record.node_id)


def _lose_replicas(image: MetadataImage, record: LoseReplicas, index: int, delta: Delta) -> None:
    topic = image.topics_by_id[record.topic_id]
    for partition in record.partitions:
        before = topic.partitions[partition]
        assert record.node_id not in before.isr and record.node_id not in before.elr, (
            topic.name,
            partition,
            record.node_id,
        )
        # the loss may have completed a reassignment that removed this replica
        if record.node_id in before.replicas:
            image.lost_replicas.add((record.topic_id, partition, record.node_id))
        delta.partitions_changed.add(TopicPartition(topic.name, partition))


def _create_topic(image: MetadataImage, record: CreateTopic, index: int, delta: Delta) -> None:
    assert record.name not in image.topics, record.name
    assert record.topic_id not in image.topics_by_id, record.topic_id
    topic = TopicImage(record.name, record.topic_id, [])
    image.insert_topic(topic)
    delta.topics_created.append(topic)
    _append_partitions(topic, record.partitions, delta)
    if record.configs:
        image.configs[TOPIC, record.name] = dict(record.configs)
        delta.configs_changed.add((TOPIC, record.name))


def _delete_topic(image: MetadataImage, record: DeleteTopic, index: int, delta: Delta) -> None:
    topic = image.topics_by_id[record.topic_id]
    image.remove_topic(topic)
    image.lost_replicas = {
        replica for replica in image.lost_replicas if replica[0] != record.topic_id
    }
    if image.configs.pop((TOPIC, topic.name), None) is not None:
        delta.configs_changed.add((TOPIC, topic.name))
    delta.topics_deleted.append(topic)
    delta.topics_created = [created for created in delta.topics_created if created is not topic]
    delta.partitions_changed = {
        changed for changed in delta.partitions_changed if changed.topic != topic.name
    }


def _add_partitions(image: MetadataImage, record: AddPartitions, index: int, delta: Delta) -> None:
    topic = image.topics_by_id[record.topic_id]
    assert len(topic.partitions) == record.first, (topic.name, record.first)
    _append_partitions(topic, record.partitions, delta)


def _append_partitions(topic: TopicImage, placements: tuple[Placement, ...], delta: Delta) -> None:
    for replicas, leader, isr in placements:
        assert isr and set(isr) <= set(replicas), (topic.name, replicas, isr)
        assert leader == NO_NODE or leader in isr, (topic.name, leader, isr)
        delta.partitions_changed.add(TopicPartition(topic.name, len(topic.partitions)))
        topic.partitions.append(PartitionImage(leader, 0, 0, replicas, isr))


def _change_partitions(
    image: MetadataImage, record: ChangePartitions, index: int, delta: Delta
) -> None:
    topic = image.topics_by_id[record.topic_id]
    for partition, leader, isr in record.changes:
        before = topic.partitions[partition]
        assert isr and set(isr) <= set(before.replicas), (topic.name, partition, isr)
        assert leader == NO_NODE or (leader in isr and image.is_alive(leader)), (
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


def _update_partitions(
    image: MetadataImage, record: UpdatePartitions, index: int, delta: Delta
) -> None:
    topic = image.topics_by_id[record.topic_id]
    for update in record.updates:
        before = topic.partitions[update.partition]
        after = updated(before, update)
        # The leader is alive and in sync; ISR and ELR have no common member (I21).
        leader, isr, replicas = after.leader, after.isr, set(after.replicas)
        assert leader == NO_NODE if not isr else leader in isr, (topic.name, update)
        assert leader == NO_NODE or image.is_alive(leader), (topic.name, update)
        assert replicas.issuperset(isr) and replicas.issuperset(after.elr), (topic.name, update)
        assert set(isr).isdisjoint(after.elr), (topic.name, update)
        assert replicas.issuperset(after.adding) and replicas.issuperset(after.removing), (
            topic.name,
            update,
        )
        topic.partitions[update.partition] = after
        if image.lost_replicas:
            regained = {
                *isr,
                *(node_id for node_id in before.replicas if node_id not in replicas),
            }
            image.lost_replicas.difference_update(
                [(record.topic_id, update.partition, node_id) for node_id in regained]
            )
        delta.partitions_changed.add(TopicPartition(topic.name, update.partition))


def _set_configs(image: MetadataImage, record: SetConfigs, index: int, delta: Delta) -> None:
    key = (record.resource_type, record.resource_name)
    # a new object: a snapshot may still use the old one
    configs = {**image.configs.get(key, {}), **dict(record.changes)}
    present = {name: value for name, value in configs.items() if value is not None}
    if present:
        image.configs[key] = present
    else:
        image.configs.pop(key, None)
    delta.configs_changed.add(key)


def _set_next_producer_id(
    image: MetadataImage, record: SetNextProducerId, index: int, delta: Delta
) -> None:
    # Never assigned twice (I17).
    assert record.next_producer_id > image.next_producer_id, (record, image.next_producer_id)
    image.next_producer_id = record.next_producer_id


def _set_scram_credential(
    image: MetadataImage, record: SetScramCredential, index: int, delta: Delta
) -> None:
    key = (record.user, record.mechanism)
    replaced = image.scram_credentials.get(key)
    if replaced is not None:
        image.scram_shapes.remove(record.mechanism, replaced)
    image.scram_credentials[key] = record.credential
    image.scram_shapes.add(record.mechanism, record.credential)
    image.scram_version += 1
    delta.scram_credentials_changed.add(key)


def _delete_scram_credential(
    image: MetadataImage, record: DeleteScramCredential, index: int, delta: Delta
) -> None:
    key = (record.user, record.mechanism)
    image.scram_shapes.remove(record.mechanism, image.scram_credentials.pop(key))
    image.scram_version += 1
    delta.scram_credentials_changed.add(key)


def _create_acl(image: MetadataImage, record: CreateAcl, index: int, delta: Delta) -> None:
    assert record.acl_id not in image.acls and image.acl_id(record.acl) is None, record
    image.insert_acl(record.acl_id, record.acl)
    image.acls_version += 1
    delta.acls_created[record.acl_id] = record.acl


def _delete_acl(image: MetadataImage, record: DeleteAcl, index: int, delta: Delta) -> None:
    acl = image.remove_acl(record.acl_id)
    image.acls_version += 1
    if delta.acls_created.pop(record.acl_id, None) is None:
        delta.acls_deleted[record.acl_id] = acl


def _set_client_quotas(
    image: MetadataImage, record: SetClientQuotas, index: int, delta: Delta
) -> None:
    # a new object: a snapshot may still use the old one
    quotas = {**image.client_quotas.get(record.entity, {}), **dict(record.changes)}
    present = {key: value for key, value in quotas.items() if value is not None}
    if present:
        image.client_quotas[record.entity] = present
    else:
        image.client_quotas.pop(record.entity, None)
    delta.client_quotas_changed.add(record.entity)


_REPLAY: dict[type, Callable[[MetadataImage, Any, int, Delta], None]] = {
    FormatCluster: _format_cluster,
    RegisterBroker: _register_broker,
    SetBrokerFencing: _set_broker_fencing,
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    AddPartitions: _add_partitions,
    ChangePartitions: _change_partitions,
    SetConfigs: _set_configs,
    SetNextProducerId: _set_next_producer_id,
    UpdatePartitions: _update_partitions,
    ShutDownBroker: _shut_down_broker,
    UnregisterBroker: _unregister_broker,
    SetBrokerEndpoints: _set_broker_endpoints,
    NoteDiskSerial: _note_disk_serial,
    LoseReplicas: _lose_replicas,
    SetFeature: _set_feature,
    SetScramCredential: _set_scram_credential,
    DeleteScramCredential: _delete_scram_credential,
    CreateAcl: _create_acl,
    DeleteAcl: _delete_acl,
    SetClientQuotas: _set_client_quotas,
}
