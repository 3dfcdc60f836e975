"""The turn: appends are written and acknowledged together."""

from __future__ import annotations

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition
from tests.log.support import batch
from tests.replica.replicas import DURABLE, ME, OTHER_ID, TWO, Replicas


async def test_nothing_is_committed_before_the_turn_ends(replicas: Replicas) -> None:
    partition = replicas.held()
    ticket = replicas.produce(partition)
    assert (partition.high_watermark, ticket.releases) == (0, 0)
    replicas.replica.end_of_turn()
    assert (partition.high_watermark, ticket.releases, ticket.codes) == (1, 1, {})
    replicas.replica.end_of_turn()
    assert ticket.releases == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_acks_1_waits_for_the_write_and_acks_all_for_the_commit(
    replicas: Replicas, acks: int
) -> None:
    partition = replicas.held(replicas=(ME, TWO))
    partition.short_of_replicas = True  # replicas lagged after the append was accepted
    if acks == -1:
        partition.short_of_replicas = False
        ticket = replicas.produce(partition, acks=acks)
        partition.short_of_replicas = True
    else:
        ticket = replicas.produce(partition, acks=acks)
    replicas.replica.end_of_turn()
    assert (ticket.releases, partition.high_watermark) == (int(acks == 1), 0)
    assert len(partition.acks) == int(acks == -1)


async def test_a_ticket_waits_for_its_last_partition(replicas: Replicas) -> None:
    one, other = replicas.held("t", 0, config=DURABLE), replicas.held("t", 1, config=DURABLE)
    ticket = replicas.produce(one, other)
    replicas.replica.end_of_turn()
    replicas.synced(one)
    assert ticket.releases == 0
    replicas.synced(other)
    assert (ticket.releases, ticket.codes) == (1, {})


async def test_tickets_are_freed_only_up_to_the_high_watermark(
    replicas: Replicas,
) -> None:
    partition = replicas.held(config=DURABLE)
    tickets = []
    for _ in range(3):
        tickets.append(replicas.produce(partition))
        replicas.replica.end_of_turn()
    assert partition.log.on_synced(2)
    replicas.replica.on_durable(partition.log)
    assert [ticket.releases for ticket in tickets] == [1, 1, 0]


async def test_durability_of_a_replaced_log_completes_no_request(replicas: Replicas) -> None:
    old = replicas.held(config=DURABLE).log
    replicas.replica.assignments.delete("t")
    new = replicas.held(topic_id=OTHER_ID, config=DURABLE)
    ticket = replicas.produce(new)
    replicas.replica.end_of_turn()
    replicas.replica.on_durable(old)
    assert (ticket.releases, new.high_watermark) == (0, 0)


async def test_a_leader_whose_first_write_failed_returns_the_ends_of_older_epochs(
    replicas: Replicas,
) -> None:
    """Otherwise a follower with records of an epoch in between gets no truncation offset until the
    next append.
    """
    partition = replicas.held(replicas=(ME, TWO), epoch=4)
    replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    replicas.held(replicas=(ME, TWO), epoch=6)
    assert partition.log.epochs.end_offset_for(5, 1) == (4, 1)
    replicas.faulty.free = 10
    replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    assert partition.log.failure is not None
    assert partition.log.epochs.end_offset_for(5, 1) == (4, 1)


async def test_a_failed_write_refuses_only_appends_of_its_log(replicas: Replicas) -> None:
    good, full = replicas.held("good"), replicas.held("full", topic_id=OTHER_ID)
    mixed = replicas.produce(good, full)
    alone = replicas.produce(full, acks=1)
    fine = replicas.produce(good)
    replicas.faulty.free = len(batch()) * 2
    replicas.replica.end_of_turn()
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    partition = full.assignment.topic_partition
    assert (mixed.codes, alone.codes, fine.codes) == (
        {partition: storage},
        {partition: storage},
        {},
    )
    assert [ticket.releases for ticket in (mixed, alone, fine)] == [1, 1, 1]
    assert (good.high_watermark, good.log.log_end_offset) == (2, 2)
    assert (full.high_watermark, full.log.log_end_offset) == (0, 0)
    assert not full.acks
    replicas.faulty.free = 1 << 40
    again = replicas.produce(full)
    replicas.replica.end_of_turn()
    assert (again.releases, again.codes, full.high_watermark) == (1, {}, 1)


async def test_a_failed_write_fails_no_earlier_writes(
    replicas: Replicas,
) -> None:
    partition = replicas.held(config=DURABLE)
    before = replicas.produce(partition)
    replicas.replica.end_of_turn()
    lost = replicas.produce(partition)
    replicas.faulty.free = 0
    replicas.replica.end_of_turn()
    assert (lost.releases, lost.codes) == (
        1,
        {TopicPartition("t", 0): ErrorCode.KAFKA_STORAGE_ERROR},
    )
    assert before.releases == 0
    replicas.synced(partition)
    assert (before.releases, before.codes) == (1, {})
    assert partition.high_watermark == 1


async def test_an_append_elsewhere_is_refused_before_it_is_planned(replicas: Replicas) -> None:
    for partition, code in (
        (replicas.held("a", leader=TWO, replicas=(ME, TWO)), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (
            replicas.held("b", replicas=(ME, TWO), isr=(ME,), minimum=2, topic_id=OTHER_ID),
            ErrorCode.NOT_ENOUGH_REPLICAS,
        ),
    ):
        with pytest.raises(MqError) as refused:
            replicas.produce(partition)
        assert refused.value.code is code
        assert partition.log.log_end_offset == 0
    replicas.replica.end_of_turn()
