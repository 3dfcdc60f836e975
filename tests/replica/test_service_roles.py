"""Leaders and followers among a node's partitions: who is fetched from, what becomes of
lost logs, and proposals for the ISR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode, MqError
from mqd.replica.partition import Assignment, Partition
from mqd.replica.settings import TopicSettings
from mqd.types import NO_NODE, IsrChange, IsrOutcome, NodeId, TopicPartition
from tests.replica.test_service import ME, PLAIN, TOPIC_ID, TWO, Replicas

TP = TopicPartition("t", 0)
THREE = NodeId(3)


class Fetchers:
    """Notes who is to be followed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, NodeId, int]] = []

    def follow(self, partition: Partition) -> None:
        self.calls.append(("follow", partition.assignment.leader, partition.leader_epoch))

    def unfollow(self, partition: Partition) -> None:
        self.calls.append(("unfollow", partition.assignment.leader, partition.leader_epoch))

    def taken(self) -> list[tuple[str, NodeId, int]]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
async def replicas(tmp_path: Path) -> Replicas:
    made = Replicas(tmp_path)
    await made.service.start()
    return made


def assign(
    replicas: Replicas,
    leader: NodeId,
    epoch: int,
    partition_epoch: int,
    isr: Sequence[NodeId],
    elr: Sequence[NodeId] = (),
) -> None:
    given = Assignment(
        TP, TOPIC_ID, leader, epoch, (ME, TWO, THREE), tuple(isr), partition_epoch, tuple(elr)
    )
    replicas.replica.apply([given], {"t": TopicSettings(PLAIN, 1)})


async def test_followers_follow_whoever_leads_and_in_which_epoch(replicas: Replicas) -> None:
    fetchers = replicas.replica.fetchers = Fetchers()
    assign(replicas, TWO, 0, 0, (TWO, ME))
    assign(replicas, TWO, 0, 1, (TWO,))  # nothing that concerns who is asked
    assign(replicas, THREE, 1, 2, (THREE,))
    assert fetchers.taken() == [("follow", TWO, 0), ("follow", THREE, 1)]
    assign(replicas, NO_NODE, 2, 3, (THREE,))
    assign(replicas, ME, 3, 4, (ME,))
    assert fetchers.taken() == [("unfollow", NO_NODE, 2), ("unfollow", ME, 3)]
    replicas.replica.delete("t")
    assert [call for call, _, _ in fetchers.taken()] == ["unfollow"]


async def test_a_lost_log_is_told_once_and_begun_anew_when_nobody_counts_on_it(
    replicas: Replicas,
) -> None:
    reported: list[tuple[UUID, int]] = []
    replicas.replica.on_offline = lambda topic_id, index: reported.append((topic_id, index))
    fetchers = replicas.replica.fetchers = Fetchers()
    assign(replicas, TWO, 0, 0, (TWO, ME))
    partition = replicas.replica.get(TP)
    assert partition is not None
    replicas.service.reader.unreadable(partition.log, "bytes that were there cannot be read")
    for _ in range(2):
        await replicas.replica.check()
    assert reported == [(TOPIC_ID, 0)]
    assert fetchers.taken()[-1][0] == "unfollow"
    for partition_epoch, (isr, elr) in enumerate([((TWO, ME), ()), ((TWO,), (ME,))], start=1):
        assign(replicas, TWO, 0, partition_epoch, isr, elr)
        assert replicas.replica.get(TP) is partition  # somebody may still count on it
    assign(replicas, TWO, 0, 3, (TWO,))
    anew = replicas.replica.get(TP)
    assert anew is not None and anew is not partition
    assert (anew.log.failure, anew.log.log_end_offset) == (None, 0)
    assert fetchers.taken()[-1] == ("follow", TWO, 0)


async def test_a_lost_log_is_told_again_when_its_leader_takes_it_in(replicas: Replicas) -> None:
    """The leader had heard a fetch from before; in the ISR this node may come to lead, and
    it has nothing.
    """
    reported: list[tuple[UUID, int]] = []
    replicas.replica.on_offline = lambda topic_id, index: reported.append((topic_id, index))
    assign(replicas, TWO, 0, 0, (TWO,), (ME,))
    partition = replicas.replica.get(TP)
    assert partition is not None
    replicas.service.reader.unreadable(partition.log, "bytes that were there cannot be read")
    await replicas.replica.check()
    assign(replicas, TWO, 0, 1, (TWO,), (ME,))
    assert reported == [(TOPIC_ID, 0)]
    assign(replicas, TWO, 0, 2, (TWO, ME))
    assert reported == [(TOPIC_ID, 0)] * 2


