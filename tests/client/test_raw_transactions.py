from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError, CommitFailed, DeadlineExceeded, TransactionBroken
from mqd.client.group_member import GroupMetadata
from mqd.client.raw_producer import RawProducer, end_transaction, open_raw_producer
from mqd.client.txn import Phase
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import INIT_PRODUCER_ID, PRODUCE, FakeBroker, FakeCluster, Hang, HangUp
from tests.client.fake_coordinator import FakeTransaction
from tests.client.test_consumer import values
from tests.client.test_producer import refusing
from tests.client.test_raw_producer import Built, as_usual, numbered, send_all

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
both = pytest.mark.parametrize("version", [1, 2])


@asynccontextmanager
async def producing(
    cluster: FakeCluster, name: str = "t", **options: Any
) -> AsyncIterator[tuple[ClusterClient, RawProducer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_raw_producer(client, transactional_id=name, **options) as producer,
    ):
        yield client, producer


def cluster_of(
    nursery: trio.Nursery, version: int, nodes: int = 1, *, two_phase: bool = False
) -> FakeCluster:
    cluster = FakeCluster(nursery, nodes=nodes)
    cluster.transaction_version = version
    cluster.add_topic("a", 2)
    for broker in cluster.brokers.values() if two_phase else ():
        broker.versions[INIT_PRODUCER_ID] = (0, 6)
    return cluster


async def read(client: ClusterClient) -> dict[int, list[bytes | None]]:
    async with open_consumer(
        client, dict.fromkeys((A0, A1), "beginning"), end="end", read_committed=True
    ) as consumer:
        return await values(consumer)


def expected(*ranges: range) -> dict[int, list[bytes]]:
    found = [b"%d" % number for each in ranges for number in each]
    return {0: found, 1: found} if found else {}


async def send_both(producer: RawProducer, start: int, stop: int) -> None:
    for batches in zip(numbered(0, start, stop), numbered(1, start, stop), strict=True):
        await send_all(producer, list(batches))


def transaction(cluster: FakeCluster) -> FakeTransaction:
    return cluster.transactions["t"]


@both
async def test_all_or_none(nursery: trio.Nursery, version: int) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        for round_ in range(4):
            await producer.begin()
            await send_both(producer, 30 * round_, 30 * round_ + 30)
            await producer.flush()
            done = [range(30)] * (round_ > 0) + [range(60, 90)] * (round_ > 2)
            assert await read(client) == expected(*done)
            await (producer.abort() if round_ % 2 else producer.commit())
        assert await read(client) == expected(range(30), range(60, 90))
        assert producer.producer[1] == (4 if version == 2 else 0)


@both
@pytest.mark.parametrize("code", [6, 19, 20, 51, 7])
async def test_transient_errors_are_retried(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int, code: int
) -> None:
    cluster = cluster_of(nursery, version)
    act = refusing(ErrorCode(code))
    cluster.one.script(PRODUCE, act, as_usual, act, HangUp(after=True), as_usual, act)
    async with producing(cluster) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 60)
        await producer.commit()
        assert await read(client) == expected(range(60))


@both
async def test_an_error_breaks_the_transaction_and_not_the_producer(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        for code in (
            ErrorCode.INVALID_RECORD,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ):
            await producer.begin()
            cluster.one.script(PRODUCE, as_usual, refusing(code))
            await send_both(producer, 0, 6)
            for call in (producer.flush, producer.commit):
                with pytest.raises(
                    TransactionBroken, match=r"the transaction can only be aborted: .*"
                ):
                    await call()
            with pytest.raises(TransactionBroken):
                await producer.send("a", Built(0, b"x"))
            await producer.abort()
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.commit()
        assert await read(client) == expected(range(30))


@both
async def test_an_abort_waits_for_batches_in_flight(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 6)
        await producer.flush()
        cluster.one.script(PRODUCE, Hang(after=True), *[Hang()] * 9)
        await send_both(producer, 6, 60)
        await trio.sleep(1)
        began = trio.current_time()
        await producer.abort()
        assert trio.current_time() - began > 2
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.commit()
        assert await read(client) == expected(range(30))


@both
async def test_offsets_and_batches_together(nursery: trio.Nursery, version: int) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        for round_, commit in enumerate([True, False]):
            await producer.begin()
            await send_both(producer, 0, 3)
            await producer.send_offsets({A0: 10 + round_}, GroupMetadata("g"))
            await (producer.commit() if commit else producer.abort())
        await producer.begin()  # only offsets: a marker of the exactly-once sink
        await producer.send_offsets({A1: 7}, GroupMetadata("g"))
        await producer.commit()
        assert await read(client) == expected(range(3))
    found = {tp: row[0] for tp, row in cluster.groups["g"].offsets.items()}
    assert found == {A0: 10, A1: 7}


@both
async def test_refused_offsets_break_the_transaction(nursery: trio.Nursery, version: int) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 3)
        with pytest.raises(CommitFailed):
            await producer.send_offsets({A0: 1}, GroupMetadata("g", 5, "gone"))
        with pytest.raises(TransactionBroken):
            await producer.commit()
        await producer.abort()
        assert await read(client) == {}


