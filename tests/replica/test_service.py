"""The partitions of a node: what the metadata does to them, and the turn that makes appends
count.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mqd.errors import ErrorCode, MqError
from mqd.io.entropy import RandomEntropy
from mqd.log.log_config import LogConfig
from mqd.protocol.files import HIGH_WATERMARK_CHECKPOINT, decode_offset_checkpoint
from mqd.replica import service
from mqd.replica.partition import Assignment, Partition
from mqd.replica.service import CHECKPOINT_SECONDS, RETRY_SECONDS, ReplicaService
from mqd.replica.settings import TopicSettings
from mqd.replica.waiters import Append, FetchWaiter, ProduceTicket
from mqd.types import NodeId, TopicPartition
from tests.log.support import FaultyDisk, Harness, batch

ME, TWO = NodeId(1), NodeId(2)
TOPIC_ID = UUID(int=7, version=4)
OTHER_ID = UUID(int=8, version=4)
PLAIN = LogConfig()
DURABLE = LogConfig(flush_before_ack=True)


class Ticket(ProduceTicket):
    """Knows what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.releases = 0

    def refuse(self, append: Append, code: ErrorCode) -> None:
        self.codes[append[0].assignment.topic_partition] = code

    def release(self) -> None:
        self.releases += 1


class Replicas(Harness):
    """A ReplicaService on a LogService on a directory."""

    def __init__(self, directory: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(directory, disk=disk)
        self.replica = ReplicaService(
            node_id=ME, logs=self.service, clock=self.clock, entropy=RandomEntropy(random.Random(1))
        )

    @property
    def faulty(self) -> FaultyDisk:
        assert isinstance(self.disk, FaultyDisk)
        return self.disk

    def assign(
        self,
        name: str = "t",
        index: int = 0,
        *,
        leader: NodeId = ME,
        epoch: int = 0,
        replicas: Sequence[NodeId] = (ME,),
        isr: Sequence[NodeId] | None = None,
        topic_id: UUID = TOPIC_ID,
        config: LogConfig = PLAIN,
        minimum: int = 1,
    ) -> Partition | None:
        topic_partition = TopicPartition(name, index)
        assignment = Assignment(
            topic_partition,
            topic_id,
            leader,
            epoch,
            tuple(replicas),
            tuple(replicas if isr is None else isr),
        )
        self.replica.apply([assignment], {name: TopicSettings(config, minimum)})
        return self.replica.get(topic_partition)

    def held(self, name: str = "t", index: int = 0, **options: Any) -> Partition:
        partition = self.assign(name, index, **options)
        assert partition is not None
        return partition

    def produce(
        self,
        *partitions: Partition,
        acks: int = -1,
        data: bytes | bytearray | None = None,
        timeout: float = 5.0,
    ) -> Ticket:
        """One request's appends, in the turn that is going on."""
        ticket = Ticket()
        ticket.deadline = trio.current_time() + timeout
        for partition in partitions:
            view = memoryview(bytearray(data if data is not None else batch()))
            appended = self.replica.append_nowait(partition, view, acks, self.clock.now_ms)
            wanted = (
                appended.last_offset + 1
                if acks == -1 or partition.log.config.flush_before_ack
                else -1
            )
            rows = [(partition.assignment.topic_partition.partition, 0)]
            ticket.appends.append((partition, wanted, rows, 0))
        self.replica.wait_committed(ticket)
        return ticket

    def synced(self, partition: Partition) -> None:
        assert partition.log.on_synced(partition.log.written_end_offset)
        self.replica.on_durable(partition.log)

    def park(
        self, *partitions: Partition, bytes_wanted: int = 1, timeout: float = 5.0
    ) -> list[float]:
        """A fetch that waits; the list gets the time of its release."""
        released: list[float] = []
        waiter = FetchWaiter(
            lambda: released.append(trio.current_time()),
            bytes_wanted,
            trio.current_time() + timeout,
        )
        self.replica.park(waiter, partitions)
        return released


@pytest.fixture
async def replicas(tmp_path: Path) -> Replicas:
    made = Replicas(tmp_path)
    await made.service.start()
    return made


# -- what the metadata says


async def test_a_partition_is_found_by_name_and_by_id(replicas: Replicas) -> None:
    partition = replicas.held()
    assert partition.is_leader
    assert (
        replicas.replica.by_name[b"t"][0] is replicas.replica.by_id[TOPIC_ID.bytes][0] is partition
    )
    assert replicas.replica.get(TopicPartition("t", 0)) is partition
    assert replicas.replica.statistics().leaders == 1


async def test_what_is_not_assigned_here_is_not_opened_and_what_was_is_closed(
    replicas: Replicas,
) -> None:
    assert replicas.assign(replicas=(TWO,), leader=TWO) is None
    assert not replicas.service.logs
    replicas.held(replicas=(ME, TWO), epoch=1)
    assert replicas.assign(replicas=(TWO,), leader=TWO, epoch=2) is None
    assert not replicas.service.logs
    assert not replicas.replica.by_name
    assert not replicas.replica.by_id


async def test_delete_removes_every_partition_of_the_topic_and_of_no_other(
    replicas: Replicas,
) -> None:
    for index in range(3):
        replicas.held("t", index)
    kept = replicas.held("t2", topic_id=OTHER_ID)
    replicas.replica.delete("t")
    replicas.replica.delete("t")
    assert replicas.replica.partitions() == [kept]
    assert list(replicas.service.logs) == [TopicPartition("t2", 0)]
    assert replicas.replica.get(TopicPartition("t", 0)) is None


@pytest.mark.parametrize("again", [False, True])
async def test_a_partition_that_is_deleted_while_others_are_looked_at_is_not_lost(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(service, "_CHECKED_AT_ONCE", 2)
    told: list[tuple[UUID, int]] = []
    replicas.replica.on_offline = lambda *partition: told.append(partition)
    replicas.held("first")
    replicas.held("then")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.check)
        await trio.lowlevel.checkpoint()
        replicas.replica.delete("then")
        if again:
            replicas.held("then", topic_id=OTHER_ID)
    assert told == []


async def test_strays_are_removed_and_what_is_known_by_its_id_stays(replicas: Replicas) -> None:
    for name, topic_id in (("known", TOPIC_ID), ("another", TOPIC_ID), ("gone", TOPIC_ID)):
        replicas.service.open(TopicPartition(name, 0), topic_id, PLAIN)
    removed = replicas.replica.remove_strays(
        {TopicPartition("known", 0): TOPIC_ID, TopicPartition("another", 0): OTHER_ID}
    )
    assert sorted(one.topic for one in removed) == ["another", "gone"]
    assert list(replicas.service.logs) == [TopicPartition("known", 0)]


async def test_a_log_that_cannot_be_opened_is_offline_until_it_can(replicas: Replicas) -> None:
    replicas.faulty.write_error = errno.EIO
    assert replicas.assign() is None
    assert "injected" in replicas.replica.offline[TopicPartition("t", 0)]
    assert replicas.replica.statistics().offline == 1
    replicas.faulty.write_error = 0
    assert replicas.held(epoch=1).is_leader
    assert replicas.replica.statistics().offline == 0


async def test_what_a_full_disk_kept_offline_heals_by_itself(
    replicas: Replicas, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    replicas.faulty.free = 0
    settings = TopicSettings(PLAIN, 1)
    assignments = [
        Assignment(TopicPartition("t", index), TOPIC_ID, ME, 0, (ME,), (ME,)) for index in range(50)
    ]
    replicas.replica.apply(assignments, {"t": settings})
    assert len(replicas.replica.offline) == 50
    assert caplog.text.count("offline") == 1 and "count=50" in caplog.text
    replicas.replica.configure("t", TopicSettings(DURABLE, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        await trio.sleep(3 * RETRY_SECONDS)
        assert len(replicas.replica.offline) == 50
        replicas.faulty.free = 1 << 30
        await trio.sleep(2 * RETRY_SECONDS)
        nursery.cancel_scope.cancel()
    assert not replicas.replica.offline and len(replicas.replica.partitions()) == 50
    assert all(
        partition.is_leader and partition.log.config.flush_before_ack
        for partition in replicas.replica.partitions()
    )


async def test_what_was_deleted_while_offline_stays_away(
    replicas: Replicas, autojump_clock: MockClock
) -> None:
    replicas.faulty.free = 0
    assert replicas.assign() is None
    replicas.replica.delete("t")
    replicas.faulty.free = 1 << 30
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        await trio.sleep(2 * RETRY_SECONDS)
        nursery.cancel_scope.cancel()
    assert not replicas.replica.partitions() and not replicas.replica.offline


async def test_an_offline_partition_does_not_stop_its_neighbours(replicas: Replicas) -> None:
    replicas.service.fenced[TopicPartition("t", 0)] = "damaged"
    assert replicas.assign("t", 0) is None
    assert replicas.held("t", 1).is_leader
    replicas.replica.delete("t")
    assert not replicas.replica.offline


async def test_a_partition_that_went_elsewhere_is_not_offline_here(replicas: Replicas) -> None:
    replicas.service.fenced[TopicPartition("t", 0)] = "damaged"
    replicas.assign(replicas=(ME, TWO))
    replicas.assign(replicas=(TWO,), leader=TWO, epoch=1)
    assert not replicas.replica.offline


async def test_a_topic_made_again_is_not_held_back_by_the_damaged_log_of_the_one_before(
    replicas: Replicas,
) -> None:
    replicas.service.fenced[TopicPartition("t", 0)] = "damaged"
    replicas.assign()
    replicas.replica.delete("t")
    assert replicas.assign(topic_id=OTHER_ID) is not None


async def test_the_high_watermark_comes_from_the_checkpoint(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    first = Replicas(tmp_path)
    await first.service.start()
    partition = first.held(replicas=(ME, TWO), isr=(ME,))
    first.produce(partition)
    first.replica.end_of_turn()
    first.replica.checkpoint_high_watermarks()
    first.produce(partition)
    first.replica.end_of_turn()
    await first.service.close()
    assert decode_offset_checkpoint((tmp_path / HIGH_WATERMARK_CHECKPOINT).read_bytes()) == {
        TopicPartition("t", 0): 1
    }
    second = Replicas(tmp_path)
    await second.service.start()
    follower = second.held(replicas=(ME, TWO), leader=TWO, epoch=1)
    assert (follower.high_watermark, follower.log.log_end_offset) == (1, 2)
    assert second.held(replicas=(ME, TWO), isr=(ME,), leader=ME, epoch=2).high_watermark == 2
    second.kill()


async def test_checkpoints_are_noted_as_time_goes(
    replicas: Replicas, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        partition = replicas.held()
        replicas.produce(partition)
        replicas.replica.end_of_turn()
        await wait_all_tasks_blocked()
        assert partition.log.checkpointed_high_watermark == 0
        mock_clock.jump(CHECKPOINT_SECONDS + 0.1)
        await wait_all_tasks_blocked()
        assert partition.log.checkpointed_high_watermark == 1
        nursery.cancel_scope.cancel()


# -- the turn


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
    partition.short_of_replicas = True  # replicas fell behind after the append was accepted
    if acks == -1:
        partition.short_of_replicas = False
        ticket = replicas.produce(partition, acks=acks)
        partition.short_of_replicas = True
    else:
        ticket = replicas.produce(partition, acks=acks)
    replicas.replica.end_of_turn()
    assert (ticket.releases, partition.high_watermark) == (int(acks == 1), 0)
    assert replicas.replica.statistics().parked_produces == int(acks == -1)


async def test_a_ticket_waits_for_its_last_partition(replicas: Replicas) -> None:
    one, other = replicas.held("t", 0, config=DURABLE), replicas.held("t", 1, config=DURABLE)
    ticket = replicas.produce(one, other)
    replicas.replica.end_of_turn()
    replicas.synced(one)
    assert ticket.releases == 0
    replicas.synced(other)
    assert (ticket.releases, ticket.codes) == (1, {})


async def test_tickets_are_freed_up_to_the_high_watermark_and_no_further(
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


async def test_news_of_a_log_that_was_replaced_moves_nobody(replicas: Replicas) -> None:
    old = replicas.held(config=DURABLE).log
    replicas.replica.delete("t")
    new = replicas.held(topic_id=OTHER_ID, config=DURABLE)
    ticket = replicas.produce(new)
    replicas.replica.end_of_turn()
    replicas.replica.on_durable(old)
    assert (ticket.releases, new.high_watermark) == (0, 0)


async def test_a_leader_whose_first_write_failed_still_tells_where_older_epochs_end(
    replicas: Replicas,
) -> None:
    """Or a follower with records of an epoch in between would not hear where to cut, until
    somebody writes.
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


async def test_a_failed_write_refuses_all_of_its_log_and_only_that(replicas: Replicas) -> None:
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


async def test_a_failed_write_spares_who_waits_for_what_was_written_before(
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


# -- time


async def test_what_is_not_committed_in_time_is_timed_out(
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
        replicas.synced(slow)  # the records are there; nobody is told twice
        assert (early.releases, late.releases) == (1, 1)
        assert not slow.acks
        nursery.cancel_scope.cancel()


async def test_who_waits_when_the_leadership_goes_is_sent_away_once(
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


async def test_who_waits_on_a_deleted_topic_is_sent_away(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    ticket = replicas.produce(partition)
    replicas.replica.end_of_turn()
    released = replicas.park(partition)
    replicas.replica.delete("t")
    assert ticket.codes == {TopicPartition("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (ticket.releases, len(released)) == (1, 1)


async def test_a_new_epoch_of_the_same_leader_sends_nobody_away(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    ticket = replicas.produce(partition)
    replicas.replica.end_of_turn()
    replicas.assign(epoch=1, config=DURABLE)
    assert ticket.releases == 0
    replicas.synced(partition)
    assert (ticket.releases, ticket.codes) == (1, {})


def committed(partition: Partition, replicas: Replicas) -> tuple[Ticket, list[float]]:
    """A producer and a consumer that wait for a commit which replicas that fell behind hold
    back.
    """
    ticket = replicas.produce(partition)
    partition.configure(2)  # noted while the produce was on its way
    replicas.replica.end_of_turn()
    released = replicas.park(partition)
    assert (ticket.releases, released, partition.high_watermark) == (0, [], 0)
    return ticket, released


async def test_a_lower_minimum_commits_what_waited_for_it(replicas: Replicas) -> None:
    partition = replicas.held(replicas=(ME, TWO), isr=(ME,))
    ticket, released = committed(partition, replicas)
    replicas.replica.configure("t", TopicSettings(PLAIN, 1))
    assert partition.high_watermark == 1
    assert (ticket.releases, len(released)) == (1, 1)


async def test_replicas_that_caught_up_commit_what_waited_for_them(replicas: Replicas) -> None:
    partition = replicas.held(replicas=(ME, TWO), isr=(ME,))
    ticket, released = committed(partition, replicas)
    replicas.assign(replicas=(ME, TWO), isr=(ME,), epoch=1, minimum=1)
    assert partition.high_watermark == 1
    assert (ticket.releases, len(released)) == (1, 1)


# -- fetches that wait


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
    assert replicas.replica.statistics().parked_fetches == 1


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


async def test_a_duplicate_is_no_news_and_waits_for_the_first(replicas: Replicas) -> None:
    partition = replicas.held(config=DURABLE)
    data = batch(producer_id=1, sequence=0)
    first = replicas.produce(partition, data=data)
    replicas.replica.end_of_turn()
    second = replicas.produce(partition, data=data)
    replicas.replica.end_of_turn()
    assert (first.releases, second.releases, partition.log.log_end_offset) == (0, 0, 1)
    replicas.synced(partition)
    assert (first.releases, second.releases) == (1, 1)


# -- what is gone, and disks that fail


async def test_what_was_here_and_is_gone_is_offline_and_not_empty(tmp_path: Path) -> None:
    first = Replicas(tmp_path)
    await first.service.start()
    partition = first.held()
    first.produce(partition)
    first.replica.end_of_turn()
    first.replica.checkpoint_high_watermarks()
    await first.service.close()
    shutil.rmtree(partition.log.path)
    second = Replicas(tmp_path)
    await second.service.start()
    second.replica.remove_strays(
        {TopicPartition("t", 0): TOPIC_ID, TopicPartition("fresh", 0): OTHER_ID}
    )
    for epoch in (1, 2):
        assert second.assign(epoch=epoch) is None
    assert (
        "is missing" in second.replica.offline[TopicPartition("t", 0)]
        and not partition.log.path.exists()
    )
    assert second.held("fresh", topic_id=OTHER_ID).is_leader
    second.replica.delete("t")
    assert second.held(topic_id=OTHER_ID).log.log_end_offset == 0
    await second.service.close()


async def test_a_failed_directory_refuses_its_writers_and_moves_no_high_watermark_back(
    tmp_path: Path,
) -> None:
    replicas = Replicas(tmp_path)
    await replicas.service.start()
    waiting = replicas.held("waiting", config=DURABLE)
    tickets = [replicas.produce(waiting)]
    replicas.replica.end_of_turn()
    assert tickets[0].releases == 0, "waits for its sync"
    fine = [replicas.held("t", index) for index in range(3)]
    for partition in fine:
        replicas.produce(partition)
    replicas.replica.end_of_turn()
    assert [partition.high_watermark for partition in fine] == [1, 1, 1]
    tickets += [replicas.produce(waiting), *(replicas.produce(partition) for partition in fine)]
    replicas.faulty.fails_in = 2  # the writes of "waiting" and the first are done
    replicas.service.registry.on_directory_failed = lambda path, error: (
        replicas.replica.on_directory_failed(path)
    )
    replicas.replica.end_of_turn()
    assert replicas.service.directories[tmp_path].failed
    assert [ticket.releases for ticket in tickets] == [1] * 5
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    assert [set(ticket.codes.values()) for ticket in tickets] == [
        {storage},
        {storage},
        set(),
        {storage},
        {storage},
    ]
    assert [(partition.high_watermark, partition.log.log_end_offset) for partition in fine] == [
        (2, 2),
        (1, 1),
        (1, 1),
    ]
    for partition in (waiting, *fine):
        assert not partition.advance()
        assert not partition.acks
        with pytest.raises(MqError) as refused:
            replicas.produce(partition)
        assert refused.value.code is storage
    await replicas.service.close()
