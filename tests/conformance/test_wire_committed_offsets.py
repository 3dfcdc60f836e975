"""Committed offsets on the wire: OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit in
every version, and their errors.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from .conftest import Broker, known_everywhere
from .wire import Wire, create_topic, found_coordinator, topic_id, until

(
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    OFFSET_METADATA_TOO_LARGE,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    UNKNOWN_MEMBER_ID,
) = 0, 3, 12, 22, 24, 25
LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS = (
    47,
    48,
    49,
    51,
)
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC, UNSTABLE, UNKNOWN_TOPIC_ID = (
    68,
    69,
    86,
    88,
    100,
)
SOON = {LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR}
COMMIT_VERSIONS, FETCH_VERSIONS, TXN_VERSIONS = range(2, 11), range(1, 11), range(5)
NOBODY = UUID(int=2**100 + 1)
SUBSCRIBED = b"\x00\x00\x00\x00\x00\x01"
"""The beginning of a subscription of the consumer protocol, version 0, to one topic."""


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def two(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    """A topic with two partitions."""
    name = create_topic(wire, new_name(), partitions=2)
    known_everywhere(broker, name, 2)
    return name


@pytest.fixture
def coordinator(wire: Wire, group: str) -> Iterator[Wire]:
    """A connection to the group's coordinator, which has loaded."""
    with Wire(*found_coordinator(wire, group, 0)) as connection:
        until(
            lambda: fetch_group(connection, group, None).error_code not in SOON,
            "the coordinator has loaded",
            30,
        )
        yield connection


