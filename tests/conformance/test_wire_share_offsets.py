"""Start offsets of share groups on the wire (KIP-932): describe, alter and delete, in all versions.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`), but for these. It does not
respond if DescribeShareGroupOffsets names a partition that does not exist, and with
UNKNOWN_SERVER_ERROR if it names a topic without partitions; mqd returns UNKNOWN_TOPIC_OR_PARTITION,
and the topic. It stores negative start offsets, which mqd refuses, and its lag may be negative. Its
start offset may stay before records that are done. A group or topic that is named twice has two
rows there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .share_exchanges import ACCEPT, Plain, Sharing, group_here
from .test_wire_share_groups import consumer_heartbeat
from .wire import create_topic, until

VERSIONS = (0, 1)
UNKNOWN_PARTITION, INVALID_GROUP_ID, INVALID_REQUEST, NON_EMPTY_GROUP, NOT_FOUND = 3, 24, 42, 68, 69
NOT_COORDINATOR = 16
NOT_HERE = "This server does not host this topic-partition."
NOTHING = "There is no offset information to delete."


class Offsets:
    """Requests about one group, and its topic with two partitions of 3 and 2 records."""

    def __init__(self, sharing: Sharing, topic: str) -> None:
        self.sharing = Sharing(sharing.wire, sharing.group, topic)
        self.group, self.topic = sharing.group, topic
        sharing.wire.write(topic, b"0", b"1", b"2")
        sharing.wire.write(topic, b"0", b"1", partition=1)

    def _ask(self, name: str, version: int = -1, **fields: Any) -> Plain:
        return self.sharing.wire.exchange(name, version, **fields)

    def described(
        self, wanted: dict[str, list[int]] | None = None, *, version: int = 1, **group: str
    ) -> Plain:
        """The row of the group, without its id."""
        topics = None
        if wanted is not None:
            topics = [{"topic_name": name, "partitions": rows} for name, rows in wanted.items()]
        row = {"group_id": self.group, "topics": topics} | group
        (found,) = self._ask("DescribeShareGroupOffsets", version, groups=[row])["groups"]
        assert found.pop("group_id", "") == row["group_id"]
        return dict(found)

    def altered(self, wanted: dict[str, dict[int, int]], **group: str) -> Plain:
        """`wanted`: topic -> partition -> start offset."""
        topics = [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "start_offset": offset}
                    for index, offset in rows.items()
                ],
            }
            for name, rows in wanted.items()
        ]
        fields: Plain = {"group_id": self.group, "topics": topics} | group
        found = self._ask("AlterShareGroupOffsets", **fields)
        found.get("responses", []).sort(key=lambda row: "topic_id" not in row)
        return found

    def deleted(self, *topics: str, **group: str) -> Plain:
        rows = [{"topic_name": name} for name in topics]
        fields: Plain = {"group_id": self.group, "topics": rows} | group
        return self._ask("DeleteShareGroupOffsets", **fields)

    def topics(self, *partitions: Plain) -> Plain:
        """A description with these partitions."""
        row = {"topic_name": self.topic, "topic_id": self.topic, "partitions": list(partitions)}
        return {"topics": [row]}

    def altered_topic(self, *partitions: Plain) -> Plain:
        row: Plain = {"topic_name": self.topic, "topic_id": self.topic}
        return row | ({"partitions": list(partitions)} if partitions else {})


@pytest.fixture
def offsets(sharing: Sharing, new_name: Callable[[], str]) -> Offsets:
    return Offsets(sharing, create_topic(sharing.wire, new_name(), partitions=2))


UNKNOWN = {"start_offset": -1}
SECOND = {"partition_index": 1}
REFUSED = {"error_code": UNKNOWN_PARTITION}


@pytest.mark.parametrize("version", VERSIONS)
def test_descriptions_without_offsets(offsets: Offsets, version: int) -> None:
    assert offsets._ask("DescribeShareGroupOffsets", version, groups=[]) == {}
    assert offsets.described(version=version) == {}
    assert offsets.described({}, version=version) == {}
    # another node may be the coordinator of this group
    assert offsets.described(version=version, group_id="") in ({}, {"error_code": NOT_COORDINATOR})
    unknown = offsets.topics(UNKNOWN, SECOND | UNKNOWN)
    assert offsets.described({offsets.topic: [0, 1]}, version=version) == unknown
    no_topic = {"topics": [{"topic_name": "no-such-topic", "partitions": [UNKNOWN]}]}
    assert offsets.described({"no-such-topic": [0]}, version=version) == no_topic


def test_alterations(offsets: Offsets) -> None:
    """The group is created."""
    assert offsets.altered({}) == {}
    assert offsets.altered({offsets.topic: {}}) == {"responses": [offsets.altered_topic()]}
    missing = {"topic_name": "no-such-topic", "partitions": [REFUSED]}
    assert offsets.altered({"no-such-topic": {0: 0}}) == {"responses": [missing]}
    assert offsets.sharing.wire.messages == [NOT_HERE]
    found = offsets.altered({offsets.topic: {0: 2, 5: 1}, "no-such-topic": {0: 0}})
    row = offsets.altered_topic({}, {"partition_index": 5, **REFUSED})
    assert found == {"responses": [row, missing]}
    assert offsets.sharing.wire.messages == [NOT_HERE, NOT_HERE]
    assert offsets.described(version=0) == offsets.topics({"start_offset": 2})
    assert offsets.described() == offsets.topics({"start_offset": 2, "lag": 1})
    assert offsets.altered({offsets.topic: {0: 1, 1: 0}}) == {
        "responses": [offsets.altered_topic({}, SECOND)]
    }
    assert offsets.described() == offsets.topics({"start_offset": 1, "lag": 2}, SECOND | {"lag": 2})
    assert offsets.described({offsets.topic: [1]}) == offsets.topics(SECOND | {"lag": 2})
    assert offsets.altered({offsets.topic: {1: 1000}})["responses"]
    assert offsets.described({offsets.topic: [1]}, version=0) == offsets.topics(
        SECOND | {"start_offset": 1000}
    )
    # a member begins there
    offsets.sharing.join()
    fetched = offsets.sharing.fetch(0, max_wait_ms=5000)
    ((row,),) = [topic["partitions"] for topic in fetched["responses"]]
    assert row["acquired_records"] == [{"first_offset": 1, "last_offset": 2, "delivery_count": 1}]


def test_a_group_with_members(offsets: Offsets) -> None:
    offsets.sharing.join()
    for refused in (
        offsets.altered({offsets.topic: {0: 1}}),
        offsets.deleted(offsets.topic),
        offsets.deleted("no-such-topic"),
    ):
        assert refused == {"error_code": NON_EMPTY_GROUP}
        assert offsets.sharing.wire.messages == ["The group is not empty."]
    offsets.sharing.fetch(0, max_wait_ms=5000)
    assert offsets.sharing.fetch(1, (0, 0, ACCEPT))["responses"]
    for version, lag in ((0, {}), (1, {"lag": 2})):
        found = offsets.described({offsets.topic: [0]}, version=version)
        start = found["topics"][0]["partitions"][0].pop("start_offset", 0)
        assert start in (0, 1), "Apache Kafka stores it later"
        assert found == offsets.topics(lag)


def test_deletions(offsets: Offsets, new_name: Callable[[], str]) -> None:
    for refused in (offsets.deleted(offsets.topic), offsets.deleted()):
        assert refused == {"error_code": NOT_FOUND}
        assert offsets.sharing.wire.messages == [f"Group {offsets.group} not found."]
    other = create_topic(offsets.sharing.wire, new_name())
    offsets.altered({offsets.topic: {0: 1}})
    assert offsets.deleted() == {}
    assert offsets.deleted(other, "no-such-topic") == {
        "responses": [{"topic_name": name, **REFUSED} for name in (other, "no-such-topic")]
    }
    assert offsets.sharing.wire.messages == [NOTHING, NOT_HERE]
    row = {"topic_name": offsets.topic}
    assert offsets.deleted(offsets.topic) == {"responses": [row | {"topic_id": offsets.topic}]}
    assert offsets.deleted(offsets.topic) == {"responses": [row | REFUSED]}
    assert offsets.sharing.wire.messages == [NOTHING]
    assert offsets.described() == {}
    assert offsets.described({offsets.topic: [0]}) == offsets.topics(UNKNOWN)
    offsets.sharing.join()
    assert offsets.described() == offsets.topics(UNKNOWN, SECOND | UNKNOWN)


def test_invalid_groups(offsets: Offsets, new_name: Callable[[], str]) -> None:
    invalid = {"error_code": INVALID_GROUP_ID}
    assert offsets.altered({offsets.topic: {0: 1}}, group_id="") == invalid
    assert offsets.sharing.wire.messages == ["The group id is invalid."]
    assert offsets.deleted(offsets.topic, group_id="") == invalid
    assert offsets.sharing.wire.messages == ["The group id is invalid."]
    consumers = group_here(offsets.sharing.wire, new_name)
    until(
        lambda: "error_code" not in consumer_heartbeat(offsets.sharing, consumers),
        "its coordinator",
    )
    for refused in (
        offsets.altered({offsets.topic: {0: 1}}, group_id=consumers),
        offsets.deleted(offsets.topic, group_id=consumers),
    ):
        assert refused == {"error_code": NOT_FOUND}
        assert offsets.sharing.wire.messages == [f"Group {consumers} is not a share group."]
    assert offsets.described(group_id=consumers) == {}
    found = offsets.described({offsets.topic: [0]}, group_id=consumers)
    assert found == offsets.topics(UNKNOWN)


@pytest.mark.mqd_only("Apache Kafka does not respond, or stores the offset")
def test_where_apache_kafka_stumbles(offsets: Offsets) -> None:
    offsets.altered({offsets.topic: {0: 2}})
    known = {"start_offset": 2, "lag": 1}
    found = offsets.described({offsets.topic: [0, 7]})
    assert found == offsets.topics(known, {"partition_index": 7} | UNKNOWN | REFUSED)
    row = {"topic_name": offsets.topic, "topic_id": offsets.topic}
    assert offsets.described({offsets.topic: []}) == {"topics": [row]}
    for offset in (-1, -2, 2**63 - 1):
        refused = offsets.altered_topic({"error_code": INVALID_REQUEST})
        assert offsets.altered({offsets.topic: {0: offset}}) == {"responses": [refused]}
    assert offsets.described() == offsets.topics(known)
    offsets.altered({offsets.topic: {0: 1000}})
    assert offsets.described() == offsets.topics({"start_offset": 1000, "lag": 0})
