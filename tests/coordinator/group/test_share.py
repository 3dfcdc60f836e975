"""Share groups on a group coordinator (KIP-932): members and assignments."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.group.share_group import JOINING, LEAVING, ShareGroup
from mqd.coordinator.group.share_partitions import PartitionsInitialized
from mqd.coordinator.shard import Call
from mqd.errors import ErrorCode, MqError
from mqd.limits import SUBSCRIBED_NAMES_MAX
from tests.coordinator.group.support import Options, Topics, group_harness
from tests.coordinator.harness import Harness

GROUP = "g"


class Shares:
    """One share group on a shard, and what its members send."""

    def __init__(self, topics: dict[str, int] | None = None, **options: Any) -> None:
        self.topics = Topics(topics or {"a": 4})
        self.options = Options(**{"share.assignment.interval.ms": 0, **options})
        self.harness: Harness[GroupShard] = group_harness(self.topics, self.options)

    @property
    def group(self) -> ShareGroup:
        found = self.harness.shard.state.by_id[GROUP]
        assert isinstance(found, ShareGroup)
        return found

    def beat(self, member: str, epoch: int, **more: Any) -> Any:
        request = {"group_id": GROUP, "member_id": member, "member_epoch": epoch, **more}
        return self.harness.call("share_group_heartbeat", 1, request)

    def join(self, member: str, *names: str) -> Any:
        """As the handler does it: creates missing states, and sends a second heartbeat."""
        answer = self.beat(member, JOINING, subscribed_topic_names=list(names or ("a",)))
        if answer["uninitialized"]:
            self.initialize(answer["uninitialized"])
            answer = {**answer, **self.beat(member, answer["member_epoch"])}
        return answer

    def initialize(self, partitions: Any) -> None:
        op = Call("PartitionsInitialized", 0, PartitionsInitialized(GROUP, partitions))
        self.harness.answer(self.harness.operate(op))

    def assigned(self) -> dict[str, list[int]]:
        """The partitions of topic `a` of each member."""
        topic_id = self.topics.topic_id("a")
        assert topic_id is not None
        return {
            name: list(member.assigned.get(topic_id, ()))
            for name, member in sorted(self.group.members.items())
        }

    def settle(self) -> None:
        for _ in range(2):
            for name, member in list(self.group.members.items()):
                self.beat(name, member.epoch)


def code_of(raised: pytest.ExceptionInfo[MqError]) -> ErrorCode:
    return raised.value.code


def test_a_member_has_its_partitions_in_the_response_to_its_join() -> None:
    shares = Shares()
    answer = shares.join("m1")
    topic_id = shares.topics.topic_id("a")
    assert answer["assignment"]["topic_partitions"] == [
        {"topic_id": topic_id, "partitions": [0, 1, 2, 3]}
    ]
    assert answer["heartbeat_interval_ms"] == 5000
    later = shares.beat("m1", answer["member_epoch"])
    assert (later["uninitialized"], later.get("assignment")) == ({}, None)


def test_the_first_partitions_do_not_wait_for_the_assignment_interval() -> None:
    """The target of the first heartbeat is empty: no partition has a state yet."""
    shares = Shares()
    shares.options.own["share.assignment.interval.ms"] = 1000
    answer = shares.join("m1")
    assert len(answer["assignment"]["topic_partitions"]) == 1
    shares.beat("m1", LEAVING)
    assert len(shares.join("m2")["assignment"]["topic_partitions"]) == 1
    assert shares.join("m3")["assignment"]["topic_partitions"] == [], "the interval counts"


def test_only_initialized_partitions_are_assigned() -> None:
    shares = Shares()
    answer = shares.beat("m1", JOINING, subscribed_topic_names=["a"])
    assert answer["assignment"]["topic_partitions"] == []
    assert list(answer["uninitialized"].values()) == [(0, 1, 2, 3)]
    shares.initialize({shares.topics.topic_id("a"): [2]})
    shares.settle()
    assert shares.assigned() == {"m1": [2]}


def test_members_share_partitions() -> None:
    shares = Shares({"a": 2})
    for number in range(5):
        shares.join(f"m{number}")
    shares.settle()
    owned = shares.assigned()
    assert all(len(partitions) == 1 for partitions in owned.values())
    counts = [sum(p == [index] for p in owned.values()) for index in range(2)]
    assert sorted(counts) == [2, 3]
    for number in range(4):
        shares.beat(f"m{number}", LEAVING)
    shares.settle()
    assert shares.assigned() == {"m4": [0, 1]}


def test_a_new_partition_is_initialized_and_assigned() -> None:
    shares = Shares({"a": 1})
    shares.join("m1")
    shares.topics.grow("a", 3)
    shares.harness.metadata_changed()
    member = shares.group.members["m1"]
    answer = shares.beat("m1", member.epoch)
    assert list(answer["uninitialized"].values()) == [(1, 2)]
    shares.initialize(answer["uninitialized"])
    shares.settle()
    assert shares.assigned() == {"m1": [0, 1, 2]}


def test_a_member_without_heartbeats_is_removed() -> None:
    shares = Shares()
    shares.join("m1")
    shares.harness.advance(44)
    shares.join("m2")
    shares.harness.advance(2)
    assert list(shares.group.members) == ["m2"]
    with pytest.raises(MqError) as raised:
        shares.beat("m1", 1)
    assert code_of(raised) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_wrong_epoch_is_fenced_and_the_previous_one_is_not() -> None:
    shares = Shares()
    shares.join("m1")
    member = shares.group.members["m1"]
    shares.beat("m1", member.previous_epoch)
    for epoch in (member.epoch + 1, 99):
        with pytest.raises(MqError) as raised:
            shares.beat("m1", epoch)
        assert code_of(raised) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_group_has_one_type() -> None:
    shares = Shares()
    shares.join("m1")
    with pytest.raises(MqError) as raised:
        shares.harness.call(
            "consumer_group_heartbeat",
            1,
            {
                "group_id": GROUP,
                "member_id": "c",
                "member_epoch": 0,
                "rebalance_timeout_ms": 1000,
                "subscribed_topic_names": ["a"],
                "topic_partitions": [],
            },
        )
    assert code_of(raised) is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(MqError) as raised:
        shares.harness.call(
            "join_group",
            5,
            {
                "group_id": GROUP,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        )
    assert code_of(raised) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(MqError) as raised:
        shares.harness.call(
            "heartbeat", 4, {"group_id": GROUP, "generation_id": 1, "member_id": "m1"}
        )
    assert code_of(raised) is ErrorCode.UNKNOWN_MEMBER_ID
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": "a", "partitions": [row]}]
    committed = shares.harness.call("offset_commit", 8, {"group_id": GROUP, "topics": topics})
    assert committed["topics"][0]["partitions"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_it_is_listed_described_and_deleted() -> None:
    shares = Shares()
    shares.join("m1")
    listed = shares.harness.call("list_groups", 5, {"types_filter": ["share"]})["groups"]
    assert [(row["group_id"], row["group_type"], row["group_state"]) for row in listed] == [
        (GROUP, "share", "Stable")
    ]
    described = shares.harness.call("share_group_describe", 1, {"group_ids": [GROUP, "none"]})
    found, missing = described["groups"]
    assert found["assignor_name"] == "simple"
    assert [one["member_id"] for one in found["members"]] == ["m1"]
    assert missing["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    delete = {"groups_names": [GROUP]}
    answer = shares.harness.call("delete_groups", 2, delete)
    assert answer["results"][0]["error_code"] is ErrorCode.NON_EMPTY_GROUP
    shares.beat("m1", LEAVING)
    answer = shares.harness.call("delete_groups", 2, delete)
    assert answer["results"][0]["has_states"], "test_share_partitions.py deletes them"


def test_the_next_coordinator_has_the_same_group() -> None:
    shares = Shares({"a": 3})
    for number in range(3):
        shares.join(f"m{number}")
    shares.settle()
    before = shares.assigned(), shares.group.epoch, shares.group.initialized
    shares.harness.fail_over()
    assert (shares.assigned(), shares.group.epoch, shares.group.initialized) == before
    assert shares.harness.shard.account.exact == shares.harness.shard.recount()
    shares.harness.advance(60)
    assert not shares.group.members, "their sessions begin with the new coordinator"


# -- bounds


def test_all_texts_of_a_member_are_counted() -> None:
    """As those of a consumer group: a client may send 32 KB for each."""
    shares = Shares()
    shares.join("m1")
    before = shares.group.memory
    shares.beat("m1", shares.group.members["m1"].epoch, rack_id="r" * 30_000)
    assert shares.group.memory - before == 30_000
    shares.beat("m1", shares.group.members["m1"].epoch, rack_id="\u00e9" * 15_000)
    assert shares.group.memory - before == 60_000
    call = {"group_id": GROUP, "member_id": "m2", "member_epoch": 0}
    for client_id in ("c", "c" * 30_001):
        before = shares.group.memory
        shares.harness.answer(
            shares.harness.ask(
                "share_group_heartbeat",
                1,
                {**call, "subscribed_topic_names": ["a"]},
                client_id=client_id,
            )
        )
    assert shares.group.memory - before == 30_000
    member = shares.group.members["m2"]
    consumer = ConsumerGroupMember(
        "m2", client_id=member.client_id, client_host=member.client_host, topic_names=("a",)
    )
    assert member.size == consumer.size
    for name in ("m1", "m2"):
        shares.beat(name, LEAVING)
    assert shares.group.memory == 0 and not shares.group.names


@pytest.mark.parametrize(
    "request_",
    [
        {"member_id": " ", "subscribed_topic_names": ["a"]},
        {"rack_id": "", "subscribed_topic_names": ["a"]},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"member_epoch": -2, "subscribed_topic_names": ["a"]},
        {"subscribed_topic_names": ["n" * 250]},
        {"subscribed_topic_names": ["n"] * (SUBSCRIBED_NAMES_MAX + 1)},
    ],
)
def test_invalid_heartbeats_are_refused(request_: dict[str, Any]) -> None:
    """As Apache Kafka does, but for the bounds on names."""
    shares = Shares()
    call = {"group_id": GROUP, "member_id": "m1", "member_epoch": 0, **request_}
    with pytest.raises(MqError) as raised:
        shares.harness.call("share_group_heartbeat", 1, call)
    assert code_of(raised) is ErrorCode.INVALID_REQUEST


def test_a_member_that_fits_into_no_record_is_refused() -> None:
    options: dict[str, Any] = {"message.max.bytes": 1000}
    shares = Shares(**options)
    with pytest.raises(MqError) as raised:
        shares.beat("m1", JOINING, subscribed_topic_names=[f"t{n}" for n in range(500)])
    assert code_of(raised) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "message.max.bytes" in raised.value.message