def commit_rows(
    offsets: dict[int, int],
    version: int,
    *,
    metadata: str | None = "",
    epoch: int = -1,
    epochs_since: int = 6,
) -> list[Any]:
    leader_epoch = {"committed_leader_epoch": epoch} if version >= epochs_since else {}
    return [
        {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        | leader_epoch
        for partition, offset in offsets.items()
    ]


def commit(
    wire: Wire,
    group: str,
    topic: str | UUID,
    offsets: dict[int, int],
    version: int = 9,
    *,
    generation: int = -1,
    member: str = "",
    **more: Any,
) -> dict[int, int]:
    """Error codes by partition, in the order of the response."""
    named = {
        "topic_id" if isinstance(topic, UUID) else "name": topic,
        "partitions": commit_rows(offsets, version, **more),
    }
    answer = wire.ask(
        "OffsetCommit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[named],
    )
    (row,) = answer.topics
    assert (row.topic_id if isinstance(topic, UUID) else row.name) == topic
    return {one.partition_index: one.error_code for one in row.partitions}


def fetch_group(
    wire: Wire,
    group: str,
    topics: list[Any] | None,
    version: int = 8,
    *,
    stable: bool = False,
    **more: Any,
) -> Any:
    """One group's row of the response."""
    answer = wire.ask(
        "OffsetFetch",
        version,
        groups=[{"group_id": group, "topics": topics} | more],
        require_stable=stable,
    )
    (row,) = answer.groups
    assert row.group_id == group
    return row


def fetched(
    wire: Wire,
    group: str,
    topic: str | UUID,
    partitions: list[int],
    version: int = 8,
    *,
    stable: bool = False,
) -> dict[int, tuple[int, int, str | None, int]]:
    """Offset, leader epoch, metadata and error code by partition."""
    named = {
        "topic_id" if isinstance(topic, UUID) else "name": topic,
        "partition_indexes": partitions,
    }
    if version >= 8:
        (row,) = fetch_group(wire, group, [named], version, stable=stable).topics
    else:
        more = {"require_stable": stable} if version >= 7 else {}
        answer = wire.ask("OffsetFetch", version, group_id=group, topics=[named], **more)
        assert version < 2 or answer.error_code == NONE
        (row,) = answer.topics
    assert (row.topic_id if isinstance(topic, UUID) else row.name) == topic
    return {
        one.partition_index: (
            one.committed_offset,
            one.committed_leader_epoch if version >= 5 else -1,
            one.metadata,
            one.error_code,
        )
        for one in row.partitions
    }


def delete(wire: Wire, group: str, topic: str, *partitions: int) -> dict[int, int]:
    rows = [{"partition_index": partition} for partition in partitions]
    answer = wire.ask(
        "OffsetDelete", 0, group_id=group, topics=[{"name": topic, "partitions": rows}]
    )
    assert answer.error_code == NONE
    (row,) = answer.topics
    return {one.partition_index: one.error_code for one in row.partitions}


NO_OFFSET = (-1, -1, "", NONE)

# -- every version


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_every_version_of_commit(
    wire: Wire, coordinator: Wire, group: str, two: str, version: int
) -> None:
    topic = topic_id(wire, two) if version >= 10 else two
    assert commit(
        coordinator, group, topic, {0: 5, 1: 6, 2: 7}, version, metadata="note", epoch=3
    ) == {
        2: UNKNOWN_TOPIC_OR_PARTITION,
        0: NONE,
        1: NONE,
    }
    epoch = 3 if version >= 6 else -1
    assert fetched(coordinator, group, two, [0, 1]) == {
        0: (5, epoch, "note", NONE),
        1: (6, epoch, "note", NONE),
    }
    assert commit(coordinator, group, topic, {0: 1}, version, metadata=None) == {0: NONE}
    assert fetched(coordinator, group, two, [0]) == {0: (1, -1, "", NONE)}


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_every_version_of_fetch(
    wire: Wire, coordinator: Wire, group: str, two: str, version: int
) -> None:
    topic = topic_id(wire, two) if version >= 10 else two
    assert fetched(coordinator, group, topic, [0], version) == {0: NO_OFFSET}, "of an unknown group"
    commit(coordinator, group, two, {0: 5}, metadata="note", epoch=3)
    epoch = 3 if version >= 5 else -1
    assert fetched(coordinator, group, topic, [0, 1, 7], version) == {
        0: (5, epoch, "note", NONE),
        1: NO_OFFSET,
        7: NO_OFFSET,
    }


@pytest.mark.parametrize("version", range(2, 8))
def test_all_offsets_of_a_group(coordinator: Wire, group: str, two: str, version: int) -> None:
    assert coordinator.ask("OffsetFetch", version, group_id=group, topics=None).topics == []
    commit(coordinator, group, two, {1: 5})
    answer = coordinator.ask("OffsetFetch", version, group_id=group, topics=None)
    assert answer.error_code == NONE
    assert [
        (row.name, [(one.partition_index, one.committed_offset) for one in row.partitions])
        for row in answer.topics
    ] == [(two, [(1, 5)])]


def test_all_offsets_by_topic_id(wire: Wire, coordinator: Wire, group: str, two: str) -> None:
    commit(coordinator, group, two, {1: 5})
    (row,) = fetch_group(coordinator, group, None, 10).topics
    assert row.topic_id == topic_id(wire, two)
    assert [(one.partition_index, one.committed_offset) for one in row.partitions] == [(1, 5)]


def test_several_groups_at_once(coordinator: Wire, group: str, two: str) -> None:
    commit(coordinator, group, two, {0: 5})
    named = [{"name": two, "partition_indexes": [0]}]
    wanted = [
        {"group_id": group, "topics": named},
        {"group_id": group, "topics": None},
        {"group_id": group, "topics": []},
    ]
    answer = coordinator.ask("OffsetFetch", 8, groups=wanted)
    assert [(row.group_id, row.error_code) for row in answer.groups] == [(group, NONE)] * 3
    assert [
        [[one.committed_offset for one in topic.partitions] for topic in row.topics]
        for row in answer.groups
    ] == [[[5]], [[5]], []]


# -- refused requests


def test_topics_that_do_not_exist(coordinator: Wire, group: str, two: str) -> None:
    assert commit(coordinator, group, two + "-not", {0: 5}) == {0: UNKNOWN_TOPIC_OR_PARTITION}
    assert commit(coordinator, group, NOBODY, {0: 5}, 10) == {0: UNKNOWN_TOPIC_ID}
    assert fetched(coordinator, group, two + "-not", [0]) == {0: NO_OFFSET}
    assert fetched(coordinator, group, NOBODY, [0], 10) == {0: (-1, -1, "", UNKNOWN_TOPIC_ID)}
    assert fetch_group(coordinator, group, None).topics == []


def test_the_order_of_a_response(wire: Wire, coordinator: Wire, group: str, two: str) -> None:
    topics = [
        {"name": two, "partitions": commit_rows({0: 1, 9: 1}, 9)},
        {"name": two + "-not", "partitions": commit_rows({0: 1}, 9)},
        {"name": two, "partitions": commit_rows({1: 1}, 9)},
    ]
    answer = coordinator.ask(
        "OffsetCommit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=topics,
    )
    assert [
        (row.name, [(one.partition_index, one.error_code) for one in row.partitions])
        for row in answer.topics
    ] == [
        (two, [(9, UNKNOWN_TOPIC_OR_PARTITION), (0, NONE), (1, NONE)]),
        (two + "-not", [(0, UNKNOWN_TOPIC_OR_PARTITION)]),
    ]
    known = topic_id(wire, two)
    wanted = [
        {"topic_id": NOBODY, "partition_indexes": [0]},
        {"topic_id": known, "partition_indexes": [1, 0]},
    ]
    assert [row.topic_id for row in fetch_group(coordinator, group, wanted, 10).topics] == [
        known,
        NOBODY,
    ]


def test_a_commit_of_nothing(coordinator: Wire, group: str) -> None:
    answer = coordinator.ask(
        "OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[]
    )
    assert answer.topics == []


@pytest.mark.parametrize(("version", "code"), [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)])
def test_a_generation_of_no_group(
    coordinator: Wire, group: str, two: str, version: int, code: int
) -> None:
    assert commit(coordinator, group, two, {0: 5, 7: 5}, version, generation=1, member="m") == {
        7: UNKNOWN_TOPIC_OR_PARTITION,
        0: code,
    }


