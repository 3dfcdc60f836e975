"""A good client waits at most 50 ms whatever one connection sends, and at most 250 ms whatever fifty send.

Times are CPU time of the node's event loop between a request and its answer, so that a machine with other work gives the same results.
`python -m tests.hostile` measures the wall clock, with the good client in a process of its own; it needs a quiet machine.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import trio

from tests.hostile.attacks import ATTACKS, KNOWN_TOPIC
from tests.hostile.good_client import EVERY_SECONDS, TOPIC
from tests.hostile.trial import attacking
from tests.nodes import ask, batch, connected, create_topic, node, produce

KNOWN = 500
REQUESTS = 100
BOUNDS = {1: 0.05, 50: 0.25}


@pytest.mark.slow
@pytest.mark.parametrize("connections", BOUNDS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_good_client_waits_no_longer_than_promised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attack: str, connections: int
) -> None:
    caplog.set_level(logging.CRITICAL)
    records = batch(b"x" * 1000)
    waits = []
    async with node(tmp_path, options={"max.connections.per.ip": "1000"}) as running, connected(running) as client:
        await create_topic(client, TOPIC)
        await create_topic(client, KNOWN_TOPIC, KNOWN)
        with trio.fail_after(30):
            rows = [{"partition_index": KNOWN - 1, "timestamp": -1}]
            while (
                (await ask(client, "list_offsets", 7, {"topics": [{"name": KNOWN_TOPIC, "partitions": rows}]}))
                .topics[0]
                .partitions[0]
                .error_code
            ):
                await trio.lowlevel.checkpoint()
        async with attacking(running.port, attack, connections, KNOWN):
            for _ in range(REQUESTS):
                began = time.thread_time()
                assert (await produce(client, TOPIC, records)).error_code == 0
                waits.append(time.thread_time() - began)
                await trio.sleep(EVERY_SECONDS)
    print(f"{attack:36} {connections:3} connections: {1000 * max(waits):5.1f} ms, median {1000 * sorted(waits)[REQUESTS // 2]:5.1f} ms")
    assert max(waits) < BOUNDS[connections], sorted(waits)[-5:]
