"""Whatever a hostile client sends, other clients are served in time: in virtual time, which
advances while the code of a node runs.
"""

from __future__ import annotations

import random
from functools import partial

import trio

from mqd.client.admin import Admin
from mqd.io.net import Stream
from mqd.testing import Cluster, run
from mqd.testing.clients.hostile import Hostile
from mqd.testing.requests import frame

PRICE_SECONDS = 0.004
ASK_EVERY_SECONDS = 0.02
ATTACKED_SECONDS = 6.0
WAIT_SECONDS_MAX = 0.1
"""The network may take 20 ms of it."""


async def longest_wait(
    *, attacked: bool, price_seconds: float = PRICE_SECONDS
) -> tuple[float, int, float]:
    """The longest wait of the good client in seconds; attacks; the longest step of the loop in
    seconds.
    """
    async with Cluster(
        nodes=1,
        options={"memory.budget.bytes": str(1 << 18), "connections.max.write.stall.ms": "1000"},
    ) as cluster:
        await Admin(await cluster.client()).create_topic("a", 1, 1)
        cluster.price_work(price_seconds)
        node = cluster.peers.nodes[1]
        hostile = Hostile(
            {1: partial(cluster.client_network("bad").connect, node.host, node.port)},
            "a",
            random.Random("hostile"),
            floods=False,
        )
        good = await cluster.client_network("good").connect(node.host, node.port)
        longest = 0.0
        with trio.move_on_after(ATTACKED_SECONDS):
            async with trio.open_nursery() as nursery:
                if attacked:
                    nursery.start_soon(hostile.run)
                while True:
                    await trio.sleep(ASK_EVERY_SECONDS)
                    began = trio.current_time()
                    await ask(good)
                    longest = max(longest, trio.current_time() - began)
        return longest, hostile.counts["hostile_attacks"], cluster.longest_busy_seconds


async def ask(stream: Stream) -> None:
    await stream.send_all(frame("api_versions", 0, {}))
    answer = memoryview(bytearray(4_096))
    size = await stream.receive_into(answer)
    while size < 4 or size < 4 + int.from_bytes(answer[:4], "big"):
        received = await stream.receive_into(answer[size:])
        assert received, "the node closed the good client's connection"
        size += received


def test_the_good_client_gets_responses_in_time() -> None:
    for seed in range(3):
        longest, attacks, busy = run(partial(longest_wait, attacked=True), seed=seed)
        assert attacks > 20
        assert longest < WAIT_SECONDS_MAX and busy < WAIT_SECONDS_MAX, (seed, longest, busy)


def test_work_takes_virtual_time() -> None:
    """Otherwise no client could delay a node, whatever the node does."""
    assert run(partial(longest_wait, attacked=True, price_seconds=0.0))[2] == 0.0
    assert run(partial(longest_wait, attacked=True))[2] > 0.001
