"""Small batches that would cost a relay, or its node, much time or memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.client import open_producer
from mqd.relay.reading import RecordLookup
from mqd.testing import Cluster, simulated
from tests.relay.test_delay_topics import TARGET, arrived, make_topics


@pytest.mark.parametrize("replaces", (False, True))
@simulated(seed=3)
async def test_records_that_end_nothing_are_not_read(
    monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """Each of 50 due records would read each of 300,000 tombstones in a batch of 200 KB."""
    get, reads = RecordLookup.get, list[int]()

    async def counted(lookup: RecordLookup, offset: int) -> Any:
        reads.append(offset)
        return await get(lookup, offset)

    monkeypatch.setattr(RecordLookup, "get", counted)
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1, mqd_delay_replace=str(replaces).lower())
        late = [("mqd-delay", b"2000")]
        occurrence = [("mqd-cron", b"* * * * *"), ("mqd-cron-since", b"0"), ("mqd-delay", b"90000")]
        async with open_producer(client) as producer:
            for _ in range(1 if replaces else 10):
                await producer.send("orders.delay", b"v", key=b"K", headers=late)
            with trio.fail_after(100):
                async with trio.open_nursery() as nursery:
                    for number in range(100):
                        nursery.start_soon(
                            _send, producer, None, [("mqd-cancels", b"%d" % (number % 200 + 50))]
                        )
                        if replaces:
                            nursery.start_soon(_send, producer, b"v", occurrence)
        with trio.fail_after(30):
            await arrived(client, TARGET, 1 if replaces else 10)
        assert len(reads) <= 30


async def _send(producer: Any, value: bytes | None, headers: Any) -> None:
    await producer.send("orders.delay", value, key=b"K", headers=headers)
