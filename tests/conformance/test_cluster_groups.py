"""Groups and transactions of stock clients continue when their coordinator's node is killed.

Every node refuses requests that no node would accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaos.ensemble import Ensemble
from mqd.coordinator.partitioning import partition_for

from .classic_members import OFFSETS_PARTITIONS
from .members import KINDS, SETTLE_S, Feeder, Group, leave_together
from .test_cluster_committed_offsets import coordinator_of
from .transactional import PRODUCERS, Transactional, read_confluent
from .wire import Wire, until

PARTITIONS = 6
SESSION_MS = 30_000
"""Longer than a failover on a busy machine: no member may be removed, so that no record is consumed
twice.
"""
FORGOTTEN_S = SETTLE_S + SESSION_MS / 1000
"""Apache Kafka does not store that a member left until the next generation is complete: its next
coordinator waits for a session.
"""
GROUP_RESOURCE = 32
"""Resource type of a group's configuration (KIP-848)."""
HEAL_S = 90.0
(
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
) = 23, 24, 26, 42, 50


@pytest.fixture
def six(cluster: Ensemble, new_name: Callable[[], str]) -> str:
    name = new_name()
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def coordinating_node(cluster: Ensemble, key: str, key_type: int) -> int:
    with coordinator_of(cluster, key, key_type) as wire:
        port = wire.socket.getpeername()[1]
    (found,) = [node_id for node_id, node in cluster.nodes.items() if node.port == port]
    return found


