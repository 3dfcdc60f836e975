"""Arrow batches from consumers, tables into topics."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
import trio

from mqd.client.arrow import ArrowProducer, open_arrow_producer
from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError
from mqd.client.group_consumer import open_group_consumer
from mqd.client.partitioner import partition_for_key
from mqd.client.sync import connect as connect_blocking
from mqd.errors import ErrorCode
from mqd.protocol.batch import write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records
from mqd.types import TopicPartition
from tests.client.fake import FETCH, FakeCluster
from tests.client.loopback import Loopback, loopback
from tests.client.test_consumer import A0, A1, consuming, fill

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


def values_of(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


# -- reading


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_every_partition_is_read_to_its_end(nursery: trio.Nursery, codec: Codec) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    for partition in cluster.add_topic("a", 2):
        fill(partition, 35, codec=codec)
    places = dict.fromkeys((A0, A1), "beginning")
    async with consuming(cluster, places, end="end") as (_, consumer):
        found: dict[int, list[bytes]] = {0: [], 1: []}
        async for batch in consumer.arrow_batches():
            (partition_id,) = set(batch.column("partition").to_pylist())
            found[partition_id] += batch.column("value").to_pylist()
            assert batch.schema.names == [
                "key",
                "value",
                "topic",
                "partition",
                "offset",
                "timestamp",
                "timestampType",
            ]
        assert found == {0: numbers(35), 1: numbers(35)}
        assert consumer.position(A0) == consumer.position(A1) == 35


async def test_columns_and_row_counts_are_as_requested(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 50)
    async with consuming(cluster, {A0: 7}, end={A0: 43}) as (_, consumer):
        reader = consumer.arrow_batches(["value", "headers"], rows_max=8)
        batches, positions = [], []
        async for batch in reader:
            batches.append(batch)
            positions.append(consumer.position(A0))
        assert values_of(batches) == numbers(43, 7)
        assert all(batch.num_rows <= 8 and batch.schema == reader.schema for batch in batches)
        assert (
            positions[0] == 7 + batches[0].num_rows
            and positions[-1] == 43
            and await reader.next() is None
        )
        assert reader.schema.names == ["value", "headers"]
        with pytest.raises(ClientError, match="unknown column 'payload'"):
            consumer.arrow_batches(["payload"])
        with pytest.raises(ClientError, match="rows_max is 0"):
            consumer.arrow_batches(rows_max=0)


async def test_records_and_arrow_batches_may_alternate(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 60)
    async with consuming(cluster, {A0: "beginning"}, end="end") as (_, consumer):
        found: list[Any] = []
        reader = consumer.arrow_batches(["value"], rows_max=7)
        for turn in range(100):
            if turn % 3:
                arrow = await (reader if turn % 4 else consumer.arrow_batches(rows_max=3)).next()
                if arrow is None:
                    break
                found += arrow.column("value").to_pylist()
            elif (batch := await consumer.next()) is not None:
                found += [record.value for record in batch.records]
        assert found == numbers(60)


async def test_a_seek_and_a_pause_discard_the_rest(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 40)
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        reader = consumer.arrow_batches(["value"], rows_max=4)
        assert values_of([await reader.next()]) == numbers(4)
        await consumer.seek(A0, 30)
        assert values_of([await reader.next()]) == numbers(34, 30)
        consumer.pause(A0)
        with trio.move_on_after(3):
            raise AssertionError(await reader.next())
        consumer.resume(A0)
        assert values_of([await reader.next(), await reader.next()]) == numbers(40, 34)
        with trio.move_on_after(3):
            raise AssertionError(await reader.next())


async def test_read_committed_hides_aborted_records_of_a_whole_response(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")

    def append(value: bytes, producer: int, **options: Any) -> None:
        records = [Record(0, 0, options.pop("key", None), value)]
        options["base_offset"] = partition.end
        partition.batches.append(
            build_batch(records, producer_id=producer, producer_epoch=0, **options)
        )
        partition.end += 1

    append(b"plain", -1)
    append(b"aborted", 5, transactional=True)
    append(b"aborted too", 5, transactional=True)
    append(b"kept", 6, transactional=True)
    append(b"aborted as well", 5, transactional=True)
    append(b"", 5, transactional=True, control=True, key=b"\0\0\0\0")
    append(b"", 6, transactional=True, control=True, key=b"\0\0\0\1")
    append(b"later", 5, transactional=True)
    append(b"", 5, transactional=True, control=True, key=b"\0\0\0\1")

    def with_aborts(broker: Any, request: Any) -> Any:
        response = broker._read(request)
        aborted = [{"producer_id": 5, "first_offset": 1}]
        response["responses"][0]["partitions"][0]["aborted_transactions"] = aborted
        return response

    for records_first in (0, 1, 2):
        cluster.one.script(FETCH, with_aborts)
        async with consuming(cluster, {A0: "beginning"}, end="end", read_committed=True) as (
            _,
            consumer,
        ):
            found: list[Any] = []
            for _ in range(records_first):
                batch = await consumer.next()
                assert batch is not None
                found += [record.value for record in batch.records]
            async for arrow in consumer.arrow_batches(["value"]):
                found += arrow.column("value").to_pylist()
            assert found == [b"plain", b"kept", b"later"] and consumer.position(A0) == 9


async def test_damage_is_reported_after_the_records_before_it(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 30)
    bad = bytearray(partition.batches[1])
    bad[61] ^= 0x40
    write_crc(bad)
    partition.batches[1] = bad
    async with consuming(cluster, {A0: "beginning"}, end="end") as (_, consumer):
        reader = consumer.arrow_batches(["value"], rows_max=5)
        assert values_of([await reader.next(), await reader.next()]) == numbers(10)
        with pytest.raises(ClientError, match="a-0 is damaged at offset 10") as caught:
            await reader.next()
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        await consumer.seek(A0, 20)
        assert values_of([batch async for batch in reader]) == numbers(30, 20)


async def test_a_member_commits_the_records_that_it_returned(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 30)
    options: dict[str, Any] = {"reset": "beginning", "auto_commit": False}
    async with connect([("fake", 9001)], network=cluster) as client:
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            reader = consumer.arrow_batches(["value"], rows_max=4)
            first = values_of([await reader.next(), await reader.next(), await reader.next()])
            await consumer.commit()
            taken = len(first)
            assert consumer.positions() == {A0: taken} and first == numbers(taken)
            committed = (await consumer.committed([A0]))[A0]
            assert committed is not None and committed.offset == taken
            await reader.next()
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            assert values_of([await consumer.arrow_batches(["value"]).next()])[0] == b"%d" % taken


# -- writing


@asynccontextmanager
async def producing(
    cluster: FakeCluster, **options: Any
) -> AsyncIterator[tuple[ClusterClient, ArrowProducer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=2.0) as client,
        open_arrow_producer(client, **options) as producer,
    ):
        yield client, producer


def records_of(cluster: FakeCluster, tp: TopicPartition) -> list[Record]:
    return [record for batch in cluster.partition(tp).batches for record in iterate_records(batch)]


async def test_rows_arrive_complete(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    table = pa.table(
        {
            "key": pa.array([b"k", None, b""], pa.binary()),
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None, []], HEADERS),
            "timestamp": pa.array([1_000_000, 2_000_999, 3_000_000], pa.timestamp("us", "UTC")),
        }
    )
    async with producing(cluster, codec=Codec.ZSTD) as (_, producer):
        assert await producer.send("a", table) == 3
        await producer.flush()
        rows = [tuple(record[1:]) for record in records_of(cluster, A0)]
    assert rows == [
        (1000, b"k", b"1", (("h", b"x"),)),
        (2000, None, b"2", ()),
        (3000, b"", None, ()),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
async def test_text_of_every_layout_is_sent_and_partitioned_like_java(
    nursery: trio.Nursery, kind: pa.DataType
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 3)
    keys = [f"key-{number}" for number in range(50)]
    column = (
        pa.array(keys).cast(kind)
        if not pa.types.is_dictionary(kind)
        else pa.array(keys).dictionary_encode()
    )
    async with producing(cluster) as (_, producer):
        await producer.send("a", pa.table({"key": column, "value": column}))
        await producer.flush()
        for partition in range(3):
            expected = [
                key.encode() for key in keys if partition_for_key(key.encode(), 3) == partition
            ]
            assert [
                record.key for record in records_of(cluster, TopicPartition("a", partition))
            ] == expected


async def test_a_partition_that_a_row_names_wins(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 3)
    columns = {
        "value": pa.array([b"1", b"2", b"3"]),
        "partition": pa.array([2, None, 1], pa.int32()),
        "key": pa.array([b"x"] * 3),
    }
    async with producing(cluster) as (client, producer):
        await producer.send("a", pa.RecordBatch.from_pydict(columns))
        await producer.flush()
        found = {
            index: [
                record.value or b"" for record in records_of(cluster, TopicPartition("a", index))
            ]
            for index in range(3)
        }
        expected: dict[int, list[bytes]] = {0: [], 1: [b"3"], 2: [b"1"]}
        expected[partition_for_key(b"x", 3)].append(b"2")
        assert {index: sorted(rows) for index, rows in found.items()} == {
            index: sorted(rows) for index, rows in expected.items()
        }
        for wrong in (3, -1):
            with pytest.raises(ClientError, match="partitions 0 to 2"):
                await producer.send(
                    "a", pa.table({"value": [b"x"], "partition": pa.array([wrong], pa.int64())})
                )
        now = client.clock.wall_ms()
        assert all(
            abs(record.timestamp - now) < 60_000
            for record in records_of(cluster, TopicPartition("a", 1))
        )


async def test_rows_without_keys_are_spread(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 3)
    async with producing(cluster, batch_bytes=1000) as (_, producer):
        for _ in range(20):
            await producer.send("a", pa.table({"value": [bytes(500)] * 4}))
        await producer.flush()
    assert all(len(cluster.partition(TopicPartition("a", index)).batches) > 2 for index in range(3))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"x"]}, "has no column 'value'"),
        ({"value": [b"x"], "offset": [1]}, "column 'offset' cannot be sent"),
        ({"value": [1]}, "column 'value' has type int64"),
        ({"value": [b"x"], "partition": ["one"]}, "column 'partition' has type string"),
        ({"value": [b"x"], "timestamp": [1.5]}, "column 'timestamp' has type double"),
        ({"value": [b"x"], "headers": ["h"]}, "column 'headers' has type string"),
    ],
)
async def test_unsuitable_tables_are_refused_with_an_explanation(
    nursery: trio.Nursery, columns: dict[str, Any], words: str
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        with pytest.raises(ClientError, match=words) as caught:
            await producer.send("a", pa.table(columns))
        assert caught.value.remedy
        assert await producer.send("a", pa.table({"value": pa.array([], pa.binary())})) == 0


# -- the blocking client, and without pyarrow


@pytest.fixture
def served() -> Iterator[Loopback]:
    with loopback() as broker:
        broker.inside(lambda: broker.cluster.add_topic("a", 2))
        yield broker


def test_the_blocking_twins(served: Loopback) -> None:
    with connect_blocking(served.address) as client:
        with client.arrow_producer() as producer:
            assert producer.send("a", pa.table({"key": [b"k"] * 10, "value": numbers(10)})) == 10
            producer.flush()
        with client.consumer(dict.fromkeys((A0, A1), "beginning"), end="end") as consumer:
            reader = consumer.arrow_batches(["value", "offset"], rows_max=4)
            assert reader.schema.names == ["value", "offset"]
            assert values_of(list(reader)) == numbers(10) and reader.next() is None
        with client.consumer({A0: "end"}) as consumer:
            assert consumer.arrow_batches().next(timeout_s=0.1) is None


def test_a_missing_package_is_named() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import mqd.client.sync, mqd.client.consumer\n"
        "try:\n    mqd.client.consumer.Consumer.arrow_batches(None)\n"
        "except ImportError as error:\n    print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said == "Arrow columns need numpy and pyarrow. Install them: pip install 'mqd[arrow]'\n"
