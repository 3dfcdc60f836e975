from __future__ import annotations

from typing import Any
from uuid import UUID

from mqd.client.metadata import BrokerInfo, ClusterView
from mqd.protocol.apis import by_key
from mqd.types import TopicPartition

ID, OTHER = UUID(int=7), UUID(int=8)
TP = TopicPartition("a", 0)


def response(version: int = 13, **given: Any) -> Any:
    api = by_key(3)
    assert api is not None
    given.setdefault("brokers", [{"node_id": 1, "host": "h", "port": 9092, "rack": "r"}])
    return api.decode_response(version, api.encode_response(version, given))


def topic(leader: int, epoch: int, topic_id: UUID = ID, index: int = 0) -> dict[str, Any]:
    return {
        "name": "a",
        "topic_id": topic_id,
        "partitions": [
            {
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": epoch,
                "replica_nodes": [1, 2],
                "isr_nodes": [1],
            }
        ],
    }


def test_merge_applies_the_response() -> None:
    view = ClusterView().merge(
        response(cluster_id="c", controller_id=1, topics=[topic(1, 4)]), all_topics=True
    )
    assert (view.cluster_id, view.controller_id, view.generation) == ("c", 1, 1)
    assert view.leader_of(TP) == BrokerInfo(1, "h", 9092, "r")
    assert view.leader_epoch_of(TP) == 4
    assert view.topics["a"].replication_factor == 2
    assert list(view.partitions_of("a")) == [TP]
    assert view.name_of(ID) == "a" and view.name_of(OTHER) is None
    assert (
        view.partition(TopicPartition("a", 1)) is None
        and view.leader_of(TopicPartition("b", 0)) is None
    )


def test_missing_fields_of_old_versions_are_accepted() -> None:
    for version in range(14):
        view = ClusterView().merge(response(version, topics=[topic(1, 4)]), all_topics=True)
        assert view.leader_of(TP) is not None
        assert view.leader_epoch_of(TP) == (4 if version >= 7 else -1)


def test_a_leader_epoch_never_decreases_for_one_topic_id() -> None:
    view = ClusterView().merge(response(topics=[topic(1, 4)]), all_topics=False)
    assert view.merge(response(topics=[topic(2, 3)]), all_topics=False).partition(
        TP
    ) == view.partition(TP)
    assert view.merge(response(topics=[topic(2, 5)]), all_topics=False).leader_epoch_of(TP) == 5
    assert (
        view.merge(response(topics=[topic(2, 0, OTHER)]), all_topics=False).leader_epoch_of(TP) == 0
    )


def test_only_a_full_response_removes_other_topics() -> None:
    view = ClusterView().merge(response(topics=[topic(1, 4)]), all_topics=False)
    assert "a" in view.merge(response(topics=[]), all_topics=False).topics
    assert view.merge(response(topics=[]), all_topics=True).topics == {}
    assert view.without("a").topics == {}


def test_an_unknown_leader_counts_as_no_leader() -> None:
    for leader in (-1, 9):
        view = ClusterView().merge(response(topics=[topic(leader, 4)]), all_topics=False)
        assert view.leader_of(TP) is None and view.partition(TP) is not None


def test_partitions_with_gaps_are_found_by_number() -> None:
    view = ClusterView().merge(response(topics=[topic(1, 4, index=3)]), all_topics=False)
    assert view.leader_of(TopicPartition("a", 3)) is not None and view.partition(TP) is None


def test_a_topic_with_an_error_has_no_partitions_to_lead() -> None:
    view = ClusterView().merge(response(topics=[{"name": "a", "error_code": 3}]), all_topics=False)
    assert view.partition(TP) is None and view.topics["a"].error_code == 3
