"""Proposals of ISR changes to the controller."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode, MqError
from mqd.replica.assignment import Assignment
from mqd.replica.settings import TopicSettings
from mqd.types import IsrChange, IsrOutcome, TopicPartition
from tests.replica.replicas import ME, PLAIN, TOPIC_ID, TWO, Replicas


async def test_proposals_share_a_request_and_are_retried_until_decided(
    replicas: Replicas, autojump_clock: MockClock
) -> None:
    requests: list[list[IsrChange]] = []

    async def alter(changes: Sequence[IsrChange]) -> list[IsrOutcome]:
        requests.append(list(changes))
        if len(requests) == 1:
            raise MqError(ErrorCode.NOT_CONTROLLER)
        return [IsrOutcome(one.topic_partition, ErrorCode.NONE, ME, 0, (ME,), 1) for one in changes]

    replicas.ports.alter_partitions = alter
    replicas.ports.eligible_epoch = lambda node_id: 1
    given = [
        Assignment(TopicPartition("t", index), TOPIC_ID, ME, 0, (ME, TWO), (ME, TWO))
        for index in range(3)
    ]
    replicas.replica.assignments.apply(given, {"t": TopicSettings(PLAIN, 1)})
    tickets = [
        replicas.produce(partition, timeout=100.0) for partition in replicas.replica.partitions()
    ]
    replicas.replica.end_of_turn()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        await trio.sleep(29)
        assert not requests
        await trio.sleep(10)
        assert [len(request) for request in requests] == [3, 3]
        assert all(partition.isr == {ME} for partition in replicas.replica.partitions())
        # only the metadata shows which replicas are eligible to lead
        assert not any(ticket.releases for ticket in tickets)
        settled = [
            Assignment(one.topic_partition, TOPIC_ID, ME, 0, (ME, TWO), (ME,), 1) for one in given
        ]
        replicas.replica.assignments.apply(settled, {"t": TopicSettings(PLAIN, 1)})
        assert [ticket.releases for ticket in tickets] == [1, 1, 1]
        nursery.cancel_scope.cancel()
