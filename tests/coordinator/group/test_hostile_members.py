"""Members send arbitrary bytes about themselves: the coordinator responds whatever they are, and
the next coordinator can load them.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.group import state
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.records import MemberMetadataKey
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_MIGRATION_ELEMENTS_MAX, MIB, SUBSCRIBED_NAMES_MAX
from mqd.protocol import consumer_protocol
from mqd.protocol.consumer_protocol import Subscription, encode_subscription
from tests.coordinator.group.consumer_support import GROUP
from tests.coordinator.group.test_consumer_migration import PROTOCOL, Mixed

SUBSCRIPTION = encode_subscription(Subscription(("a",)), 2)


def protocols(**said: bytes) -> list[dict[str, Any]]:
    return [{"name": name, "metadata": metadata} for name, metadata in said.items()]


def two_classic(
    group: Mixed, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> tuple[str, str, int]:
    """A classic group of two that waits for assignments. Returns the ids, the leader's first, and
    the generation.
    """
    leader = str(group.join_classic(protocols=first)["member_id"])
    other = group.harness.answer(group.start_join("", protocols=second))["member_id"]
    waiting = group.start_join(other, protocols=second)
    generation = group.harness.answer(group.start_join(leader, protocols=first))["generation_id"]
    assert group.harness.answer(waiting)["generation_id"] == generation
    return leader, other, generation


def test_a_group_is_upgraded_while_a_member_lacks_the_chosen_protocol() -> None:
    group = Mixed()
    leader = str(
        group.join_classic(protocols=protocols(range=SUBSCRIPTION, sticky=SUBSCRIPTION))[
            "member_id"
        ]
    )
    group.sync(leader, 1, {leader: [0]}, protocol_name="range")
    other = group.harness.answer(group.start_join("", protocols=protocols(sticky=SUBSCRIPTION)))[
        "member_id"
    ]
    waiting = group.start_join(other, protocols=protocols(sticky=SUBSCRIPTION))
    assert group.join("m1")["member_epoch"] == 2
    assert group.harness.answer(waiting)["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(group.state.members) == {leader, other, "m1"}


def test_a_group_with_two_owners_of_a_partition_is_not_upgraded() -> None:
    group = Mixed()
    leader, other, generation = two_classic(
        group, protocols(**{PROTOCOL: SUBSCRIPTION}), protocols(**{PROTOCOL: SUBSCRIPTION})
    )
    group.sync(leader, generation, {leader: [0, 1, 2], other: [2, 3]})
    with pytest.raises(MqError, match="a partition to several members") as refused:
        group.join("m1")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    group.harness.fail_over()
    assert group.type_of_group() is ClassicGroup


def test_a_member_with_an_empty_first_protocol_gets_its_assignment() -> None:
    group = Mixed()
    nothing = encode_subscription(Subscription(()), 2)
    leader, other, generation = two_classic(
        group, protocols(common=nothing), protocols(odd=b"", common=nothing)
    )
    group.sync(leader, generation, {}, protocol_name="common")
    group.join("m1", topics=())
    assert group.type_of_group() is ConsumerGroup
    assert group.sync(other, generation, protocol_name="odd") == []


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\xff\xff", b"\x7f\xff"])
def test_a_group_becomes_classic_with_any_metadata_of_the_chosen_protocol(
    metadata: bytes,
) -> None:
    group = Mixed()
    first = group.classic_alone()
    group.join("m1")
    group.join_classic(
        first, (0, 1, 2, 3), protocols=protocols(**{PROTOCOL: SUBSCRIPTION, "common": metadata})
    )
    group.join_classic(protocols=protocols(own=SUBSCRIPTION, common=metadata))
    group.leave("m1")
    assert group.type_of_group() is ClassicGroup
    group.harness.fail_over()
    assert (
        len(group.harness.call("describe_groups", 6, {"groups": [GROUP]})["groups"][0]["members"])
        == 2
    )


MANY = [f"x{number}" for number in range(SUBSCRIBED_NAMES_MAX + 1)]


def test_a_member_with_too_many_topics_is_refused() -> None:
    group = Mixed()
    epoch = group.join("m1", MANY[1:])["member_epoch"]
    for more in (
        {"member_id": "m2", "epoch": 0, "rebalance_timeout_ms": 1000, "owned": ()},
        {"member_id": "m1", "epoch": epoch},
    ):
        assert group.refusal(subscribed_topic_names=MANY, **more) is ErrorCode.INVALID_REQUEST
    with pytest.raises(MqError, match="at most") as refused:
        group.harness.answer(group.start_join("m1", topics=tuple(MANY)))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert (
        list(group.state.members) == ["m1"]
        and len(group.state.subscriptions.names) == SUBSCRIBED_NAMES_MAX
    )


def test_message_max_bytes_does_not_allow_larger_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may raise that option to 100 MiB, but one step must not take so much."""
    monkeypatch.setattr(state, "GROUP_RECORD_BYTES_MAX", 10_000)
    group = Mixed(message_max_bytes=100 * MIB)
    group.join_classic(topics=tuple("y" * 100 + name for name in MANY[:100]))
    with pytest.raises(MqError, match="exceeds 10000 bytes"):
        group.join("m1")
    with pytest.raises(MqError, match=r"more than 10000 \(message.max.bytes"):
        Mixed(message_max_bytes=100 * MIB).join("m1", ["y" * 100 + name for name in MANY[:100]])


