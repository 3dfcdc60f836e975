"""Batches that an idempotent producer sent after one that was refused with an error that it
retries. They arrive before the client knows of the refusal.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from mqd.errors import ErrorCode
from mqd.limits import PRODUCER_BATCHES_CACHED, REFUSED_PARTITIONS_MAX
from mqd.server.refused_batches import RefusedBatches
from mqd.types import TopicPartition
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

PRODUCER = 7


async def send(client: Client, sequence: int, *, epoch: int = 0) -> ErrorCode:
    """Send the record of this sequence. Returns the error code."""
    records = batch(b"%d" % sequence, producer_id=PRODUCER, epoch=epoch, sequence=sequence)
    return ErrorCode((await client.produce("t", records)).error_code)


async def log_of(node: Rig, client: Client) -> list[bytes]:
    node.lead("t", ME, isr=(ME,))
    return values((await client.fetch("t", 0)).records)


async def follower_with_records(node: Rig, client: Client) -> None:
    """A follower that has the sequences 0 and 1 of the producer."""
    node.create("t", replicas=(ME, OTHER))
    node.lead("t", ME, isr=(ME,))
    assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
    node.lead("t", OTHER, isr=(ME, OTHER))


async def test_later_batches_get_the_error_of_the_first(tmp_path: Path) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER would make librdkafka begin a new producer epoch, in which it
    repeats batches that other partitions have already.
    """
    async with rig(tmp_path) as node:
        client = await node.connect()
        await follower_with_records(node, client)
        assert await send(client, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        assert [await send(client, sequence) for sequence in (3, 4)] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        ] * 2
        assert [await send(client, sequence) for sequence in (2, 3, 4)] == [ErrorCode.NONE] * 3
        assert await log_of(node, client) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_first_batches_of_a_producer_stay_in_order(tmp_path: Path) -> None:
    """An unknown producer may begin with any sequence, but not before its own earlier batch."""
    async with rig(tmp_path) as node:
        client = await node.connect()
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", OTHER)
        assert await send(client, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        assert await send(client, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
        assert await log_of(node, client) == [b"0", b"1"]


async def test_a_batch_that_follows_in_the_log_is_appended(tmp_path: Path) -> None:
    """The refused batch was a retry, and the log had it."""
    async with rig(tmp_path) as node:
        client = await node.connect()
        await follower_with_records(node, client)
        assert await send(client, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        assert [await send(client, sequence) for sequence in (2, 1)] == [ErrorCode.NONE] * 2
        assert await send(client, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await log_of(node, client) == [b"0", b"1", b"2"]


async def test_a_client_that_never_sends_the_first_one_gets_the_real_error(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        await follower_with_records(node, client)
        assert await send(client, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        codes = [await send(client, 3) for _ in range(PRODUCER_BATCHES_CACHED)]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * (PRODUCER_BATCHES_CACHED - 1) + [
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        ]


async def test_a_new_producer_that_never_sends_the_first_one_may_begin(tmp_path: Path) -> None:
    """As with Apache Kafka, whose records may have been deleted."""
    async with rig(tmp_path) as node:
        client = await node.connect()
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", OTHER)
        assert await send(client, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        codes = [await send(client, 6) for _ in range(PRODUCER_BATCHES_CACHED)]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * (PRODUCER_BATCHES_CACHED - 1) + [
            ErrorCode.NONE
        ]


async def test_another_connection_and_a_new_epoch_are_not_affected(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client, other = await node.connect(), await node.connect()
        await follower_with_records(node, client)
        assert await send(client, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.lead("t", ME, isr=(ME,))
        assert await send(other, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(client, 0, epoch=1) == ErrorCode.NONE


async def test_a_batch_that_was_appended_and_then_refused_counts(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """This node lost the leadership, truncated its log, and leads again."""
    async with rig(tmp_path) as node:
        client = await node.connect()
        node.create("t", replicas=(ME, OTHER))
        client.post(
            "produce", 9, node.produce_body("t", batch(b"0", producer_id=PRODUCER, sequence=0))
        )
        await run_until_idle()
        node.lead("t", OTHER)
        await run_until_idle()
        (response,) = client.responses()
        (row,) = response.responses[0].partition_responses
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.logs.truncate_to(node.partition("t").log, 0)
        node.partition("t").log_replaced()
        node.lead("t", ME, isr=(ME,))
        assert await send(client, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2


async def test_too_few_replicas(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        await follower_with_records(node, client)
        node.alter("t", min_insync_replicas="2")
        node.lead("t", ME, isr=(ME,))
        assert await send(client, 2) == ErrorCode.NOT_ENOUGH_REPLICAS
        node.alter("t", min_insync_replicas="1")
        assert await send(client, 3) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert [await send(client, sequence) for sequence in (2, 3)] == [ErrorCode.NONE] * 2


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]
)
def test_errors_that_no_client_retries_are_not_noted(code: ErrorCode) -> None:
    refused = RefusedBatches()
    refused.note(TopicPartition("t", 0), code)
    assert refused.error_of_next(TopicPartition("t", 0)) is None


def test_the_memory_is_bounded() -> None:
    refused = RefusedBatches()
    for index in range(REFUSED_PARTITIONS_MAX + 1):
        refused.note(TopicPartition("t", index), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert refused.error_of_next(TopicPartition("t", 0)) is None
    assert refused.error_of_next(TopicPartition("t", 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.error_of_next(TopicPartition("t", REFUSED_PARTITIONS_MAX)) is not None