def test_metadata_that_is_too_large(coordinator: Wire, group: str, two: str) -> None:
    assert commit(coordinator, group, two, {0: 5}, metadata="x" * 32_000) == {
        0: OFFSET_METADATA_TOO_LARGE
    }


def test_any_offset_may_be_committed(coordinator: Wire, group: str, two: str) -> None:
    assert commit(coordinator, group, two, {0: -5, 1: 2**63 - 1}, epoch=-7) == {0: NONE, 1: NONE}
    found = fetched(coordinator, group, two, [0, 1])
    assert (found[0][0], found[1][0]) == (-5, 2**63 - 1)


def test_the_empty_group_id(
    coordinator: Wire, transactions: Transactions, wire: Wire, two: str
) -> None:
    with Wire(*found_coordinator(wire, "", 0)) as here:
        assert until(lambda: commit(here, "", two, {0: 5}) == {0: NONE}, "the empty group's commit")
        assert fetched(here, "", two, [0])[0][0] == 5
        assert here.ask("OffsetDelete", 0, group_id="", topics=[]).error_code == INVALID_GROUP_ID
        assert transactions.commit(here, "", two, {0: 50}) == {0: INVALID_GROUP_ID}


# -- groups with members


def joined(wire: Wire, group: str, topic: str, protocol_type: str = "consumer") -> tuple[str, int]:
    """(member id, generation) of the only member of a stable group."""
    name = topic.encode()
    subscription = SUBSCRIBED + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    protocols = [
        {"name": "range", "metadata": subscription if protocol_type == "consumer" else b""}
    ]
    fields = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": protocol_type,
    }
    answer = wire.ask("JoinGroup", 3, member_id="", protocols=protocols, **fields)
    assert answer.error_code == NONE
    synced = wire.ask(
        "SyncGroup",
        1,
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        assignments=[{"member_id": answer.member_id, "assignment": b""}],
    )
    assert synced.error_code == NONE
    return answer.member_id, answer.generation_id


