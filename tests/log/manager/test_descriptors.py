"""File descriptors are exhausted: a started operation is undone or waits, no log is offline or
offline for it, and operation resumes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.limits import DESCRIPTORS_SPARE, SEGMENTS_OPEN_MAX
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.slices import all_slices
from mqd.types import TopicPartition
from tests.log.support import PARTITION, TOPIC_ID, FaultyDisk, Harness, batch, wait_until

ROLLING = LogConfig(segment_bytes=200, index_interval_bytes=0)


def large(number: int) -> bytearray:
    return batch(b"%04d" % number + b"x" * 100, producer_id=1, sequence=number)


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    made = Harness(tmp_path)
    await made.service.start()
    return made


def faulty(harness: Harness) -> FaultyDisk:
    assert isinstance(harness.disk, FaultyDisk)
    return harness.disk


def exhaust(harness: Harness, left: int = 0) -> None:
    faulty(harness).descriptors = len(faulty(harness).files) + left


def heal(harness: Harness) -> None:
    faulty(harness).descriptors = 1 << 30


def numbers(harness: Harness, log: PartitionLog) -> list[int]:
    return [int(record.value[:4]) for record in harness.read_all(log) if record.value]


@pytest.mark.parametrize("left", range(8))
async def test_a_write_without_space_is_undone_and_retried_later(
    harness: Harness, left: int
) -> None:
    log = harness.open(ROLLING)
    harness.write(log, large(0))
    exhaust(harness, left)
    for number in range(1, 10):
        harness.append(log, large(number))
    ((failed, error),) = harness.service.flush()
    assert (
        failed is log
        and error.out_of_space
        and harness.failed == []
        and harness.service.offline == {}
    )
    assert log.log_end_offset == log.written_end_offset == 1 and numbers(harness, log) == [0]
    assert len(list(log.path.glob("*.log"))) == len(log.segments) == 1
    harness.service._descriptors.release_spares()
    exhaust(harness, left)
    with pytest.raises(MqError) as refused:
        harness.append(log, large(1))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and refused.value.code.retriable
    heal(harness)
    harness.write(log, *map(large, range(1, 10)))
    assert numbers(harness, log) == list(range(10))
    await harness.restart()
    assert harness.service.logs[PARTITION].log_end_offset == 10 and not harness.service.reports
    harness.kill()


@pytest.mark.parametrize("left", range(4))
async def test_a_partition_that_cannot_be_created_leaves_nothing_behind(
    harness: Harness, left: int
) -> None:
    exhaust(harness, left)
    with pytest.raises(StorageError) as refused:
        for index in range(left + 1):
            harness.open(partition=TopicPartition("new", index))
    assert refused.value.out_of_space and harness.failed == []
    heal(harness)
    for index in range(left + 1):
        assert harness.open(partition=TopicPartition("new", index)).log_end_offset == 0


async def test_temporarily_unreadable_files_are_not_damaged(harness: Harness) -> None:
    log = harness.open(ROLLING)
    harness.write(log, *map(large, range(30)))
    async with harness.running():
        await wait_until(lambda: log.durability.end_offset == log.active.base_offset)
    exhaust(harness)
    service = harness.service
    for look in (
        lambda: service.read(log, 0, max_bytes=100, limit_offset=30, min_one=True),
        lambda: all_slices(service.offset_for_timestamp(log, 0, 30)),
        lambda: all_slices(service.record_with_max_timestamp(log, 30)),
    ):
        with pytest.raises(MqError) as refused:
            look()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert service.offline == {} and log.failure is None
    heal(harness)
    assert numbers(harness, log) == list(range(30))


async def test_syncs_checkpoints_and_removals_are_retried(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(flush_before_ack=True))
    harness.write(log, large(0), epoch=4)
    exhaust(harness)
    async with harness.running() as service:
        await wait_until(lambda: log in service.housekeeping.flush_due)
        due = service.housekeeping.flush_due[log]
        mock_clock.jump(70)
        # tried without success
        await wait_until(lambda: service.housekeeping.flush_due.get(log, due) != due)
        assert log.durability.end_offset == 0 and log.epochs.dirty and harness.failed == []
        heal(harness)
        mock_clock.jump(70)
        await wait_until(
            lambda: (
                log.durability.end_offset == 1
                and (tmp_path / "recovery-point-offset-checkpoint").exists()
            )
        )
    assert (log.path / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n4 0\n"
    await harness.service.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


async def test_older_segments_of_all_logs_share_a_bound(harness: Harness) -> None:
    harness.kill()
    service = harness.new_service(descriptors=4 * 12)
    await service.start()
    logs = [harness.open(ROLLING, TopicPartition("t", index)) for index in range(4)]

    def open_files() -> int:
        return sum(segment.file is not None for log in logs for segment in log.segments[:-1])

    async with harness.running():
        for number in range(10):
            for log in logs:
                harness.write(log, large(number))
            await wait_until(
                lambda: all(log.durability.end_offset == log.active.base_offset for log in logs)
            )
        assert open_files() <= 12 < 4 * SEGMENTS_OPEN_MAX
        for log in logs:
            assert numbers(harness, log) == list(range(10))
            assert open_files() <= 12
    log = logs[0]
    for number in range(10, 14):  # without syncs no segment may be closed
        harness.write(log, large(number))
    with pytest.raises(AssertionError):
        harness.write(log, *map(large, range(14, 40)))
    assert (
        log.failure is not None
        and log.failure.is_retriable
        and log.log_end_offset == 14
        and harness.failed == []
    )
    async with harness.running():
        await wait_until(lambda: log.durability.end_offset == log.active.base_offset)
        harness.write(log, large(14))
    assert numbers(harness, log) == list(range(15))


async def test_more_partitions_than_descriptors_are_refused_with_the_remedy(
    harness: Harness,
) -> None:
    budget = 4 * (DESCRIPTORS_SPARE + 2)
    harness.kill()
    service = harness.new_service(descriptors=budget)
    await service.start()
    most = budget - budget // 4 - DESCRIPTORS_SPARE
    for index in range(most):
        harness.open(partition=TopicPartition("t", index))
    with pytest.raises(StorageError, match="ulimit -n") as refused:
        harness.open(partition=TopicPartition("t", most))
    assert refused.value.out_of_space and f"{most} partitions" in str(refused.value)
    service.delete(TopicPartition("t", 0))
    harness.open(partition=TopicPartition("t", most))


async def test_removed_segments_keep_no_file_open(harness: Harness) -> None:
    base = len(faulty(harness).files)
    log = harness.open(ROLLING)
    harness.write(log, *map(large, range(8)))
    harness.service.truncate_to(log, 3)
    assert len(faulty(harness).files) - base == len(log.segments)
    harness.service.delete(PARTITION)
    del log
    assert len(faulty(harness).files) == base


async def test_a_thousand_partitions_are_counted_once(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    service = harness.service
    await service.start()
    for index in range(6):
        harness.open(partition=TopicPartition("t", index))
    assert [log.directory.name for log in service.logs.values()] == ["a", "b"] * 3
    for index in (0, 2, 4):
        service.delete(TopicPartition("t", index))
    homes = [
        service.open(TopicPartition("u", index), TOPIC_ID, LogConfig()).directory.name
        for index in range(4)
    ]
    assert homes == ["a", "a", "a", "a"]
    harness.kill()
