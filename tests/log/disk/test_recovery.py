"""Opening logs after a crash, a bad disk or a manual mistake (RELIABILITY: bad files, torn tails,
corruption).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import parse_header
from mqd.protocol.files import (
    PARTITION_METADATA_BYTES,
    ProducerSnapshotEntry,
    decode_index,
    decode_offset_checkpoint,
    decode_time_index,
    encode_offset_checkpoint,
    encode_producer_snapshot,
)
from mqd.protocol.slices import all_slices
from mqd.types import TopicPartition
from tests.log.support import PARTITION, FaultyDisk, Harness, batch, records_of, run_pending_tasks

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def values(harness: Harness, log: PartitionLog) -> list[bytes]:
    return [record.value or b"" for record in harness.read_all(log)]


async def filled(
    path: Path, count: int = 30, config: LogConfig = SMALL, *, clean: bool = False
) -> Harness:
    """A log of `count` one-record batches of about 100 bytes (about 7 in each segment), after its
    process died or stopped.
    """
    harness = Harness(path)
    await harness.service.start()
    log = harness.open(config)
    for number in range(count):
        harness.write(
            log,
            batch(b"%03d" % number + b"x" * 30, producer_id=1, sequence=number),
            epoch=number // 10,
        )
    if clean:
        await harness.service.close()
    harness.kill()
    return harness


def segment_files(path: Path, suffix: str = ".log") -> list[Path]:
    return sorted((path / str(PARTITION)).glob(f"*{suffix}"))


async def reopened(harness: Harness) -> PartitionLog:
    await harness.restart()
    assert PARTITION in harness.service.logs, harness.service.offline
    return harness.open(SMALL)


async def offline(harness: Harness) -> str:
    await harness.restart()
    assert PARTITION not in harness.service.logs
    return harness.service.offline[PARTITION]


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
async def test_a_restart_recovers_everything(tmp_path: Path, clean: bool) -> None:
    harness = await filled(tmp_path, clean=clean)
    log = await reopened(harness)
    assert harness.service.registry.clean_start is clean
    assert [value[:3] for value in values(harness, log)] == [
        b"%03d" % number for number in range(30)
    ]
    assert log.epochs.entries() == [(0, 0), (1, 10), (2, 20)]
    assert [entry[:4] for entry in log.producers.entries()] == [(1, 0, 29, 29)]
    assert len(log.segments) > 3 and harness.service.reports == []
    harness.write(log, batch(b"more", producer_id=1, sequence=30), epoch=3)
    assert values(harness, log)[-1] == b"more"
    harness.kill()


async def test_a_kill_at_every_byte_leaves_whole_batches(tmp_path: Path) -> None:
    """A kill -9 at any byte leaves complete batches without gaps, and a log that accepts
    appends.
    """
    harness = await filled(tmp_path, 10, LogConfig())
    path = segment_files(tmp_path)[0]
    whole = path.read_bytes()
    ends, position = [], 0
    while position < len(whole):
        position += parse_header(whole, position).size
        ends.append(position)
    for size in range(ends[-3], len(whole) + 1):
        path.write_bytes(whole[:size])
        log = await reopened(harness)
        expected = sum(end <= size for end in ends)
        assert log.log_end_offset == expected == log.durability.end_offset
        assert path.stat().st_size == ends[expected - 1]
        assert [entry.last_sequence for entry in log.producers.entries()] == [expected - 1]
        assert bool(harness.service.reports) is (size not in ends)
    harness.kill()


async def test_the_torn_tail_of_an_older_write_is_garbage_or_zeros(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 10, LogConfig())
    path = segment_files(tmp_path)[0]
    whole = path.read_bytes()
    for tail in (
        b"\0" * 5000,
        os.urandom(3000),
        b"\x02" * 3000,
        b"\0" * 100 + whole[:50],
        whole[:61] + b"\0" * 40,
    ):
        path.write_bytes(whole + tail)
        log = await reopened(harness)
        assert log.log_end_offset == 10 and path.read_bytes() == whole
        assert harness.service.reports[0].truncated_bytes == len(tail)
    harness.kill()


@pytest.mark.parametrize("batch_index, torn", [(29, True), (28, False), (12, False), (0, False)])
async def test_one_flipped_bit_at_the_tail_is_torn_and_elsewhere_corruption(
    tmp_path: Path, batch_index: int, torn: bool
) -> None:
    harness = await filled(tmp_path, 30, LogConfig())
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(batch_index):
        position += parse_header(data, position).size
    data[position + 70] ^= 4
    path.write_bytes(data)
    if torn:
        log = await reopened(harness)
        assert log.log_end_offset == batch_index
    else:
        reason = await offline(harness)
        assert "corruption" in reason and path.name in reason and f"byte {position}:" in reason
        assert path.read_bytes() == bytes(data), "an offline log is not changed"
    harness.kill()


@pytest.mark.parametrize(
    ("config", "recovery_point"),
    [
        (LogConfig(), 0),
        (LogConfig(), 14),
        (LogConfig(), 15),
        (LogConfig(segment_bytes=700), 0),
        (LogConfig(segment_bytes=700), 10),
    ],
)
async def test_after_a_power_failure_unsynced_records_end_at_a_bad_batch(
    tmp_path: Path, config: LogConfig, recovery_point: int
) -> None:
    """Blocks reach the disk in any order: a valid batch after a bad one does not prove that both
    were there.
    """
    harness = await filled(tmp_path, 30, config)
    encoded = encode_offset_checkpoint({PARTITION: recovery_point})
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(encoded)
    left = 14
    for path in segment_files(tmp_path):
        data, position = bytearray(path.read_bytes()), 0
        while position < len(data):
            header = parse_header(data, position)
            if header.base_offset == left:
                data[position + 70 : position + 90] = bytes(20)
                path.write_bytes(data)
            position += header.size
    harness.kill()
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    if recovery_point > left:
        assert "corruption" in harness.service.offline[PARTITION]
    else:
        assert not harness.service.offline
        assert harness.service.logs[PARTITION].log_end_offset == left
        assert any("power failure" in finding for finding in harness.service.reports[0].findings)
        log = harness.open(config)
        harness.write(log, batch(b"on"), batch(b"and on"), epoch=9)
        assert (await harness.restart()).logs[PARTITION].log_end_offset == left + 2
    harness.kill()


@pytest.mark.parametrize("recovery_point", [0, 14])
async def test_after_a_power_failure_unsynced_records_end_at_a_short_segment(
    tmp_path: Path, recovery_point: int
) -> None:
    """A younger segment may be complete on the disk while the end of the previous one is
    missing.
    """
    harness = await filled(tmp_path, 30, LogConfig(segment_bytes=700))
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: recovery_point})
    )
    second = segment_files(tmp_path)[1]
    data = second.read_bytes()
    left = parse_header(data, 0).next_offset
    second.write_bytes(data[: parse_header(data, 0).size])
    harness.kill()
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    if recovery_point > left:
        with pytest.raises(MqError, match="missing"):
            harness.open(LogConfig(segment_bytes=700))
    else:
        assert not harness.service.offline
        assert harness.service.logs[PARTITION].log_end_offset == left
        assert len(segment_files(tmp_path)) == 2
    harness.kill()


@pytest.mark.parametrize(("survived", "recovery_point"), [(False, 0), (False, 29), (True, 0)])
async def test_after_a_power_failure_an_unsynced_truncation_ends_the_log(
    tmp_path: Path, survived: bool, recovery_point: int
) -> None:
    """The log was truncated and continued in a new segment; the segment is on the disk, the
    truncation is not.

    Nothing from there on was synced.
    """
    harness = await filled(tmp_path, 30, LogConfig(segment_bytes=700))
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: recovery_point})
    )
    older, newer = segment_files(tmp_path)[-2:]
    begins = parse_header(newer.read_bytes(), 0).base_offset
    older.write_bytes(older.read_bytes() + newer.read_bytes())
    harness.kill()
    harness.new_service(unsynced_survived=survived)
    await harness.service.start()
    if survived or recovery_point:
        assert PARTITION in harness.service.offline
    else:
        assert harness.service.logs[PARTITION].log_end_offset == begins
        assert segment_files(tmp_path)[-1] == older
    harness.kill()


async def test_corruption_across_segments_is_detected_and_other_logs_start(tmp_path: Path) -> None:
    harness = await filled(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"")
    path = segment_files(tmp_path)[-2]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other = tmp_path / "other-0"
    other.mkdir()
    (other / "partition.metadata").write_bytes(
        (tmp_path / str(PARTITION) / "partition.metadata").read_bytes()
    )
    assert segment_files(tmp_path)[-1].name in await offline(harness)
    assert [str(partition) for partition in harness.service.logs] == ["other-0"]
    harness.kill()


async def test_an_empty_segment_after_a_torn_tail_is_removed(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 5, LogConfig())
    first = segment_files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    first.with_name(f"{5:020d}.log").write_bytes(b"")
    log = await reopened(harness)
    assert log.log_end_offset == 4 and segment_files(tmp_path) == [first]
    harness.kill()


async def test_an_end_below_the_high_watermark_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await filled(tmp_path, 10, LogConfig())
    (tmp_path / "replication-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 10})
    )
    path = segment_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    log = await reopened(harness)
    assert harness.service.reports[0].truncated_below_high_watermark == 10
    assert harness.service.checkpointed_high_watermark(PARTITION) == 9 == log.log_end_offset
    assert any(
        record.levelname == "ERROR" and "high watermark" in record.message
        for record in caplog.records
    )
    harness.kill()


BAD_INDEXES = {
    "missing": None,
    "empty": b"",
    "oversized": b"\0\0\0\1\0\0\0\1" * 5000,
    "backwards": b"\0\0\0\5\0\0\2\0" + b"\0\0\0\4\0\0\1\0",
    "cut": b"\0\0\0\1\0",
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("kind", BAD_INDEXES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
async def test_bad_indexes_are_rebuilt(tmp_path: Path, kind: str, suffix: str, clean: bool) -> None:
    harness = await filled(tmp_path, clean=clean)
    if not clean:
        (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
            encode_offset_checkpoint({PARTITION: 25})
        )
    for path in segment_files(tmp_path, suffix):
        content = BAD_INDEXES[kind]
        path.unlink() if content is None else path.write_bytes(content)
    log = await reopened(harness)
    for offset in range(30):
        read = harness.service.read(log, offset, max_bytes=1, limit_offset=30, min_one=True)
        assert [record.offset for record in records_of(read.ranges)] == [offset]
    found = all_slices(harness.service.offset_for_timestamp(log, 0, 30))
    assert found is not None and found.offset == 0
    await harness.service.close()
    for path in segment_files(tmp_path):
        decode_index(path.with_suffix(".index").read_bytes(), path.stat().st_size)
        assert decode_time_index(path.with_suffix(".timeindex").read_bytes())[0]


async def test_indexes_equal_the_log(tmp_path: Path) -> None:
    await filled(tmp_path, clean=True)
    for path in segment_files(tmp_path):
        data = path.read_bytes()
        offsets, positions = decode_index(path.with_suffix(".index").read_bytes(), len(data))
        assert len(offsets) >= 2
        for relative, position in zip(offsets, positions):
            assert parse_header(data, position).last_offset == int(path.stem) + relative


async def test_a_damaged_snapshot_falls_back_to_an_older_one_and_the_log(tmp_path: Path) -> None:
    harness = await filled(tmp_path, clean=True)
    for path in segment_files(tmp_path, ".snapshot")[-2:]:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    log = await reopened(harness)
    assert [entry.last_sequence for entry in log.producers.entries()] == [29]
    assert log.producers.check(1, 0, 26, 0) is not None, "replayed batches are known individually"
    assert any("snapshot" in finding for finding in harness.service.reports[0].findings)
    harness.kill()


async def test_producers_come_from_older_segments_where_snapshots_are_missing(
    tmp_path: Path,
) -> None:
    harness = await filled(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 29})
    )
    home = tmp_path / str(PARTITION)
    last = int(segment_files(tmp_path)[-1].stem)
    assert not list(home.glob("*.snapshot")), "no task ran that would have written them"
    path = segment_files(tmp_path)[-1]
    path.write_bytes(b"")
    log = await reopened(harness)
    assert [(entry.last_sequence, entry.last_offset) for entry in log.producers.entries()] == [
        (last - 1, last - 1)
    ]
    assert log.log_end_offset == last and log.epochs.latest == 2
    harness.kill()


async def test_a_snapshot_beyond_a_torn_tail_is_not_loaded(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 10, LogConfig())
    home = tmp_path / str(PARTITION)
    stale = home / f"{9:020d}.snapshot"
    stale.write_bytes(encode_producer_snapshot([ProducerSnapshotEntry(1, 0, 8, 8, 0, 0)]))
    path = segment_files(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[: 7 * len(data) // 10])
    log = await reopened(harness)
    assert log.log_end_offset == 7 and not stale.exists()
    harness.write(log, *(batch(b"other", producer_id=2, sequence=number) for number in range(3)))
    await harness.service.close()
    log = await reopened(harness)
    assert {entry.producer_id: entry.last_sequence for entry in log.producers.entries()} == {
        1: 6,
        2: 2,
    }
    harness.kill()


@pytest.mark.parametrize(
    "content", [None, b"0\n1\nx y\n", b"0\n5\n0 0\n", b"9\n0\n", b"\xff\xfe", b"0\n2\n3 5\n2 9\n"]
)
async def test_a_bad_epoch_file_is_rebuilt_from_the_log(
    tmp_path: Path, content: bytes | None
) -> None:
    harness = await filled(tmp_path, clean=True)
    path = tmp_path / str(PARTITION) / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    log = await reopened(harness)
    assert log.epochs.entries() == [(0, 0), (1, 10), (2, 20)]
    assert [entry.last_sequence for entry in log.producers.entries()] == [29]
    harness.kill()


async def test_a_log_whose_records_are_all_deleted_needs_no_epochs(tmp_path: Path) -> None:
    harness = await filled(tmp_path)
    log = await reopened(harness)
    harness.service.delete_records(log, 30)
    harness.service.truncate_to(log, 30)
    await harness.service.close()
    await harness.restart()
    assert not harness.service.reports
    harness.kill()


@pytest.mark.parametrize("content", [b"0\n0\n", b"0\n1\n0 0\n", b"0\n2\n0 0\n1 10\n"])
async def test_an_outdated_epoch_file_is_completed_from_the_log(
    tmp_path: Path, content: bytes
) -> None:
    """A clean shutdown of a node with metadata version 1 could leave one. With it, the replica
    would truncate committed records, because it would name an older epoch to its leader (I23).
    """
    harness = await filled(tmp_path, clean=True)
    (tmp_path / str(PARTITION) / "leader-epoch-checkpoint").write_bytes(content)
    log = await reopened(harness)
    assert log.epochs.entries() == [(0, 0), (1, 10), (2, 20)]
    assert log.epochs.dirty
    assert [entry.last_sequence for entry in log.producers.entries()] == [29]
    harness.kill()


@pytest.mark.parametrize(
    "content",
    [
        b"0\n7\norders 0 3\n",
        b"0\n1\norders zero 3\n",
        b"\0" * 20,
        b"0\n1\norders 0 -4\n",
        b"letters",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
async def test_bad_checkpoints_count_as_missing(tmp_path: Path, name: str, content: bytes) -> None:
    harness = await filled(tmp_path, 8)
    (tmp_path / name).write_bytes(content)
    log = await reopened(harness)
    assert (log.log_start_offset, log.log_end_offset) == (0, 8)
    harness.kill()


async def test_files_with_unknown_names_are_ignored_or_removed(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 8)
    home = tmp_path / str(PARTITION)
    for name in (
        "-1.log",
        "0.log",
        "abc.index",
        "00000000000000000777.index",
        "00000000000000000003.log.deleted",
        "notes.tmp",
    ):
        (home / name).write_bytes(b"junk")
    for name in ("not-a-partition", "orders-00", "orders--1", "..", "file"):
        if name == "file":
            (tmp_path / name).write_bytes(b"")
        elif name != "..":
            (tmp_path / name).mkdir()
    log = await reopened(harness)
    assert log.log_end_offset == 8 and list(harness.service.logs) == [PARTITION]
    names = {path.name for path in home.iterdir()}
    assert {"-1.log", "0.log", "notes.tmp"} <= names
    assert not {"00000000000000000777.index", "00000000000000000003.log.deleted"} & names
    harness.kill()


async def test_segments_that_overlap_are_refused(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 20)
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    first, second = segment_files(tmp_path)[:2]
    twin = first.with_name(f"{int(second.stem) - 1:020d}.log")
    twin.write_bytes(first.read_bytes())
    assert "orders-0" in await offline(harness)
    harness.kill()


async def test_symlinks_and_unreadable_files(tmp_path: Path) -> None:
    harness = await filled(tmp_path / "real", 8)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    harness.directories = (tmp_path / "link",)
    log = await reopened(harness)
    assert log.log_end_offset == 8
    harness.kill()
    segment = segment_files(tmp_path / "real")[0]
    segment.unlink()
    segment.mkdir()
    assert "directory" in (await offline(harness)).lower()
    harness.kill()


async def test_metadata_of_a_partition(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 8)
    path = tmp_path / str(PARTITION) / "partition.metadata"
    path.write_bytes(b"version: 0\ntopic_id: nonsense")
    assert "partition.metadata" in await offline(harness)
    path.unlink()
    assert "partition.metadata" in await offline(harness)
    for file in segment_files(tmp_path):
        file.write_bytes(b"")
    await harness.restart()
    assert not harness.service.logs and not harness.service.offline and not path.parent.exists(), (
        "an unfinished creation is undone"
    )
    harness.kill()


async def test_a_directory_that_is_not_a_partition_is_offline_and_kept(tmp_path: Path) -> None:
    for name in ("holiday-2025", "my.photos-delete", "orders-0.1234-delete"):
        (tmp_path / name / "album").mkdir(parents=True)
        (tmp_path / name / "a.jpg").write_bytes(b"jpg")
    (tmp_path / "holiday-2026").mkdir()
    (tmp_path / "holiday-2026" / "diary.log").write_bytes(b"")
    harness = Harness(tmp_path)
    await harness.service.start()
    assert set(harness.service.offline) == {
        TopicPartition("holiday", 2025),
        TopicPartition("holiday", 2026),
    }
    async with harness.running():
        await run_pending_tasks()
        harness.service.delete(TopicPartition("holiday", 2025))
        await run_pending_tasks()
    assert len(list(tmp_path.rglob("*.jpg"))) == len(list(tmp_path.rglob("album"))) == 3
    with pytest.raises(StorageError, match="already exists"):
        harness.open(partition=TopicPartition("holiday", 2025))
    assert (tmp_path / "holiday-2026" / "diary.log").exists() and (
        tmp_path / "holiday-2025" / "a.jpg"
    ).exists()
    await harness.service.close()


TORN = b"version: 0\ntopic_id: L1VvD9zPRG"


@pytest.mark.parametrize(
    "metadata",
    [None, b"", b"\0" * 40, TORN, TORN.ljust(PARTITION_METADATA_BYTES, b"\0")],
    ids=["missing", "empty", "zeros", "torn", "torn with zeros"],
)
async def test_only_a_creation_without_acknowledgements_is_undone(
    tmp_path: Path, metadata: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / str(PARTITION)
    for high_watermark in (3, 0):
        home.mkdir()
        for name in (
            "00000000000000000000.log",
            "00000000000000000000.index",
            "00000000000000000000.timeindex",
        ):
            (home / name).write_bytes(b"")
        if metadata is not None:
            (home / "partition.metadata").write_bytes(metadata)
        (tmp_path / "replication-offset-checkpoint").write_bytes(
            encode_offset_checkpoint({PARTITION: high_watermark})
        )
        harness = Harness(tmp_path)
        await harness.service.start()
        harness.kill()
        assert home.exists() is (PARTITION in harness.service.offline) is (high_watermark > 0)
        if home.exists():
            for path in home.iterdir():
                path.unlink()
            home.rmdir()
    assert "creation was interrupted partition=orders-0" in caplog.text


@pytest.mark.parametrize("survived", [True, False])
async def test_unsynced_records_without_complete_metadata_are_removed(
    tmp_path: Path, survived: bool
) -> None:
    harness = await filled(tmp_path, 8)
    harness.kill()
    path = tmp_path / str(PARTITION) / "partition.metadata"
    assert path.stat().st_size == PARTITION_METADATA_BYTES
    path.write_bytes(TORN)
    service = harness.service = harness.new_service(unsynced_survived=survived)
    await service.start()
    assert (
        not service.logs and bool(service.offline) is survived and path.parent.exists() is survived
    )
    harness.kill()


@pytest.mark.parametrize(
    "leftover", ["leader-epoch-checkpoint.tmp", "00000000000000000000.log.deleted"]
)
async def test_an_unfinished_log_with_files_of_a_crash_is_not_damaged(
    tmp_path: Path, leftover: str
) -> None:
    """Seed 500243 of 3 nodes: the power failed during the first sync. The only replica in sync was
    offline permanently, and its partition had no leader.
    """
    harness = await filled(tmp_path, 8)
    harness.kill()
    path = tmp_path / str(PARTITION) / "partition.metadata"
    path.unlink()
    (path.parent / leftover).write_bytes(b"")
    service = harness.service = harness.new_service(unsynced_survived=False)
    await service.start()
    assert not service.logs and not service.offline and not path.parent.exists()
    harness.kill()


async def test_a_clean_stop_does_not_make_a_damaged_log_trusted(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 20)
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    await harness.service.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for _ in range(3):
        await offline(harness)
        await harness.service.close()
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        assert decode_offset_checkpoint(
            (tmp_path / "replication-offset-checkpoint").read_bytes()
        ).keys() == {PARTITION}
        assert decode_offset_checkpoint(
            (tmp_path / "log-start-offset-checkpoint").read_bytes()
        ).keys() == {PARTITION}


async def test_a_log_that_ends_before_its_start_is_reset(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 8)
    for name in ("log-start-offset-checkpoint", "replication-offset-checkpoint"):
        (tmp_path / name).write_bytes(encode_offset_checkpoint({PARTITION: 100}))
    log = await reopened(harness)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    harness.write(log, batch())
    assert harness.read_all(log)[0].offset == 100
    harness.kill()


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
async def test_an_impossible_log_start_removes_nothing(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await filled(tmp_path, clean=clean)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 999_999})
    )
    log = await reopened(harness)
    assert (log.log_start_offset, log.log_end_offset) == (0, 30)
    assert len(values(harness, log)) == 30
    assert "ignoring a checkpointed log start" in caplog.text
    harness.kill()


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
async def test_a_missing_segment_in_the_middle_fences_the_log(tmp_path: Path, clean: bool) -> None:
    harness = await filled(tmp_path, clean=clean)
    bases = [int(path.stem) for path in segment_files(tmp_path)]
    segment_files(tmp_path)[1].unlink()
    await harness.restart()
    with pytest.raises(
        MqError, match=f"offsets {bases[1]} to {bases[2] - 1} are missing"
    ) as refused:
        harness.open(SMALL)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert PARTITION in harness.service.offline and PARTITION not in harness.service.logs
    await harness.service.close()
    assert PARTITION in decode_offset_checkpoint(
        (tmp_path / "replication-offset-checkpoint").read_bytes()
    )


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
async def test_gaps_are_valid_in_a_compacted_topic(tmp_path: Path, clean: bool) -> None:
    harness = await filled(tmp_path, clean=clean)
    segment_files(tmp_path)[1].unlink()
    await harness.restart()
    log = harness.open(LogConfig(segment_bytes=1000, cleanup_policy=frozenset({"compact"})))
    assert log.log_end_offset == 30 and len(values(harness, log)) < 30
    harness.kill()


@pytest.mark.parametrize("recovery_point", [0, 29])
async def test_after_a_power_failure_a_log_without_its_first_segment_is_empty(
    tmp_path: Path, recovery_point: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the follower fetches from the end of the remaining log, and never gets the missing
    records.
    """
    harness = await filled(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: recovery_point})
    )
    first, second = segment_files(tmp_path)[:2]
    first.unlink()
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(SMALL)
    if recovery_point:
        assert (log.log_start_offset, log.log_end_offset) == (int(second.stem), 30)
    else:
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        assert len(segment_files(tmp_path)) == 1 and list(log.producers.entries()) == []
        assert f"offsets 0 to {int(second.stem) - 1} are missing at the beginning" in caplog.text
        harness.write(log, batch(b"again"), epoch=3)
        assert values(harness, log) == [b"again"]
    harness.kill()


