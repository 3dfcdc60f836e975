"""Lookups by key, from a client to the logs of simulated nodes: key, time, last, transactions,
tombstones, all partitions, access, bounds, a failover, and brokers that are not of mqd.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from mqd.client import (
    Admin,
    ClientError,
    ClusterClient,
    ErrorCode,
    FoundRecord,
    TopicPartition,
    connect,
    find,
    find_as_of,
    open_producer,
    open_transactional_producer,
)
from mqd.client.cluster import api
from mqd.client.partitioner import partition_for_key
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.principal import Principal
from mqd.testing import Cluster, simulated
from tests.client.fake import FakeCluster

T0 = 1_760_000_000_000
INDEXED = {
    "mqd.key.index": "true",
    "retention.ms": "-1",
    "index.interval.bytes": "200",
    "segment.index.bytes": "64",
}
"""Segments of about 2 KB."""


async def rows(client: ClusterClient, key: bytes, **options: object) -> list[FoundRecord]:
    return [one async for one in find(client, "orders", key, **options)]  # type: ignore[arg-type]


async def written(client: ClusterClient, count: int, *, partitions: int = 2) -> None:
    """Record `n` has key `n % 7`, value `n` and timestamp `T0 + n`."""
    await Admin(client).create_topic("orders", partitions, 1, INDEXED)
    async with open_producer(client) as producer:
        for number in range(count):
            key = b"%d" % (number % 7)
            await producer.send(
                "orders", b"%d" % number, key=key, timestamp=T0 + number, headers=[("n", key)]
            )


@simulated(seed=1)
async def test_records_with_a_key() -> None:
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 100)
        found = await rows(client, b"3")
        assert [one.value for one in found] == [b"%d" % number for number in range(3, 100, 7)]
        first = found[0]
        partition = partition_for_key(b"3", 2)
        assert first == FoundRecord(
            "orders", partition, first.offset, T0 + 3, b"3", b"3", (("n", b"3"),)
        )
        assert await rows(client, b"3", partition=1 - partition) == []
        assert await rows(client, b"3", partitions="all") == found
        assert await rows(client, b"absent", partitions="all") == []
        # since is inclusive, until exclusive
        assert [one.value for one in await rows(client, b"3", since=T0 + 10, until=T0 + 24)] == [
            b"10",
            b"17",
        ]
        assert await rows(client, b"3", last=True) == found[-1:]
        assert await rows(client, b"3", last=True, until=T0 + 50) == [found[6]]
        assert await find_as_of(client, "orders", b"3", T0 + 45) == found[6]
        assert await find_as_of(client, "orders", b"3", T0 + 2) is None


@simulated(seed=2)
async def test_a_tombstone_is_found_and_is_no_value() -> None:
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 10, partitions=1)
        async with open_producer(client) as producer:
            await producer.send("orders", None, key=b"3", timestamp=T0 + 100)
        assert [one.value for one in await rows(client, b"3")] == [b"3", None]
        assert await find_as_of(client, "orders", b"3", T0 + 100) is None
        before = await find_as_of(client, "orders", b"3", T0 + 99)
        assert before is not None and before.value == b"3"


@simulated(seed=3)
async def test_aborted_records_are_hidden_from_read_committed() -> None:
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 7, partitions=1)
        async with open_transactional_producer(client, "t") as producer:
            for commits in (False, True):
                await producer.begin()
                await producer.send("orders", b"%d" % commits, key=b"3")
                await (producer.commit() if commits else producer.abort())
            assert [one.value for one in await rows(client, b"3")] == [b"3", b"0", b"1"]
            committed = await rows(client, b"3", read_committed=True)
            assert [one.value for one in committed] == [b"3", b"1"]
            await producer.begin()
            await producer.send("orders", b"open", key=b"3")
            assert await rows(client, b"3", read_committed=True, last=True) == committed[-1:]
            await producer.abort()


@simulated(seed=4)
async def test_a_lookup_reads_little_once_the_filters_are_built() -> None:
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 300, partitions=1)
        async with open_producer(client) as producer:
            await producer.send("orders", b"x", key=b"rare", timestamp=T0)
            for _ in range(50):
                await producer.send("orders", b"y" * 50, key=b"other", timestamp=T0)
        await trio.sleep(120)
        finding = find(client, "orders", b"rare")
        assert [one.value async for one in finding] == [b"x"]
        size = sum(
            len(cluster.contents(1, path))
            for path in cluster.disk(1).files("orders-0")
            if path.suffix == ".log"
        )
        assert finding.segments_unindexed == 0
        assert 0 < finding.scanned_bytes < size / 4


@simulated(seed=5)
async def test_a_lookup_goes_on_at_the_next_leader() -> None:
    async with Cluster(3) as cluster:
        client = await cluster.client("c")
        await Admin(client).create_topic("orders", 1, 3, {**INDEXED, "flush.before.ack": "true"})
        async with open_producer(client) as producer:
            for number in range(60):
                await producer.send("orders", b"%d" % number, key=b"k")
        tp = TopicPartition("orders", 0)
        leader = await client.leader(tp, deadline=trio.current_time() + 30)
        found = [one.value async for one in find(client, "orders", b"k")]
        cluster.nodes[leader.node_id].kill()
        assert [one.value async for one in find(client, "orders", b"k")] == found
        assert found == [b"%d" % number for number in range(60)]


@simulated(seed=6)
async def test_the_broker_bounds_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqd.server.handlers.find_records.FIND_SCANNED_BYTES_MAX", 2000)
    monkeypatch.setattr("mqd.server.handlers.find_records.FOUND_RECORDS_MAX", 3)
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 200, partitions=1)
        finding = find(client, "orders", b"3")
        assert len([one async for one in finding]) == 29
        assert finding.requests >= 10
        finding = find(client, "orders", b"absent", last=True)
        assert [one async for one in finding] == []
        assert finding.requests > 3


@simulated(seed=7)
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"offset": -2}, ErrorCode.INVALID_REQUEST),
        ({"max_records": 0}, ErrorCode.INVALID_REQUEST),
        ({"max_bytes": -1}, ErrorCode.INVALID_REQUEST),
        ({"isolation_level": 2}, ErrorCode.INVALID_REQUEST),
        ({"key": bytes(2 << 20)}, ErrorCode.INVALID_REQUEST),
        ({"topic": "missing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"current_leader_epoch": 1000}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"since": 5, "until": 4}, ErrorCode.NONE),
        ({"key": b""}, ErrorCode.NONE),
    ],
)
async def test_requests_out_of_range(change: dict[str, object], code: ErrorCode) -> None:
    async with Cluster(1) as cluster:
        client = await cluster.client("c")
        await written(client, 3, partitions=1)
        connection = await client.any_connection()
        body = {"topic": "orders", "partition_index": 0, "key": b"1", "offset": 0} | change
        for newest_first in (False, True):
            response = await connection.request(
                api(32_004), body | {"newest_first": newest_first}, 0, timeout_s=10
            )
            assert response.error_code == code
            assert response.records == []
            assert response.is_complete == (not code)
        far = body | {"offset": 1 << 62, "key": b"1"}
        if not code:
            response = await connection.request(api(32_004), far, 0, timeout_s=10)
            assert (response.records, response.is_complete) == ([], True)


ENFORCING = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@simulated(seed=8)
async def test_a_lookup_needs_read_on_the_topic() -> None:
    async with Cluster(1, options=ENFORCING) as cluster:
        client = await cluster.client("c")
        await written(client, 10, partitions=1)
        assert len(await rows(client, b"3")) == 1
        for connection in cluster.daemon(1).server._connections:
            if connection.client_listener is not None:
                connection.principal = Principal("User", "nobody")
                connection.client_listener = replace(
                    connection.client_listener, protocol=SecurityProtocol.SASL_PLAINTEXT
                )
        asking = await client.connection_to_broker(1, purpose="find")
        for topic in ("orders", "missing"):
            body = {"topic": topic, "partition_index": 0, "key": b"3", "offset": 0}
            response = await asking.request(api(32_004), body, 0, timeout_s=10)
            assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert response.records == []


async def test_a_broker_without_the_api_is_named(nursery: trio.Nursery) -> None:
    fake = FakeCluster(nursery)
    fake.add_topic("orders")
    for broker in fake.brokers.values():
        broker.versions.pop(32_004, None)
    async with connect([("fake", 9001)], network=fake) as client:
        with pytest.raises(ClientError) as raised:
            await rows(client, b"k", partition=0)
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "API of mqd" in raised.value.message
