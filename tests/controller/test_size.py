"""The metadata has a size limit: a client's change beyond it is refused, and committed metadata of
any size is loaded.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
import trio

from mqd.config import NodeConfig
from mqd.controller import configs
from mqd.controller.brokers import (
    Heartbeat,
    Register,
    Unregister,
    decide_heartbeat,
    decide_register,
    decide_unregister,
)
from mqd.controller.configs import (
    AlterConfigs,
    Change,
    ResourceAltered,
    ResourceChanges,
    ResourceType,
    decide_alter_configs,
)
from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.controller.features import FeatureUpdate, UpdateFeatures, decide_update_features
from mqd.controller.image import GROUP
from mqd.controller.isr import ReportOfflineReplicas, decide_report_offline
from mqd.controller.machine import MetadataMachine
from mqd.controller.producer_ids import AllocateProducerIds, decide_allocate_producer_ids
from mqd.controller.reassignments import (
    AlterReassignments,
    Reassignment,
    decide_alter_reassignments,
)
from mqd.controller.records import RegisterBroker
from mqd.controller.size import RESERVED_SHARE, recount, recount_groups
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import ErrorCode, MqError
from mqd.limits import COORDINATOR_KEY_BYTES_MAX, MIB
from mqd.types import NodeId, TopicPartition
from mqd.usage import Usage, UsageWatch
from tests.controller.cluster import (
    CLUSTER,
    Replica,
    create_topics,
    make_controller,
    new_topic,
    with_brokers,
)

CONFIG = NodeConfig.load()
FULL = ErrorCode.POLICY_VIOLATION


def room_for(replica: Replica, more: int) -> DecisionOptions:
    """DecisionOptions under which the metadata may grow by that many bytes."""
    return DecisionOptions(
        image_bytes_max=(replica.image.size + more) * RESERVED_SHARE // (RESERVED_SHARE - 1)
    )


def changes(kind: int, name: str, *pairs: tuple[str, str | None]) -> ResourceChanges:
    return ResourceChanges(
        kind, name, tuple(Change(key, 1 if value is None else 0, value) for key, value in pairs)
    )


def alter(
    replica: Replica, options: DecisionOptions, *resources: ResourceChanges
) -> Iterable[ResourceAltered]:
    found: Iterable[ResourceAltered] = replica.run(
        decide_alter_configs, AlterConfigs(resources, CONFIG), options
    )
    assert replica.image.size == recount(
        replica.image
    ) and replica.image.groups_size == recount_groups(replica.image)
    return found


def codes(rows: Iterable[Any]) -> list[ErrorCode]:
    return [row.error_code for row in rows]


def test_topics_are_refused_individually_and_deletions_make_room() -> None:
    replica = with_brokers(1, 2, 3)
    options = room_for(replica, 5_000)
    op = CreateTopics(tuple(new_topic(f"t{n}", 1, 3) for n in range(10)), 1, 1)
    rows = replica.run(decide_create_topics, op, options)
    made = len(replica.image.topics)
    assert 0 < made < 10
    assert codes(rows) == [ErrorCode.NONE] * made + [FULL] * (10 - made)
    assert (
        "metadata is full" in rows[-1].error_message
        and "metadata.image.max.bytes" in rows[-1].error_message
    )
    assert replica.image.size <= options.image_bytes_max
    replica.run(decide_delete_topics, DeleteTopics((TopicName("t0"),)), options)
    assert codes(
        replica.run(decide_create_topics, CreateTopics((new_topic("t9", 1, 3),), 1, 1), options)
    ) == [ErrorCode.NONE]


def test_deletions_return_the_size_to_its_start() -> None:
    replica = with_brokers(1, 2, 3)
    before = replica.image.size
    create_topics(replica, new_topic("t", 20, 3, configs=(("retention.ms", "5"),)))
    alter(replica, DecisionOptions(), changes(ResourceType.TOPIC, "t", ("segment.ms", "5000")))
    replica.run(decide_create_partitions, CreatePartitions((MorePartitions("t", 30),)))
    replica.run(decide_delete_topics, DeleteTopics((TopicName("t"),)))
    assert replica.image.size == before == recount(replica.image)


def test_partitions() -> None:
    replica = with_brokers(1, 2, 3)
    create_topics(replica, new_topic("t", 1, 3))
    options = room_for(replica, 5_000)
    rows = replica.run(
        decide_create_partitions, CreatePartitions((MorePartitions("t", 100),)), options
    )
    assert codes(rows) == [FULL] and len(replica.image.topics["t"].partitions) == 1
    assert codes(
        replica.run(decide_create_partitions, CreatePartitions((MorePartitions("t", 3),)), options)
    ) == [ErrorCode.NONE]


def test_configs_of_topics_and_of_nodes() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t"))
    wide = ",".join(f"{n}:1" for n in range(2_000))
    throttled = changes(ResourceType.TOPIC, "t", ("leader.replication.throttled.replicas", wide))
    rate = changes(ResourceType.BROKER, "1", ("log.cleaner.backoff.ms", "1" + " " * 12_000))
    options = room_for(replica, 8_000)
    assert codes(alter(replica, options, throttled, rate)) == [FULL, FULL]
    assert not replica.image.configs
    wider = DecisionOptions()
    assert codes(alter(replica, wider, throttled, rate)) == [ErrorCode.NONE] * 2
    less = changes(ResourceType.TOPIC, "t", ("leader.replication.throttled.replicas", "0:1"))
    assert codes(alter(replica, DecisionOptions(image_bytes_max=1), less)) == [ErrorCode.NONE], (
        "a change that shrinks the metadata is never refused"
    )


def test_configs_of_groups_that_do_not_exist_cannot_fill_the_metadata() -> None:
    replica = with_brokers(1)
    options = room_for(replica, 1 * MIB)
    value = "45000" + " " * 4_000
    refused = 0
    for request in range(10):
        names = [f"g{request}-{n}-".ljust(COORDINATOR_KEY_BYTES_MAX, "x") for n in range(50)]
        rows = alter(
            replica,
            options,
            *(
                changes(ResourceType.GROUP, name, ("consumer.session.timeout.ms", value))
                for name in names
            ),
        )
        refused += codes(rows).count(FULL)
    assert refused > 300
    assert replica.image.groups_size <= options.image_bytes_max / 4, "topics still have room"
    assert codes(
        replica.run(decide_create_topics, CreateTopics((new_topic("t", 100),), 1, 1), options)
    ) == [ErrorCode.NONE]


def test_changes_that_a_full_cluster_needs_have_a_reserve() -> None:
    """Without internal topics the first group or the first transaction would have no
    coordinator.
    """
    replica = with_brokers(1, 2, 3)
    options = DecisionOptions(image_bytes_max=MIB)
    number = 0
    while codes(
        replica.run(
            decide_create_topics, CreateTopics((new_topic(f"t{number}", 1, 1),), 1, 1), options
        )
    ) == [ErrorCode.NONE]:
        number += 1
    faster = changes(ResourceType.BROKER, "", ("log.retention.ms", "60000"))
    assert codes(alter(replica, options, faster)) == [ErrorCode.NONE], (
        "otherwise no change could make room while nodes run"
    )
    moved = AlterReassignments((Reassignment(TopicPartition("t0", 0), (NodeId(2), NodeId(3))),))
    assert codes(replica.run(decide_alter_reassignments, moved, options)) == [ErrorCode.NONE], (
        "otherwise no node could be drained"
    )
    for name in ("__consumer_offsets", "__transaction_state"):
        assert codes(
            replica.run(
                decide_create_topics, CreateTopics((new_topic(name, 50, 3),), 1, 1), options
            )
        ) == [ErrorCode.NONE]
    assert replica.image.size <= MIB


def test_a_group_with_overrides_has_a_valid_name() -> None:
    replica = with_brokers(1)
    pair = ("consumer.session.timeout.ms", "45000")
    longest, longer = "g" * COORDINATOR_KEY_BYTES_MAX, "g" * (COORDINATOR_KEY_BYTES_MAX + 1)
    rows = alter(
        replica,
        DecisionOptions(),
        changes(ResourceType.GROUP, longest, pair),
        changes(ResourceType.GROUP, longer, pair),
    )
    assert codes(rows) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_the_number_of_groups_with_overrides_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(configs.NAMED_MAX, GROUP, 3)
    replica = with_brokers(1)
    rows = alter(
        replica,
        DecisionOptions(),
        *(
            changes(ResourceType.GROUP, f"g{n}", ("consumer.session.timeout.ms", "46000"))
            for n in range(5)
        ),
    )
    assert codes(rows) == [ErrorCode.NONE] * 3 + [FULL] * 2
    again = changes(ResourceType.GROUP, "g0", ("consumer.session.timeout.ms", "47000"))
    gone = changes(ResourceType.GROUP, "g1", ("consumer.session.timeout.ms", None))
    assert codes(alter(replica, DecisionOptions(), again, gone)) == [ErrorCode.NONE] * 2
    assert codes(
        alter(
            replica,
            DecisionOptions(),
            changes(ResourceType.GROUP, "g4", ("consumer.session.timeout.ms", "46000")),
        )
    ) == [ErrorCode.NONE]


def test_replica_sets() -> None:
    replica = with_brokers(1, 2, 3)
    create_topics(replica, new_topic("t", 10, 1))
    everywhere = (NodeId(1), NodeId(2), NodeId(3))
    reassignments = tuple(Reassignment(TopicPartition("t", n), everywhere) for n in range(10))
    options = DecisionOptions(image_bytes_max=replica.image.size + 500)
    rows = replica.run(decide_alter_reassignments, AlterReassignments(reassignments), options)
    assert set(codes(rows)) == {ErrorCode.NONE, FULL}
    assert replica.image.size <= options.image_bytes_max and replica.image.size == recount(
        replica.image
    )
    cancelled = tuple(
        Reassignment(reassignment.topic_partition, None)
        for reassignment, row in zip(reassignments, rows, strict=True)
        if row.error_code is not FULL
    )
    assert set(
        codes(
            replica.run(
                decide_alter_reassignments,
                AlterReassignments(cancelled),
                DecisionOptions(image_bytes_max=1),
            )
        )
    ) == {ErrorCode.NONE}


def test_changes_by_nodes_do_not_change_the_size() -> None:
    replica = with_brokers(1, 2, 3)
    create_topics(replica, new_topic("t", 4, 3))
    full, size = DecisionOptions(image_bytes_max=1), replica.image.size
    for node_id in (1, 2):
        node, epoch = NodeId(node_id), replica.image.brokers[NodeId(node_id)].epoch
        replica.run(decide_allocate_producer_ids, AllocateProducerIds(node, epoch), full)
        replicas = tuple((replica.image.topics["t"].topic_id, n) for n in range(4))
        replica.run(decide_report_offline, ReportOfflineReplicas(node, epoch, replicas), full)
        again = Register(node, CLUSTER, UUID(int=node_id + 70), f"host{node_id}", 9092, None)
        replica.run(decide_register, again, full)
        epoch = replica.image.brokers[node].epoch
        replica.run(decide_heartbeat, Heartbeat(node, epoch, replica.image.index), full)
        assert replica.image.size == size == recount(replica.image)
        assert len(zlib.decompress(encode_snapshot(replica.image))) <= size


def test_broker_names_are_bounded() -> None:
    replica = with_brokers(1)
    before = replica.image.size
    replica.run(
        decide_register,
        Register(NodeId(2), CLUSTER, UUID(int=2), "host2", 9092, "rack"),
        DecisionOptions(image_bytes_max=1),
    )
    assert replica.image.size == recount(replica.image) > before
    replica.run(decide_unregister, Unregister(NodeId(2)))
    assert replica.image.size == before
    for host, rack in (("h" * 2_000, None), ("h", "r" * 2_000)):
        with pytest.raises(MqError) as refused:
            replica.run(
                decide_register, Register(NodeId(2), CLUSTER, UUID(int=2), host, 9092, rack)
            )
        assert refused.value.code is ErrorCode.INVALID_REGISTRATION
    long = RegisterBroker(NodeId(2), UUID(int=2), "h" * 2_000, 9092, "r" * 2_000)
    replica.commit([long])
    assert replica.image.size == recount(replica.image), "an earlier release may have accepted it"


def test_features_have_a_fixed_set_of_names() -> None:
    replica = with_brokers(1)
    before = replica.image.size
    with pytest.raises(MqError):
        replica.run(decide_update_features, UpdateFeatures((FeatureUpdate("invented", 1, 1),)))
    replica.run(decide_update_features, UpdateFeatures((FeatureUpdate("group.version", 0, 2),)))
    assert replica.image.size == recount(replica.image) < before
    replica.run(decide_update_features, UpdateFeatures((FeatureUpdate("group.version", 1, 1),)))
    assert replica.image.size == before


@pytest.mark.slow
def test_a_snapshot_of_any_size_is_restored() -> None:
    """An earlier release wrote snapshots larger than 512 MiB, and none of its nodes could start
    again.
    """
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    text = zlib.decompress(encode_snapshot(replica.image))
    deflater = zlib.compressobj(1)
    padding = b" " * MIB
    large = b"".join(
        [
            deflater.compress(text[:-1]),
            *(deflater.compress(padding) for _ in range(513)),
            deflater.compress(b"}"),
            deflater.flush(),
        ]
    )
    machine = MetadataMachine()
    machine.restore(large)
    assert encode_snapshot(machine.image) == encode_snapshot(replica.image)


def test_metadata_above_the_bound_is_restored_and_only_growth_is_refused() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 100))
    again = Replica()
    again.machine.restore(encode_snapshot(replica.image))
    again.index = replica.index
    lowered = DecisionOptions(image_bytes_max=10_000)
    assert again.image.size == replica.image.size > lowered.image_bytes_max
    assert codes(
        again.run(decide_create_topics, CreateTopics((new_topic("u"),), 1, 1), lowered)
    ) == [FULL]
    again.run(decide_delete_topics, DeleteTopics((TopicName("t"),)), lowered)
    assert codes(
        again.run(decide_create_topics, CreateTopics((new_topic("u"),), 1, 1), lowered)
    ) == [ErrorCode.NONE]


def test_names_that_json_must_escape_are_counted() -> None:
    replica = with_brokers(1)
    pair = ("consumer.session.timeout.ms", "46000")
    for name in ("\x01" * 1_000, '"' * 1_000, "\\" * 1_000, "ä" * 1_000, "\U0001f600" * 900):
        alter(replica, DecisionOptions(), changes(ResourceType.GROUP, name, pair))
        assert len(zlib.decompress(encode_snapshot(replica.image))) <= replica.image.size


def test_each_threshold_is_reported_once() -> None:
    watch = UsageWatch()
    assert [watch.passed(Usage(used, 100)) for used in (10, 49, 50, 51, 49, 50, 74)] == [
        None,
        None,
        0.5,
        None,
        None,
        None,
        None,
    ]
    assert [watch.passed(Usage(used, 100)) for used in (95, 99, 89, 90, 120)] == [
        0.9,
        None,
        None,
        None,
        None,
    ]
    assert [watch.passed(Usage(used, 100)) for used in (60, 76, 20, 55)] == [None, 0.75, None, 0.5]


async def test_the_controller_warns_before_the_metadata_is_full(
    caplog: pytest.LogCaptureFixture, autojump_clock: Any
) -> None:
    controller, _ = make_controller(options={"metadata.image.max.bytes": str(MIB)})
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)
        with caplog.at_level(logging.WARNING, logger="mqd.controller.size"):
            number = 0
            while True:
                number += 1
                topic = new_topic(f"t{number}", 100, 1)
                (row,) = await controller.submit(CreateTopics((topic,), 1, 1))
                if row.error_code is FULL:
                    break
                assert row.error_code is ErrorCode.NONE
        nursery.cancel_scope.cancel()
    shares = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert [
        round(float(share) / 100, 1) for share in shares if isinstance(share, float)
    ] == pytest.approx([0.5, 0.8, 0.9], abs=0.06)
    usage = controller.usage()
    assert usage.most == MIB and 0.9 < usage.share <= 1.0
