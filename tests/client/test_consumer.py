from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.consumer import Consumer, open_consumer
from mqd.client.errors import ClientError
from mqd.client.offset_specs import AtTime
from mqd.errors import ErrorCode
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition
from tests.client.fake import FETCH, METADATA, FakeCluster, FakePartition, HangUp

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def fill(
    partition: FakePartition,
    count: int,
    *,
    each: int = 10,
    codec: Codec = Codec.NONE,
    **options: Any,
) -> None:
    """`count` records "0", "1", ...

    with their number times 1000 as timestamp, `each` in a batch.
    """
    for start in range(0, count, each):
        records = [
            Record(0, number * 1000, None, b"%d" % number)
            for number in range(start, min(start + each, count))
        ]
        code, _ = partition.append(build_batch(records, codec=codec, **options))
        assert code == 0


@asynccontextmanager
async def consuming(
    cluster: FakeCluster, start: Any, **options: Any
) -> AsyncIterator[tuple[ClusterClient, Consumer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_consumer(client, start, **options) as consumer,
    ):
        yield client, consumer


async def values(consumer: Consumer) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    async for batch in consumer:
        found.setdefault(batch.partition, []).extend(record.value for record in batch.records)
    return found


@pytest.mark.parametrize("codec", list(Codec))
async def test_reads_everything_to_the_end(nursery: trio.Nursery, codec: Codec) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    for partition in cluster.add_topic("a", 2):
        fill(partition, 35, codec=codec)
    async with consuming(cluster, dict.fromkeys((A0, A1), "beginning"), end="end") as (_, consumer):
        everything = [b"%d" % number for number in range(35)]
        assert await values(consumer) == {0: everything, 1: everything}
        assert consumer.position(A0) == 35 == consumer.high_watermark(A1)
        assert await consumer.next() is None


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (7, None, range(7, 20)),
        (7, 13, range(7, 13)),
        ("beginning", 10, range(10)),
        (AtTime(15_000), None, range(15, 20)),
        (AtTime(14_001), AtTime(18_000), range(15, 18)),
        (AtTime(99_000), None, range(0)),
        ("end", None, range(0)),
        (20, None, range(0)),
    ],
)
async def test_starts_and_ends_at_the_requested_offsets(
    nursery: trio.Nursery, start: Any, end: Any, expected: range
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 20)
    async with consuming(cluster, {A0: start}, end="end" if end is None else {A0: end}) as (
        _,
        consumer,
    ):
        found = await values(consumer)
        assert found.get(0, []) == [b"%d" % number for number in expected]


