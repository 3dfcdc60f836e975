"""Parked requests: what wakes, rejects and expires them."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mqd.errors import ErrorCode
from mqd.replica.partition import Partition
from mqd.replica.settings import TopicSettings
from mqd.types import TopicPartition
from tests.log.support import batch
from tests.replica.replicas import DURABLE, ME, PLAIN, TWO, Replicas, Ticket


async def test_requests_not_committed_in_time_time_out(
    replicas: Replicas, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        slow, fast = replicas.held("t", 0, config=DURABLE), replicas.held("t", 1)
        late, early = replicas.produce(slow, fast, timeout=3), replicas.produce(slow, timeout=1)
        replicas.replica.end_of_turn()
        await wait_all_tasks_blocked()
        mock_clock.jump(1.01)
        await wait_all_tasks_blocked()
        assert (early.codes, early.releases, late.releases) == (
            {TopicPartition("t", 0): ErrorCode.REQUEST_TIMED_OUT},
            1,
            0,
        )
        mock_clock.jump(2)
        await wait_all_tasks_blocked()
        assert (late.codes, late.releases) == (
            {TopicPartition("t", 0): ErrorCode.REQUEST_TIMED_OUT},
            1,
        )
        replicas.synced(slow)  # the records are there; no client gets a second response
        assert (early.releases, late.releases) == (1, 1)
        assert not slow.acks
        nursery.cancel_scope.cancel()


async def test_waiting_requests_get_one_error_when_the_leadership_ends(
    replicas: Replicas, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        partition = replicas.held(replicas=(ME, TWO), config=DURABLE)
        ticket = replicas.produce(partition)
        replicas.replica.end_of_turn()
        released = replicas.park(partition)
        replicas.assign(replicas=(ME, TWO), leader=TWO, epoch=1, config=DURABLE)
        assert (ticket.codes, ticket.releases) == (
            {TopicPartition("t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER},
            1,
        )
        assert len(released) == 1
        mock_clock.jump(10)
        await wait_all_tasks_blocked()
        assert (ticket.releases, len(released)) == (1, 1)
        nursery.cancel_scope.cancel()


async def test_waiting_requests_of_a_deleted_topic_get_an_error(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    ticket = replicas.produce(partition)
    replicas.replica.end_of_turn()
    released = replicas.park(partition)
    replicas.replica.assignments.delete("t")
    assert ticket.codes == {TopicPartition("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (ticket.releases, len(released)) == (1, 1)


async def test_a_new_epoch_of_the_same_leader_fails_no_waiting_request(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    ticket = replicas.produce(partition)
    replicas.replica.end_of_turn()
    replicas.assign(epoch=1, config=DURABLE)
    assert ticket.releases == 0
    replicas.synced(partition)
    assert (ticket.releases, ticket.codes) == (1, {})


def committed(partition: Partition, replicas: Replicas) -> tuple[Ticket, list[float]]:
    """A producer and a consumer wait for a commit that lagging replicas delay."""
    ticket = replicas.produce(partition)
    partition.configure(2)  # noted while the produce request was under way
    replicas.replica.end_of_turn()
    released = replicas.park(partition)
    assert (ticket.releases, released, partition.high_watermark) == (0, [], 0)
    return ticket, released


async def test_a_lower_minimum_commits_waiting_records(replicas: Replicas) -> None:
    partition = replicas.held(replicas=(ME, TWO), isr=(ME,))
    ticket, released = committed(partition, replicas)
    replicas.replica.assignments.configure("t", TopicSettings(PLAIN, 1))
    assert partition.high_watermark == 1
    assert (ticket.releases, len(released)) == (1, 1)


async def test_replicas_that_caught_up_commit_waiting_records(replicas: Replicas) -> None:
    partition = replicas.held(replicas=(ME, TWO), isr=(ME,))
    ticket, released = committed(partition, replicas)
    replicas.assign(replicas=(ME, TWO), isr=(ME,), epoch=1, minimum=1)
    assert partition.high_watermark == 1
    assert (ticket.releases, len(released)) == (1, 1)


async def test_a_fetch_wakes_by_bytes_from_any_of_its_partitions(replicas: Replicas) -> None:
    one, other, third = (replicas.held("t", index) for index in range(3))
    size = len(batch())
    released = replicas.park(one, other, bytes_wanted=2 * size)
    elsewhere = replicas.park(third)
    for partition in (one, other):
        assert not released
        replicas.produce(partition)
        replicas.replica.end_of_turn()
    assert len(released) == 1
    assert not elsewhere
    assert not one.fetches
    assert not other.fetches
    assert third.fetches


async def test_a_fetch_wakes_by_its_deadline(replicas: Replicas, mock_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        await wait_all_tasks_blocked()
        partition = replicas.held()
        late, early = replicas.park(partition, timeout=9), replicas.park(partition, timeout=2)
        mock_clock.jump(2)
        await wait_all_tasks_blocked()
        assert (len(late), len(early)) == (0, 1)
        mock_clock.jump(7)
        await wait_all_tasks_blocked()
        assert (len(late), len(early)) == (1, 1)
        nursery.cancel_scope.cancel()


async def test_a_duplicate_waits_for_the_first_batch(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    data = batch(producer_id=1, sequence=0)
    first = replicas.produce(partition, data=data)
    replicas.replica.end_of_turn()
    second = replicas.produce(partition, data=data)
    replicas.replica.end_of_turn()
    assert (first.releases, second.releases, partition.log.log_end_offset) == (0, 0, 1)
    replicas.synced(partition)
    assert (first.releases, second.releases) == (1, 1)
