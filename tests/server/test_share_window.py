"""One slow record does not pin the window of a share group (beyond KIP-932): a member that never
acknowledges one record delays only this record.

Apache Kafka ends the window at `group.share.partition.max.record.locks` records that are not done.
Here this option bounds the records that are acquired at one time, and bytes bound the window.
"""

from __future__ import annotations

import trio

from mqd.client.peer import PeerConnection
from mqd.share.memory import STATE_BYTES_MAX
from mqd.testing import Cluster, simulated
from tests.nodes import create_topic
from tests.server.test_share_groups import (
    ACCEPT,
    OPTIONS,
    RENEW,
    TOPIC,
    Member,
    configure,
    write,
)

LOCKS = 100
RECORDS = 2_500
BATCH = 50


async def prepared(cluster: Cluster, records: int) -> tuple[PeerConnection, Member, Member]:
    """A topic with these records, and two members of the share group."""
    client = await cluster.connect(1)
    await create_topic(client, TOPIC)
    await configure(
        client,
        share_auto_offset_reset="earliest",
        share_record_lock_duration_ms="1000",
        share_partition_max_record_locks=str(LOCKS),
    )
    for _ in range(records // BATCH):
        await write(client, *[b"%d" % number for number in range(BATCH)])
    members = [Member(await cluster.connect(1), name) for name in ("slow", "fast")]
    for member in members:
        await member.join()
    return client, members[0], members[1]


async def finish_others(fast: Member, slow: Member) -> set[int]:
    """Accept all records but the one that `slow` holds and renews. Returns their offsets."""
    accepted: set[int] = set()
    pending: list[tuple[int, int, int]] = []
    while True:
        rows = await fast.fetch(*pending, wait_ms=0, max_records=BATCH)
        if not rows:
            return accepted
        pending = [(first, last, ACCEPT) for first, last, _ in rows]
        for first, last, _ in rows:
            accepted.update(range(first, last + 1))
        if len(accepted) % (10 * BATCH) == 0:
            assert (await slow.row((0, 0, RENEW))).acknowledge_error_code == 0


@simulated(seed=1)
async def test_one_slow_record_does_not_pin_the_window() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        _, slow, fast = await prepared(cluster, RECORDS)
        assert await slow.fetch(max_records=1) == [(0, 0, 1)]
        assert await finish_others(fast, slow) == set(range(1, RECORDS))
        assert RECORDS > 2_000 > LOCKS
        assert await slow.fetch((0, 0, ACCEPT), wait_ms=0) == []


@simulated(seed=2)
async def test_records_between_two_slow_ones_cost_one_range() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        _, slow, fast = await prepared(cluster, RECORDS)
        assert await slow.fetch(max_records=1) == [(0, 0, 1)]
        await finish_others(fast, slow)
        [led] = cluster.daemon(1).coordinators.share.partitions
        assert len(led.core.states) == 2
        assert led.core.states.size < STATE_BYTES_MAX
        await trio.sleep(2.0)
        assert await fast.fetch(wait_ms=5_000) == [(0, 0, 2)], "its lock has ended"
