"""Logs in memory: their sizes, what they write, and where a lost one begins (I59)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.memory_files import MEMORY
from mqd.log.disk.lookup import Read
from mqd.log.log_config import LogConfig
from mqd.log.memory_logs import LOST, SEGMENTS, first_offset, within
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.types import TopicPartition
from tests.log.support import NOW, PARTITION, TOPIC_ID, FaultyDisk, HandClock, batch

KIB = 1024
CONFIG = LogConfig(memory_bytes=64 * KIB, file_delete_delay_ms=0)


def service_in(path: Path, disk: FaultyDisk, bytes_max: int = 1 << 20) -> LogService:
    return LogService(
        disk,
        HandClock(),
        [path],
        on_durable=lambda log: None,
        on_directory_failed=lambda path, error: pytest.fail(str(error)),
        high_watermark_of=lambda log: log.written_end_offset,
        memory_bytes_max=bytes_max,
    )


def append(service: LogService, log: PartitionLog, size: int) -> None:
    service.append_nowait(log, memoryview(batch(bytes(size))), leader_epoch=0, now_ms=NOW)
    assert service.flush() == []


def read_from(service: LogService, log: PartitionLog, offset: int) -> Read:
    end = log.written_end_offset
    return service.read(log, offset, max_bytes=1 << 20, limit_offset=end, min_one=True)


def files_below(path: Path) -> list[str]:
    return sorted(str(each) for each in path.rglob("*") if PARTITION.topic in str(each))


async def test_nothing_reaches_the_disk_and_the_oldest_records_leave(tmp_path: Path) -> None:
    disk = FaultyDisk()
    service = service_in(tmp_path, disk)
    await service.start()
    log = service.open(PARTITION, TOPIC_ID, CONFIG)
    free, syncs = disk.free, disk.syncs
    largest = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        for _ in range(300):
            append(service, log, 1000)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            largest = max(largest, log.size_bytes)
        nursery.cancel_scope.cancel()
    assert log.directory == MEMORY
    assert files_below(tmp_path) == []
    assert (disk.free, disk.syncs) == (free, syncs)
    assert 48 * KIB < largest <= CONFIG.memory_bytes
    assert log.log_start_offset > 200
    assert log.log_end_offset == 300
    read = read_from(service, log, log.log_start_offset)
    assert read.next_offset > log.log_start_offset
    assert all(one.file.fileno() < 0 for one in read.ranges)
    with pytest.raises(MqError):
        read_from(service, log, 0)
    await service.close()


async def test_all_logs_share_the_memory_of_the_node(tmp_path: Path) -> None:
    service = service_in(tmp_path, FaultyDisk(), bytes_max=128 * KIB)
    await service.start()
    logs = [service.open(TopicPartition("t", index), TOPIC_ID, CONFIG) for index in range(4)]
    for log in logs:
        assert log.config.segment_bytes * SEGMENTS == 32 * KIB
    for log in logs[1:]:
        service.delete(log.topic_partition)
    assert logs[0].config.segment_bytes * SEGMENTS == 64 * KIB
    await service.close()


async def test_many_logs_change_the_shares_of_all_only_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = 0
    update_config = PartitionLog.update_config

    def counted(log: PartitionLog, config: LogConfig) -> None:
        nonlocal changes
        changes += 1
        update_config(log, config)

    service = service_in(tmp_path, FaultyDisk(), bytes_max=256 * KIB)
    await service.start()
    monkeypatch.setattr(PartitionLog, "update_config", counted)
    count = 256
    logs = [service.open(TopicPartition("t", index), TOPIC_ID, CONFIG) for index in range(count)]
    assert changes < 20 * count
    assert sum(log.config.segment_bytes * SEGMENTS for log in logs) <= 256 * KIB
    await service.close()


async def test_a_full_memory_refuses_appends_until_there_is_room(tmp_path: Path) -> None:
    """As a full disk does. Here nothing is committed, so nothing may leave."""
    disk = FaultyDisk()
    service = LogService(
        disk,
        HandClock(),
        [tmp_path],
        on_durable=lambda log: None,
        on_directory_failed=lambda path, error: pytest.fail(str(error)),
        memory_bytes_max=2 << 20,
    )
    await service.start()
    config = replace(CONFIG, memory_bytes=2 << 20)
    log = service.open(PARTITION, TOPIC_ID, config)
    other = service.open(TopicPartition("other", 0), TOPIC_ID, config)
    failures: list[tuple[PartitionLog, StorageError]] = []
    while not failures:
        view = memoryview(batch(bytes(100_000)))
        service.append_nowait(log, view, leader_epoch=0, now_ms=NOW)
        failures = service.flush()
    end = log.log_end_offset
    with pytest.raises(MqError) as refused:
        append(service, log, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == end
    assert read_from(service, log, 0).size > 0
    service.delete(log.topic_partition)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    append(service, other, 100)
    await service.close()


async def test_a_lost_log_begins_beyond_all_earlier_offsets(tmp_path: Path) -> None:
    service = service_in(tmp_path, FaultyDisk())
    await service.start()
    service.fence_lost_in_memory([PARTITION])
    with pytest.raises(MqError) as refused:
        service.open(PARTITION, TOPIC_ID, CONFIG)
    assert refused.value.message == LOST
    log = service.open(PARTITION, TOPIC_ID, CONFIG, begin_again_at=first_offset(3))
    assert (log.log_start_offset, log.log_end_offset) == (3 << 40, 3 << 40)
    append(service, log, 10)
    assert log.log_end_offset == (3 << 40) + 1
    assert service.open(PARTITION, TOPIC_ID, CONFIG, begin_again_at=first_offset(4)) is log
    await service.close()


async def test_a_leader_epoch_does_not_use_the_offsets_of_the_next_one(tmp_path: Path) -> None:
    """Otherwise a log that begins again could give an offset to a second record (I59)."""
    service = service_in(tmp_path, FaultyDisk())
    await service.start()
    service.fence_lost_in_memory([PARTITION])
    almost = first_offset(1) - (1 << 31)
    log = service.open(PARTITION, TOPIC_ID, CONFIG, begin_again_at=almost)
    log.epochs.assign(0, almost)
    failures: list[tuple[PartitionLog, StorageError]] = []
    for _ in range(20):
        view = memoryview(batch(bytes(1000)))
        service.append_nowait(log, view, leader_epoch=0, now_ms=NOW)
        failures += service.flush()
        if failures:
            break
    assert [str(error) for _, error in failures] != []
    assert "no offsets are left" in str(failures[0][1])
    await service.close()


def test_the_configuration_of_a_log_in_memory() -> None:
    options = {
        "mqd.storage": "memory",
        "mqd.memory.max.bytes": 800,
        "flush.messages": 1,
        "flush.before.ack": True,
        "cleanup.policy": ("compact",),
        "retention.bytes": 100,
    }
    config = LogConfig.from_options(options)
    assert config.memory_bytes == 800
    assert not config.flush_before_ack
    assert config.cleanup_policy == {"delete"}
    assert (within(config, 400).segment_bytes, within(config, 400).retention_bytes) == (50, 100)
    assert LogConfig.from_options({**options, "mqd.storage": "disk"}).memory_bytes == 0