async def test_a_follower_that_the_controller_takes_out_says_anew_what_it_has(
    replicas: Replicas,
) -> None:
    sessions = replicas.replica.follower_sessions
    assign(replicas, ME, 0, 0, (ME, TWO, THREE))
    two, three = sessions.resolve(TWO, 7, 0, 0, 1.0), sessions.resolve(THREE, 8, 0, 0, 1.0)
    assign(replicas, ME, 0, 1, (ME, THREE))
    assert sessions.resolve(THREE, 8, three.id, 1, 2.0) is three
    with pytest.raises(MqError, match="no fetch session"):
        sessions.resolve(TWO, 7, two.id, 1, 2.0)


async def test_what_was_written_is_synced_when_durability_is_asked_for_later(
    replicas: Replicas,
) -> None:
    """Nobody may ever append again: the high watermark would wait for a sync that nothing
    asks for.
    """
    assign(replicas, ME, 0, 0, (ME, TWO))
    partition = replicas.replica.get(TP)
    assert partition is not None
    replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    assert (partition.high_watermark, partition.log.durability.end_offset) == (0, 0)
    replicas.replica.configure("t", TopicSettings(replace(PLAIN, flush_before_ack=True), 1))
    assert partition.log in replicas.service.directories[partition.log.directory].to_sync


async def test_a_replica_that_moved_away_takes_its_log_along(replicas: Replicas) -> None:
    assign(replicas, ME, 0, 0, (ME,))
    partition = replicas.replica.get(TP)
    assert partition is not None
    ticket = replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    assert ticket.releases == 1
    given = Assignment(TP, TOPIC_ID, TWO, 1, (TWO, THREE), (TWO,), 1)
    replicas.replica.apply([given], {"t": TopicSettings(PLAIN, 1)})
    assert replicas.replica.get(TP) is None
    assert TP not in replicas.service.logs


async def test_a_list_of_throttled_replicas_that_is_none_throttles_nothing(
    replicas: Replicas,
) -> None:
    for entries, expected in (
        (("0:1",), True),
        (("nonsense",), False),
        (("*",), True),
        ((), False),
    ):
        settings = TopicSettings(PLAIN, 1, leader_throttled=entries, follower_throttled=entries)
        replicas.replica.configure("t", settings)
        for throttle in (replicas.replica.leader_throttle, replicas.replica.follower_throttle):
            assert throttle.is_throttled(TP) is expected


async def test_proposals_go_in_one_request_and_again_until_they_are_decided(
    replicas: Replicas, autojump_clock: MockClock
) -> None:
    requests: list[list[IsrChange]] = []

    async def alter(changes: Sequence[IsrChange]) -> list[IsrOutcome]:
        requests.append(list(changes))
        if len(requests) == 1:
            raise MqError(ErrorCode.NOT_CONTROLLER)
        return [IsrOutcome(one.topic_partition, ErrorCode.NONE, ME, 0, (ME,), 1) for one in changes]

    replicas.replica.alter_partitions = alter
    replicas.replica.eligible = lambda node_id: 1
    given = [
        Assignment(TopicPartition("t", index), TOPIC_ID, ME, 0, (ME, TWO), (ME, TWO))
        for index in range(3)
    ]
    replicas.replica.apply(given, {"t": TopicSettings(PLAIN, 1)})
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
        # who is eligible to lead, the metadata says
        assert not any(ticket.releases for ticket in tickets)
        settled = [
            Assignment(one.topic_partition, TOPIC_ID, ME, 0, (ME, TWO), (ME,), 1) for one in given
        ]
        replicas.replica.apply(settled, {"t": TopicSettings(PLAIN, 1)})
        assert [ticket.releases for ticket in tickets] == [1, 1, 1]
        nursery.cancel_scope.cancel()