def test_members_commit_in_their_generation(coordinator: Wire, group: str, two: str) -> None:
    member, generation = joined(coordinator, group, two)
    assert commit(coordinator, group, two, {0: 5}, generation=generation, member=member) == {
        0: NONE
    }
    assert commit(coordinator, group, two, {0: 6}, generation=generation + 1, member=member) == {
        0: ILLEGAL_GENERATION
    }
    assert commit(coordinator, group, two, {0: 6}, generation=generation, member="nobody") == {
        0: UNKNOWN_MEMBER_ID
    }
    assert commit(coordinator, group, two, {0: 6, 7: 6}) == {
        7: UNKNOWN_TOPIC_OR_PARTITION,
        0: UNKNOWN_MEMBER_ID,
    }
    assert fetched(coordinator, group, two, [0])[0][0] == 5


def test_offsets_in_use_are_not_deleted(
    coordinator: Wire, group: str, two: str, topic: str
) -> None:
    member, generation = joined(coordinator, group, two)
    for one in (two, topic):
        commit(coordinator, group, one, {0: 5}, generation=generation, member=member)
    assert delete(coordinator, group, two, 0, 1, 7) == {
        7: UNKNOWN_TOPIC_OR_PARTITION,
        0: GROUP_SUBSCRIBED_TO_TOPIC,
        1: GROUP_SUBSCRIBED_TO_TOPIC,
    }
    assert delete(coordinator, group, topic, 0) == {0: NONE}
    assert fetched(coordinator, group, topic, [0]) == {0: NO_OFFSET}


def test_offsets_of_other_protocols_are_not_deleted_with_members(
    coordinator: Wire, group: str, two: str
) -> None:
    joined(coordinator, group, two, "connect")
    rows = [{"name": two, "partitions": [{"partition_index": 0}]}]
    assert (
        coordinator.ask("OffsetDelete", 0, group_id=group, topics=rows).error_code
        == NON_EMPTY_GROUP
    )


# -- deletion


def test_deleted_offsets_are_not_fetched(coordinator: Wire, group: str, two: str) -> None:
    rows = [{"name": two, "partitions": [{"partition_index": 0}]}]
    assert (
        coordinator.ask("OffsetDelete", 0, group_id=group, topics=rows).error_code
        == GROUP_ID_NOT_FOUND
    )
    commit(coordinator, group, two, {0: 5, 1: 6})
    assert delete(coordinator, group, two, 0, 7) == {7: UNKNOWN_TOPIC_OR_PARTITION, 0: NONE}
    assert delete(coordinator, group, two, 0) == {0: NONE}
    assert fetched(coordinator, group, two, [0, 1]) == {0: NO_OFFSET, 1: (6, -1, "", NONE)}
    assert delete(coordinator, group, two + "-not", 0) == {0: UNKNOWN_TOPIC_OR_PARTITION}


def test_offsets_are_deleted_with_their_topic(
    wire: Wire, coordinator: Wire, group: str, two: str, topic: str
) -> None:
    commit(coordinator, group, two, {0: 5})
    commit(coordinator, group, topic, {0: 6})
    answer = wire.ask("DeleteTopics", 4, topic_names=[two], timeout_ms=10_000)
    assert [row.error_code for row in answer.responses] == [NONE]

    def gone() -> bool:
        return [row.name for row in fetch_group(coordinator, group, None).topics] == [topic]

    until(gone, "the offsets of the deleted topic are gone")


# -- transactions


