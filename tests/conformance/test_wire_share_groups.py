"""Members of share groups on the wire (KIP-932): ShareGroupHeartbeat and ShareGroupDescribe, their
errors, and the APIs of other groups.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`), but for these. It creates
the states of a group's partitions after the first response, which has no partitions then. It
describes a group twice if it is named twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .share_exchanges import Plain, Sharing, group_here
from .wire import create_topic, found_coordinator, until

INVALID_GROUP_ID, INCONSISTENT_PROTOCOL, UNKNOWN_MEMBER = 24, 23, 25
INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, FENCED_MEMBER_EPOCH = 42, 68, 69, 110
HEARTBEAT_MS = 5000
ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
SHARE_KEY = 2


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"group_id": "  "}, "GroupId can't be empty."),
        ({"member_id": ""}, None),
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"member_id": "m" * 37}, None),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_heartbeats(sharing: Sharing, fields: Plain, message: str | None) -> None:
    valid: Plain = {"subscribed_topic_names": [sharing.topic]}
    assert sharing.heartbeat(0, **valid | fields) == {"error_code": INVALID_REQUEST}
    assert message is None or sharing.wire.messages == [message]


def test_unknown_groups_and_members(sharing: Sharing) -> None:
    group, not_found = sharing.group, {"error_code": GROUP_ID_NOT_FOUND}
    assert sharing.heartbeat(1) == not_found
    assert sharing.wire.messages == [f"Share group {group} not found."]
    assert sharing.heartbeat(1, subscribed_topic_names=[sharing.topic]) == not_found
    assert sharing.heartbeat(-1) == not_found
    assert sharing.wire.messages == [f"Group {group} not found."]
    sharing.join()
    for epoch in (1, -1):
        assert sharing.heartbeat(epoch, "stranger") == {"error_code": UNKNOWN_MEMBER}
        assert sharing.wire.messages == [f"Member stranger is not a member of group {group}."]


def partitions(sharing: Sharing, *found: int) -> Plain:
    return {"topic_partitions": [{"topic_id": sharing.topic, "partitions": list(found)}]}


def in_epoch(epoch: int, member: str = "m1", **more: Any) -> Plain:
    """A response to a heartbeat."""
    return {
        "member_id": member,
        "member_epoch": epoch,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        **more,
    }


def test_the_life_of_a_member(sharing: Sharing) -> None:
    epoch = sharing.join("m" * 36)
    assert epoch > 1, "the group epoch begins with 1"
    sharing.leave("m" * 36)
    epoch = sharing.join()
    mine = partitions(sharing, 0)
    assert sharing.heartbeat(epoch) == in_epoch(epoch), "nothing is new"
    names: Plain = {"subscribed_topic_names": [sharing.topic]}
    assert sharing.heartbeat(epoch, **names) == in_epoch(epoch, assignment=mine)
    assert sharing.heartbeat(0, **names) == in_epoch(epoch, assignment=mine), "it has rejoined"
    other: Plain = {"subscribed_topic_names": ["no such topic"]}
    assert sharing.heartbeat(epoch, **other) == in_epoch(epoch + 1, assignment={})
    assert sharing.heartbeat(epoch) == in_epoch(epoch + 1), "the response may have been lost"
    epoch += 1
    assert sharing.heartbeat(epoch + 5) == {"error_code": FENCED_MEMBER_EPOCH}
    abandon = "The member must abandon all its partitions and rejoin."
    assert sharing.wire.messages == [
        f"The share group member has a greater member epoch ({epoch + 5}) than the one known by "
        f"the group coordinator ({epoch}). {abandon}"
    ]
    assert sharing.heartbeat(epoch - 2) == {"error_code": FENCED_MEMBER_EPOCH}
    assert sharing.wire.messages == [
        f"The share group member has a smaller member epoch ({epoch - 2}) than the one known by "
        f"the group coordinator ({epoch}), and it does not match the previous member epoch "
        f"({epoch - 1}). {abandon}"
    ]
    assert sharing.heartbeat(epoch, **names) == in_epoch(epoch + 1, assignment=mine)
    sharing.leave()
    assert sharing.heartbeat(-1) == {"error_code": UNKNOWN_MEMBER}


def test_members_share_partitions(sharing: Sharing, new_name: Callable[[], str]) -> None:
    topic = create_topic(sharing.wire, new_name(), partitions=2)
    two = Sharing(sharing.wire, sharing.group, topic)
    epoch = two.join()
    assert two.heartbeat(epoch, subscribed_topic_names=[topic]) == in_epoch(
        epoch, assignment=partitions(two, 0, 1)
    )
    joined = two.heartbeat(0, "m2", rack_id="r1", subscribed_topic_names=[topic])
    ((theirs,),) = [row["partitions"] for row in joined["assignment"]["topic_partitions"]]
    assert joined == in_epoch(epoch + 1, "m2", assignment=partitions(two, theirs))
    assert two.heartbeat(epoch) == in_epoch(epoch + 1, assignment=partitions(two, 1 - theirs))
    (described,) = two.wire.exchange(
        "ShareGroupDescribe", group_ids=[two.group], include_authorized_operations=True
    )["groups"]
    members = sorted(described.pop("members"), key=lambda row: str(row["member_id"]))
    assert described == {
        "group_id": two.group,
        "group_state": "Stable",
        "group_epoch": epoch + 1,
        "assignment_epoch": epoch + 1,
        "assignor_name": "simple",
        "authorized_operations": ALL_GROUP_OPERATIONS,
    }
    everyone = {
        "member_epoch": epoch + 1,
        "client_id": "wire",
        "client_host": "/127.0.0.1",
        "subscribed_topic_names": [topic],
    }

    def assigned(index: int) -> Plain:
        row = {"topic_id": topic, "topic_name": topic, "partitions": [index]}
        return {"assignment": {"topic_partitions": [row]}}

    assert members == [
        {"member_id": "m1", **everyone, **assigned(1 - theirs)},
        {"member_id": "m2", "rack_id": "r1", **everyone, **assigned(theirs)},
    ]
    two.leave("m2")
    until(lambda: two.heartbeat(epoch + 1).get("assignment"), "all partitions again")
    two.leave()
    assert two.wire.exchange("ShareGroupDescribe", group_ids=[two.group])["groups"] == [
        {
            "group_id": two.group,
            "group_state": "Empty",
            "group_epoch": epoch + 3,
            "assignment_epoch": epoch + 2,
            "assignor_name": "simple",
        }
    ]


def test_a_silent_member_is_removed(sharing: Sharing) -> None:
    sharing.wire.configure(
        sharing.group, share_session_timeout_ms="1000", share_heartbeat_interval_ms="500"
    )
    epoch = sharing.join()
    until(lambda: sharing.heartbeat(epoch, "x") and state(sharing) == "Empty", "it is removed", 30)
    assert sharing.heartbeat(epoch) == {"error_code": UNKNOWN_MEMBER}


def state(sharing: Sharing) -> str:
    (row,) = sharing.wire.exchange("ShareGroupDescribe", group_ids=[sharing.group])["groups"]
    found: str = row["group_state"]
    return found


def consumer_heartbeat(sharing: Sharing, group: str, epoch: int = 0) -> Plain:
    return sharing.wire.exchange(
        "ConsumerGroupHeartbeat",
        1,
        group_id=group,
        member_id="c1",
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[sharing.topic],
        topic_partitions=[],
    )


def test_groups_of_another_type(sharing: Sharing, new_name: Callable[[], str]) -> None:
    consumers = group_here(sharing.wire, new_name)
    until(lambda: "error_code" not in consumer_heartbeat(sharing, consumers), "its coordinator")
    other = Sharing(sharing.wire, consumers, sharing.topic)
    for epoch in (0, 1, -1):
        response = other.heartbeat(epoch, subscribed_topic_names=[sharing.topic])
        assert response == {"error_code": GROUP_ID_NOT_FOUND}
        assert sharing.wire.messages == [f"Group {consumers} is not a share group."]
    sharing.join()
    for epoch in (0, 1):
        response = consumer_heartbeat(sharing, sharing.group, epoch)
        assert response == {"error_code": GROUP_ID_NOT_FOUND}
        assert sharing.wire.messages == [f"Group {sharing.group} is not a consumer group."]


def test_descriptions_with_errors(sharing: Sharing, new_name: Callable[[], str]) -> None:
    assert sharing.wire.exchange("ShareGroupDescribe", group_ids=[]) == {}
    rows = sharing.wire.exchange("ShareGroupDescribe", group_ids=["", sharing.group])["groups"]
    assert sorted(rows, key=lambda row: int(row["error_code"])) == [
        {"error_code": INVALID_GROUP_ID},
        {"error_code": GROUP_ID_NOT_FOUND, "group_id": sharing.group},
    ]
    assert f"Group {sharing.group} not found." in sharing.wire.messages


def test_other_apis_of_a_share_group(sharing: Sharing) -> None:
    sharing.join()
    ask, group = sharing.wire.exchange, {"group_id": sharing.group}
    not_found = {**group, "error_code": GROUP_ID_NOT_FOUND}
    assert ask("ConsumerGroupDescribe", 1, group_ids=[sharing.group]) == {"groups": [not_found]}
    assert sharing.wire.messages == [f"Group {sharing.group} is not a consumer group."]
    dead = {"group_state": "Dead"}
    assert ask("DescribeGroups", 6, groups=[sharing.group]) == {"groups": [not_found | dead]}
    assert ask("DescribeGroups", 5, groups=[sharing.group]) == {"groups": [group | dead]}
    for name in ("", "m1"):
        refused = ask(
            "JoinGroup",
            9,
            **group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=name,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        assert refused["error_code"] == INCONSISTENT_PROTOCOL
    member = {"member_id": "m1"}
    generation = group | member | {"generation_id": 1}
    names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert ask("SyncGroup", 5, **generation | names) == {"error_code": UNKNOWN_MEMBER}
    assert ask("Heartbeat", 4, **generation) == {"error_code": UNKNOWN_MEMBER}
    assert ask("LeaveGroup", 5, **group, members=[member]) == {
        "members": [member | {"error_code": UNKNOWN_MEMBER}]
    }
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": sharing.topic, "partitions": [partition]}]
    committed = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    assert ask("OffsetCommit", 9, **group | committed) == {
        "topics": [{"name": sharing.topic, "partitions": [{"error_code": GROUP_ID_NOT_FOUND}]}]
    }
    all_offsets = group | {"member_id": None, "member_epoch": -1, "topics": None}
    assert ask("OffsetFetch", 9, groups=[all_offsets]) == {"groups": [group]}
    deleted = [{"name": sharing.topic, "partitions": [{"partition_index": 0}]}]
    assert ask("OffsetDelete", 0, **group, topics=deleted) == {"error_code": GROUP_ID_NOT_FOUND}


def test_lists_and_deletions(sharing: Sharing) -> None:
    sharing.join()

    def listed(version: int = 5, **filters: list[str]) -> list[Plain]:
        found = sharing.wire.exchange("ListGroups", version, **filters).get("groups", ())
        return [row for row in found if row.get("group_id") == sharing.group]

    row = {"group_id": sharing.group, "protocol_type": "share", "group_state": "Stable"}
    assert listed(4) == [row]
    row["group_type"] = "share"
    assert listed() == listed(types_filter=["Share"], states_filter=["stable"]) == [row]
    assert not listed(types_filter=["consumer"]) and not listed(states_filter=["Empty"])

    def deleted() -> Plain:
        return sharing.wire.exchange("DeleteGroups", 2, groups_names=[sharing.group])

    name = {"group_id": sharing.group}
    assert deleted() == {"results": [name | {"error_code": NON_EMPTY_GROUP}]}
    sharing.leave()
    assert listed(states_filter=["Empty"]) == [row | {"group_state": "Empty"}]
    assert deleted() == {"results": [name]}
    assert listed() == []
    assert deleted() == {"results": [name | {"error_code": GROUP_ID_NOT_FOUND}]}


TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    "key, is_valid",
    [
        ("", False),
        ("g", False),
        ("g:x:0", False),
        (f"g:{TOPIC}", False),
        (f"g:{TOPIC}:x", False),
        (f":{TOPIC}:0", False),
        ("g:AAAA:0", False),
        (f"g:{TOPIC}:0", True),
        (f"a:b:{TOPIC}:0", True),
    ],
)
def test_coordinators_of_share_partitions(sharing: Sharing, key: str, is_valid: bool) -> None:
    if is_valid:
        found_coordinator(sharing.wire, f"g:{TOPIC}:0", SHARE_KEY, version=6)

    def found(version: int) -> Plain:
        keys = {"key_type": SHARE_KEY, "coordinator_keys": [key]}
        (row,) = sharing.wire.exchange("FindCoordinator", version, **keys)["coordinators"]
        return dict(row)

    refused = {"key": key, "node_id": -1, "port": -1, "error_code": INVALID_REQUEST}
    if not key:
        del refused["key"]
    assert found(5) == refused
    if is_valid:
        assert found(6).keys() == {"key", "node_id", "host", "port"}
    else:
        assert found(6) == refused
