"""Where the dead letters of share groups go, by the configs of group and topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import CreateTopic
from mqd.controller.replay import replay
from mqd.io.clock import Clock
from mqd.relay.stall import WARN_EVERY_SECONDS
from mqd.server.dead_letters import DeadLetters


def test_a_group_whose_letters_would_go_to_the_topic_itself_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = MetadataImage()
    for number, name in enumerate(("orders", "other")):
        replay(image, CreateTopic(name, UUID(int=number + 1), (), ()), number + 1, Delta(1))
    now = [100.0]
    values = {"errors.deadletterqueue.topic.name": "orders"}
    letters = DeadLetters(
        image=lambda: image,
        options=cast(Any, SimpleNamespace(group=lambda group, name: values.get(name, False))),
        calls=cast(Any, None),
        clock=cast(Clock, SimpleNamespace(monotonic=lambda: now[0])),
        entropy=cast(Any, None),
        create_topic=lambda topic: None,
    )
    for _ in range(3):
        assert letters.target("billing", "orders") is None
    assert letters.target("billing", "other") is not None
    [line] = caplog.messages
    assert "group=billing topic=orders" in line and "errors.deadletterqueue.topic.name" in line
    now[0] += WARN_EVERY_SECONDS
    assert letters.target("billing", "orders") is None
    assert len(caplog.messages) == 2


def test_white_space_around_the_name_in_the_topic_is_ignored() -> None:
    """As in relays: no topic has a name with spaces, so the letters would wait for ever."""
    image = MetadataImage()
    configs = (("mqd.dlq.topic", " dead "),)
    replay(image, CreateTopic("orders", UUID(int=1), (), configs), 1, Delta(1))
    letters = DeadLetters(
        image=lambda: image,
        options=cast(Any, SimpleNamespace(group=lambda group, name: "")),
        calls=cast(Any, None),
        clock=cast(Any, None),
        entropy=cast(Any, None),
        create_topic=lambda topic: None,
    )
    target = letters.target("billing", "orders")
    assert target is not None and target.topic == "dead"
