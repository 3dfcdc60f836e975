"""Topics of a classic group's members, read from their JoinGroups when they are needed."""

from __future__ import annotations

import pytest

from mqd.coordinator.group import classic_subscriptions
from mqd.coordinator.group.classic_subscriptions import ClassicSubscriptions
from mqd.limits import TOPIC_NAME_CHARS_MAX
from mqd.protocol.consumer_protocol import Subscription, encode_subscription
from mqd.types import TopicPartition

NAMES = [f"topic-{number}" for number in range(100)]


def metadata(*topics: str, owned: int = 0, version: int = 1) -> bytes:
    held = tuple(TopicPartition("t", partition) for partition in range(owned))
    return encode_subscription(Subscription(topics, held), version)


def test_topics_of_any_member_are_found() -> None:
    group = ClassicSubscriptions([metadata("a", "b"), metadata("c", version=0), metadata()])
    assert sorted(group.subscribed("abcd").topics) == ["a", "b", "c"]
    assert group.bytes == sum(map(len, group._metadata))
    assert not ClassicSubscriptions(()).subscribed("ab").topics


def test_the_same_topics_of_many_members_are_read_once() -> None:
    """They differ in the version and in what follows."""
    members = [metadata(*NAMES, owned=number, version=1 + number % 3) for number in range(50)]
    found = ClassicSubscriptions(members).subscribed({"topic-7", "other"})
    assert list(found.topics) == ["topic-7"] and 100 <= found.steps < 300


def test_unknown_bytes_count_as_every_topic() -> None:
    for wrong in (b"", b"what is this", metadata("a")[:-9]):
        assert ClassicSubscriptions([metadata("a"), wrong]).subscribed("bc").topics == "bc"


def test_too_many_names_count_as_every_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [metadata(*NAMES[:-number]) for number in range(1, 11)]
    group = ClassicSubscriptions(members)
    assert list(group.subscribed({"topic-7", "other"}).topics) == ["topic-7"]
    monkeypatch.setattr(classic_subscriptions, "SUBSCRIPTIONS_STEPS_MAX", 500)
    found = group.subscribed({"topic-7", "other"})
    assert found.topics == {"topic-7", "other"} and 0 < found.steps <= 500


def test_many_members_count_as_every_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_subscriptions, "SUBSCRIPTIONS_STEPS_MAX", 500)
    assert ClassicSubscriptions([metadata("a")] * 1_000).subscribed("b").topics == "b"


def test_names_that_no_topic_can_have_are_skipped() -> None:
    long = "x" * (TOPIC_NAME_CHARS_MAX + 1)
    assert ClassicSubscriptions([metadata(long, "a")]).subscribed(["a", long]).topics == ["a"]
