"""Writes, reads, syncs, retention and disk failures, through the service."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import SystemClock
from mqd.io.disk import ArgumentsT, OsDisk, ResultT
from mqd.limits import DISK_RESERVE_BYTES, POSITIONS_CACHED
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.log.service import LogService
from mqd.protocol.batch import parse_header
from mqd.protocol.compression import Codec
from mqd.protocol.files import (
    LOG_SUFFIX,
    MetaProperties,
    decode_offset_checkpoint,
    encode_offset_checkpoint,
    segment_file_name,
)
from mqd.protocol.slices import all_slices
from mqd.types import TopicPartition
from tests.log.support import (
    NOW,
    PARTITION,
    TOPIC_ID,
    FaultyDisk,
    FaultyFile,
    Harness,
    batch,
    records_of,
    run_pending_tasks,
    wait_until,
)

ROLLING = LogConfig(segment_bytes=1000, index_interval_bytes=200)


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    made = Harness(tmp_path)
    await made.service.start()
    return made


def faulty(harness: Harness) -> FaultyDisk:
    assert isinstance(harness.disk, FaultyDisk)
    return harness.disk


def values(harness: Harness, log: PartitionLog, max_bytes: int = 1 << 20) -> list[bytes | None]:
    return [record.value for record in harness.read_all(log, max_bytes)]


# -- writing and reading


async def test_nothing_is_readable_before_flush(harness: Harness) -> None:
    log = harness.open()
    harness.append(log)
    assert (log.written_end_offset, log.log_end_offset) == (0, 1)
    assert harness.service.read(log, 0, max_bytes=1000, limit_offset=1, min_one=True).size == 0
    with pytest.raises(MqError):
        harness.service.read(log, 1, max_bytes=1000, limit_offset=1, min_one=True)
    assert harness.service.flush() == []
    assert values(harness, log) == [b"v"]


async def test_one_turn_is_one_write_per_log(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [harness.open(partition=TopicPartition("orders", index)) for index in range(2)]
    writes = []

    def counted(append: Callable[[list[Any]], int], views: list[Any]) -> int:
        writes.append(len(views))
        return append(views)

    for log in logs:
        file = log.active.file
        assert file is not None
        monkeypatch.setattr(file, "append", partial(counted, file.append))
    for _ in range(3):
        for log in logs:
            harness.append(log)
    assert harness.service.flush() == [] and writes == [3, 3]
    assert sum(log.written_end_offset for log in logs) == 6


@pytest.mark.parametrize("max_bytes", [1, 150, 1000, 1 << 20])
@pytest.mark.parametrize("warm", [True, False])
async def test_reads_return_whole_batches_within_their_bounds(
    harness: Harness, max_bytes: int, warm: bool
) -> None:
    log = harness.open(ROLLING)
    for number in range(40):
        harness.write(
            log,
            batch(
                *[b"%d" % number] * (number % 3 + 1),
                codec=Codec.GZIP if number % 5 == 0 else Codec.NONE,
            ),
        )
    assert len(log.segments) > 3
    ends = sorted({record.offset for record in harness.read_all(log)})
    assert ends == list(range(log.log_end_offset))
    for offset in range(log.log_end_offset):
        for limit in (offset, offset + 1, offset + 7, log.log_end_offset):
            if not warm:
                log.positions.clear()
            for min_one in (True, False):
                read = harness.service.read(
                    log, offset, max_bytes=max_bytes, limit_offset=limit, min_one=min_one
                )
                found = [record.offset for record in records_of(read.ranges)]
                assert (
                    found == list(range(found[0], found[-1] + 1))
                    if found
                    else read.next_offset == offset
                )
                if found:
                    assert (
                        found[0] <= offset <= found[-1] < limit
                        and read.next_offset == found[-1] + 1
                    )
                    header = parse_header(read.ranges[0].file.read_at(read.ranges[0].position, 61))
                    assert read.size <= max_bytes or (min_one and read.size == header.size)


async def test_sequential_readers_need_no_search(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = harness.open(LogConfig(index_interval_bytes=100))
    for _ in range(POSITIONS_CACHED + 100):
        harness.write(log, batch(b"x" * 50))
    end = log.log_end_offset
    first = harness.service.read(log, 0, max_bytes=500, limit_offset=end, min_one=True)
    offset = first.next_offset
    monkeypatch.setattr("mqd.log.disk.lookup.seek", None)
    while offset < end:
        read = harness.service.read(log, offset, max_bytes=500, limit_offset=end, min_one=True)
        assert read.size and read.next_offset > offset
        offset = read.next_offset
    monkeypatch.setattr("mqd.log.disk.lookup.end_of_range", None)
    harness.write(log, batch(b"tail"))
    assert (
        harness.service.read(
            log, end, max_bytes=500, limit_offset=end + 1, min_one=True
        ).next_offset
        == end + 1
    )
    assert len(log.positions) <= POSITIONS_CACHED


async def test_a_tail_reader_crosses_a_roll(harness: Harness) -> None:
    log = harness.open(ROLLING)
    for number in range(60):
        harness.write(log, batch(b"x" * 60))
        read = harness.service.read(
            log, number, max_bytes=1 << 20, limit_offset=number + 1, min_one=True
        )
        assert read.next_offset == number + 1, number


async def test_offsets_out_of_range(harness: Harness) -> None:
    log = harness.open()
    harness.write(log, batch(b"a"), batch(b"b"))
    harness.service.delete_records(log, 1)
    for offset in (-1, 0, 3, 2**63 - 1, -(2**63)):
        with pytest.raises(MqError) as caught:
            harness.service.read(log, offset, max_bytes=1, limit_offset=2, min_one=True)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert harness.service.read(log, 2, max_bytes=1, limit_offset=2, min_one=True).size == 0


async def test_old_segments_are_closed_and_opened_again(harness: Harness) -> None:
    log = harness.open(LogConfig(segment_bytes=200, index_interval_bytes=0))
    for number in range(40):
        harness.write(log, batch(b"%02d" % number + b"x" * 100))
    for directory in harness.service.directories.values():
        assert directory.to_sync
    async with harness.running():
        await wait_until(lambda: log.durability.end_offset >= log.active.base_offset)
    assert [value[:2] for value in values(harness, log) if value] == [
        b"%02d" % number for number in range(40)
    ]
    assert sum(segment.file is not None for segment in log.segments) <= 10


async def test_lookups_by_time(harness: Harness) -> None:
    log = harness.open(ROLLING)
    times = [NOW + shift for shift in (0, 10, 5, 20, 30, 30, 25, 40, 100, 90)]
    for index in range(0, 10, 2):
        harness.write(
            log,
            batch(b"x" * 150, timestamp=times[index], codec=Codec.ZSTD),
            batch(b"x" * 150, timestamp=times[index + 1]),
        )
    for wanted in range(NOW - 1, NOW + 102):
        for limit in (10, 9, 5):
            expected = next(
                ((offset, time, 0) for offset, time in enumerate(times[:limit]) if time >= wanted),
                None,
            )
            assert all_slices(harness.service.offset_for_timestamp(log, wanted, limit)) == expected
    assert all_slices(harness.service.record_with_max_timestamp(log, 10)) == (8, NOW + 100, 0)
    assert all_slices(harness.service.record_with_max_timestamp(log, 8)) == (7, NOW + 40, 0)
    harness.service.delete_records(log, 9)
    assert all_slices(harness.service.record_with_max_timestamp(log, 10)) == (9, NOW + 90, 0)
    assert all_slices(harness.service.offset_for_timestamp(log, NOW, 10)) == (9, NOW + 90, 0)
    assert all_slices(harness.service.record_with_max_timestamp(log, 0)) is None


# -- several directories, opening, deleting


async def test_a_new_partition_goes_to_the_directory_with_the_fewest(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    await harness.service.start()
    for index in range(4):
        harness.open(partition=TopicPartition("orders", index))
    assert sorted(log.directory.name for log in harness.service.logs.values()) == [
        "a",
        "a",
        "b",
        "b",
    ]
    chosen = harness.service.open(
        TopicPartition("orders", 9), TOPIC_ID, LogConfig(), directory=tmp_path / "b"
    )
    assert chosen.directory.name == "b"
    await harness.restart()
    assert len(harness.service.logs) == 5
    harness.kill()


async def test_one_partition_in_two_directories_is_offline(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    await harness.service.start()
    harness.open()
    for name in ("a", "b"):
        (tmp_path / name / "orders-0").mkdir(exist_ok=True)
        (tmp_path / name / "orders-0" / "partition.metadata").write_bytes(
            b"version: 0\ntopic_id: EjRWeJCrze8SNFZ4kKvN7w"
        )
    await harness.restart()
    assert "two directories" in harness.service.offline[PARTITION]
    with pytest.raises(MqError) as caught:
        harness.open()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    harness.kill()


async def test_a_log_with_another_topic_id_is_not_opened(harness: Harness) -> None:
    harness.open()
    with pytest.raises(MqError) as caught:
        harness.service.open(PARTITION, UUID(int=5), LogConfig())
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


async def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    def service(node_id: int = 1, cluster: str = "c") -> LogService:
        return LogService(
            OsDisk(), SystemClock(), [tmp_path], on_durable=print, on_directory_failed=print,
            new_meta_properties=lambda: MetaProperties(cluster, node_id, TOPIC_ID),
        )  # fmt: skip

    first = service()
    await first.start()
    with pytest.raises(StorageError, match="in use"):
        await service().start()
    await first.close()
    for stranger in (service(node_id=2), service(cluster="d")):
        with pytest.raises(StorageError, match=r"meta\.properties"):
            await stranger.start()
    again = service()
    await again.start()
    await again.close()


@pytest.mark.parametrize(
    "content", [TopicPartition("orders", 0), TopicPartition("holiday", 2025), None]
)
async def test_only_an_empty_directory_is_claimed(
    tmp_path: Path, content: TopicPartition | None
) -> None:
    def service() -> LogService:
        return LogService(
            OsDisk(), SystemClock(), [tmp_path], on_durable=print, on_directory_failed=print,
            new_meta_properties=lambda: MetaProperties("c", 1, TOPIC_ID),
        )  # fmt: skip

    for name in ("lost+found", "meta.properties.tmp"):
        (tmp_path / name).mkdir()
    if content is not None:
        (tmp_path / str(content)).mkdir()
        (tmp_path / str(content) / "file").write_bytes(b"x")
        with pytest.raises(StorageError, match=r"meta\.properties is missing.*not empty.*Restore"):
            await service().start()
        assert (
            not (tmp_path / "meta.properties").exists()
            and (tmp_path / str(content) / "file").exists()
        )
    else:
        (tmp_path / "meta.properties.tmp").rmdir()
        first = service()
        await first.start()
        await first.close()


async def test_a_lost_partition_does_not_start_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    other = TopicPartition("other", 0)
    log = harness.open()
    harness.open(partition=other)
    harness.write(log, batch())
    harness.service.checkpoint_high_watermark(PARTITION, 1)
    await harness.service.close()
    shutil.move(log.path, tmp_path / "away")
    shutil.rmtree(tmp_path / str(other))
    for _ in range(2):  # the checkpoints of the process in between keep it
        await harness.restart()
        harness.service.fence_missing({PARTITION, other})
        assert set(harness.service.offline) == {PARTITION}, (
            "no record of the other one was ever acknowledged"
        )
        with pytest.raises(
            MqError,
            match=r"orders-0 is missing.*offset 1: restore it.*replication-offset-checkpoint",
        ) as refused:
            harness.open()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and not log.path.exists()
        await harness.service.close()
    assert "starts empty" in caplog.text
    shutil.move(tmp_path / "away", log.path)
    await harness.restart()
    harness.service.fence_missing({PARTITION, other})
    assert values(harness, harness.open()) == [b"v"]
    await harness.service.close()
    shutil.rmtree(log.path)
    await harness.restart()
    harness.service.fence_missing(set())
    assert harness.open(config=LogConfig()).log_end_offset == 0, (
        "its topic is deleted: the name is free"
    )
    await harness.service.close()


async def test_a_recreated_topic_is_not_taken_for_the_lost_one(tmp_path: Path) -> None:
    (tmp_path / "replication-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 7})
    )
    harness = Harness(tmp_path)
    await harness.service.start()
    harness.service.fence_missing({PARTITION})
    harness.service.delete(PARTITION)
    assert harness.open().log_end_offset == 0
    await harness.service.close()
    high_watermarks = decode_offset_checkpoint(
        (tmp_path / "replication-offset-checkpoint").read_bytes()
    )
    assert not high_watermarks.get(PARTITION)


async def test_partitions_of_an_offline_directory_do_not_start_empty_elsewhere(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_bytes(b"a file: as good as an unreadable disk")
    await harness.service.start()
    assert harness.service.directories[tmp_path / "b"].failed
    harness.service.fence_missing({PARTITION})
    with pytest.raises(MqError, match="offline"):
        harness.open()
    assert harness.open(partition=TopicPartition("new", 0)).directory == tmp_path / "a"
    await harness.service.close()


async def test_a_log_is_not_created_over_existing_files(harness: Harness) -> None:
    (harness.directories[0] / str(PARTITION)).mkdir()
    (harness.directories[0] / str(PARTITION) / "00000000000000000000.log").write_bytes(b"precious")
    with pytest.raises(StorageError, match="already exists"):
        harness.open()
    assert (
        harness.directories[0] / str(PARTITION) / "00000000000000000000.log"
    ).read_bytes() == b"precious"


async def test_delete_renames_now_and_removes_later(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(file_delete_delay_ms=60_000))
    harness.write(log, batch())
    held = harness.service.read(log, 0, max_bytes=100, limit_offset=1, min_one=True)
    harness.append(log)
    harness.service.delete(PARTITION)
    assert harness.service.flush() == [] and harness.service.logs == {}
    (renamed,) = tmp_path.glob("*-delete")
    assert renamed.name == f"orders-0.{TOPIC_ID.hex}-delete"
    async with harness.running():
        await run_pending_tasks()
        mock_clock.jump(59)
        await run_pending_tasks()
        assert renamed.exists()
        mock_clock.jump(2)
        await wait_until(lambda: not renamed.exists())
    assert records_of(held.ranges), "a fetch that is being sent is not disturbed"
    fresh = harness.open()
    assert fresh.log_end_offset == 0
    harness.service.delete(TopicPartition("nobody", 0))
    harness.kill()


# -- durability


async def test_flush_before_ack_is_a_group_commit(harness: Harness) -> None:
    log = harness.open(LogConfig(flush_before_ack=True))
    async with harness.running():
        harness.write(log, batch(), batch())
        assert log.durability.end_offset == 0
        harness.write(log, batch())
        await wait_until(lambda: log.durability.end_offset == 3)
    assert harness.durable == [(PARTITION, 3)] and faulty(harness).syncs == 2, (
        "the segment, and the new log's partition.metadata"
    )


async def test_flush_messages_and_flush_ms(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    by_count = harness.open(LogConfig(flush_messages=3), TopicPartition("count", 0))
    by_time = harness.open(LogConfig(flush_ms=500), TopicPartition("time", 0))
    never = harness.open(LogConfig(), TopicPartition("never", 0))
    async with harness.running():
        for log in (by_count, by_time, never):
            harness.write(log, batch(b"a", b"b"))
        await run_pending_tasks()
        mock_clock.jump(0.4)
        await run_pending_tasks()
        assert harness.durable == []
        harness.write(by_count, batch())
        await wait_until(lambda: harness.durable == [(by_count.topic_partition, 3)])
        mock_clock.jump(0.2)
        await wait_until(lambda: harness.durable[1:] == [(by_time.topic_partition, 2)])
    harness.kill()


async def test_a_roll_makes_the_full_segment_durable(harness: Harness) -> None:
    log = harness.open(ROLLING)
    async with harness.running():
        for _ in range(12):
            harness.write(
                log, batch(b"x" * 100, producer_id=1, sequence=log.log_end_offset), epoch=2
            )
        base = log.active.base_offset
        await wait_until(lambda: log.durability.end_offset == base)
    home = log.path
    assert (home / f"{base:020d}.snapshot").exists() and (
        home / "leader-epoch-checkpoint"
    ).read_bytes() == b"0\n1\n2 0\n"


async def test_a_failed_sync_takes_the_directory_offline_and_is_not_retried(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    await harness.service.start()
    broken = harness.open(LogConfig(flush_before_ack=True))
    other = harness.open(LogConfig(), TopicPartition("other", 0))
    assert broken.directory != other.directory
    harness.write(broken, batch())
    faulty(harness).sync_error = errno.EIO
    async with harness.running():
        await wait_until(lambda: harness.failed)
        syncs = faulty(harness).syncs
        with pytest.raises(MqError) as caught:
            harness.append(broken)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(MqError):
            harness.service.read(broken, 0, max_bytes=1, limit_offset=1, min_one=True)
        harness.write(other, batch())
    assert (
        [path.name for path, _ in harness.failed] == ["a"]
        and harness.durable == []
        and faulty(harness).syncs == syncs
    )
    assert sum(bool(one.failed) for one in harness.service.directories.values()) == 1
    assert (
        harness.service.open(TopicPartition("new", 0), TOPIC_ID, LogConfig()).directory.name == "b"
    )
    faulty(harness).sync_error = 0
    await harness.service.close()
    assert (
        not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
        and (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    )


async def test_a_failed_write_takes_the_directory_offline(harness: Harness) -> None:
    log = harness.open()
    harness.append(log)
    faulty(harness).write_error = errno.EIO
    ((failed, error),) = harness.service.flush()
    assert (
        failed is log
        and not error.out_of_space
        and len(harness.failed) == 1
        and log.log_end_offset == 0
    )


async def test_a_directory_that_fails_during_a_turn_fails_its_later_writes(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    await harness.service.start()
    logs = [harness.open(partition=TopicPartition("t", index)) for index in range(6)]
    mine = [log for log in logs if log.directory.name == "a"]
    for log in logs:
        harness.write(log, batch(b"before"))
    for log in logs:
        harness.append(log, batch(b"now"))
    faulty(harness).fails_in = logs.index(mine[1])
    failures = harness.service.flush()
    assert [log for log, _ in failures] == mine[1:] and [
        path.name for path, _ in harness.failed
    ] == ["a"]
    assert [log.log_end_offset for log in logs] == [1 if log in mine[1:] else 2 for log in logs]
    assert [log.written_end_offset for log in mine] == [2, 1, 1] and not any(
        log.queue for log in logs
    )
    for log in mine:
        with pytest.raises(MqError):
            harness.append(log)
    await harness.service.close()
    assert {path.parent.name for path in tmp_path.rglob(".kafka_cleanshutdown")} == {"b"}


@pytest.mark.parametrize("writes", range(7))
async def test_a_failed_write_in_a_turn_never_lowers_the_high_watermark(
    harness: Harness, writes: int
) -> None:
    log = harness.open(ROLLING)
    harness.write(log, batch(b"x" * 300), batch(b"x" * 300))
    for _ in range(5):
        harness.append(log, batch(b"x" * 300))
    faulty(harness).fails_in = writes
    for failed, error in harness.service.flush():
        assert failed is log and log.failure and not error.out_of_space and harness.failed
    assert 2 <= log.written_end_offset == log.log_end_offset <= 7 and not log.queue
    assert bool(harness.failed) is (log.log_end_offset < 7)
    await harness.service.close()
    await harness.restart()
    assert harness.service.logs[PARTITION].log_end_offset >= 2
    harness.kill()


@pytest.mark.parametrize("room", [0, 1, 61, 100, 250])
async def test_a_full_disk_fails_writes_and_serves_reads_until_space_is_free(
    harness: Harness, room: int
) -> None:
    log = harness.open(ROLLING)
    other = harness.open(partition=TopicPartition("other", 0))
    harness.write(
        log, *[batch(b"%d" % number, producer_id=1, sequence=number) for number in range(12)]
    )
    size, file = log.active.size, Path(log.path / f"{log.active.base_offset:020d}.log")
    faulty(harness).free = room
    for number in (12, 13, 14, 15):
        harness.append(log, batch(b"x" * 200, producer_id=1, sequence=number), epoch=5)
    ((failed, error),) = harness.service.flush()
    assert failed is log and error.out_of_space and harness.failed == []
    assert log.log_end_offset == log.written_end_offset == 12
    assert file.stat().st_size == size == log.active.size and log.epochs.latest == 0
    assert len(list(log.path.glob("*.log"))) == len(log.segments)
    assert values(harness, log) == [b"%d" % number for number in range(12)]
    with pytest.raises(MqError) as caught:
        harness.append(log, batch(producer_id=1, sequence=12))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR and caught.value.code.retriable
    faulty(harness).free = 0
    with pytest.raises(StorageError) as refused:
        harness.open(partition=TopicPartition("new", 0))
    assert refused.value.out_of_space and not (log.directory / "new-0").exists()
    harness.service.delete(other.topic_partition)
    faulty(harness).free = DISK_RESERVE_BYTES + 1000
    harness.write(log, batch(b"again", producer_id=1, sequence=12), epoch=5)
    assert values(harness, log)[-1] == b"again" and log.epochs.entries() == [(0, 0), (5, 12)]
    await harness.restart()
    assert harness.service.logs[PARTITION].log_end_offset == 13 and not harness.service.reports
    harness.kill()


# -- shortening


async def test_the_first_start_does_not_look_like_one_after_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mqd.log.service")
    harness = Harness(tmp_path)
    await harness.service.start()
    assert "logs loaded count=0 seconds=" in caplog.text and "clean" not in caplog.text
    harness.open(ROLLING)
    await harness.restart()  # after a kill
    assert "logs loaded count=1" in caplog.text and "clean=False" in caplog.text


async def test_truncation(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    log = harness.open(ROLLING)
    for number in range(30):
        harness.write(
            log,
            batch(b"a%02d" % number, b"b", producer_id=1, sequence=2 * number),
            epoch=number // 10,
        )
    harness.service.checkpoint_high_watermark(PARTITION, 41)
    harness.service.truncate_to(log, 60)
    assert log.log_end_offset == 60
    harness.service.truncate_to(log, 43)
    assert log.log_end_offset == 42, "a batch that reaches beyond is removed completely"
    assert log.epochs.entries() == [(0, 0), (1, 20), (2, 40)] and not caplog.records
    assert next(iter(log.producers.entries())).last_sequence == 41
    harness.service.truncate_to(log, 20)
    assert log.epochs.entries() == [(0, 0)] and any(
        "high watermark" in record.message for record in caplog.records
    )
    assert harness.service.checkpointed_high_watermark(PARTITION) == 20
    harness.write(log, batch(b"new", producer_id=1, sequence=20), epoch=7)
    assert len(values(harness, log)) == 21
    harness.service.truncate_to(log, 0)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (0, 0, 1)
    harness.write(log, batch(b"first", producer_id=9, sequence=0), epoch=8)
    await harness.restart()
    assert values(harness, harness.service.logs[PARTITION]) == [b"first"]
    harness.kill()


async def test_delete_records_moves_the_log_start_permanently(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200, file_delete_delay_ms=1000))
    for number in range(10):
        harness.write(log, batch(b"%d" % number + b"x" * 100), epoch=number)
    harness.service.checkpoint_high_watermark(PARTITION, 10)
    async with harness.running():
        assert harness.service.delete_records(log, 4) == 4 == harness.service.delete_records(log, 2)
        for offset in (11, -1):
            with pytest.raises(MqError):
                harness.service.delete_records(log, offset)
        await wait_until(lambda: log.segments[0].base_offset == 4)
        assert log.epochs.entries()[0] == (4, 4)
        await run_pending_tasks()
        assert list(log.path.glob("*.deleted"))
        mock_clock.jump(2)
        await wait_until(lambda: not list(log.path.glob("*.deleted")))
    await harness.restart()
    log = harness.service.logs[PARTITION]
    assert (log.log_start_offset, log.log_end_offset) == (4, 10)
    harness.kill()


async def test_retention_and_time_rolls(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200, retention_ms=1000, segment_ms=10_000_000))
    unclaimed = harness.open(
        LogConfig(segment_bytes=200, retention_ms=1), TopicPartition("unclaimed", 0)
    )
    unclaimed.opened = False
    for one in (log, unclaimed):
        for number in range(4):
            harness.write(one, batch(b"x" * 100, timestamp=NOW + number))
        harness.service.checkpoint_high_watermark(one.topic_partition, 4)
    harness.clock.now_ms = NOW + 1002
    await harness.service.retain()
    assert log.log_start_offset == 2
    harness.clock.now_ms = NOW + 5000
    await harness.service.retain()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (4, 4, 0), (
        "the active segment was rolled and removed"
    )
    assert unclaimed.log_start_offset == 0
    harness.service.update_config(log, LogConfig(segment_ms=100))
    harness.write(log, batch(timestamp=harness.clock.now_ms))
    harness.clock.now_ms += 101
    await harness.service.retain()
    assert log.active.base_offset == 5 and log.log_start_offset == 4
    harness.kill()


class CountsPasses(trio.abc.Instrument):
    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.parametrize("change", ["", "failed", "reset"])
async def test_retention_removes_a_few_segments_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("mqd.log.manager.housekeeping.SEGMENTS_RETIRED_AT_ONCE", 3)
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200, retention_ms=-1, retention_bytes=0))
    for number in range(11):
        harness.write(log, batch(b"x" * 100, timestamp=NOW + number))
    harness.service.checkpoint_high_watermark(PARTITION, 11)
    housekeeping, passes = harness.service.housekeeping, CountsPasses()
    retire, retired = housekeeping.retire, []

    def noted(log: PartitionLog, count: int, reason: str) -> None:
        retire(log, count, reason)
        retired.append((passes.count, count))
        if len(retired) == 2 and change == "failed":
            log.failure = LogFailure("test")
        elif len(retired) == 2 and change == "reset":
            harness.service.reset(log, 2)
            harness.write(log, batch(b"x" * 100, timestamp=NOW))

    monkeypatch.setattr(housekeeping, "retire", noted)
    trio.lowlevel.add_instrument(passes)
    await harness.service.retain()
    trio.lowlevel.remove_instrument(passes)
    assert [count for _, count in retired] == ([3, 3] if change else [3, 3, 3, 1])
    assert len({at for at, _ in retired}) == len(retired), "others run between two steps"
    if change == "reset":
        assert (log.log_start_offset, log.log_end_offset) == (2, 3), "a new record stays"
    harness.kill()


async def with_two_expired_segments(directory: Path) -> tuple[Harness, PartitionLog]:
    """A log of four segments with one record each. Retention removes the first two."""
    harness = Harness(directory)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200, retention_ms=1000))
    for number in range(4):
        harness.write(log, batch(b"x" * 100, timestamp=NOW + number))
    harness.service.checkpoint_high_watermark(PARTITION, 4)
    harness.clock.now_ms = NOW + 1002
    return harness, log


async def test_a_power_failure_restores_a_removed_segment(tmp_path: Path) -> None:
    """The second of two renames was durable, the first was not: the gap between the segments is not
    a lost record.
    """
    harness, log = await with_two_expired_segments(tmp_path)
    await harness.service.retain()
    assert log.log_start_offset == 2
    back = sorted(log.path.glob("00000000000000000000.*.deleted"))
    assert back
    harness.kill()
    for path in back:
        path.rename(path.with_suffix(""))
    harness.service = harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200))
    assert (log.log_start_offset, log.log_end_offset, log.failure) == (2, 4, None)
    assert [segment.base_offset for segment in log.segments] == [2, 3]
    harness.kill()


async def test_on_a_full_disk_retention_records_the_log_start_in_an_empty_file(
    tmp_path: Path,
) -> None:
    """Otherwise a power failure in this state lets the log restart at 0: recovery believes that the
    removed segments are lost.
    """
    harness, log = await with_two_expired_segments(tmp_path)
    faulty(harness).free = 0
    await harness.service.retain()
    assert log.log_start_offset == 2 and len(log.segments) == 2
    assert not (tmp_path / "log-start-offset-checkpoint").exists()
    harness.kill()
    faulty(harness).free = 1 << 40
    harness.service = harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=200))
    assert (log.log_start_offset, log.log_end_offset) == (2, 4)
    harness.kill()


async def test_a_clean_stop_writes_what_the_next_start_needs(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(ROLLING)
    for number in range(20):
        harness.write(log, batch(b"x" * 100, producer_id=4, sequence=number), epoch=6)
    harness.service.checkpoint_high_watermark(PARTITION, 20)
    await harness.service.close(broker_epoch=77)
    assert decode_offset_checkpoint(
        (tmp_path / "recovery-point-offset-checkpoint").read_bytes()
    ) == {PARTITION: 20}
    assert (log.path / f"{20:020d}.snapshot").exists()
    await harness.restart()
    service = harness.service
    assert service.registry.clean_start and service.directories[tmp_path].broker_epoch == 77
    assert service.checkpointed_high_watermark(PARTITION) == 20
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    log = harness.open(ROLLING)
    assert harness.append(log, batch(b"x" * 100, producer_id=4, sequence=19)).duplicate
    harness.kill()


async def test_checkpoints_are_written_while_it_runs(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(flush_before_ack=True))
    async with harness.running():
        harness.write(log, batch(), batch())
        harness.service.checkpoint_high_watermark(PARTITION, 2)
        await run_pending_tasks()
        for name, seconds in (
            ("replication-offset-checkpoint", 6),
            ("recovery-point-offset-checkpoint", 60),
        ):
            path = tmp_path / name
            mock_clock.jump(seconds)
            await wait_until(path.exists)
            assert decode_offset_checkpoint(path.read_bytes()) == {PARTITION: 2}
    harness.kill()


async def test_a_stop_on_a_full_disk_succeeds_without_a_clean_marker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open()
    harness.write(log, batch(b"kept", producer_id=1, sequence=0))
    faulty(harness).free = 0
    await harness.service.close()
    assert harness.failed == [] and "no clean marker" in caplog.text
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    await harness.restart()
    assert [record.value for record in harness.read_all(harness.open())] == [b"kept"]
    harness.kill()


async def test_a_write_undone_during_a_sync_leaves_the_log_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a replica with `flush.before.ack` neither reports its end any more nor gets
    records, even when there is space again.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(flush_before_ack=True))
    under_way, goes_on = threading.Event(), threading.Event()

    def sync(_file: FaultyFile) -> None:
        under_way.set()
        goes_on.wait(10)

    async with harness.running() as service:
        harness.write(log, batch(b"first"))
        await wait_until(lambda: log.durability.end_offset == 1)
        monkeypatch.setattr(FaultyFile, "sync", sync)
        harness.write(log, batch(b"second"))
        await wait_until(under_way.is_set)
        faulty(harness).free = 0
        harness.append(log, batch(b"third"))
        assert [failed for failed, _ in service.flush()] == [log] and log.written_end_offset == 2
        goes_on.set()
        await wait_until(lambda: log.durability.end_offset == 2)
        assert harness.durable[-1] == (PARTITION, 2) and harness.failed == []
    harness.kill()


async def test_a_roll_on_a_full_disk_takes_no_directory_offline(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The segment is durable, its producer snapshot is not: the recovery point waits for that."""
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(flush_before_ack=True))
    async with harness.running() as service:
        harness.write(log, batch(b"a", producer_id=1, sequence=0), epoch=3)
        faulty(harness).free = 0
        await trio.sleep(12)
        assert harness.failed == [] and log.durability.end_offset == 0
        faulty(harness).free = 1 << 30
        await trio.sleep(6)
        # virtual time does not wait for the thread
        await wait_until(lambda: log.durability.end_offset == 1)
        assert not any(one.failed for one in service.directories.values())
    harness.kill()


