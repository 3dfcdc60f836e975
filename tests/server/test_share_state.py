"""Reads and writes of the share coordinators of other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from mqd.coordinator.service import CoordinatorService
from mqd.errors import ErrorCode, MqError
from mqd.server.forward import Forwarder
from mqd.server.share_state import REQUEST_SECONDS_MAX, ShareStatePersister
from mqd.share.ports import ShareKey
from mqd.types import NodeId

KEY = ShareKey("group", UUID(int=7), 0)


class Shares:
    """This node has no share coordinator."""

    def partition_of(self, key: str) -> int:
        return 0


async def test_a_node_that_lost_power_sends_no_response(autojump_clock: MockClock) -> None:
    async def forward(*_: Any) -> Mapping[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    persister = ShareStatePersister(
        node_id=NodeId(1),
        shares=cast(CoordinatorService, Shares()),
        forward=cast(Forwarder, forward),
        leader_of=lambda _: NodeId(2),
        create_topic=lambda _: None,
    )
    with pytest.raises(MqError, match="Node 2 did not respond") as caught:
        with trio.fail_after(REQUEST_SECONDS_MAX + 0.1):
            await persister.read(KEY, 5)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
