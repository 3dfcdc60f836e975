"""Which relays a node runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqd.relay.service import RelayService
from mqd.types import TopicPartition

PLACE = TopicPartition("orders.delay", 0)


def test_each_end_of_a_relay_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    partition: Any = SimpleNamespace(
        assignment=SimpleNamespace(topic_partition=PLACE),
        is_internal=False,
        is_leader=True,
        leader_epoch=1,
    )
    by_name = {b"orders.delay": {0: partition}}
    configs = {"mqd.delay.target": "orders"}
    service = RelayService(
        replica=cast(Any, SimpleNamespace(by_name=by_name)),
        logs=cast(Any, None),
        disk=cast(Any, None),
        clock=cast(Any, SimpleNamespace(wall_ms=lambda: 0, monotonic=lambda: 0.0)),
        entropy=cast(Any, None),
        calls=cast(Any, None),
        configs_of=lambda topic: configs,
        partitions_of=lambda topic: 1,
    )

    def ended() -> str:
        caplog.clear()
        service.role_changed(partition)
        service.role_changed(partition)
        return "".join(caplog.messages)

    assert ended() == ""
    partition.leader_epoch = 2
    assert ended() == "relay ends partition=orders.delay-0 reason='a leader epoch began'"
    configs["mqd.delay.target"] = "other"
    assert ended().endswith("reason='the configs of its topic changed'")
    del configs["mqd.delay.target"]
    assert ended().endswith("reason='its topic has no mqd.delay.target'")
    configs["mqd.delay.target"] = "orders"
    assert ended() == ""
    partition.is_leader = False
    assert ended().endswith("reason='this node no longer leads the partition'")
