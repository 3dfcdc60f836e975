"""A good client waits at most 50 ms whatever one connection sends, and at most 250 ms whatever
fifty send.

Times are CPU time of the node's event loop between a request and its response, so that a machine
with other work gives the same results. The elapsed time is bounded, too, without the time for which
the machine did not run the loop: bytes that other clients make the node hold cost no CPU time.
`python -m tests.hostile` measures the wall clock, with the good client in a separate process; it
needs an idle machine.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import trio

from chaos.node import free_ports
from mqd.client.errors import ConnectionBroken, PeerUnreachable
from mqd.client.peer import PeerConnection
from mqd.limits import MIB
from mqd.peers import Peers, parse_peers
from tests.hostile.attack import KNOWN_TOPIC
from tests.hostile.attacks import ATTACKS
from tests.hostile.costly import Recompressions
from tests.hostile.good_client import EVERY_SECONDS, TOPIC
from tests.hostile.machine import on_reference_machine
from tests.hostile.trial import Attackers, attacking
from tests.nodes import ask, batch, connected, create_topic, node, produce

REQUESTS, REQUESTS_MIN = 30, 15
MEASURED_SECONDS = 1.5
"""After that, the least number of requests is enough."""
COMPRESSIONS = 10
COMPRESSED_BYTES = 30_000
ATTACKED_SECONDS = 0.5
"""Until the topic of the attackers exists, and their batches wait."""
BOUNDS = {1: 0.05, 50: 0.25}
ELAPSED_SECONDS_MAX = 1.0
RESIDENT_BYTES_MAX = 384 * MIB
"""What an attack may add: the memory that the options below allow for clients, groups and metadata,
and the pools of the allocator.
"""
SERVED_AGAIN_SECONDS_MAX = 5.0
OPTIONS = {
    "max.connections": "200",
    "memory.budget.bytes": str(256 * MIB),
    "group.coordinator.memory.bytes": str(32 * MIB),
    "group.members.memory.bytes": str(32 * MIB),
    "metadata.image.max.bytes": str(16 * MIB),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}


pytestmark = [pytest.mark.slow]


@pytest.fixture
def frozen() -> Iterator[None]:
    """A node in its own process runs no full garbage collections; in this process they would visit
    the objects of all tests.
    """
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_good_client_waits_no_longer_than_the_bounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attackers: Attackers, attack: str
) -> None:
    caplog.set_level(logging.CRITICAL)
    kind = ATTACKS[attack]
    records = batch(b"x" * kind.good_bytes)
    failures = []
    async with node(tmp_path, peers=with_a_secret(), options=OPTIONS) as running:
        async with connected(running) as client:
            await prepare(client, kind.tested_partitions)
            port = running.peer_port if kind.on_peer_port else running.port
            gc.collect()
            gc.freeze()
            for connections, bound in BOUNDS.items():
                known = kind.tested_partitions
                async with attacking(attackers, port, attack, connections, known):
                    await trio.sleep(kind.begins_within_seconds)
                    title = f"{attack:36} {connections:3}"
                    failures += await measure(client, title, records, bound)
        await serves_a_new_client(partial(connected, running), records)
    assert not failures


async def measure(
    client: PeerConnection, title: str, records: bytes, bound: float, requests: int = REQUESTS
) -> list[str]:
    """Produce these records many times, and print the longest wait. Returns the same line if a
    bound was exceeded.
    """
    waits, elapsed, before = [], [], resident_bytes()
    ends_at = time.monotonic() + MEASURED_SECONDS
    for number in range(requests):
        if number >= REQUESTS_MIN and time.monotonic() >= ends_at:
            break
        began, clock, kept = time.thread_time(), time.monotonic(), runnable_without_cpu()
        assert (await produce(client, TOPIC, records)).error_code == 0
        waits.append(time.thread_time() - began)
        elapsed.append(time.monotonic() - clock - (runnable_without_cpu() - kept))
        await trio.sleep(EVERY_SECONDS)
    grown = resident_bytes() - before
    result = (
        f"{title} connections: {1000 * max(waits):5.1f} ms, median "
        f"{1000 * median(waits):5.1f} ms, elapsed {1000 * max(elapsed):6.1f} ms, "
        f"{grown / MIB:+5.0f} MiB"
    )
    print(result)
    if (
        on_reference_machine(max(waits)) >= bound
        or max(elapsed) >= ELAPSED_SECONDS_MAX
        or grown >= RESIDENT_BYTES_MAX
    ):
        return [result]
    return []


@pytest.mark.usefixtures("frozen")
async def test_a_small_batch_is_compressed_before_large_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attackers: Attackers
) -> None:
    """A good client whose batches the node compresses again waits for few slices of the attackers'
    batches. In CPU time of the process, with its threads.
    """
    caplog.set_level(logging.CRITICAL)
    records = batch(os.urandom(COMPRESSED_BYTES))
    waits = []
    async with (
        node(tmp_path, peers=with_a_secret(), options=OPTIONS) as running,
        connected(running) as client,
    ):
        await prepare(client, 1, "gzip")
        async with attacking(attackers, running.port, Recompressions.name, 50, 1):
            await trio.sleep(ATTACKED_SECONDS)
            for _ in range(COMPRESSIONS):
                began = time.process_time()
                assert (await produce(client, TOPIC, records)).error_code == 0
                waits.append(time.process_time() - began)
    print(f"a batch of {COMPRESSED_BYTES} bytes to compress: {1000 * max(waits):.0f} ms")
    assert on_reference_machine(max(waits)) < BOUNDS[50]


async def serves_a_new_client(
    connect: Callable[[], AbstractAsyncContextManager[PeerConnection]], records: bytes
) -> None:
    """The attackers were killed. The node counts their connections until it has read their ends.
    Until then it may refuse a client of their address: max.connections allows no more.
    """
    with trio.fail_after(SERVED_AGAIN_SECONDS_MAX):
        while True:
            with suppress(PeerUnreachable, ConnectionBroken):
                async with connect() as another:
                    assert (await produce(another, TOPIC, records)).error_code == 0
                return
            await trio.sleep(EVERY_SECONDS)


def with_a_secret() -> Peers:
    """The peers file of one node."""
    port, peer_port = free_ports(2)
    text = 'cluster_id = "attacked"\ncluster_secret = "what no attacker knows"\n'
    text += f'[[node]]\nid = 1\nhost = "127.0.0.1"\nport = {port}\npeer_port = {peer_port}\n'
    return parse_peers(text, Path("peers.toml"))


async def prepare(client: PeerConnection, known: int, codec: str = "producer") -> None:
    """Wait until the good client's topic and the attacked one have leaders, and groups have a
    coordinator.
    """
    await create_topic(client, TOPIC, compression_type=codec)
    await create_topic(client, KNOWN_TOPIC, known)
    rows = [{"partition_index": known - 1, "timestamp": -1}]
    with trio.fail_after(30):
        while True:
            ends = await ask(
                client, "list_offsets", 7, {"topics": [{"name": KNOWN_TOPIC, "partitions": rows}]}
            )
            await ask(client, "find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
            group = await ask(client, "offset_fetch", 7, {"group_id": "g", "topics": []})
            if not ends.topics[0].partitions[0].error_code and not group.error_code:
                return
            await trio.lowlevel.checkpoint()


def runnable_without_cpu() -> float:
    """Seconds for which this thread was runnable and the machine ran others."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
