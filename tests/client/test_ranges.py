from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError, DeadlineExceeded
from mqd.client.ranges import FetchedRange, RangeReader, open_range
from mqd.errors import ErrorCode
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import iterate_records
from mqd.types import TopicPartition
from tests.client.fake import FETCH, FakeBroker, FakeCluster, Hang, HangUp
from tests.client.test_consumer import fill

A0 = TopicPartition("a", 0)


@asynccontextmanager
async def reading(
    cluster: FakeCluster, start: int, end: int, **options: Any
) -> AsyncIterator[tuple[ClusterClient, RangeReader]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_range(client, A0, start, end, **options) as reader,
    ):
        yield client, reader


def offsets(fetched: FetchedRange, end: int) -> list[int]:
    """The offsets of records within the range."""
    return [
        record.offset
        for position, _, _ in iterate_batches(fetched.data)
        for record in iterate_records(fetched.data, position)
        if fetched.start <= record.offset < end
    ]


def one(fetched: FetchedRange | None) -> FetchedRange:
    assert fetched is not None
    return fetched


def refusing(code: int) -> Any:
    """An action: the partition is refused with a code."""

    def act(broker: FakeBroker, request: Any) -> dict[str, Any]:
        row = {"partition_index": 0, "error_code": code, "high_watermark": -1}
        topic = request.topics[0]
        return {
            "responses": [{"topic": topic.topic, "topic_id": topic.topic_id, "partitions": [row]}]
        }

    return act


async def read(reader: RangeReader, end: int) -> list[int]:
    found = []
    async for fetched in reader:
        found += offsets(fetched, end)
    return found


@pytest.mark.parametrize(
    ("start", "end"), [(0, 100), (7, 93), (10, 20), (15, 16), (40, 40), (0, 0), (99, 100)]
)
@pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
async def test_a_range_is_read_completely(
    nursery: trio.Nursery, start: int, end: int, bytes_max: int
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 100)
    async with reading(cluster, start, end, bytes_max=bytes_max) as (_, reader):
        assert await read(reader, end) == list(range(start, end))
        assert await reader.next() is None


async def test_the_next_fetch_is_sent_while_the_caller_works(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 100)

    def fetches() -> int:
        return [key for key, _ in cluster.one.requests].count(FETCH)

    async with reading(cluster, 0, 100, bytes_max=1) as (_, reader):
        for taken in range(1, 10):
            await wait_all_tasks_blocked()
            assert fetches() == min(taken + 1, 10)
            assert await reader.next() is not None
        assert await reader.next() is not None
        assert await reader.next() is None


async def test_data_is_a_view_of_the_frame_and_positions_are_right(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 100)
    async with reading(cluster, 15, 95, bytes_max=400) as (_, reader):
        position = 15
        async for fetched in reader:
            assert fetched.start == position and fetched.tp == A0
            assert isinstance(fetched.data, memoryview)
            assert memoryview(fetched.data.obj).nbytes > fetched.data.nbytes
            assert (fetched.high_watermark, fetched.last_stable_offset) == (100, 100)
            position = fetched.next_offset
        assert position == 95