async def test_a_clean_stop_syncs_several_logs_at_a_time(tmp_path: Path) -> None:
    class Disk(OsDisk):
        """A disk whose calls wait until three are under way."""

        def __init__(self) -> None:
            super().__init__()
            self.meets = False
            self.calls = 0
            self.three = trio.Event()

        async def offload(
            self,
            call: Callable[[*ArgumentsT], ResultT],
            *args: *ArgumentsT,
            limiter: trio.CapacityLimiter | None = None,
        ) -> ResultT:
            if self.meets:
                self.calls += 1
                if self.calls == 3:
                    self.three.set()
                await self.three.wait()
            return await super().offload(call, *args, limiter=limiter)

    disk = Disk()
    harness = Harness(tmp_path, disk=disk)
    await harness.service.start()
    for number in range(3):
        harness.write(harness.open(partition=TopicPartition("many", number)), batch())
    disk.meets = True
    with trio.fail_after(10):
        await harness.service.close()
    await harness.restart()
    assert harness.service.registry.clean_start
    await harness.service.close()


async def test_unsynced_records_below_the_log_start_may_be_torn(
    tmp_path: Path,
) -> None:
    """A power failure tore one of them.

    Recovery must not report it as corruption: the recovery point is not beyond it.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open()
    harness.write(log, batch(b"a"), batch(b"b"), batch(b"c"))
    harness.service.checkpoint_high_watermark(PARTITION, 3)
    harness.service.delete_records(log, 3)
    assert (log.durability.end_offset, log.durability.synced_end_offset) == (3, 0)
    await harness.service.checkpoint_recovery_points()
    harness.kill()
    with (log.path / segment_file_name(0, LOG_SUFFIX)).open("r+b") as segment:
        segment.write(bytes(100))
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    assert not harness.service.offline
    harness.kill()


async def test_checkpoints_of_one_name_are_written_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner and the recovery points both write the cleaner's checkpoint: each renames the
    temporary file that it wrote.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    harness.open().cleaned_to = 0
    writing = most = 0
    store = harness.disk.offload

    async def slow(*args: Any, **options: Any) -> Any:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        await trio.lowlevel.checkpoint()
        result = await store(*args, **options)
        writing -= 1
        return result

    monkeypatch.setattr(harness.disk, "offload", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(harness.service.housekeeping.store, "cleaner-offset-checkpoint")
        nursery.start_soon(harness.service.housekeeping.store, "cleaner-offset-checkpoint")
    assert most == 1
    harness.kill()
