"""The image changes only by commands and snapshots: replicas that receive the same ones are
equal.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from mqd.config import NodeConfig
from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    Register,
    decide_expire,
    decide_heartbeat,
    decide_register,
)
from mqd.controller.commands import Command, encode_command
from mqd.controller.configs import AlterConfigs, Change, ResourceChanges, decide_alter_configs
from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage, PartitionImage
from mqd.controller.machine import MetadataMachine
from mqd.controller.producer_ids import AllocateProducerIds, decide_allocate_producer_ids
from mqd.controller.records import (
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteScramCredential,
    DeleteTopic,
    Placement,
    SetClientQuotas,
    SetScramCredential,
)
from mqd.controller.size import recount, recount_access, recount_groups
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import MqError
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import ScramShapes
from mqd.types import NO_NODE, NodeId, TopicPartition
from tests.controller.cluster import (
    CLUSTER,
    Replica,
    add_broker,
    create_topics,
    new_topic,
    with_brokers,
)

CONFIG = NodeConfig.load()
names = st.sampled_from(["a", "b", "c.d", "c_d"])
brokers = st.integers(1, 3).map(NodeId)
steps = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 4)),
    st.tuples(st.just("delete"), names, st.none()),
    st.tuples(st.just("grow"), names, st.integers(1, 6)),
    st.tuples(st.just("config"), names, st.sampled_from(["1000", "2000", None])),
    st.tuples(st.just("register"), brokers, st.integers(1, 3)),
    st.tuples(st.just("beat"), brokers, st.booleans()),
    st.tuples(st.just("expire"), brokers, st.none()),
    st.tuples(st.just("ids"), brokers, st.none()),
    st.tuples(st.just("scram"), names, st.sampled_from([b"", b"salt", b"x" * 64, None])),
    st.tuples(st.just("acl"), names, st.booleans()),
    st.tuples(st.just("quota"), names, st.sampled_from([1024.0, 0.1, math.inf, None])),
)
USER = ("alice", ScramMechanism.SHA_256)


def acl(name: str) -> Acl:
    return Acl(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        'User:\u00e4"',
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


def security_step(image: MetadataImage, kind: str, what: Any, value: Any) -> list[Any]:
    if kind == "scram" and value is not None:
        credential = ScramCredential(4096, value, value, value)
        return [SetScramCredential(what, ScramMechanism.SHA_512, credential)]
    if kind == "scram":
        known = (what, ScramMechanism.SHA_512) in image.scram_credentials
        return [DeleteScramCredential(what, ScramMechanism.SHA_512)] if known else []
    if kind == "quota":
        entities = ((("user", what),), (("client-id", None), ("user", what)))
        return [SetClientQuotas(entity, (("request_percentage", value),)) for entity in entities]
    acl_id = UUID(bytes=what.encode().ljust(16))
    if value and acl_id not in image.acls:
        return [CreateAcl(acl_id, acl(what))]
    return [DeleteAcl(acl_id)] if not value and acl_id in image.acls else []


def step(replica: Replica, kind: str, what: Any, value: Any, count: int) -> None:
    image = replica.image
    epoch = image.brokers[what].epoch if what in image.brokers else -1
    try:
        if kind == "create":
            create_topics(
                replica, new_topic(what, value)._replace(topic_id=UUID(int=count, version=4))
            )
        elif kind == "delete":
            replica.run(decide_delete_topics, DeleteTopics((TopicName(what),)))
        elif kind == "grow":
            replica.run(decide_create_partitions, CreatePartitions((MorePartitions(what, value),)))
        elif kind == "config":
            change = Change("retention.ms", 0 if value else 1, value)
            replica.run(
                decide_alter_configs, AlterConfigs((ResourceChanges(2, what, (change,)),), CONFIG)
            )
        elif kind == "register":
            replica.run(decide_register, Register(what, CLUSTER, UUID(int=value), "h", 1, None))
        elif kind == "beat":
            replica.run(decide_heartbeat, Heartbeat(what, epoch, image.index, want_fence=value))
        elif kind == "expire":
            replica.run(decide_expire, ExpireSessions(((what, epoch),)))
        elif kind == "ids":
            replica.run(decide_allocate_producer_ids, AllocateProducerIds(what, epoch))
        elif records := security_step(image, kind, what, value):
            replica.commit(records)
    except MqError:
        pass


def check_invariants(image: MetadataImage) -> None:
    assert image.size == recount(image) and image.groups_size == recount_groups(image)
    assert image.access_size == recount_access(image)
    assert len(zlib.decompress(encode_snapshot(image))) <= image.size
    check_shapes(image)
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    for topic in image.topics.values():
        assert topic.partitions
        for partition in topic.partitions:
            check_partition(image, partition)


def check_shapes(image: MetadataImage) -> None:
    """The shapes are those of the credentials."""
    expected = ScramShapes()
    for (_, mechanism), credential in image.scram_credentials.items():
        expected.append(mechanism, credential)
    for mechanism in ScramMechanism:
        for place in range(16):
            found = image.scram_shapes.at(mechanism, place, 4)
            assert found == expected.at(mechanism, place, 4)


def check_partition(image: MetadataImage, partition: PartitionImage) -> None:
    """Invariants that hold between any two commands.

    Every eligible replica may lead: a partition without a leader has no eligible replica.
    """
    may_lead = image.may_lead()
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    assert len(replicas) == len(partition.replicas) and len(isr) == len(partition.isr)
    assert isr | elr <= replicas and not isr & elr and isr <= may_lead
    assert set(partition.adding) | set(partition.removing) <= replicas
    assert len(partition.last_known_elr) <= 1
    if partition.leader == NO_NODE:
        assert not isr
    else:
        assert partition.leader in isr and partition.leader in may_lead


def state(image: MetadataImage) -> Any:
    return json.loads(zlib.decompress(encode_snapshot(image)))


@settings(max_examples=60)
@given(st.lists(steps, max_size=25), st.data())
def test_replicas_agree_by_commands_and_by_snapshots(
    script: list[tuple[str, Any, Any]], data: st.DataObject
) -> None:
    leader = Replica()
    add_broker(leader, 1)
    for count, (kind, what, value) in enumerate(script):
        step(leader, kind, what, value, count)
        check_invariants(leader.image)
    follower, late = MetadataMachine(), MetadataMachine()
    for index, command in leader.log:
        follower.apply(index, command)
    cut = data.draw(st.integers(0, len(leader.log)))
    early = MetadataMachine()
    for index, command in leader.log[:cut]:
        early.apply(index, command)
    late.restore(encode_snapshot(early.image))
    for index, command in leader.log[cut:]:
        late.apply(index, command)
    check_shapes(late.image)
    assert leader.image.size == follower.image.size == late.image.size
    assert state(leader.image) == state(follower.image) == state(late.image)
    assert encode_snapshot(leader.image) == encode_snapshot(late.image)
    assert vars(late.image)["_names"].keys() <= vars(leader.image)["_names"].keys()


def test_deltas_and_versions_of_credentials_acls_and_quotas() -> None:
    replica, behind = with_brokers(1), MetadataMachine()
    behind.restore(encode_snapshot(replica.image))
    deltas: list[Delta] = []
    replica.machine.subscribe(lambda delta, image: deltas.append(delta))
    behind.subscribe(lambda delta, image: deltas.append(delta))
    versions = behind.image.acls_version
    one, two, entity = UUID(int=1), UUID(int=2), (("user", None),)
    replica.commit(
        [
            SetScramCredential(*USER, ScramCredential(4096, b"s", b"k", b"v")),
            CreateAcl(one, acl("a")),
            CreateAcl(two, acl("b")),
            DeleteAcl(two),
            SetClientQuotas(entity, (("producer_byte_rate", 5.0),)),
        ]
    )
    behind.restore(encode_snapshot(replica.image))
    for delta in deltas:
        assert delta.scram_credentials_changed == {USER}
        assert delta.acls_created == {one: acl("a")} and not delta.acls_deleted
        assert delta.client_quotas_changed == {entity}
    image = replica.image
    assert (image.scram_version, image.acls_version) == (1, 3)
    assert behind.image.acls_version == versions + 1
    replica.commit([DeleteScramCredential(*USER), DeleteAcl(one)])
    assert deltas[2].scram_credentials_changed == {USER}
    assert deltas[2].acls_deleted == {one: acl("a")} and not deltas[2].acls_created


def test_a_snapshot_without_security_has_the_format_of_the_previous_release() -> None:
    replica = with_brokers(1)
    assert state(replica.image)["format"] == 2
    assert not {"acls", "client_quotas", "scram_credentials"} & state(replica.image).keys()
    replica.commit([CreateAcl(UUID(int=1), acl("a"))])
    assert state(replica.image)["format"] == 3


def test_no_representation_shows_a_secret() -> None:
    record = SetScramCredential(*USER, ScramCredential(4096, b"sesame", b"sesame", b"sesame"))
    assert "sesame" not in repr(record) and b"sesame".hex() not in repr(record)


def test_a_command_of_an_outdated_controller_is_skipped() -> None:
    replica = with_brokers(1)
    topic = CreateTopic("t", UUID(int=1), (Placement((NodeId(1),), NodeId(1), (NodeId(1),)),), ())
    stale = encode_command(Command(replica.image.index, (topic,)))
    create_topics(replica, new_topic("t"))
    before = encode_snapshot(replica.image)
    replica.machine.apply(replica.index + 1, stale)
    assert not replica.machine.took_effect(replica.index + 1)
    assert encode_snapshot(replica.image) == before


def test_a_delta_has_the_changes() -> None:
    replica = with_brokers(1)
    deltas: list[Delta] = []
    replica.machine.subscribe(lambda delta, image: deltas.append(delta))
    create_topics(replica, new_topic("t", 2, configs=(("retention.ms", "5"),)))
    (delta,) = deltas
    assert [topic.name for topic in delta.topics_created] == ["t"]
    assert delta.partitions_changed == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert delta.configs_changed == {("topic", "t")}
    assert delta.index == replica.image.index
    replica.run(decide_create_partitions, CreatePartitions((MorePartitions("t", 3),)))
    assert deltas[1].partitions_changed == {TopicPartition("t", 2)} and not deltas[1].topics_created
    epoch = replica.image.brokers[NodeId(1)].epoch
    replica.run(decide_expire, ExpireSessions(((NodeId(1), epoch),)))
    assert deltas[2].brokers_changed == {NodeId(1)} and len(deltas[2].partitions_changed) == 3
    replica.run(decide_delete_topics, DeleteTopics((TopicName("t"),)))
    assert [topic.name for topic in deltas[3].topics_deleted] == ["t"]
    assert deltas[3].configs_changed == {("topic", "t")} and not deltas[3].partitions_changed


def test_a_name_deleted_and_created_in_one_command_is_in_both_lists() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    old = replica.image.topics["t"].topic_id
    deltas: list[Delta] = []
    replica.machine.subscribe(lambda delta, image: deltas.append(delta))
    here = (NodeId(1),)
    replica.commit(
        [DeleteTopic(old), CreateTopic("t", UUID(int=9), (Placement(here, here[0], here),), ())]
    )
    assert [topic.topic_id for topic in deltas[0].topics_deleted] == [old]
    assert [topic.topic_id for topic in deltas[0].topics_created] == [UUID(int=9)]
    assert deltas[0].partitions_changed == {TopicPartition("t", 0)}


def test_a_snapshot_over_a_live_image_returns_the_difference() -> None:
    ahead = with_brokers(1)
    create_topics(ahead, new_topic("stays", 2), new_topic("goes"))
    behind = MetadataMachine()
    behind.restore(encode_snapshot(ahead.image))
    create_topics(ahead, new_topic("comes"))
    ahead.run(decide_delete_topics, DeleteTopics((TopicName("goes"),)))
    ahead.run(decide_create_partitions, CreatePartitions((MorePartitions("stays", 3),)))
    deltas: list[Delta] = []
    behind.subscribe(lambda delta, image: deltas.append(delta))
    image = behind.image
    behind.restore(encode_snapshot(ahead.image))
    assert behind.image is image
    (delta,) = deltas
    assert [topic.name for topic in delta.topics_created] == ["comes"]
    assert [topic.name for topic in delta.topics_deleted] == ["goes"]
    assert delta.partitions_changed == {TopicPartition("comes", 0), TopicPartition("stays", 2)}


@pytest.mark.parametrize(
    "wrong", [b"", b"x", zlib.compress(b"[]"), zlib.compress(b'{"format":4}'), zlib.compress(b"{}")]
)
def test_malformed_snapshots_change_nothing(wrong: bytes) -> None:
    replica = with_brokers(1)
    before = encode_snapshot(replica.image)
    with pytest.raises(ValueError):
        replica.machine.restore(wrong)
    assert encode_snapshot(replica.image) == before


def test_the_log_and_the_snapshot_of_the_previous_release_replay() -> None:
    """Bytes of that release's encoder: golden/metadata_0.json holds every record type that
    it had.
    """
    golden = json.loads((Path(__file__).parent / "golden" / "metadata_0.json").read_text())
    machine, restored = MetadataMachine(), MetadataMachine()
    for index, command in golden["commands"]:
        machine.apply(index, bytes.fromhex(command))
        assert machine.took_effect(index)
    restored.restore(bytes.fromhex(golden["snapshot"]))
    assert state(machine.image) == state(restored.image)
    image = restored.image
    topic = image.topics["t"]
    assert (len(topic.partitions), image.next_producer_id, image.cluster_id) == (
        403,
        3000,
        "golden",
    )
    assert topic.partitions[0] == PartitionImage(NO_NODE, 1, 1, (NodeId(1),), (NodeId(1),))
    replica = Replica()
    replica.machine, replica.index = machine, image.index
    replica.run(decide_register, Register(NodeId(1), "golden", UUID(int=99), "one", 9091, None))
    replica.run(decide_heartbeat, Heartbeat(NodeId(1), replica.index, replica.index))
    after = replica.image.topics["t"].partitions[0]
    assert (after.leader, after.leader_epoch, after.isr) == (NodeId(1), 2, (NodeId(1),))


def test_names_that_differ_in_a_dot_collide_until_the_topic_is_deleted() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a.b"))
    assert replica.image.colliding_topic("a_b") == "a.b"
    assert replica.image.colliding_topic("a.b") is None
    replica.run(decide_delete_topics, DeleteTopics((TopicName("a.b"),)))
    assert replica.image.colliding_topic("a_b") is None
