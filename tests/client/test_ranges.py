from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.ranges import FetchedRange, RangeReader, open_range
from mqd.protocol.batch import iterate_batches, iterate_records
from mqd.types import TopicPartition
from tests.client.fake import FakeCluster
from tests.client.test_consumer import fill

A0 = TopicPartition("a", 0)


@asynccontextmanager
async def reading(cluster: FakeCluster, start: int, end: int, **options: Any) -> AsyncIterator[tuple[ClusterClient, RangeReader]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_range(client, A0, start, end, **options) as reader,
    ):
        yield client, reader


def offsets(fetched: FetchedRange, end: int) -> list[int]:
    """Of the records that belong to the range."""
    return [
        record.offset
        for position, _, _ in iterate_batches(fetched.data)
        for record in iterate_records(fetched.data, position)
        if fetched.start <= record.offset < end
    ]


async def read(reader: RangeReader, end: int) -> list[int]:
    found = []
    async for fetched in reader:
        found += offsets(fetched, end)
    return found


@pytest.mark.parametrize(("start", "end"), [(0, 100), (7, 93), (10, 20), (15, 16), (40, 40), (0, 0), (99, 100)])
@pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
async def test_a_range_is_read_whole(nursery: trio.Nursery, start: int, end: int, bytes_max: int) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 100)
    async with reading(cluster, start, end, bytes_max=bytes_max) as (_, reader):
        assert await read(reader, end) == list(range(start, end))
        assert await reader.next() is None