@both
async def test_another_producer_with_the_id_fences_and_aborts(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.flush()
        async with producing(cluster) as (_, second):
            with pytest.raises(ClientError) as info:
                await producer.commit()
            assert info.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
            assert producer.phase is Phase.DEAD
            with pytest.raises(ClientError, match=r"fenced|epoch"):
                await producer.begin()
            await second.begin()
            await send_both(second, 0, 3)
            await second.commit()
        assert await read(client) == expected(range(3))


@both
async def test_the_end_of_the_block_aborts_an_open_transaction(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (_, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.flush()
    assert transaction(cluster).state == "CompleteAbort"
    with pytest.raises(KeyError):
        async with producing(cluster) as (_, producer):
            await producer.begin()
            await send_both(producer, 0, 30)
            await producer.flush()
            raise KeyError
    assert transaction(cluster).state == "CompleteAbort"


async def test_a_call_out_of_turn_is_refused(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2)
    async with producing(cluster) as (client, producer):
        for call in (producer.commit, producer.abort, producer.prepare):
            with pytest.raises(ClientError, match=r"between transactions|two phases"):
                await call()
        with pytest.raises(ClientError, match=r"call begin first|between transactions"):
            await producer.send("a", Built(0, b"x"))
        async with open_raw_producer(client) as plain:
            with pytest.raises(ClientError, match=r"no transactional id"):
                await plain.begin()
        for options in (
            {"two_phase": True},
            {"transactional_id": ""},
            {"in_flight_per_partition": 6},
        ):
            with pytest.raises(ClientError):
                async with open_raw_producer(client, **options):
                    pass


# -- two phases (KIP-939)


def keep(broker: FakeBroker, request: Any) -> Any:
    """An action: InitProducerId of KIP-939.

    The transaction stays, and its owner gets the next epoch.
    """
    assert request.keep_prepared_txn and request.enable_2_pc and request.version == 6
    found = broker.cluster.transactions[request.transactional_id]
    if found.state != "Ongoing":
        return {"error_code": 0, "producer_id": found.producer_id, "producer_epoch": found.epoch}
    if (written := found.bumped_from) < 0 or request.producer_epoch != written:
        written = found.bumped_from = found.epoch
        found.epoch += 1
    return {
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "ongoing_txn_producer_id": found.producer_id,
        "ongoing_txn_producer_epoch": written,
    }


@both
@pytest.mark.parametrize("commit", [True, False])
async def test_a_prepared_transaction_is_ended_by_another_client(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int, commit: bool
) -> None:
    cluster = cluster_of(nursery, version, two_phase=True)
    async with producing(cluster, two_phase=True) as (_, producer):
        epoch = producer.producer[1]
        await producer.begin()
        await send_both(producer, 0, 30)
        cluster.one.script(INIT_PRODUCER_ID, keep)
        prepared = await producer.prepare()
        assert prepared == ("t", producer.producer[0], epoch + 1, True)
        assert producer.phase is Phase.PREPARED
        for call in (producer.flush, producer.commit, producer.begin):
            if call == producer.flush:
                continue
            with pytest.raises(
                ClientError, match=r"is prepared: only end_transaction or abort completes it"
            ):
                await call()
        with pytest.raises(ClientError, match=r"prepared"):
            await producer.send("a", Built(0, b"x"))
    assert transaction(cluster).state == "Ongoing"  # the end of the block does not end it
    async with connect([("fake", 9001)], network=cluster) as client:
        assert await read(client) == {}
        for _ in range(3):
            await end_transaction(
                client,
                prepared.transactional_id,
                prepared.producer_id,
                prepared.producer_epoch,
                commit,
            )
        assert await read(client) == (expected(range(30)) if commit else {})
        with pytest.raises(ClientError) as info:
            await end_transaction(
                client, "t", prepared.producer_id, prepared.producer_epoch, not commit
            )
        assert info.value.code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)


async def test_a_broker_without_keep_prepared_is_detected_by_a_field(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2, two_phase=True)
    seen = []

    def watched(broker: FakeBroker, request: Any) -> Any:
        seen.append((request.enable_2_pc, request.keep_prepared_txn))
        if request.keep_prepared_txn:
            return {"error_code": 35, "producer_id": -1, "producer_epoch": -1}
        return broker.init_transactional(request)

    cluster.one.script(INIT_PRODUCER_ID, watched, watched, watched)
    async with producing(cluster, two_phase=True) as (client, producer):
        assert seen == [(False, False), (False, True), (True, False)], (
            "then without a timeout from the beginning"
        )
        await producer.begin()
        await send_both(producer, 0, 30)
        prepared = await producer.prepare()
        assert prepared == ("t", *producer.producer, False)
        ended = await end_transaction(client, *prepared[:3], True)
        assert ended == (prepared.producer_id, prepared.producer_epoch + 1)
        assert await read(client) == expected(range(30))


async def test_an_empty_transaction_needs_no_end(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2, two_phase=True)
    async with producing(cluster, two_phase=True) as (client, producer):
        await producer.begin()
        prepared = await producer.prepare()
        assert prepared == ("t", -1, -1, False)
        before = len(cluster.one.requests)
        assert await end_transaction(client, *prepared[:3], True) == (-1, -1)
        assert len(cluster.one.requests) == before
        await producer.begin()  # it may continue
        await send_both(producer, 0, 3)
        await producer.commit()
        assert await read(client) == expected(range(3))


@both
async def test_a_writer_may_still_abort_its_prepared_transaction(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version, two_phase=True)
    async with producing(cluster, two_phase=True) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        cluster.one.script(INIT_PRODUCER_ID, keep)
        await producer.prepare()
        await producer.abort()
        assert transaction(cluster).state == "Empty"  # the timeout applies again
        await producer.begin()
        await send_both(producer, 30, 60)
        await producer.commit()
        assert await read(client) == expected(range(30, 60))


@pytest.mark.parametrize("then", ["prepare", "abort"])
async def test_a_preparation_without_a_response_is_repeated(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, then: str
) -> None:
    cluster = cluster_of(nursery, 2, two_phase=True)

    def keep_silently(broker: FakeBroker, request: Any) -> Any:
        keep(broker, request)
        return Hang()

    async with producing(cluster, two_phase=True, timeout_s=4.0) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        cluster.one.script(INIT_PRODUCER_ID, keep_silently)
        with pytest.raises(DeadlineExceeded):
            await producer.prepare()
        cluster.one.script(INIT_PRODUCER_ID, keep)
        if then == "abort":
            await producer.abort()
            assert transaction(cluster).state == "Empty"  # the timeout applies again
        else:
            prepared = await producer.prepare()
            await end_transaction(client, *prepared[:3], True)
            assert await read(client) == expected(range(30))


async def test_an_ended_transaction_cannot_be_prepared(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2, two_phase=True)
    async with producing(cluster, two_phase=True) as (_, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.flush()
        transaction(cluster).state = "CompleteAbort"
        cluster.one.script(INIT_PRODUCER_ID, keep)
        with pytest.raises(
            ClientError, match=r"preparing .*the coordinator has transaction"
        ) as info:
            await producer.prepare()
        assert info.value.code is ErrorCode.PRODUCER_FENCED
        assert producer.phase is Phase.DEAD


async def test_two_phases_need_a_broker_that_supports_them(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2)
    with pytest.raises(
        ClientError, match=r"no two-phase commit: it serves InitProducerId up to version 5"
    ) as info:
        async with producing(cluster, two_phase=True):
            pass
    assert info.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "transaction.two.phase.commit.enable=true" in info.value.remedy
    cluster = cluster_of(nursery, 2, two_phase=True)
    cluster.one.script(
        INIT_PRODUCER_ID, {"error_code": 53, "producer_id": -1, "producer_epoch": -1}
    )
    with pytest.raises(ClientError) as info:
        async with producing(cluster, two_phase=True):
            pass
    assert "transaction.two.phase.commit.enable=true" in info.value.remedy


async def test_an_error_of_a_deposed_coordinator_is_retried_first(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, 2)
    async with producing(cluster) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.flush()
        cluster.one.script(END_TXN, *({"error_code": code} for code in (90, 47, 49, 48)))
        await end_transaction(client, "t", *producer.producer, True)
        assert await read(client) == expected(range(30))
        began = trio.current_time()
        with pytest.raises(
            ClientError, match=r"committing the transaction of 't' \(producer id 1, epoch 0\): "
        ):
            await end_transaction(client, "t", 1, 0, True)
        assert 1.5 < trio.current_time() - began < 3


async def test_the_end_is_retried_through_moves_of_the_coordinator(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, 2, nodes=2)
    async with producing(cluster, two_phase=False) as (client, producer):
        await producer.begin()
        await send_both(producer, 0, 30)
        await producer.flush()
        cluster.one.script(
            END_TXN, HangUp(after=True), {"error_code": 51}, {"error_code": 15}, {"error_code": 14}
        )
        nursery.start_soon(move_coordinator, cluster)
        await end_transaction(client, "t", *producer.producer, True)
        assert (END_TXN, 5) in cluster.brokers[2].requests
        assert await read(client) == expected(range(30))


async def move_coordinator(cluster: FakeCluster) -> None:
    await trio.sleep(0.1)
    cluster.coordinator = 2


async def test_the_next_transaction_may_write_to_a_recreated_topic(
    nursery: trio.Nursery,
) -> None:
    cluster = cluster_of(nursery, 2)
    async with producing(cluster) as (client, producer):
        for _ in range(2):
            await producer.begin()
            await send_both(producer, 0, 30)
            await producer.commit()
            cluster.add_topic("a", 2)
            await client.refresh(["a"])
