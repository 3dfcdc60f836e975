"""Configs of delay topics are refused if they lead nowhere, or back."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.controller.delay_topics import check_dead_letter_access, check_delay_configs
from mqd.controller.delta import Delta
from mqd.controller.image import GROUP, MetadataImage
from mqd.controller.records import CreateTopic, SetConfigs
from mqd.controller.replay import replay
from mqd.errors import ErrorCode, MqError
from mqd.resource_configs import GROUP_DEAD_LETTERS

ACCESS = "mqd.producer.access"
TARGET, DLQ, BACKOFF = "mqd.delay.target", "mqd.dlq.topic", "mqd.retry.backoff"


def image() -> MetadataImage:
    """`a` relays to `b`, and `b` to `c`."""
    found = MetadataImage()
    for number, (name, configs) in enumerate(
        (
            ("c", ()),
            ("b", ((TARGET, "c"),)),
            ("a", ((TARGET, "b"),)),
            ("__consumer_offsets", ()),
            ("one", ((ACCESS, "exclusive"),)),
            ("dead", ()),
        )
    ):
        topic = CreateTopic(name, UUID(int=number + 1), (), configs)
        replay(found, topic, number + 1, Delta(number + 1))
    replay(found, SetConfigs(GROUP, "g", ((GROUP_DEAD_LETTERS, "dead"),)), 9, Delta(9))
    return found


def test_a_chain_of_delay_topics_is_allowed() -> None:
    check_delay_configs(image(), "new", None, {TARGET: "a", DLQ: "c", BACKOFF: "1s,1m"})
    check_delay_configs(image(), "c", {}, {"retention.ms": "1"})


@pytest.mark.parametrize(
    ("topic", "present", "after", "problem"),
    [
        ("c", {}, {TARGET: "a"}, "relays them back"),
        ("b", {TARGET: "c"}, {TARGET: "c", DLQ: "a"}, "relays them back"),
        ("c", {}, {DLQ: "a"}, "relays them back"),
        ("c", {}, {TARGET: "c"}, "name another"),
        ("new", None, {TARGET: "c", DLQ: "c"}, "are the same topic"),
        ("c", {}, {TARGET: "__consumer_offsets"}, "name another"),
        ("c", {}, {TARGET: "nowhere"}, "Create it first"),
        ("c", {}, {TARGET: "", BACKOFF: "1s"}, "cannot change"),
        ("b", {TARGET: "c", BACKOFF: "1s"}, {TARGET: "c"}, "cannot change"),
        ("new", None, {BACKOFF: "1s"}, "needs mqd.delay.target"),
        ("new", None, {TARGET: "c", BACKOFF: "soon"}, "is not a time"),
        ("new", None, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
        ("b", {TARGET: "c"}, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
        ("new", None, {TARGET: "one"}, "one producer"),
        ("new", None, {DLQ: "one"}, "one producer"),
        ("c", {}, {ACCESS: "wait"}, "'b' relays records to it"),
        ("dead", {}, {ACCESS: "exclusive"}, "dead letters of group 'g'"),
        ("c", {}, {DLQ: "c"}, "its own dead letters"),
        ("new", None, {DLQ: "new"}, "its own dead letters"),
        ("new", None, {"mqd.delay.replace": "true"}, "needs mqd.delay.target"),
    ],
)
def test_refused(
    topic: str, present: dict[str, str] | None, after: dict[str, str], problem: str
) -> None:
    with pytest.raises(MqError, match=problem) as raised:
        check_delay_configs(image(), topic, present, after)
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_dead_letters_of_a_group_need_a_shared_topic() -> None:
    check_dead_letter_access(image(), "dead")
    check_dead_letter_access(image(), "not created yet")
    with pytest.raises(MqError, match="one producer"):
        check_dead_letter_access(image(), "one")


def test_a_chain_has_at_most_100_topics() -> None:
    """The search for a cycle ends there."""
    found = MetadataImage()
    for number in range(103):
        configs = ((TARGET, f"t{number - 1}"),) if number else ()
        topic = CreateTopic(f"t{number}", UUID(int=number + 1), (), configs)
        replay(found, topic, number + 1, Delta(number + 1))
    check_delay_configs(found, "new", None, {TARGET: "t99"})
    for name, present, target in (("new", None, "t100"), ("t0", {}, "t102")):
        with pytest.raises(MqError, match="more than 100 topics"):
            check_delay_configs(found, name, present, {TARGET: target})
