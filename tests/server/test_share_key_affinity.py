"""Share groups with `share.key.affinity` on a real node: one record of a key at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.testing import Cluster, simulated
from tests.nodes import connected, create_topic, one_node_peers, produce
from tests.server.test_share_groups import (
    ACCEPT,
    OPTIONS,
    REJECT,
    RELEASE,
    TOPIC,
    Member,
    configure,
    running,
)

KEYS = (b"a", b"a", b"b", None, b"a", b"b")
CONFIGS = {"share_auto_offset_reset": "earliest", "share_key_affinity": "true"}


def offsets(rows: list[tuple[int, int, int]]) -> list[int]:
    return [offset for first, last, _ in rows for offset in range(first, last + 1)]


def keyed(*keys: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    return bytes(build_batch([(key, b"value") for key in keys], codec=codec))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_a_key_waits_also_after_a_restart(tmp_path: Path, codec: Codec) -> None:
    peers = one_node_peers()
    async with (
        running(tmp_path, peers) as first,
        connected(first) as client,
        connected(first) as other,
    ):
        await create_topic(client, TOPIC)
        await configure(client, **CONFIGS)
        assert not (await produce(client, TOPIC, keyed(*KEYS, codec=codec))).error_code
        one, two = Member(client, "m1"), Member(other, "m2")
        await one.join()
        await two.join()
        assert offsets(await one.fetch()) == [0, 2, 3]
        assert await two.fetch(wait_ms=0) == []
        assert await one.fetch((0, 0, RELEASE), (2, 2, ACCEPT), (3, 3, ACCEPT), max_records=1) == [
            (0, 0, 2)
        ], "a released record comes first"
        assert offsets(await two.fetch()) == [5], "the next record of the key b"
    async with running(tmp_path, peers) as second, connected(second) as client:
        member = Member(client, "m3")
        await member.join()
        assert offsets(await member.fetch()) == [0, 5]
        assert offsets(await member.fetch((0, 0, REJECT), wait_ms=0)) == [1]
        assert offsets(await member.fetch((1, 1, ACCEPT), (5, 5, ACCEPT), wait_ms=0)) == [4]
        assert await member.fetch((4, 4, ACCEPT), wait_ms=0) == []


@simulated(seed=3)
async def test_a_fetch_waits_until_a_key_is_free() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.connect(1)
        await create_topic(client, TOPIC)
        await configure(client, share_record_lock_duration_ms="1000", **CONFIGS)
        await produce(client, TOPIC, keyed(b"a", b"a"))
        slow, fast = [Member(await cluster.connect(1), name) for name in ("m1", "m2")]
        await slow.join()
        await fast.join()
        assert await slow.fetch() == [(0, 0, 1)]
        assert await fast.fetch(wait_ms=5_000) == [(0, 0, 2)], "the lock ends first"
        assert await fast.fetch((0, 0, ACCEPT), wait_ms=5_000) == [(1, 1, 1)]
