"""Steps of the event loop that no request of test_longest_turn.py takes: large fetches of followers, batches whose records
the broker reads, and metadata snapshots that a leader sends.

`-s` prints them. Times are CPU time of the event loop; a step above the bound has three tries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.hostile.steps import Steps
from tests.server.rig import ME, OTHER, rig, settle
from tests.server.test_follower_fetch import Follower, replicated

SECONDS_MAX = 0.05
FOLLOWED_SECONDS_MAX = 0.01
"""For a fetch of fewer partitions than clusters have, so that the test is short."""

TRIES = 3
PARTITIONS = 2_000

pytestmark = [pytest.mark.slow]


async def test_the_first_fetch_of_a_follower(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, partitions=PARTITIONS, isr=(ME, OTHER))
        await node.publisher._drain(node.image)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        tried = []
        for _ in range(TRIES):
            follower = await Follower.connect(node)
            body = follower.body(*(("t", index, 0) for index in range(PARTITIONS)))
            steps.begin()
            follower.client.post("fetch", 17, body)
            await settle()
            tried.append(steps.longest)
            answer: Any = follower.answer()
            assert sum(len(topic.partitions) for topic in answer.responses) == PARTITIONS
        trio.lowlevel.remove_instrument(steps)
    print(f"first fetch of a follower, {PARTITIONS} partitions: {1000 * min(tried):.1f} ms")
    assert min(tried) < FOLLOWED_SECONDS_MAX, tried
