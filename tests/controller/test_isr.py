"""AlterPartition: the error codes of Apache Kafka's controller, in its order of checks; also
through the service.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from mqd.controller.brokers import ExpireSessions, Heartbeat, decide_expire, decide_heartbeat
from mqd.controller.isr import (
    AlterPartitions,
    IsrAltered,
    IsrChangeRequest,
    ReportOfflineReplicas,
    alter_partition_response,
    decide_alter_partitions,
    decide_report_offline,
)
from mqd.controller.records import CreateTopic, Placement
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId
from tests.controller.cluster import Replica, add_broker, with_brokers

ONE, TWO, THREE, FOUR = (NodeId(n) for n in range(1, 5))
TOPIC = UUID(int=1)
ALL = (ONE, TWO, THREE)


@pytest.fixture
def replica() -> Replica:
    found = with_brokers(1, 2, 3, 4)
    found.commit(
        [CreateTopic("t", TOPIC, (Placement(ALL, ONE, ALL), Placement(ALL, TWO, ALL)), ())]
    )
    return found


def ask(
    replica: Replica, *isr: int, epochs: dict[int, int] | None = None, **fields: Any
) -> IsrAltered:
    brokers = replica.image.brokers
    members = tuple(
        (NodeId(n), (epochs or {}).get(n, brokers[NodeId(n)].epoch if n in brokers else 0))
        for n in isr
    )
    partition = replica.image.topics["t"].partitions[0]
    change = IsrChangeRequest(TOPIC, 0, partition.leader_epoch, partition.partition_epoch, members)
    change = change._replace(**fields)
    (result,) = replica.run(
        decide_alter_partitions, AlterPartitions(ONE, brokers[ONE].epoch, (change,))
    )
    assert isinstance(result, IsrAltered)
    return result


def test_a_leader_changes_its_isr(replica: Replica) -> None:
    result = ask(replica, 1, 2)
    assert result == IsrAltered(TOPIC, 0, ErrorCode.NONE, ONE, 0, (ONE, TWO), 1)
    assert ask(replica, 1, 2) == result  # already in force: nothing changes
    assert ask(replica, 1, 3, 2).isr == (ONE, THREE, TWO)
    partition = replica.image.topics["t"].partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 2)


@pytest.mark.parametrize(
    ("isr", "fields", "code"),
    [
        ((1, 2), {"topic_id": UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ((1, 2), {"partition": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1, 2), {"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1, 2), {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"partition_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"partition": 1}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 2, 2), {}, ErrorCode.INVALID_REQUEST),
        ((1, 4), {}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 2), {"epochs": {2: -1}}, ErrorCode.NONE),
    ],
)
def test_isr_changes_that_are_refused(
    replica: Replica, isr: tuple[int, ...], fields: dict[str, Any], code: ErrorCode
) -> None:
    before = encode_snapshot(replica.image)
    result = ask(replica, *isr, **fields)
    assert result.error_code is code
    assert (
        code in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)
        or encode_snapshot(replica.image) == before
    )


def test_a_refusal_of_an_absent_follower_is_final(replica: Replica) -> None:
    """The first attempt arrives last: its follower was fenced meanwhile and has returned, and the
    leader no longer counts it.
    """
    before = replica.image.topics["t"].partitions[0]
    epochs = {node_id: replica.image.brokers[node_id].epoch for node_id in ALL}
    replica.run(decide_expire, ExpireSessions(((THREE, epochs[THREE]),)))
    fenced = replica.image.topics["t"].partitions[0]
    assert fenced.isr == (ONE, TWO) and fenced.partition_epoch == before.partition_epoch + 1
    proposal: dict[str, Any] = {"partition_epoch": fenced.partition_epoch}
    assert ask(replica, 1, 2, 3, **proposal).error_code is ErrorCode.INELIGIBLE_REPLICA
    refused = replica.image.topics["t"].partitions[0]
    assert refused == replace(fenced, partition_epoch=fenced.partition_epoch + 1)
    assert ask(replica, 1, 2, 3, **proposal).error_code is ErrorCode.INVALID_UPDATE_VERSION
    replica.run(decide_heartbeat, Heartbeat(THREE, epochs[THREE], replica.index))
    assert ask(replica, 1, 2, 3, **proposal).error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert replica.image.topics["t"].partitions[0] == refused, (
        "a request with a stale epoch writes nothing"
    )
    assert ask(replica, 1, 2, 3).isr == ALL


@pytest.mark.parametrize("how", ["fenced", "shutting down", "registered anew"])
def test_an_absent_follower_does_not_join(replica: Replica, how: str) -> None:
    epoch = replica.image.brokers[TWO].epoch
    ask(replica, 1, 3)
    if how == "registered anew":
        add_broker(replica, 2, incarnation=7)
    else:
        beat = Heartbeat(
            TWO,
            epoch,
            replica.index,
            want_fence=how == "fenced",
            want_shut_down=how == "shutting down",
        )
        replica.run(decide_heartbeat, beat)
    assert ask(replica, 1, 2, 3, epochs={2: epoch}).error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_of_another_registration_is_refused(replica: Replica) -> None:
    for node_id, epoch, code in (
        (ONE, replica.image.brokers[ONE].epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
        (NodeId(9), 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(MqError) as refusal:
            replica.run(decide_alter_partitions, AlterPartitions(node_id, epoch, ()))
        assert refusal.value.code is code


def test_a_partition_named_twice_changes_once(replica: Replica) -> None:
    brokers = replica.image.brokers
    change = IsrChangeRequest(TOPIC, 0, 0, 0, ((ONE, -1),))
    first, second = replica.run(
        decide_alter_partitions, AlterPartitions(ONE, brokers[ONE].epoch, (change, change))
    )
    assert (first.error_code, second.error_code) == (
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,
    )
    assert [
        len(topic["partitions"]) for topic in alter_partition_response((first, second))["topics"]
    ] == [2]


def test_requests_of_both_versions() -> None:
    row = {"partition_index": 3, "leader_epoch": 4, "partition_epoch": 5, "new_isr": [1, 2]}
    row["new_isr_with_epochs"] = [{"broker_id": 1, "broker_epoch": 7}]
    request = {
        "broker_id": 1,
        "broker_epoch": 7,
        "topics": [{"topic_id": TOPIC, "partitions": [row]}],
    }
    assert AlterPartitions.of_request(request, 2).changes == (
        IsrChangeRequest(TOPIC, 3, 4, 5, ((ONE, -1), (TWO, -1))),
    )
    assert AlterPartitions.of_request(request, 3).changes == (
        IsrChangeRequest(TOPIC, 3, 4, 5, ((ONE, 7),)),
    )


def test_a_lost_replica_does_not_join_by_an_older_proposal() -> None:
    replica = with_brokers(1, 2, 3, 4)
    replica.commit([CreateTopic("t", TOPIC, (Placement((ONE, THREE, TWO), ONE, (ONE, TWO)),), ())])
    before = replica.image.topics["t"].partitions[0]
    replica.run(
        decide_report_offline,
        ReportOfflineReplicas(THREE, replica.image.brokers[THREE].epoch, ((TOPIC, 0),)),
    )
    result = ask(replica, 1, 2, 3, partition_epoch=before.partition_epoch)
    assert result.error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert replica.image.topics["t"].partitions[0].isr == (ONE, TWO) and replica.image.lost_replicas
    # it caught up, was about to join the ISR, and lost that copy, too
    between = replica.image.topics["t"].partitions[0]
    replica.run(
        decide_report_offline,
        ReportOfflineReplicas(THREE, replica.image.brokers[THREE].epoch, ((TOPIC, 0),)),
    )
    result = ask(replica, 1, 2, 3, partition_epoch=between.partition_epoch)
    assert result.error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert replica.image.topics["t"].partitions[0].isr == (ONE, TWO) and replica.image.lost_replicas
