"""An idempotent producer with five requests in flight, whose responses are lost: whatever happens
to the node, it may retry them.

An unknown retry would get OUT_OF_ORDER_SEQUENCE_NUMBER, which permanently ends librdkafka's
producer.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCER_BATCHES_CACHED
from mqd.log.disk.sync_plan import plan_sync
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from tests.log.support import NOW, PARTITION, FaultyDisk, Harness, batch, wait_until

CONFIG = LogConfig(segment_bytes=100_000, index_interval_bytes=100, file_delete_delay_ms=0)
ROLLING = LogConfig(segment_bytes=350, index_interval_bytes=100, file_delete_delay_ms=0)
"""About three batches in each segment."""
BUSY, SLOW = 1, 2
COUNT = 12
DAY_MS = 86_400_000


def busy_batch(number: int) -> bytearray:
    """Two records, so that sequences and offsets differ."""
    return batch(b"%03d" % number * 5, b"x", producer_id=BUSY, epoch=4, sequence=2 * number)


def write(harness: Harness, log: PartitionLog) -> None:
    """Twelve batches of the busy producer; between its first ones, three batches of a producer that
    was silent from then on.
    """
    for number in range(COUNT):
        harness.write(log, busy_batch(number), epoch=1)
        if number < 3:
            harness.write(log, batch(b"slow", producer_id=SLOW, epoch=0, sequence=number), epoch=1)


def check(harness: Harness, log: PartitionLog) -> None:
    """Each of the last five batches of either producer is known by the offset of its first copy,
    oldest first; then both continue.
    """
    end = log.log_end_offset
    for number in range(COUNT - PRODUCER_BATCHES_CACHED, COUNT):
        again = harness.append(log, busy_batch(number), epoch=2)
        assert again.duplicate and again.base_offset == 2 * number + min(number, 3), number
    for number in range(3):
        again = harness.append(log, batch(b"slow", producer_id=SLOW, sequence=number), epoch=2)
        assert again.duplicate and again.base_offset == 3 * number + 2
    for number in (COUNT - PRODUCER_BATCHES_CACHED - 1, COUNT + 1):
        with pytest.raises(MqError) as caught:
            harness.append(log, busy_batch(number), epoch=2)
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
            "neither the sixth, nor with a gap"
        )
    assert log.log_end_offset == end
    harness.write(log, busy_batch(COUNT), batch(b"slow", producer_id=SLOW, sequence=3), epoch=2)
    assert log.log_end_offset == end + 3


async def stopped(harness: Harness) -> None:
    await harness.service.close()
    await harness.restart()
    assert harness.service.registry.clean_start


async def stopped_twice(harness: Harness) -> None:
    await stopped(harness)
    await stopped(harness)


async def killed_when_all_was_synced(harness: Harness) -> None:
    """The next start begins at the last segment, with the snapshot that was made when that segment
    began.
    """
    log = harness.service.logs[PARTITION]
    plan = plan_sync(harness.disk, log, whole=True)
    plan.run(harness.disk)
    harness.service.after_sync(plan)
    await harness.service.checkpoint_recovery_points()
    await harness.restart()
    assert not harness.service.registry.clean_start


async def stopped_and_a_write_taken_back(harness: Harness) -> None:
    await stopped(harness)
    log = harness.open(CONFIG)
    assert isinstance(harness.disk, FaultyDisk)
    harness.disk.write_error = errno.ENOSPC
    harness.append(log, busy_batch(COUNT), epoch=2)
    assert harness.service.flush()
    harness.disk.write_error = 0


async def stopped_and_cut(harness: Harness) -> None:
    """A batch of the next process, which the next leader never received."""
    await stopped(harness)
    log = harness.open(CONFIG)
    end = log.log_end_offset
    harness.write(log, busy_batch(COUNT), epoch=1)
    async with harness.running():
        harness.service.truncate_to(log, end)
        await wait_until(lambda: log.durability.unsynced_truncation is None)


@pytest.mark.parametrize("config", [CONFIG, ROLLING], ids=["one segment", "several"])
@pytest.mark.parametrize(
    "life",
    [
        stopped,
        stopped_twice,
        killed_when_all_was_synced,
        stopped_and_a_write_taken_back,
        stopped_and_cut,
    ],
    ids=lambda one: one.__name__,
)
async def test_the_last_five_batches_of_a_producer_may_be_retried_after(
    tmp_path: Path,
    autojump_clock: object,
    config: LogConfig,
    life: Callable[[Harness], Awaitable[None]],
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    write(harness, harness.open(config))
    await life(harness)
    check(harness, harness.open(config))
    harness.kill()


async def test_a_stopped_follower_that_becomes_leader_knows_them_too(tmp_path: Path) -> None:
    """It knows them from its own snapshot of the copied batches."""
    leader, follower = Harness(tmp_path / "leader"), Harness(tmp_path / "follower")
    for harness in (leader, follower):
        await harness.service.start()
    theirs, ours = leader.open(CONFIG), follower.open(ROLLING)
    write(leader, theirs)
    read = leader.service.read(
        theirs, 0, max_bytes=1 << 20, limit_offset=theirs.written_end_offset, min_one=True
    )
    for one in read.ranges:
        data = memoryview(bytearray(one.file.read_at(one.position, one.size)))
        assert follower.service.append_as_follower(ours, data, leader_epoch=1) == len(data)
    assert follower.service.flush() == []
    await stopped(follower)
    ours = follower.open(ROLLING)
    assert len(ours.segments) > 3
    check(follower, ours)
    for harness in (leader, follower):
        harness.kill()


async def test_batches_of_a_past_epoch_are_refused_after_a_stop(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(CONFIG)
    write(harness, log)
    for number in range(2):
        harness.write(log, batch(b"new", producer_id=BUSY, epoch=5, sequence=number), epoch=1)
    await stopped(harness)
    log = harness.open(CONFIG)
    for number in range(COUNT - PRODUCER_BATCHES_CACHED, COUNT):
        with pytest.raises(MqError) as caught:
            harness.append(log, busy_batch(number))
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        with pytest.raises(MqError) as caught:
            harness.append(
                log,
                batch(b"%03d" % number * 5, b"x", producer_id=BUSY, epoch=5, sequence=2 * number),
            )
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for number in range(2):
        assert harness.append(
            log, batch(b"new", producer_id=BUSY, epoch=5, sequence=number)
        ).duplicate
    harness.write(log, batch(b"new", producer_id=BUSY, epoch=5, sequence=2), epoch=1)
    harness.kill()


@pytest.mark.parametrize("timestamp", [-1, NOW - 9 * DAY_MS, NOW + 1000])
async def test_a_producer_expires_by_arrival_time_and_not_by_its_timestamps(
    tmp_path: Path, timestamp: int
) -> None:
    h = Harness(tmp_path)
    await h.service.start()
    log = h.open(LogConfig(retention_ms=-1))
    data = batch(producer_id=1, sequence=0, timestamp=timestamp)
    h.write(log, data)
    for _ in range(2):  # a round of retention runs between a batch and its retry
        await h.service.retain()
        assert h.append(log, data).duplicate
        h.clock.now_ms += DAY_MS
    h.clock.now_ms += 1
    await h.service.retain()
    assert not list(log.producers.entries())
    h.kill()
