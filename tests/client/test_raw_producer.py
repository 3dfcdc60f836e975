from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.raw_producer import RawProducer, open_raw_producer
from mqd.protocol.batch import Record, build_batch, iterate_records
from mqd.types import TopicPartition
from tests.client.fake import PRODUCE, FakeCluster, HangUp

A0 = TopicPartition("a", 0)


class Built:
    """A prebuilt batch, as `columns.EncodedBatch` is one."""

    def __init__(self, partition: int, *values: bytes) -> None:
        self.partition = partition
        self._records = [Record(0, 1000, None, value) for value in values]
        self.records = len(self._records)
        self.data = build_batch(self._records)
        self.seals: list[tuple[int, int, int]] = []

    def seal(self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool) -> None:
        self.seals.append((producer_id, producer_epoch, base_sequence))
        self.data = build_batch(
            self._records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


def numbered(partition: int, start: int, stop: int, each: int = 3) -> list[Built]:
    """Batches of `each` records "start", "start + 1", ..."""
    return [
        Built(partition, *(b"%d" % number for number in range(first, min(first + each, stop))))
        for first in range(start, stop, each)
    ]


def values_of(cluster: FakeCluster, tp: TopicPartition) -> list[bytes | None]:
    return [record.value for batch in cluster.partition(tp).batches for record in iterate_records(batch)]


@asynccontextmanager
async def producing(cluster: FakeCluster, **options: Any) -> AsyncIterator[tuple[ClusterClient, RawProducer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=2.0) as client,
        open_raw_producer(client, **options) as producer,
    ):
        yield client, producer


async def test_batches_arrive_in_order(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 3)
    async with producing(cluster) as (_, producer):
        for partition in range(3):
            for batch in numbered(partition, 0, 100):
                await producer.send("a", batch)
        await producer.flush()
        for partition in range(3):
            assert values_of(cluster, TopicPartition("a", partition)) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("after", [False, True])
async def test_a_broken_connection_loses_and_doubles_nothing(nursery: trio.Nursery, autojump_clock: trio.abc.Clock, after: bool) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, lambda *_: None, HangUp(after=after), HangUp(after=after), lambda *_: None, HangUp(after=after))
    async with producing(cluster) as (_, producer):
        for batch in numbered(0, 0, 100):
            await producer.send("a", batch)
    assert values_of(cluster, A0) == [b"%d" % n for n in range(100)]