async def test_follows_new_records(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        with trio.move_on_after(3) as scope:
            await consumer.next()
        assert scope.cancelled_caught
        fill(partition, 1)
        cluster.one._notify()
        batch = await consumer.next()
        assert batch is not None and batch.records[0].value == b"0" and batch.next_offset == 1
        await consumer.seek(A0, "beginning")
        again = await consumer.next()
        assert again is not None and again.records == batch.records


async def test_many_small_responses(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, chunk=7)
    fill(cluster.add_topic("a")[0], 300)
    async with consuming(cluster, {A0: 5}, end="end", partition_max_bytes=1) as (_, consumer):
        assert (await values(consumer))[0] == [b"%d" % number for number in range(5, 300)]


async def test_a_broken_connection_and_a_moved_leader_are_survived(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    fill(partition, 50)
    cluster.one.script(FETCH, HangUp(), None, HangUp())
    async with consuming(cluster, {A0: "beginning"}, end="end", partition_max_bytes=1) as (
        _,
        consumer,
    ):
        found = []
        async for batch in consumer:
            found += [record.value for record in batch.records]
            if len(found) == 20:
                partition.leader, partition.leader_epoch = 2, 1
        assert found == [b"%d" % number for number in range(50)]
    assert FETCH in [key for key, _ in cluster.brokers[2].requests]


async def test_an_offset_outside_the_log(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 20)
    partition.start = 10
    async with consuming(cluster, {A0: 3}) as (_, consumer):
        with pytest.raises(ClientError, match="no offset 3: it goes from 10 to 20") as caught:
            await consumer.next()
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        await consumer.seek(A0, 12)
        batch = await consumer.next()
        assert batch is not None and batch.records[0].offset == 12
    async with consuming(cluster, {A0: 3}, reset="beginning") as (_, consumer):
        batch = await consumer.next()
        assert batch is not None and batch.records[0].offset == 10


async def test_damage_is_an_error_and_other_partitions_continue(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    first, second = cluster.add_topic("a", 2)
    fill(first, 20)
    fill(second, 20)
    first.batches[1][-2] ^= 1  # in a value, where only the checksum can detect it
    async with consuming(cluster, dict.fromkeys((A0, A1), "beginning"), end="end") as (_, consumer):
        found: dict[int, int] = {}
        errors: list[ClientError] = []
        while sum(found.values()) < 30 or not errors:
            try:
                batch = await consumer.next()
            except ClientError as error:
                errors.append(error)
            else:
                assert batch is not None
                found[batch.partition] = found.get(batch.partition, 0) + len(batch.records)
        assert found == {0: 10, 1: 20}
        assert (
            errors[0].code is ErrorCode.CORRUPT_MESSAGE
            and "a-0 is damaged at offset 10" in errors[0].message
        )


async def test_damage_is_an_error_also_while_more_is_being_fetched(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Requested records after the damage are returned after the error."""
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 20)
    partition.batches[1] = partition.batches[1][:-1] + b"?"
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        fetched = await consumer.next()
        assert fetched is not None and fetched.next_offset == 10
        with pytest.raises(ClientError, match="damaged at offset 10"):
            await consumer.next()
        fill(partition, 10)
        await trio.sleep(1)
        await consumer.seek(A0, 20)
        fetched = await consumer.next()
        assert fetched is not None and fetched.next_offset == 30


async def test_an_error_reaches_the_user(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(FETCH, {"error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)})
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        with pytest.raises(ClientError, match="reading a-0 at offset 0"):
            await consumer.next()


async def test_read_committed_hides_aborted_records_and_markers(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")

    def append(value: bytes, producer: int, **options: Any) -> None:
        key = options.pop("key", None)
        partition.batches.append(
            build_batch(
                [Record(0, 0, key, value)],
                base_offset=partition.end,
                producer_id=producer,
                producer_epoch=0,
                **options,
            )
        )
        partition.end += 1

    append(b"aborted", 5, transactional=True)
    append(b"plain", -1)
    append(b"kept", 6, transactional=True)
    append(b"", 5, transactional=True, control=True, key=b"\0\0\0\0")
    append(b"", 6, transactional=True, control=True, key=b"\0\0\0\1")
    append(b"later", 5, transactional=True)

    def with_aborts(broker: Any, request: Any) -> Any:
        response = broker._read(request)
        response["responses"][0]["partitions"][0]["aborted_transactions"] = [
            {"producer_id": 5, "first_offset": 0}
        ]
        return response

    cluster.one.script(FETCH, with_aborts)
    async with consuming(cluster, {A0: "beginning"}, end="end", read_committed=True) as (
        _,
        consumer,
    ):
        assert await values(consumer) == {0: [b"plain", b"kept", b"later"]}
    async with consuming(cluster, {A0: "beginning"}, end="end") as (_, consumer):
        assert await values(consumer) == {0: [b"aborted", b"plain", b"kept", b"later"]}


async def test_fetches_do_not_delay_other_requests(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with consuming(cluster, {A0: "end"}, max_wait_ms=3000) as (client, _):
        await trio.sleep(0.1)
        began = trio.current_time()
        await client.refresh(["a"])
        assert trio.current_time() == began
    assert all(stream.other.closed for stream in cluster.one.streams)


async def test_requests_to_old_brokers_use_topic_names(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 5)
    cluster.one.versions |= {METADATA: (0, 6), FETCH: (4, 11)}
    async with consuming(cluster, {A0: "beginning"}, end="end") as (_, consumer):
        assert len((await values(consumer))[0]) == 5
    cluster.one.versions[FETCH] = (4, 18)
    async with consuming(cluster, {A0: "beginning"}, end="end") as (_, consumer):
        assert len((await values(consumer))[0]) == 5
    assert (FETCH, 12) in cluster.one.requests


async def test_a_deleted_topic_is_reported(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    fill(partition, 5)
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        await consumer.next()
        partition.leader = 9
        del cluster.topics["a"]
        cluster.one.script(FETCH, *[{"error_code": int(ErrorCode.UNKNOWN_TOPIC_ID)}] * 50)
        with pytest.raises(ClientError, match="does not exist any more"), trio.fail_after(30):
            await consumer.next()


async def test_a_topic_that_does_not_exist(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    with pytest.raises(ClientError, match="Partition a-0 does not exist"):
        async with consuming(cluster, {A0: "beginning"}):
            pass


async def test_a_partition_removed_before_the_fetch_is_not_fetched(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    fill(cluster.add_topic("a")[0], 20)
    async with consuming(cluster, {A0: "beginning"}) as (_, consumer):
        with trio.fail_after(10):
            for _ in range(50):
                await consumer.seek(A0, 0)
                await trio.lowlevel.checkpoint()
                consumer._fetcher.unassign(A0)
                consumer._wake()
                await trio.lowlevel.checkpoint()
                consumer._fetcher.assign(A0, 0)


@pytest.mark.parametrize(
    ("kind", "sentence", "arguments"),
    [
        (ValueError, "start is {}: give partitions and offsets", {"start": {}}),
        (TypeError, "start is 'a': give a dict, for example {TopicPart", {"start": "a"}),
        (TypeError, "a key of start is 'a': give a TopicPartition", {"start": {"a": 0}}),
        (ValueError, "the empty string is not allowed", {"start": {TopicPartition("", 0): 0}}),
        (
            ValueError,
            "partition of a key of start is -1: give a whole number from 0",
            {"start": {TopicPartition("a", -1): 0}},
        ),
        (
            ValueError,
            "-1 is no offset of a-0: give an offset from 0 on",
            {"start": {TopicPartition("a", 0): -1}},
        ),
        (TypeError, "1.5 is no offset of a-0", {"start": {TopicPartition("a", 0): 1.5}}),
        (ValueError, "reset is 'latest': choose one of", {"reset": "latest"}),
        (TypeError, "read_committed is 'yes': give True or False", {"read_committed": "yes"}),
        (ValueError, "min_bytes is -1: give a whole number from 0", {"min_bytes": -1}),
        (ValueError, "timeout_s is 0: give a number above 0", {"timeout_s": 0}),
    ],
)
async def test_a_wrong_argument(
    nursery: trio.Nursery, kind: type[Exception], sentence: str, arguments: dict[str, Any]
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with connect([("fake", 9001)], network=cluster) as client:
        with pytest.raises(kind, match=sentence):
            async with open_consumer(client, **{"start": {TopicPartition("a", 0): 0}, **arguments}):
                raise AssertionError
