"""Topics that one producer at a time may write to (`mqd.producer.access`), on whole clusters in
virtual time (I60).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.descriptions import Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.client.producer import open_producer
from mqd.client.transactional import TransactionalProducer, open_transactional_producer
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import CreateTopic
from mqd.controller.replay import replay
from mqd.delay_names import RESERVED_PREFIX
from mqd.errors import ErrorCode, MqError
from mqd.server.admissions import Admission, Admissions
from mqd.server.producer_access import refusal
from mqd.testing import Cluster, run
from mqd.types import PRODUCER_ACCESS, PRODUCER_OWNER, TopicPartition
from tests.seeds import seeds

ORDERS = TopicPartition("orders", 0)
OPTIONS = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


async def create(client: ClusterClient, access: str, lease_ms: int = 60_000) -> None:
    configs = {"mqd.producer.access": access, "mqd.producer.lease.ms": str(lease_ms)}
    await Admin(client).create_topic("orders", 1, configs=configs)
    await trio.sleep(1)


async def send(producer: TransactionalProducer, *values: bytes) -> None:
    async with producer.transaction():
        for value in values:
            await producer.send("orders", value)


async def committed(client: ClusterClient, *, all_records: bool = False) -> list[bytes]:
    async with open_consumer(
        client, {ORDERS: "beginning"}, end="end", read_committed=not all_records
    ) as consumer:
        return [record.value or b"" async for batch in consumer for record in batch.records]


async def owner_of(client: ClusterClient) -> str | None:
    resource = Resource(ResourceType.TOPIC, "orders")
    entries = (await Admin(client).describe_configs([resource]))[resource]
    assert not isinstance(entries, ClientError)
    return next(entry.value for entry in entries if entry.name == PRODUCER_OWNER)


@contextmanager
def refused(*codes: ErrorCode) -> Iterator[None]:
    with pytest.raises((ClientError, MqError)) as error:
        yield
    found: BaseException | None = error.value
    while found is not None and getattr(found, "code", None) not in codes:
        found = found.__cause__
    assert found is not None, repr(error.value)


def test_the_first_transactional_id_owns_an_exclusive_topic() -> None:
    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, "exclusive")
            async with (
                open_transactional_producer(client, "first") as first,
                open_transactional_producer(client, "second") as second,
            ):
                await send(first, b"1")
                assert await owner_of(client) == "first"
                with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                    await send(second, b"no")
                await send(first, b"2")
            with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                async with open_producer(client) as plain:
                    await plain.send("orders", b"no")
            async with open_transactional_producer(client, "first") as again:
                await send(again, b"3")
            assert await committed(client, all_records=True) == [b"1", b"2", b"3"]

    run(main)


def test_an_id_that_cannot_own_a_topic_is_refused_for_good() -> None:
    """Such as one of two lines: a client that retries would never stop."""

    async def main() -> None:
        async with Cluster(nodes=1, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, "exclusive")
            async with open_transactional_producer(client, "two\nlines") as producer:
                with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                    await send(producer, b"no")
            assert not await owner_of(client)

    run(main)


def test_a_node_never_owns_a_topic() -> None:
    """Its relays and dead letters are refused, also if the topic has no owner."""
    image = MetadataImage()
    configs = ((PRODUCER_ACCESS, "wait"),)
    replay(image, CreateTopic("orders", UUID(int=1), (), configs), 1, Delta(1))
    found = refusal(image, "orders", f"{RESERVED_PREFIX}.delay.1.0")
    assert found is not None and found.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "relays" in found.message


def test_an_idle_owner_is_fenced_by_the_next_one() -> None:
    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, "exclusive", lease_ms=5000)
            async with (
                open_transactional_producer(client, "first") as first,
                open_transactional_producer(client, "second") as second,
            ):
                await send(first, b"1")
                await trio.sleep(6)
                await send(second, b"2")
                assert await owner_of(client) == "second"
                with refused(*FENCED):
                    await send(first, b"no")
            assert await committed(client, all_records=True) == [b"1", b"2"]

    run(main)


def test_another_id_waits_until_the_owner_is_idle() -> None:
    async def main() -> None:
        async with Cluster(nodes=1, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, "wait", lease_ms=5000)
            async with (
                open_transactional_producer(client, "first") as first,
                open_transactional_producer(client, "second") as second,
            ):
                await send(first, b"1")
                began = trio.current_time()
                await send(second, b"2")
                assert 4 < trio.current_time() - began < 10
            assert await committed(client) == [b"1", b"2"]

    run(main)


def test_a_refusal_is_a_new_exception_each_time() -> None:
    """An exception keeps the frames through which it was raised."""
    admissions, one = Admissions(), Admission("id", "topic")
    assert admissions.refusal(one, 0.0) is None
    admissions.ended(one, MqError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "why"), 0.0)
    first, second = admissions.refusal(one, 1.0), admissions.refusal(one, 1.0)
    assert first is not None and second is not None and first is not second
    assert (second.code, second.message) == (first.code, "why")


@pytest.mark.parametrize("seed", seeds(1, range(12)))
def test_transactions_of_two_owners_never_overlap(seed: int) -> None:
    """Three producers compete for a topic whose owner soon counts as idle, while nodes fail. No
    record of another owner is between two records of a transaction, not even an aborted one.
    """

    async def faults(cluster: Cluster) -> None:
        chance = cluster.world.random("faults")
        while True:
            await trio.sleep(chance.uniform(1, 5))
            node = cluster.nodes[1 + chance.randrange(3)]
            match chance.choice(["kill", "pause", "cut off"]):
                case "kill":
                    node.kill()
                case "pause":
                    node.pause(chance.uniform(1, 12))
                case "cut off":
                    cluster.network.isolate(node.id)
            await trio.sleep(chance.uniform(1, 6))
            cluster.network.heal()
            node.resume()
            await cluster.start()

    async def compete(cluster: Cluster, name: str, done: set[bytes]) -> None:
        chance = cluster.world.random(name)
        client = await cluster.client(name)
        number = 0
        while True:
            try:
                async with open_transactional_producer(
                    client, name, transaction_timeout_ms=4000
                ) as producer:
                    while True:
                        number += 1
                        label = b"%s/%d" % (name.encode(), number)
                        async with producer.transaction():
                            for _ in range(3):
                                await producer.send("orders", label)
                                await trio.sleep(chance.uniform(0, 0.5))
                        done.add(label)
                        await trio.sleep(chance.uniform(0, 4))
            except (ClientError, MqError, OSError, ExceptionGroup):
                await trio.sleep(chance.uniform(0.1, 1))

    async def main() -> None:
        done: set[bytes] = set()
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, "wait", lease_ms=1000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults, cluster)
                for name in ("first", "second", "third"):
                    nursery.start_soon(compete, cluster, name, done)
                await trio.sleep(25)
                nursery.cancel_scope.cancel()
            cluster.network.heal()
            for node in cluster.nodes.values():
                node.resume()
            await cluster.start()
            await trio.sleep(10)  # until transactions of cancelled producers have timed out
            everything = await committed(client, all_records=True)
            places: dict[bytes, list[int]] = {}
            for place, label in enumerate(everything):
                places.setdefault(label, []).append(place)
            for label, (first, *_, last) in ((one, [*at, at[-1]]) for one, at in places.items()):
                owners = {other.split(b"/")[0] for other in everything[first : last + 1]}
                assert owners == {label.split(b"/")[0]}, (label, everything[first : last + 1])
            visible = await committed(client)
            assert {label for label in done if visible.count(label) != 3} == set()
            assert len({label.split(b"/")[0] for label in done}) > 1

    run(main, seed=seed)
