"""Configs of delay topics are refused if they lead nowhere, or back."""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.controller.delay_topics import check_delay_configs
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import CreateTopic
from mqd.controller.replay import replay
from mqd.errors import ErrorCode, MqError

TARGET, DLQ, BACKOFF = "mqd.delay.target", "mqd.dlq.topic", "mqd.retry.backoff"


def image() -> MetadataImage:
    """`a` relays to `b`, and `b` to `c`."""
    found = MetadataImage()
    for number, (name, configs) in enumerate(
        (("c", ()), ("b", ((TARGET, "c"),)), ("a", ((TARGET, "b"),)), ("__consumer_offsets", ()))
    ):
        topic = CreateTopic(name, UUID(int=number + 1), (), configs)
        replay(found, topic, number + 1, Delta(number + 1))
    return found


def test_a_chain_of_delay_topics_is_allowed() -> None:
    check_delay_configs(image(), "new", None, {TARGET: "a", DLQ: "c", BACKOFF: "1s,1m"})
    check_delay_configs(image(), "c", {}, {"retention.ms": "1"})


@pytest.mark.parametrize(
    ("topic", "present", "after", "problem"),
    [
        ("c", {}, {TARGET: "a"}, "relays them back"),
        ("b", {TARGET: "c"}, {TARGET: "c", DLQ: "a"}, "relays them back"),
        ("c", {}, {TARGET: "c"}, "name another"),
        ("c", {}, {TARGET: "__consumer_offsets"}, "name another"),
        ("c", {}, {TARGET: "nowhere"}, "Create it first"),
        ("c", {}, {TARGET: "", BACKOFF: "1s"}, "cannot change"),
        ("b", {TARGET: "c", BACKOFF: "1s"}, {TARGET: "c"}, "cannot change"),
        ("new", None, {BACKOFF: "1s"}, "needs mqd.delay.target"),
        ("new", None, {TARGET: "c", BACKOFF: "soon"}, "is not a time"),
        ("new", None, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
        ("b", {TARGET: "c"}, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
    ],
)
def test_refused(
    topic: str, present: dict[str, str] | None, after: dict[str, str], problem: str
) -> None:
    with pytest.raises(MqError, match=problem) as raised:
        check_delay_configs(image(), topic, present, after)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
