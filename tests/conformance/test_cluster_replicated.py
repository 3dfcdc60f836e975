"""Records with replicas: the guarantees of acks when replicas are missing, and consumers that read
from a follower in their rack.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import pytest

from chaos.ensemble import Ensemble

from .batches import batch
from .clients import CLIENTS, TIMEOUT_S, Client, Message
from .conftest import RACKS, SESSION_MS
from .wire import Wire, fetch, fetch_one, list_offsets, produce, produce_fields, until

NONE, NOT_LEADER, TIMED_OUT, NOT_ENOUGH, NOT_ENOUGH_AFTER, CLUSTER_AUTHORIZATION = (
    0,
    6,
    7,
    19,
    20,
    31,
)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_of_every_leader_through_every_node(
    cluster: Ensemble, client: Client, idempotent: bool, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
    messages = [Message(b"%d" % i) for i in range(100)]
    for partition, node in enumerate(cluster.nodes.values()):
        assert client.produce(
            node.address, topic, messages, partition=partition, idempotent=idempotent
        ) == list(range(100))
    for partition, node in enumerate(reversed(cluster.nodes.values())):
        got = client.consume(node.address, topic, 100, partition=partition)
        assert [(message.offset, message.value) for message in got] == [
            (i, b"%d" % i) for i in range(100)
        ]


def test_only_the_leader_accepts_records(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [2, 3]})
    assert produce(connect(2), topic, batch(b"v")).error_code == NONE
    assert produce(connect(3), topic, batch(b"v")).error_code == NOT_LEADER
    assert produce(connect(1), topic, batch(b"v")).error_code in (NOT_LEADER, 3)


def without_a_follower(cluster: Ensemble, topic: str) -> tuple[int, int]:
    """A topic with min.insync.replicas 3 that has lost one follower, which is not the controller.

    (leader, follower)
    """
    controller = cluster.controller()
    follower = next(node_id for node_id in cluster.nodes if node_id != controller)
    leader, third = (node_id for node_id in cluster.nodes if node_id != follower)
    cluster.create_topic(
        topic, assignment={0: [leader, third, follower]}, configs={"min.insync.replicas": "3"}
    )
    return leader, follower


def test_too_few_replicas_refuse_acks_all_before_the_append(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    leader, follower = without_a_follower(cluster, topic)
    wire = connect(leader)
    assert produce(wire, topic, batch(b"whole")).base_offset == 0
    cluster.nodes[follower].kill()
    cluster.wait_until(
        lambda: len(cluster.view(leader, [topic])[topic, 0].isr) == 2, "the ISR to shrink"
    )
    end = 1
    while (code := produce(wire, topic, batch(b"refused")).error_code) == NOT_ENOUGH_AFTER:
        end += 1  # the metadata had it a moment before the leader applied it
    assert code == NOT_ENOUGH
    row = produce(wire, topic, batch(b"at your own risk"), acks=1)
    assert (row.error_code, row.base_offset) == (NONE, end), "nothing was appended before"
    time.sleep(0.3)
    assert fetch_one(wire, topic, 0).high_watermark == 1, (
        "the high watermark waits for min.insync.replicas (KIP-966)"
    )
    cluster.nodes[follower].start()
    until(lambda: fetch_one(wire, topic, 0).high_watermark == end + 1, "the follower to catch up")
    until(lambda: produce(wire, topic, batch(b"whole again")).error_code == NONE, "the ISR to grow")


def test_a_parked_produce_gets_an_unknown_outcome(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    leader, follower = without_a_follower(cluster, topic)
    wire = connect(leader)
    assert produce(wire, topic, batch(b"whole")).base_offset == 0
    cluster.nodes[follower].pause()
    begun = time.monotonic()
    answer = wire.ask(
        "Produce", 9, **(produce_fields(topic, batch(b"parked")) | {"timeout_ms": 2 * SESSION_MS})
    )
    ((row,),) = [response.partition_responses for response in answer.responses]
    assert row.error_code in (TIMED_OUT, NOT_ENOUGH_AFTER)
    assert time.monotonic() - begun < 2 * SESSION_MS / 1000 + 2
    cluster.nodes[follower].resume()
    until(lambda: fetch_one(wire, topic, 0).high_watermark == 2, "what was parked: it was appended")


def test_acks_all_waits_for_a_frozen_follower_until_it_leaves(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    controller = cluster.controller()
    follower = next(node_id for node_id in cluster.nodes if node_id != controller)
    leader, third = (node_id for node_id in cluster.nodes if node_id != follower)
    cluster.create_topic(topic, assignment={0: [leader, third, follower]})
    wire = connect(leader)
    assert produce(wire, topic, batch(b"0")).base_offset == 0
    cluster.nodes[follower].pause()
    begun = time.monotonic()
    assert produce(wire, topic, batch(b"1")).error_code == NONE
    assert time.monotonic() - begun < 4 * SESSION_MS / 1000
    assert follower not in cluster.view(leader, [topic])[topic, 0].isr
    cluster.nodes[follower].resume()
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "the follower to come back")


def test_a_timestamp_is_found_on_a_new_leader(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [2, 3, 1]}, configs={"retention.ms": "-1"})
    messages = [Message(b"%d" % i, timestamp_ms=1_700_000_000_000 + 10 * i) for i in range(50)]
    assert CLIENTS[0].produce(cluster.bootstrap, topic, messages) == list(range(50))
    cluster.nodes[2].stop()
    cluster.wait_until(lambda: cluster.leader(topic) == 3, "another leader")
    wire = connect(3)
    assert (
        until(
            lambda: (row := list_offsets(wire, topic, 1_700_000_000_205)).error_code == 0 and row,
            "an answer",
        ).offset
        == 21
    )
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    answer = wire.ask(
        "OffsetForLeaderEpoch", 3, replica_id=-1, topics=[{"topic": topic, "partitions": epochs}]
    )
    ((row,),) = [found.partitions for found in answer.topics]
    assert (row.error_code, row.leader_epoch, row.end_offset) == (NONE, 0, 50)


# -- KIP-392: a replica in the consumer's rack


def in_racks(cluster: Ensemble, topic: str) -> list[Message]:
    """A topic led by node 1 that has a replica in every rack, and its records, which every follower
    has committed.
    """
    cluster.create_topic(topic, assignment={0: [1, 2, 3]}, configs={"retention.ms": "-1"})
    messages = [Message(b"%d" % i, timestamp_ms=1_700_000_000_000 + i) for i in range(200)]
    assert CLIENTS[0].produce(cluster.bootstrap, topic, messages) == list(range(200))
    return [message.at(i) for i, message in enumerate(messages)]


@pytest.mark.parametrize("node_id", [2, 3])
def test_the_leader_names_the_replica_in_the_consumers_rack(
    cluster: Ensemble, connect: Callable[[int], Wire], node_id: int, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    in_racks(cluster, topic)
    row = until(
        lambda: (
            (
                found := fetch_one(connect(1), topic, 0, rack_id=RACKS[node_id])
            ).preferred_read_replica
            == node_id
            and found
        ),
        "the follower",
    )
    assert (row.error_code, row.preferred_read_replica, row.records) in (
        (NONE, node_id, None),
        (NONE, node_id, b""),
    )
    follower = connect(node_id)
    found = until(
        lambda: (
            (got := fetch_one(follower, topic, 0, rack_id=RACKS[node_id])).high_watermark == 200
            and got
        ),
        "the watermark",
    )
    assert found.error_code == NONE
    assert found.preferred_read_replica == -1
    assert len(found.records) > 0
    assert fetch_one(connect(1), topic, 0, rack_id="elsewhere").preferred_read_replica == -1
    assert fetch_one(connect(1), topic, 0).preferred_read_replica == -1


def test_a_fetch_parked_at_a_follower_gets_committed_records(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    in_racks(cluster, topic)
    follower = connect(2)
    until(lambda: fetch_one(follower, topic, 0, rack_id="b").high_watermark == 200, "the watermark")
    begun = time.monotonic()
    ticket = follower.post(
        "Fetch",
        12,
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=1_000_000,
        session_id=0,
        session_epoch=-1,
        rack_id="b",
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": 0,
                        "fetch_offset": 200,
                        "current_leader_epoch": -1,
                        "partition_max_bytes": 1_000_000,
                    }
                ],
            }
        ],
        forgotten_topics_data=[],
    )
    time.sleep(0.2)
    assert produce(connect(1), topic, batch(b"new")).error_code == NONE
    ((row,),) = [found.partitions for found in follower.answer(ticket).responses]
    assert row.high_watermark == 201
    assert len(row.records) > 0
    assert time.monotonic() - begun < 5


def test_librdkafka_reads_from_the_replica_in_its_rack(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    messages = in_racks(cluster, topic)
    read_from: set[int] = set()

    def on_statistics(text: str) -> None:
        partitions = json.loads(text)["topics"].get(topic, {}).get("partitions", {})
        read_from.update(row["broker"] for number, row in partitions.items() if number == "0")

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "in-a-rack",
            "enable.auto.commit": False,
            "client.rack": "c",
            "statistics.interval.ms": 100,
            "stats_cb": on_statistics,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        got: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while (len(got) < 200 or 3 not in read_from) and time.monotonic() < deadline:
            got += [
                message.value() for message in consumer.consume(100, 0.2) if message.error() is None
            ]
        assert got == [message.value for message in messages]
        assert 3 in read_from
    finally:
        consumer.close()


def test_kafka_python_with_a_rack_survives_the_end_of_that_replica(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    messages = in_racks(cluster, topic)
    controller = cluster.controller()
    rack = next(node_id for node_id in (2, 3) if node_id != controller)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        client_rack=RACKS[rack],
        metadata_max_age_ms=1000,
    )
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        got: list[Any] = []

        def read(count: int) -> None:
            deadline = time.monotonic() + 2 * TIMEOUT_S
            while len(got) < count and time.monotonic() < deadline:
                got.extend(record.value for record in consumer.poll(300).get(place, []))

        read(200)
        cluster.nodes[rack].kill()
        assert CLIENTS[0].produce(cluster.bootstrap, topic, [Message(b"after")]) == [200]
        read(201)
        assert got == [message.value for message in messages] + [b"after"]
    finally:
        consumer.close()


# In Kafka any client with rights on the cluster may pose as a follower; without ACLs that is every
# client
@pytest.mark.mqd_only
def test_no_client_poses_as_a_follower_on_the_client_port(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2, 3]})
    answer = fetch(connect(1), {topic: {0: 0}}, version=12, replica_id=2)
    codes = {answer.error_code} | {
        row.error_code for found in answer.responses for row in found.partitions
    }
    assert CLUSTER_AUTHORIZATION in codes