@pytest.mark.parametrize("topics", [tuple(MANY), tuple("y" * 1000 + name for name in MANY[:2000])])
def test_a_group_with_too_much_metadata_is_not_upgraded(topics: tuple[str, ...]) -> None:
    group = Mixed()
    group.join_classic(topics=topics)
    with pytest.raises(
        MqError, match=r"\(message.max.bytes, at most|more than 10000 topics"
    ) as refused:
        group.join("m1")
    assert (
        refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND and group.type_of_group() is ClassicGroup
    )


@pytest.mark.parametrize("most", [3, 200])
def test_a_refused_upgrade_decodes_nothing(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The upgrade of a full group, and of one whose members name too many topics."""

    def decode(*arguments: object) -> None:
        raise AssertionError("decoded")

    names = 10 if most == 3 else GROUP_MIGRATION_ELEMENTS_MAX // 3
    group = Mixed(group_consumer_max_size=most)
    for _ in range(3):
        topics = Subscription(tuple(f"{number}" for number in range(names)))
        request = {
            "group_id": GROUP,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": protocols(range=encode_subscription(topics)),
        }
        group.harness.ask("join_group", 3, request)
    group.harness.advance(1)
    monkeypatch.setattr(consumer_protocol, "decode_subscription", decode)
    with pytest.raises(MqError) as refused:
        group.join("m1")
    assert refused.value.code is (
        ErrorCode.GROUP_MAX_SIZE_REACHED if most == 3 else ErrorCode.GROUP_ID_NOT_FOUND
    )


def test_partitions_of_members_limit_an_upgrade() -> None:
    group = Mixed()
    group.join_classic(owned=tuple(range(GROUP_MIGRATION_ELEMENTS_MAX)))
    with pytest.raises(MqError, match="topics and partitions") as refused:
        group.join("m1")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_many_names_stays_a_consumer_group() -> None:
    """The last member of the consumer protocol leaves."""
    group = Mixed()
    group.join("m1")
    for number in range(2):
        group.join_classic(topics=tuple(f"{number}-{name}" for name in MANY[1:]))
    group.leave("m1")
    assert group.type_of_group() is ConsumerGroup and len(group.state.members) == 2


def test_a_classic_member_with_too_much_metadata_is_refused() -> None:
    group = Mixed()
    group.join("m1")
    with pytest.raises(MqError, match=r"message\.max\.bytes"):
        group.join_classic(topics=tuple("y" * 1000 + name for name in MANY[:2000]))


def test_metadata_of_the_members_of_one_consumer_group_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqd.coordinator.group.consumer_updates.CONSUMER_GROUP_BYTES_MAX", 100_000)
    group = Mixed()
    group.join("m1", MANY[:1000])
    assert (
        group.refusal("m2", 0, subscribed_topic_names=MANY[:1000], rebalance_timeout_ms=1, owned=())
        is ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    before = group.state.memory
    group.join("m2", topics=None, subscribed_topic_regex="a" * 100)
    group.join("m2", topics=None, subscribed_topic_regex="a" * 50)
    group.leave("m2")
    assert group.state.memory == before


def test_every_existing_subscribed_topic_is_assigned() -> None:
    group = ConsumerGroup("g")
    names = "abcdef"
    for text in ("", "a", "ab", "bcx", "xyz", "abcdefxyz"):
        for number, own in enumerate((text, "", "ax")):
            member = ConsumerGroupMember(f"m{number}", topic_names=tuple(own))
            group.replay(MemberMetadataKey("g", member.member_id), member.metadata())
        present = list(group.members.values())
        for known in ("", "a", "abx", names, names + "uvwxyz"):
            for leaving in ([], present[:1], present):
                for joining in (None, ConsumerGroupMember("j", topic_names=("b", "x"))):
                    staying = [one for one in present if one not in leaving] + (
                        [joining] if joining else []
                    )
                    wanted = {name for one in staying for name in one.topic_names if name in known}
                    assert group.subscriptions.subscribed_names(known, leaving, joining) == wanted