class Transactions:
    """A transactional producer that only commits offsets."""

    def __init__(self, coordinator: Wire, name: str) -> None:
        self.name = name
        self.coordinator = coordinator
        self.producer_id, self.epoch = until(self._new_producer, "a producer id", 30)

    def _new_producer(self) -> tuple[int, int] | None:
        answer = self.coordinator.ask(
            "InitProducerId", 1, transactional_id=self.name, transaction_timeout_ms=60_000
        )
        return None if answer.error_code else (answer.producer_id, answer.producer_epoch)

    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def add(self, group: str) -> None:
        def added() -> bool:
            code = self.coordinator.ask(
                "AddOffsetsToTxn", 0, group_id=group, **self.who()
            ).error_code
            assert code in {NONE, CONCURRENT_TRANSACTIONS, *SOON}, code
            return bool(code == NONE)

        until(added, "the group is in the transaction", 30)

    def commit(
        self,
        wire: Wire,
        group: str,
        topic: str,
        offsets: dict[int, int],
        version: int = 3,
        **more: Any,
    ) -> dict[int, int]:
        """TxnOffsetCommit: error codes by partition."""
        rows = commit_rows(offsets, version, epochs_since=2)
        member = (
            {"generation_id": -1, "member_id": "", "group_instance_id": None}
            if version >= 3
            else {}
        )
        fields = {
            "group_id": group,
            "topics": [{"name": topic, "partitions": rows}],
            **self.who(),
            **member,
            **more,
        }
        answer = wire.ask("TxnOffsetCommit", version, **fields)
        (row,) = answer.topics
        return {one.partition_index: one.error_code for one in row.partitions}

    def end(self, *, commit: bool) -> None:
        assert self.coordinator.ask("EndTxn", 1, committed=commit, **self.who()).error_code == NONE


@pytest.fixture
def transactions(wire: Wire, new_name: Callable[[], str]) -> Iterator[Transactions]:
    name = new_name()
    with Wire(*found_coordinator(wire, name, 1)) as connection:
        yield Transactions(connection, name)


@pytest.mark.parametrize("version", TXN_VERSIONS)
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_count_after_the_commit_of_the_transaction(
    coordinator: Wire,
    transactions: Transactions,
    group: str,
    two: str,
    version: int,
    committed: bool,
) -> None:
    commit(coordinator, group, two, {0: 5})
    transactions.add(group)
    assert transactions.commit(coordinator, group, two, {0: 50, 1: 51, 7: 1}, version) == {
        7: UNKNOWN_TOPIC_OR_PARTITION,
        0: NONE,
        1: NONE,
    }
    assert fetched(coordinator, group, two, [0, 1]) == {0: (5, -1, "", NONE), 1: NO_OFFSET}
    assert fetched(coordinator, group, two, [0, 1], stable=True) == {
        0: (-1, -1, "", UNSTABLE),
        1: (-1, -1, "", UNSTABLE),
    }
    transactions.end(commit=committed)

    def ended() -> Any:
        found = fetched(coordinator, group, two, [0, 1], stable=True)
        return found if all(row[3] == NONE for row in found.values()) else None

    found = until(ended, "the transaction has ended", 30)
    assert [row[0] for row in found.values()] == ([50, 51] if committed else [5, -1])


def test_a_transaction_without_the_group(
    coordinator: Wire, transactions: Transactions, group: str, two: str
) -> None:
    assert transactions.commit(coordinator, group, two, {0: 50}) == {0: INVALID_TXN_STATE}
    assert fetched(coordinator, group, two, [0]) == {0: NO_OFFSET}


def test_fenced_producers_cannot_commit_offsets(
    coordinator: Wire, transactions: Transactions, group: str, two: str
) -> None:
    transactions.add(group)
    assert transactions.commit(
        coordinator, group, two, {0: 50}, producer_epoch=transactions.epoch + 1
    ) == {0: INVALID_PRODUCER_EPOCH}
    wrong_id = transactions.producer_id + 1_000_000
    assert transactions.commit(coordinator, group, two, {0: 50}, producer_id=wrong_id) == {
        0: INVALID_PRODUCER_ID_MAPPING
    }
    assert transactions.commit(
        coordinator, group, two, {0: 50}, generation_id=1, member_id="m"
    ) == {0: ILLEGAL_GENERATION}
    transactions.end(commit=False)
