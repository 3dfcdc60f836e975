"""The share coordinator on the wire (KIP-932): initialize, read, write, delete and summarize the
states of share partitions, in all versions.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`), but for these. It stores
values that make no sense: negative start offsets, and batches that overlap, end before they begin,
or have unknown states; mqd responds with INVALID_REQUEST. A start offset may go back in Kafka, and
stays behind records that are not done. `InitializeShareGroupState` without a start offset resets
the state there, and keeps it here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from .conftest import Broker
from .share_exchanges import Plain, ShareWire
from .wire import create_topic, until

UNKNOWN_PARTITION, INVALID_REQUEST, FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH = 3, 42, 74, 124
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
APIS = ("Initialize", "Read", "Write", "Delete", "ReadSummary")
_NAMES = {api: f"{api}ShareGroupState" for api in APIS} | {
    "ReadSummary": "ReadShareGroupStateSummary"
}
_FIELDS: dict[str, Plain] = {
    "Initialize": {"state_epoch": 0, "start_offset": 0},
    "Read": {"leader_epoch": 0},
    "Write": {"state_epoch": 0, "leader_epoch": 0, "start_offset": -1, "state_batches": []},
    "Delete": {},
    "ReadSummary": {"leader_epoch": 0},
}
SHARE_KEY = 2


class Coordinator:
    """Requests about partition 0 of one group and topic, which has three partitions."""

    def __init__(self, wire: ShareWire, group: str, topic: str) -> None:
        self.wire, self.group, self.topic = wire, group, topic
        self.topic_id = wire.id_of(topic)

    def wait_until_it_serves(self) -> None:
        text = base64.urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
        keys = [f"{self.group}:{text}:{partition}" for partition in range(3)]

        def serves() -> bool:
            rows = self.wire.exchange(
                "FindCoordinator", 6, key_type=SHARE_KEY, coordinator_keys=keys
            )["coordinators"]
            if any("error_code" in row for row in rows):
                return False
            return all(
                "error_code" not in self.ask("ReadSummary", partition=partition)
                for partition in range(3)
            )

        until(serves, "the share coordinator", 60)

    def ask(self, api: str, version: int = -1, **fields: Any) -> Plain:
        """The row of the partition in the response, without the partition if it is 0."""
        group = fields.pop("group_id", self.group)
        topic_id = fields.pop("topic_id", self.topic_id)
        row = {"partition": 0, **_FIELDS[api], **fields}
        topics = [{"topic_id": topic_id, "partitions": [row]}]
        response = self.wire.exchange(_NAMES[api], version, group_id=group, topics=topics)
        (topic,) = response["results"]
        (found,) = topic["partitions"]
        assert topic.get("topic_id", UUID(int=0)) == self.wire.names.get(topic_id, topic_id)
        return dict(found)

    def write(self, *batches: tuple[int, int, int, int], **fields: Any) -> Plain:
        """`batches`: first offset, last offset, state, delivery count."""
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        rows = [dict(zip(names, batch)) for batch in batches]
        return self.ask("Write", state_batches=rows, **fields)

    def state(self, leader_epoch: int = 0) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """State epoch, start offset, and batches, without the counts of records that are done."""
        row = self.ask("Read", leader_epoch=leader_epoch)
        assert "error_code" not in row, row
        return (
            row.get("state_epoch", 0),
            row.get("start_offset", 0),
            [
                (
                    one.get("first_offset", 0),
                    one["last_offset"],
                    state := one.get("delivery_state", AVAILABLE),
                    one["delivery_count"] if state == AVAILABLE else 0,
                )
                for one in row.get("state_batches", ())
            ],
        )


@pytest.fixture
def coordinator(broker: Broker, new_name: Callable[[], str]) -> Iterator[Coordinator]:
    if len(broker.addresses) > 1:
        pytest.skip("the partitions of one group have share coordinators on several nodes")
    with ShareWire(broker.host, broker.port) as wire:
        topic = create_topic(wire, new_name(), partitions=3)
        found = Coordinator(wire, new_name(), topic)
        found.wait_until_it_serves()
        yield found


UNINITIALIZED = "{} operation on uninitialized share partition not allowed."
NOT_HERE = "This server does not host this topic-partition."


def test_a_partition_without_a_state(coordinator: Coordinator) -> None:
    for api in ("Read", "Write"):
        assert coordinator.ask(api) == {"error_code": INVALID_REQUEST}
        assert coordinator.wire.messages == [UNINITIALIZED.format(api)]
    for version in (0, 1):
        assert coordinator.ask("ReadSummary", version) == {"start_offset": -1}
    assert coordinator.ask("Delete") == {}


@pytest.mark.parametrize("api", APIS)
def test_partitions_that_do_not_exist(coordinator: Coordinator, api: str) -> None:
    for fields in ({"topic_id": UUID(int=77)}, {"topic_id": UUID(int=0)}, {"partition": 9}):
        row = coordinator.ask(api, **fields)
        place = {"partition": 9} if "partition" in fields else {}
        if api in ("Read", "Write"):
            assert row == place | {"error_code": INVALID_REQUEST}
            assert coordinator.wire.messages == [UNINITIALIZED.format(api)]
        else:
            assert row == place | {"error_code": UNKNOWN_PARTITION}
            assert coordinator.wire.messages == [NOT_HERE]
    negative = coordinator.ask(api, partition=-1)
    assert negative == {"partition": -1, "error_code": INVALID_REQUEST}
    assert coordinator.wire.messages == ["The partition id cannot be a negative number."]


@pytest.mark.parametrize("api", APIS)
def test_empty_requests(coordinator: Coordinator, api: str) -> None:
    """Without a group, topics, or partitions of a topic, the response has no results."""
    row = {"partition": 0, **_FIELDS[api]}
    whole = {"topic_id": coordinator.topic_id, "partitions": [row]}
    empty = {"topic_id": coordinator.topic_id, "partitions": []}
    for group, topics in (
        ("", [whole]),
        ("", []),
        (coordinator.group, []),
        (coordinator.group, [empty]),
    ):
        assert coordinator.wire.exchange(_NAMES[api], group_id=group, topics=topics) == {}


def test_initializations(coordinator: Coordinator) -> None:
    assert coordinator.ask("Initialize", state_epoch=1, start_offset=5) == {}
    assert coordinator.state() == (1, 5, [])
    summary = {"state_epoch": 1, "start_offset": 5}
    assert coordinator.ask("ReadSummary", 0) == summary
    assert coordinator.ask("ReadSummary", 1) == summary | {"delivery_complete_count": 0}
    assert coordinator.ask("Initialize", state_epoch=1, start_offset=6) == {}
    assert coordinator.state() == (1, 6, [])
    refused = coordinator.ask("Initialize", state_epoch=0, start_offset=7)
    assert refused == {"error_code": FENCED_STATE_EPOCH}
    assert coordinator.wire.messages == [
        "The share coordinator rejected the request because the share-group state epoch did not "
        "match."
    ]
    assert coordinator.state() == (1, 6, [])
    assert coordinator.ask("Initialize", state_epoch=3, start_offset=10) == {}
    assert coordinator.state() == (3, 10, [])
    assert coordinator.ask("Initialize", partition=1, start_offset=-1) == {"partition": 1}
    assert coordinator.ask("Read", partition=1) == {"partition": 1, "start_offset": -1}


def test_leader_epochs_of_reads(coordinator: Coordinator) -> None:
    coordinator.ask("Initialize", state_epoch=3, start_offset=10)
    assert coordinator.state(leader_epoch=5) == (3, 10, [])
    assert coordinator.ask("ReadSummary")["leader_epoch"] == 5
    assert coordinator.ask("Read", leader_epoch=4) == {"error_code": FENCED_LEADER_EPOCH}
    assert coordinator.wire.messages == [
        "The leader epoch in the request is older than the epoch on the broker."
    ]
    assert coordinator.state(leader_epoch=-1) == (3, 10, []), "nobody in particular"
    assert coordinator.ask("ReadSummary", leader_epoch=3)["leader_epoch"] == 5


def test_epochs_of_writes(coordinator: Coordinator) -> None:
    coordinator.ask("Initialize", state_epoch=3, start_offset=10)
    assert coordinator.state(leader_epoch=5) == (3, 10, [])
    for epochs, code in (
        ({"state_epoch": 3, "leader_epoch": 4}, FENCED_LEADER_EPOCH),
        ({"state_epoch": 2, "leader_epoch": 5}, FENCED_STATE_EPOCH),
    ):
        assert coordinator.write((10, 10, ACKNOWLEDGED, 1), **epochs) == {"error_code": code}
    assert coordinator.state(5) == (3, 10, [])
    available = [(11, 11, AVAILABLE, 1)]
    for leader_epoch, state_epoch in ((5, 4), (6, 3), (-1, -1)):
        epochs = {"leader_epoch": leader_epoch, "state_epoch": state_epoch}
        assert coordinator.write(*available, **epochs) == {}
        assert coordinator.state(-1) == (3, 10, available)
    assert coordinator.ask("ReadSummary")["leader_epoch"] == 5, "only a read changes it"


def test_writes(coordinator: Coordinator) -> None:
    """Batches replace what they overlap, and a later start offset ends earlier ones."""
    coordinator.ask("Initialize", start_offset=10)
    batches = [(11, 14, AVAILABLE, 1), (15, 16, AVAILABLE, 2), (17, 17, ARCHIVED, 0)]
    assert coordinator.write(*batches, start_offset=10, delivery_complete_count=1) == {}
    assert coordinator.state() == (0, 10, batches)
    summary = {"start_offset": 10}
    assert coordinator.ask("ReadSummary", 0) == summary
    assert coordinator.ask("ReadSummary", 1) == summary | {"delivery_complete_count": 1}
    assert coordinator.write((18, 19, AVAILABLE, 1), version=0) == {}
    assert coordinator.ask("ReadSummary", 1) == summary, "version 0 does not tell the count"
    assert coordinator.write(start_offset=12, delivery_complete_count=1) == {}
    batches = [(12, 14, AVAILABLE, 1), *batches[1:], (18, 19, AVAILABLE, 1)]
    assert coordinator.state() == (0, 12, batches)
    assert coordinator.write((16, 16, ACKNOWLEDGED, 2), delivery_complete_count=2) == {}
    batches[1:2] = [(15, 15, AVAILABLE, 2), (16, 16, ACKNOWLEDGED, 0)]
    assert coordinator.state() == (0, 12, batches)
    assert coordinator.ask("ReadSummary") == {
        "start_offset": 12,
        "delivery_complete_count": 2,
    }


def test_deletions(coordinator: Coordinator) -> None:
    coordinator.ask("Initialize", state_epoch=7, start_offset=3)
    for _ in range(2):
        assert coordinator.ask("Delete") == {}
        assert coordinator.ask("Read") == {"error_code": INVALID_REQUEST}
        assert coordinator.ask("ReadSummary") == {"start_offset": -1}
    assert coordinator.ask("Initialize", state_epoch=0, start_offset=0) == {}
    assert coordinator.state() == (0, 0, []), "older epochs are forgotten"


def test_several_partitions_in_one_request(coordinator: Coordinator) -> None:
    coordinator.ask("Initialize", start_offset=3)
    partitions = [{"partition": index, "leader_epoch": 0} for index in (0, 1, 0)]
    unknown = UUID(int=77)
    topics = [
        {"topic_id": coordinator.topic_id, "partitions": partitions},
        {"topic_id": unknown, "partitions": partitions[:1]},
    ]
    results = coordinator.wire.exchange(
        "ReadShareGroupState", group_id=coordinator.group, topics=topics
    )["results"]
    found = {
        (str(topic["topic_id"]), row.get("partition", 0)): row
        for topic in results
        for row in topic["partitions"]
    }
    assert found == {
        (coordinator.topic, 0): {"start_offset": 3},
        (coordinator.topic, 1): {"partition": 1, "error_code": INVALID_REQUEST},
        (str(unknown), 0): {"error_code": INVALID_REQUEST},
    }
    assert sum(len(topic["partitions"]) for topic in results) == 3


@pytest.mark.mqd_only("Apache Kafka stores them")
@pytest.mark.parametrize(
    "batches",
    [
        [(30, 29, ACKNOWLEDGED, 1)],
        [(30, 31, 9, 1)],
        [(30, 31, 1, 1)],
        [(30, 31, AVAILABLE, -1)],
        [(-3, 31, AVAILABLE, 1)],
        [(30, 35, AVAILABLE, 1), (33, 38, ACKNOWLEDGED, 1)],
    ],
    ids=str,
)
def test_impossible_states(
    coordinator: Coordinator, batches: list[tuple[int, int, int, int]]
) -> None:
    coordinator.ask("Initialize", start_offset=10)
    assert coordinator.write(*batches) == {"error_code": INVALID_REQUEST}
    assert coordinator.write(start_offset=-5) == {"error_code": INVALID_REQUEST}
    assert coordinator.ask("Initialize", start_offset=-2) == {"error_code": INVALID_REQUEST}
    assert coordinator.state() == (0, 10, [])


@pytest.mark.mqd_only("Apache Kafka resets the state, and moves the start offset back")
def test_nothing_that_is_done_is_forgotten(coordinator: Coordinator) -> None:
    coordinator.ask("Initialize", state_epoch=1, start_offset=10)
    assert coordinator.write((10, 12, ACKNOWLEDGED, 1), state_epoch=1) == {}
    assert coordinator.state() == (1, 13, [])
    assert coordinator.write(start_offset=11, state_epoch=1) == {}
    assert coordinator.ask("Initialize", state_epoch=2, start_offset=-1) == {}
    assert coordinator.state() == (1, 13, [])
