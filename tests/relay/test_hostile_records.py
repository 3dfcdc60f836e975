"""Small batches that would cost a relay, or its node, much time or memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.client import ClusterClient, open_producer
from mqd.client.admin import Admin
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.limits import RECORD_ERRORS_MAX
from mqd.protocol.compression import Codec
from mqd.relay import timer_run
from mqd.relay.producer import RelayProducer
from mqd.relay.reading import RecordLookup
from mqd.relay.timer_table import TimerTable
from mqd.testing import Cluster, simulated
from tests.relay.test_delay_topics import DEAD, TARGET, arrived, header, make_topics


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


@simulated(seed=3)
async def test_records_beyond_what_a_timer_file_has_buffered_are_read_in_bulk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each one alone would cost as much as its batch: 10 ms of 550,000 records in 1 MB."""
    monkeypatch.setattr(timer_run, "TIMERS_BUFFERED", 16)
    monkeypatch.setattr(TimerTable, "is_full", lambda table, most, end: len(table.heap) >= 100)
    get, alone = RecordLookup.get, list[int]()

    async def counted(lookup: RecordLookup, offset: int) -> Any:
        if not lookup.is_prepared(offset):
            alone.append(offset)
        return await get(lookup, offset)

    monkeypatch.setattr(RecordLookup, "get", counted)
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        async with open_producer(client) as producer, trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(_send, producer, b"v", [("mqd-delay", b"3000")])
        with trio.fail_after(30):
            await arrived(client, TARGET, 200)
        assert len(alone) <= 2


async def _send(producer: Any, value: bytes | None, headers: Any, key: bytes | None = b"K") -> None:
    await producer.send("orders.delay", value, key=key, headers=headers)


@simulated(seed=3)
async def test_a_compressible_record_reaches_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uncompressed, it is larger than `max.message.bytes`."""
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        async with open_producer(client, codec=Codec.ZSTD) as producer:
            await producer.send("orders.delay", bytes(1_500_000), key=b"large")
            await producer.send("orders.delay", b"small", key=b"small")
        with trio.fail_after(30):
            found = await arrived(client, TARGET, 2)
        assert {record.key: len(record.value or b"") for record in found} == {
            b"large": 1_500_000,
            b"small": 5,
        }


@simulated(seed=3)
async def test_a_record_that_all_topics_refuse_is_dropped() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1, mqd_dlq_topic="orders.dlq")
        for topic in ("orders", "orders.dlq"):
            await set_config(client, topic, "max.message.bytes", "700")
        async with open_producer(client) as producer:
            await producer.send("orders.delay", bytes(800), key=b"poison")
            await producer.send("orders.delay", b"v", key=b"bad", headers=[("mqd-delay", b"x")])
            await producer.send("orders.delay", b"small", key=b"small")
        with trio.fail_after(60):
            [record] = await arrived(client, TARGET, 1)
            letter, bad = await arrived(client, DEAD, 2)
        assert record.key == b"small" and bad.key == b"bad"
        assert letter.key is letter.value is None
        assert header(letter, "__dlq.errors.offset") == 0


@pytest.mark.parametrize(
    ("name", "value"), (("cleanup.policy", "compact"), ("max.message.bytes", "1000"))
)
@simulated(seed=3)
async def test_refused_records_do_not_stop_a_relay(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """One refusal names several of them, and the next batch is written at once."""
    begin, epochs = RelayProducer.begin_epoch, list[float]()

    async def counted(producer: RelayProducer) -> None:
        epochs.append(trio.current_time())
        await begin(producer)

    monkeypatch.setattr(RelayProducer, "begin_epoch", counted)
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1, mqd_dlq_topic="orders.dlq")
        await set_config(client, "orders", name, value)
        async with open_producer(client) as producer, trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(_send, producer, bytes(1000), [("mqd-delay", b"3000")], None)
        with trio.fail_after(30):
            assert len(await arrived(client, DEAD, 60)) == 60
        assert len(epochs) <= 1 + 2 * 60 / RECORD_ERRORS_MAX
        assert epochs[-1] - epochs[1] < 0.2, "no back-off"


async def set_config(client: ClusterClient, topic: str, name: str, value: str) -> None:
    change = ConfigChange(name, ConfigOperation.SET, value)
    await Admin(client).alter_configs({Resource(ResourceType.TOPIC, topic): [change]})
