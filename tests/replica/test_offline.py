"""Replicas whose log cannot be used: they are reported, and opened or copied again."""

from __future__ import annotations

import errno
import logging
from typing import cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from mqd.log.memory_logs import LOST
from mqd.replica.assignment import Assignment
from mqd.replica.offline import RETRY_SECONDS, OfflineReplicas
from mqd.replica.ports import ReplicaPorts
from mqd.replica.settings import TopicSettings
from mqd.types import TopicPartition
from tests.replica.replicas import DURABLE, ME, PLAIN, TOPIC_ID, TWO, Replicas
from tests.replica.roles import TP, Fetchers, assign


async def test_a_log_is_offline_until_it_can_be_opened(replicas: Replicas) -> None:
    replicas.faulty.write_error = errno.EIO
    assert replicas.assign() is None
    assert "injected" in replicas.replica.offline[TopicPartition("t", 0)]
    replicas.faulty.write_error = 0
    assert replicas.held(epoch=1).is_leader
    assert not replicas.replica.offline


async def test_a_partition_offline_for_a_full_disk_returns_by_itself(
    replicas: Replicas, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    replicas.faulty.free = 0
    settings = TopicSettings(PLAIN, 1)
    assignments = [
        Assignment(TopicPartition("t", index), TOPIC_ID, ME, 0, (ME,), (ME,)) for index in range(50)
    ]
    replicas.replica.assignments.apply(assignments, {"t": settings})
    assert len(replicas.replica.offline) == 50
    assert caplog.text.count("partitions are offline") == 1 and "count=50" in caplog.text
    replicas.replica.assignments.configure("t", TopicSettings(DURABLE, 1))
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


def test_partitions_in_memory_are_no_errors_after_a_start(caplog: pytest.LogCaptureFixture) -> None:
    offline = OfflineReplicas(ME, cast(ReplicaPorts, None))
    offline.reasons[TopicPartition("prices", 0)] = f"KAFKA_STORAGE_ERROR: {LOST}"
    with caplog.at_level(logging.INFO):
        offline.log_reasons()
        assert [record.levelname for record in caplog.records] == ["INFO"]
        offline.reasons[TopicPartition("t", 0)] = "no space"
        offline.log_reasons()
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "ERROR"]


async def test_a_partition_deleted_while_offline_stays_deleted(
    replicas: Replicas, autojump_clock: MockClock
) -> None:
    replicas.faulty.free = 0
    assert replicas.assign() is None
    replicas.replica.assignments.delete("t")
    replicas.faulty.free = 1 << 30
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        await trio.sleep(2 * RETRY_SECONDS)
        nursery.cancel_scope.cancel()
    assert not replicas.replica.partitions() and not replicas.replica.offline


async def test_an_offline_partition_does_not_stop_other_partitions(replicas: Replicas) -> None:
    replicas.service.offline[TopicPartition("t", 0)] = "damaged"
    assert replicas.assign("t", 0) is None
    assert replicas.held("t", 1).is_leader
    replicas.replica.assignments.delete("t")
    assert not replicas.replica.offline


async def test_a_reassigned_partition_is_not_offline_here(replicas: Replicas) -> None:
    replicas.service.offline[TopicPartition("t", 0)] = "damaged"
    replicas.assign(replicas=(ME, TWO))
    replicas.assign(replicas=(TWO,), leader=TWO, epoch=1)
    assert not replicas.replica.offline


async def test_a_lost_log_is_reported_once_and_created_again_outside_the_isr(
    replicas: Replicas,
) -> None:
    reported: list[tuple[UUID, int]] = []
    replicas.ports.on_offline = lambda topic_id, index: reported.append((topic_id, index))
    fetchers = Fetchers(replicas)
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
        assert replicas.replica.get(TP) is partition  # another node may still count on it
    assign(replicas, TWO, 0, 3, (TWO,))
    anew = replicas.replica.get(TP)
    assert anew is not None and anew is not partition
    assert (anew.log.failure, anew.log.log_end_offset) == (None, 0)
    assert fetchers.taken()[-1] == ("follow", TWO, 0)


async def test_a_lost_log_is_reported_again_when_its_leader_adds_it_to_the_isr(
    replicas: Replicas,
) -> None:
    """The leader had received a fetch from before the loss. In the ISR this node may become leader,
    and it has no records.
    """
    reported: list[tuple[UUID, int]] = []
    replicas.ports.on_offline = lambda topic_id, index: reported.append((topic_id, index))
    assign(replicas, TWO, 0, 0, (TWO,), (ME,))
    partition = replicas.replica.get(TP)
    assert partition is not None
    replicas.service.reader.unreadable(partition.log, "bytes that were there cannot be read")
    await replicas.replica.check()
    assign(replicas, TWO, 0, 1, (TWO,), (ME,))
    assert reported == [(TOPIC_ID, 0)]
    assign(replicas, TWO, 0, 2, (TWO, ME))
    assert reported == [(TOPIC_ID, 0)] * 2