async def test_after_a_power_failure_a_log_with_returned_segments_is_reset(
    tmp_path: Path,
) -> None:
    """Retention removed all segments below 35. The power failure undid the removal of the second
    one, and removed the records from 30 on.
    """
    harness = await filled(tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 35})
    )
    segment_files(tmp_path)[2].unlink()
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (35, 35) and len(log.segments) == 1
    harness.kill()


async def test_after_a_power_failure_the_log_start_may_be_in_a_lost_segment(
    tmp_path: Path,
) -> None:
    """The power failure also undid the removal of the segments below the log start, and kept a
    segment behind the lost one.
    """
    harness = await filled(tmp_path)
    files = segment_files(tmp_path)
    start = int(files[2].stem) + 1
    assert start < int(files[3].stem)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: start})
    )
    files[2].unlink()
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (start, start) and len(log.segments) == 1
    harness.kill()


@pytest.mark.parametrize("checkpoint", [None, 100])
async def test_after_a_power_failure_a_log_from_the_leader_s_start_is_complete(
    tmp_path: Path, checkpoint: int | None
) -> None:
    harness = await filled(tmp_path)
    log = await reopened(harness)
    harness.service.reset(log, 100)
    for number in range(100, 130):
        harness.write(log, batch(b"%03d" % number), epoch=4)
    harness.kill()
    if checkpoint is not None:
        (tmp_path / "log-start-offset-checkpoint").write_bytes(
            encode_offset_checkpoint({PARTITION: checkpoint})
        )
    harness.new_service(unsynced_survived=False)
    await harness.service.start()
    log = harness.open(SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (100, 130)
    harness.kill()


async def test_a_missing_first_segment_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await filled(tmp_path, clean=True)
    second = int(segment_files(tmp_path)[1].stem)
    segment_files(tmp_path)[0].unlink()
    log = await reopened(harness)
    assert log.log_start_offset == second
    assert f"records are missing partition={PARTITION} first=0 last={second - 1}" in caplog.text
    harness.kill()


async def test_a_full_disk_fences_no_log(tmp_path: Path) -> None:
    """Indexes are written again after a kill; without space they wait."""
    harness = await filled(tmp_path)
    for path in (*segment_files(tmp_path, ".index"), *segment_files(tmp_path, ".timeindex")):
        path.unlink()
    assert isinstance(harness.disk, FaultyDisk)
    harness.disk.free = 0
    log = await reopened(harness)
    assert len(values(harness, log)) == 30
    harness.disk.free = 1 << 30
    harness.write(log, batch(b"more"), epoch=3)
    await harness.service.close()
    log = await reopened(harness)
    assert len(values(harness, log)) == 31
    harness.kill()


async def test_old_formats_and_incomplete_compactions_are_offline(tmp_path: Path) -> None:
    harness = await filled(tmp_path, 3, LogConfig())
    home = tmp_path / str(PARTITION)
    (home / f"{0:020d}.log.swap").write_bytes(b"")
    assert "compaction" in await offline(harness)
    harness.kill()


async def test_many_segments_are_not_read_beyond_the_recovery_point(tmp_path: Path) -> None:
    harness = await filled(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 25})
    )
    first = segment_files(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1  # below the recovery point no batch is checked
    first.write_bytes(data)
    for number, snapshot in enumerate(segment_files(tmp_path, ".snapshot")):
        assert number >= 0 and snapshot.exists()
    log = await reopened(harness)
    assert log.log_end_offset == 30
    harness.kill()