def be_patient_with(cluster: Ensemble, group: str) -> None:
    """The session timeout of the group, which the broker sets in KIP-848's protocol, is as long as
    that of the others.

    So is the heartbeat interval: librdkafka closes a connection when a response takes longer than
    that. A busy broker may process a commit of that connection after a commit of the next
    connection. Then the older commit counts, and records are read twice.
    """
    rows = [
        {"name": f"consumer.{name}.ms", "config_operation": 0, "value": str(value)}
        for name, value in (
            ("session.timeout", SESSION_MS),
            ("heartbeat.interval", SESSION_MS // 10),
        )
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": rows}
    (row,) = cluster.request(
        1, "incremental_alter_configs", 1, {"resources": [resource], "validate_only": False}
    ).responses
    assert row.error_code == 0, row


@pytest.fixture
def groups(cluster: Ensemble, six: str, new_name: Callable[[], str]) -> Iterator[list[Group]]:
    """One of each kind of client, all in the same partition of the internal topic: whichever node
    dies, they always have the same coordinator.
    """
    first = new_name()
    names = (
        name
        for name in iter(new_name, "")
        if partition_for(name, OFFSETS_PARTITIONS) == partition_for(first, OFFSETS_PARTITIONS)
    )
    found = [
        Group(kind, cluster.bootstrap, next(names), six, session_ms=SESSION_MS) for kind in KINDS
    ]
    (kip848,) = [group for group in found if group.kind == "consumer"]
    be_patient_with(cluster, kip848.group)
    yield found
    for group in found:
        group.end()


@pytest.fixture
def feeder(cluster: Ensemble, six: str) -> Iterator[Feeder]:
    started = Feeder(cluster.bootstrap, six, PARTITIONS, rate=50.0)
    yield started
    started.stop()


WRONG_IN_THEMSELVES: list[tuple[str, int, dict[str, Any], int]] = [
    ("JoinGroup", 5, {"group_id": "", "member_id": "m"}, INVALID_GROUP_ID),
    ("JoinGroup", 5, {"group_id": "", "session_timeout_ms": 0}, INVALID_GROUP_ID),
    ("JoinGroup", 5, {"session_timeout_ms": 0, "member_id": "m"}, INVALID_SESSION_TIMEOUT),
    ("SyncGroup", 3, {"group_id": ""}, INVALID_GROUP_ID),
    ("SyncGroup", 5, {"protocol_type": None, "protocol_name": None}, INCONSISTENT_PROTOCOL),
    ("Heartbeat", 3, {"group_id": ""}, INVALID_GROUP_ID),
    ("LeaveGroup", 1, {"group_id": ""}, INVALID_GROUP_ID),
    ("LeaveGroup", 4, {"group_id": "", "members": []}, INVALID_GROUP_ID),
    ("OffsetDelete", 0, {"group_id": ""}, INVALID_GROUP_ID),
    (
        "InitProducerId",
        4,
        {"transactional_id": "", "transaction_timeout_ms": 1000},
        INVALID_REQUEST,
    ),
    (
        "InitProducerId",
        4,
        {"transactional_id": "anyone", "transaction_timeout_ms": 0},
        INVALID_TRANSACTION_TIMEOUT,
    ),
    ("EndTxn", 3, {"transactional_id": ""}, INVALID_REQUEST),
]


@pytest.mark.parametrize(("api", "version", "fields", "code"), WRONG_IN_THEMSELVES)
def test_every_node_reports_the_error_of_a_request(
    connect: Callable[[int], Wire],
    cluster: Ensemble,
    api: str,
    version: int,
    fields: dict[str, Any],
    code: int,
) -> None:
    """Whichever node coordinates: a client that gets NOT_COORDINATOR instead retries forever."""
    of_group = {} if "transactional_id" in fields else {"group_id": "anyone"}
    for node_id in cluster.nodes:
        answer = connect(node_id).ask(api, version, **{**of_group, **fields})
        assert answer.error_code == code, node_id
        if api == "JoinGroup":
            assert answer.member_id == fields.get("member_id", "")


def kill_coordinator(cluster: Ensemble, group: Group) -> int:
    victim = coordinating_node(cluster, group.group, 0)
    cluster.nodes[victim].kill()
    return victim


def wait_more(groups: list[Group]) -> None:
    """Wait until every group has consumed a record from now on."""
    consumed = {group.group: len(group.done()) for group in groups}
    for group in groups:
        until(
            lambda: len(group.done()) > consumed[group.group],  # noqa: B023
            f"{group.kind} members consume again",
            HEAL_S,
        )


def bring_back(cluster: Ensemble, victim: int, topic: str) -> None:
    cluster.nodes[victim].start()
    cluster.wait_until(
        lambda: cluster.is_whole({topic: PARTITIONS, "__consumer_offsets": OFFSETS_PARTITIONS}),
        "a full ISR",
        HEAL_S,
    )


# it waits for a session, and when it runs alone, three JVMs start and end
@pytest.mark.timeout(400)
def test_groups_consume_every_record_once_through_a_killed_coordinator(
    cluster: Ensemble, six: str, groups: list[Group], feeder: Feeder
) -> None:
    """A coordinator that dies moves no partition; the next one gets the members that join or leave
    meanwhile.
    """
    pairs = [[group.join(), group.join()] for group in groups]
    for group, pair in zip(groups, pairs, strict=True):
        group.wait_owned(PARTITIONS, *pair)
    wait_more(groups)

    settled = {group.kind: group.changes() for group in groups}
    victim = kill_coordinator(cluster, groups[0])
    wait_more(groups)
    bring_back(cluster, victim, six)
    wait_more(groups)
    assert {group.kind: group.changes() for group in groups} == settled

    leave_together(pair.pop(0) for pair in pairs)  # and while the others rebalance,
    kill_coordinator(cluster, groups[0])
    for group, pair in zip(groups, pairs, strict=True):
        pair.append(group.join())
    for group, pair in zip(groups, pairs, strict=True):
        group.wait_owned(PARTITIONS, *pair, seconds=FORGOTTEN_S)
    wait_more(groups)

    # with Kafka, one offset in thousands was not
    produced = feeder.finish(all_told=cluster.kind == "mqd")
    for group in groups:
        group.wait_consumed(produced)
        assert not group.failures()
        # two stock clients misinterpret Kafka's response while there is no coordinator:
        # server/handlers/offset_fetch.py
        if cluster.kind == "mqd":
            assert not group.helped(), group.helped()


@pytest.fixture
def opened(cluster: Ensemble) -> Iterator[Callable[[str, str], Transactional]]:
    producers: list[Transactional] = []

    def make(client: str, transactional_id: str) -> Transactional:
        producers.append(PRODUCERS[client](cluster.bootstrap, transactional_id, 60_000))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close()


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_a_transaction_continues_when_its_coordinator_is_killed(
    cluster: Ensemble,
    six: str,
    new_name: Callable[[], str],
    opened: Callable[[str, str], Transactional],
    client: str,
) -> None:
    transactional_id = new_name()
    producer = opened(client, transactional_id)
    producer.run(six, [b"before"])
    victim = coordinating_node(cluster, transactional_id, 1)
    partition = next(index for index in range(PARTITIONS) if cluster.leader(six, index) != victim)
    producer.begin()
    producer.send(six, [b"during"], partition)
    cluster.nodes[victim].kill()
    producer.commit()
    producer.run(six, [b"taken back"], committed=False, partition=partition)
    producer.run(six, [b"after"], partition=partition)
    cluster.nodes[victim].start()
    until(
        lambda: (
            read_confluent(cluster.bootstrap, six, "read_committed", partition)[-2:]
            == [b"during", b"after"]
        ),
        "what was committed is there",
        details=lambda: read_confluent(cluster.bootstrap, six, "read_committed", partition),
    )
    assert b"taken back" not in read_confluent(cluster.bootstrap, six, "read_committed", partition)