async def test_a_moved_leader_is_found(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    fill(partition, 100)
    async with reading(cluster, 0, 100, bytes_max=1) as (_, reader):
        found = offsets(one(await reader.next()), 100)
        partition.leader, partition.leader_epoch = 2, 1
        assert found + await read(reader, 100) == list(range(100))
        assert (FETCH, 18) in cluster.brokers[2].requests


@pytest.mark.parametrize(
    "what",
    [
        HangUp(),
        Hang(),
        refusing(5),
        refusing(6),
        refusing(56),
        refusing(74),
        refusing(75),
        refusing(100),
    ],
)
async def test_transient_errors_are_retried(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, what: Any
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    cluster.one.script(FETCH, what, lambda *_: None, what, what)
    async with reading(cluster, 0, 50, bytes_max=1) as (_, reader):
        assert await read(reader, 50) == list(range(50))


async def test_the_reader_waits_for_an_absent_node(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    async with reading(cluster, 0, 50, bytes_max=1) as (_, reader):
        found = offsets(one(await reader.next()), 50)
        cluster.down.add(1)
        cluster.one.hang_up_all()
        nursery.start_soon(back_after, cluster, 20.0)
        assert found + await read(reader, 50) == list(range(50))


async def back_after(cluster: FakeCluster, seconds: float) -> None:
    await trio.sleep(seconds)
    cluster.down.clear()


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [(5, 60, "offsets 5 to 19 were deleted"), (5, 10, "offsets 5 to 9"), (51, 60, "truncated")],
)
async def test_an_offset_outside_the_log_is_refused_with_its_bounds(
    nursery: trio.Nursery, start: int, end: int, lost: str
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 50)
    partition.start = 20
    async with reading(cluster, start, end) as (_, reader):
        for _ in range(2):
            with pytest.raises(
                ClientError,
                match=f"offset {start} of a-0 is out of range: the log starts at 20 and ends "
                f"at 50; .*{lost}",
            ) as info:
                await reader.next()
            assert info.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_retention_overtakes_a_reader_after_the_fetched_records(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 50)
    async with reading(cluster, 0, 50, bytes_max=1) as (_, reader):
        await wait_all_tasks_blocked()  # two responses have arrived
        partition.start = 40
        assert offsets(one(await reader.next()), 50) + offsets(
            one(await reader.next()), 50
        ) == list(range(20))
        with pytest.raises(ClientError, match="out of range: the log starts at 40"):
            await reader.next()


async def test_a_missing_topic_or_partition_is_an_error_after_a_grace_period(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    began = trio.current_time()
    async with reading(cluster, 0, 10) as (_, reader):
        with pytest.raises(ClientError, match="Partition a-0 does not exist") as info:
            await reader.next()
        assert info.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 4 < trio.current_time() - began < 8
    async with reading(cluster, 0, 10) as (_, reader):  # it appears within the grace period
        await trio.sleep(1)
        fill(cluster.add_topic("a")[0], 10)
        assert await read(reader, 10) == list(range(10))


async def test_a_recreated_topic_is_not_read_further(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 100)
    async with reading(cluster, 0, 100, bytes_max=1) as (_, reader):
        await reader.next()
        fill(cluster.add_topic("a")[0], 100)  # another id
        cluster.one.script(FETCH, refusing(100))
        with pytest.raises(
            ClientError,
            match="topic 'a' was deleted and created again while a-0 was read at offset",
        ):
            await read(reader, 100)


@pytest.mark.parametrize(
    "gone", [slice(0, 10), slice(4, 10), slice(3, 5), slice(9, 10), slice(0, 3)]
)
@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
async def test_a_range_that_ends_in_a_compacted_gap_ends(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, gone: slice, bytes_max: int
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 120)
    left = [
        number
        for index in range(10)
        if index not in range(10)[gone]
        for number in range(index * 10, index * 10 + 10)
    ]
    del partition.batches[gone]
    began = trio.current_time()
    async with reading(cluster, 0, 100, bytes_max=bytes_max) as (_, reader):
        assert await read(reader, 100) == left
    del partition.batches[-2:]  # nothing is beyond the range either
    async with reading(cluster, 0, 120, bytes_max=bytes_max) as (_, reader):
        assert await read(reader, 120) == left
    assert trio.current_time() - began < 1


async def test_the_reader_waits_for_the_end_of_the_range(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 30)
    async with reading(cluster, 0, 60, timeout_s=10) as (_, reader):
        assert offsets(one(await reader.next()), 60) == list(range(30))
        await trio.sleep(9)
        fill(partition, 10)
        cluster.one._notify()
        assert offsets(one(await reader.next()), 60) == list(range(30, 40))
        with pytest.raises(
            DeadlineExceeded,
            match="no progress for 10 s: a-0 at offset 40 of a range that ends at 60: end is "
            "beyond the high watermark 40",
        ):
            await reader.next()


async def test_committed_records_wait_for_open_transactions_and_name_them(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 20)
    fill(partition, 10, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    fill(partition, 10)
    async with reading(cluster, 0, 40, read_committed=True, timeout_s=10) as (_, reader):
        assert offsets(one(await reader.next()), 40) == list(range(20))
        with pytest.raises(
            DeadlineExceeded,
            match="end is beyond the last stable offset 20; producer id 7 has a transaction "
            "open since offset 20",
        ):
            await reader.next()
    partition.end_transaction(7, 0, committed=False)
    async with reading(cluster, 0, 40, read_committed=True, timeout_s=10) as (_, reader):
        found = [fetched async for fetched in reader]
        assert [each.aborted for each in found] == [((7, 20),)]
        assert offsets(found[0], 40) == list(range(40))  # the decoder hides them


async def test_aborted_transactions_come_sorted(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    for producer_id in (3, 1, 2):
        fill(
            partition,
            10,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    for producer_id in (1, 2, 3):
        partition.end_transaction(producer_id, 0, committed=False)
    async with reading(cluster, 0, 33, read_committed=True) as (_, reader):
        assert one(await reader.next()).aborted == ((3, 0), (1, 10), (2, 20))
    async with reading(cluster, 0, 33) as (_, reader):
        assert one(await reader.next()).aborted == ()


def with_bytes(change: Any) -> Any:
    """An action: the response's batches, changed."""

    def act(broker: FakeBroker, request: Any) -> Any:
        response = broker._read(request)
        row = response["responses"][0]["partitions"][0]
        row["records"] = bytes(change(bytearray(row["records"])))
        return response

    return act


def change_at(position: int, value: int) -> Any:
    def change(data: bytearray) -> bytearray:
        data[position] = value
        return data

    return change


@pytest.mark.parametrize(
    "damage",
    [
        change_at(16, 1),
        change_at(8, 0xFF),
        change_at(11, 3),
        change_at(23, 0x80),
        lambda data: data + data[:70] * 2,
        lambda data: data[:80],
    ],
)
async def test_damaged_headers_are_an_error(nursery: trio.Nursery, damage: Any) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 10)
    cluster.one.script(FETCH, with_bytes(damage))
    async with reading(cluster, 0, 100) as (_, reader):
        with pytest.raises(ClientError, match="a-0 is damaged at offset 0") as info:
            await reader.next()
        assert info.value.code is ErrorCode.CORRUPT_MESSAGE


async def test_a_partial_batch_at_the_end_is_fetched_again(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    cluster.one.script(FETCH, with_bytes(lambda data: data[:-1]))
    async with reading(cluster, 0, 50) as (_, reader):
        assert await read(reader, 50) == list(range(50))


async def test_a_batch_truncated_by_an_old_broker_is_fetched_again(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 10)

    def cut_off(broker: FakeBroker, request: Any) -> Any:
        row = request.topics[0].partitions[0]
        return with_bytes(lambda data: data[: row.partition_max_bytes])(broker, request)

    cluster.one.script(FETCH, *[cut_off] * 10)
    async with reading(cluster, 0, 10, bytes_max=100) as (_, reader):
        assert await read(reader, 10) == list(range(10))


async def test_a_throttled_response_without_the_partition_is_not_the_end(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 10)
    cluster.one.script(FETCH, *[{"throttle_time_ms": 100, "responses": []}] * 3)
    async with reading(cluster, 0, 10) as (_, reader):
        assert await read(reader, 10) == list(range(10))


async def test_a_cancelled_next_loses_nothing(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    cluster.one.script(FETCH, *[slowly] * 5)
    found: list[int] = []
    async with reading(cluster, 0, 50, bytes_max=1) as (_, reader):
        for _ in range(400):
            with trio.move_on_after(0.03):
                fetched = await reader.next()
                if fetched is None:
                    break
                found += offsets(fetched, 50)
    assert found == list(range(50))


def slowly(broker: FakeBroker, request: Any) -> None:
    """No data for a moment."""
    broker.script(FETCH)


@pytest.mark.parametrize(
    ("start", "end", "sentence"), [(-1, 5, "start is -1: give"), (5, 4, "a-0 has no range")]
)
async def test_impossible_ranges_are_refused(
    nursery: trio.Nursery, start: int, end: int, sentence: str
) -> None:
    cluster = FakeCluster(nursery)
    with pytest.raises(ValueError, match=sentence):
        async with reading(cluster, start, end):
            pass


async def test_the_end_of_the_block_closes_the_connection_and_the_reader(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    async with reading(cluster, 0, 50, bytes_max=1) as (client, reader):
        await reader.next()
        assert len(client._connections) == 2
    assert len(client._connections) == 1
    with pytest.raises(ClientError, match="closed"):
        await reader.next()


async def test_no_progress_is_a_deadline_that_names_the_last_failure(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    cluster.one.script(FETCH, *[refusing(6)] * 1000)
    began = trio.current_time()
    async with reading(cluster, 0, 50, timeout_s=7) as (_, reader):
        with pytest.raises(
            DeadlineExceeded,
            match=r"no progress for 7 s: a-0 at offset 0.*"
            r"last: reading a-0 at offset 0: not leader",
        ):
            await reader.next()
    assert 6 < trio.current_time() - began < 9


async def test_one_unexpected_empty_response_is_not_the_end(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    cluster.one.script(
        FETCH, as_usual, with_bytes(lambda data: b""), as_usual, with_bytes(lambda data: b"")
    )
    async with reading(cluster, 0, 50, bytes_max=1) as (_, reader):
        assert await read(reader, 50) == list(range(50))


def as_usual(broker: FakeBroker, request: Any) -> None:
    """An action: the broker's normal behaviour."""


async def test_batches_beyond_the_range_are_not_returned(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    async with reading(cluster, 12, 25) as (_, reader):
        headers = [header for _, _, header in iterate_batches(one(await reader.next()).data)]
        assert [header.base_offset for header in headers] == [10, 20]
        assert await reader.next() is None
