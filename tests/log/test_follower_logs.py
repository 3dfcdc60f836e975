"""A log that follows another one: batches as in the leader's log, truncation, reset, abandonment,
and crashes in between.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.disk import File
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.protocol.batch import iterate_batches, write_crc
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT, decode_offset_checkpoint
from mqd.protocol.slices import all_slices
from mqd.types import TopicPartition
from tests.log.support import NOW, PARTITION, TOPIC_ID, FaultyDisk, Harness, batch

ROLLING = LogConfig(segment_bytes=420, index_interval_bytes=100, file_delete_delay_ms=0)


class Killed(BaseException):
    """The process ends here."""


class DyingDisk(FaultyDisk):
    """Kills the process before one of its changes to the directory tree or to a file's length."""

    def __init__(self) -> None:
        super().__init__()
        self.steps_left = -1
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps_left == 0:
            raise Killed
        self.steps_left -= 1

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        self.step()
        super().make_directory(path, durable=durable)

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        self.step()
        super().rename(source, target, durable=durable)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self.step()
        file = super().open(path, create=create)
        original = file.truncate

        def truncate(size: int) -> None:
            self.step()
            original(size)

        file.truncate = truncate  # type: ignore[method-assign]  # replaced by the test
        return file


@pytest.fixture
async def leader(tmp_path: Path) -> Harness:
    made = Harness(tmp_path / "leader")
    await made.service.start()
    return made


@pytest.fixture
async def follower(tmp_path: Path) -> Harness:
    made = Harness(tmp_path / "follower")
    await made.service.start()
    return made


def content(log: PartitionLog) -> bytes:
    return b"".join(
        (log.path / f"{segment.base_offset:020d}.log").read_bytes() for segment in log.segments
    )


def written(harness: Harness, batches: int = 12, config: LogConfig | None = None) -> PartitionLog:
    """A log with some batches of three leader epochs and two producers."""
    log = harness.open(config or LogConfig())
    for number in range(batches):
        data = batch(b"%03d" % number * 8, b"x", producer_id=number % 2, sequence=number // 2 * 2)
        harness.write(log, data, epoch=1 + number // 4)
    return log


def append(
    harness: Harness,
    log: PartitionLog,
    data: bytes,
    *,
    leader_epoch: int = 9,
    batches_max: int = 100,
) -> int:
    taken = harness.service.append_as_follower(
        log, memoryview(data), leader_epoch=leader_epoch, batches_max=batches_max
    )
    assert harness.service.flush() == []
    return taken


# -- appending


@pytest.mark.parametrize("batches_max", [1, 3, 100])
async def test_appended_batches_equal_the_leader_s(
    leader: Harness, follower: Harness, batches_max: int
) -> None:
    theirs, ours = written(leader), follower.open(ROLLING)
    data = content(theirs)
    position = 0
    while position < len(data):
        position += append(follower, ours, data[position:], batches_max=batches_max)
    assert content(ours) == data and len(ours.segments) > 2
    assert ours.log_end_offset == ours.written_end_offset == theirs.log_end_offset
    assert ours.epochs.entries() == theirs.epochs.entries() == [(1, 0), (2, 8), (3, 16)]
    assert list(ours.producers.entries()) == list(theirs.producers.entries())
    assert follower.read_all(ours, 200) == leader.read_all(theirs)
    again = follower.append(ours, batch(b"000" * 8, b"x", producer_id=1, sequence=10), epoch=9)
    assert again.duplicate and again.base_offset == 22


async def test_consecutive_batches_are_one_write_per_segment(
    leader: Harness, follower: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(written(leader))
    ours = follower.open()
    writes: list[int] = []
    file = ours.active.file
    assert file is not None
    original = file.append

    def counted(views: list[Any]) -> int:
        writes.append(len(views))
        return original(views)

    monkeypatch.setattr(file, "append", counted)
    append(follower, ours, data)
    assert writes == [1]


def damaged(
    change: Callable[[bytearray], object], *, crc_is_valid: bool = False
) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        out = bytearray(data)
        change(out)
        if crc_is_valid:
            write_crc(out)
        return bytes(out)

    return damage


DAMAGES = {
    "a flipped bit": damaged(lambda data: data.__setitem__(70, data[70] ^ 1)),
    "a magic of before": damaged(lambda data: data.__setitem__(16, 1)),
    "a length of nothing": damaged(lambda data: data.__setitem__(slice(8, 12), bytes(4))),
    "an offset that was": damaged(
        lambda data: data.__setitem__(slice(0, 8), (0).to_bytes(8, "big"))
    ),
    "an epoch of before": damaged(
        lambda data: data.__setitem__(slice(12, 16), (0).to_bytes(4, "big"))
    ),
    "no offsets": damaged(
        lambda data: data.__setitem__(slice(23, 27), b"\xff\xff\xff\xff"), crc_is_valid=True
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_batch_is_refused_and_earlier_ones_are_appended(
    leader: Harness, follower: Harness, damage: str
) -> None:
    data = content(written(leader, 2))
    (_, size, _), _ = iterate_batches(data)
    wrong = data[:size] + DAMAGES[damage](data[size:])
    ours = follower.open()
    assert append(follower, ours, wrong) == size
    for _ in range(2):
        with pytest.raises(MqError) as caught:
            append(follower, ours, wrong[size:])
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert ours.log_end_offset == ours.written_end_offset == 2 and not ours.queue
    assert append(follower, ours, data[size:]) == len(data) - size


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_gaps_of_a_compacted_leader_are_copied(
    leader: Harness, follower: Harness, policy: str
) -> None:
    data = content(written(leader, 8))
    batches = [data[position : position + size] for position, size, _ in iterate_batches(data)]
    ours = follower.open(
        LogConfig(segment_bytes=len(batches[2]) + 50, cleanup_policy=frozenset({policy}))
    )
    kept = b"".join(batches[2:3] + batches[5:])
    assert append(follower, ours, kept) == len(kept)
    assert content(ours) == kept
    assert [segment.base_offset for segment in ours.segments] == [0, 6, 12, 14], (
        "segments leave no gap between them"
    )
    assert [segment.next_offset for segment in ours.segments] == [6, 12, 14, 16]
    assert ours.cleaned_to == 0, "the log is known to have gaps"
    assert [record.offset for record in follower.read_all(ours)] == [4, 5, 10, 11, 12, 13, 14, 15]
    await follower.restart()
    again = follower.open(ours.config)
    assert content(again) == kept and not follower.service.reports
    assert again.cleaned_to == 0, "also after a kill, from what the start reads"
    again.on_synced(again.written_end_offset)
    await follower.service.checkpoint_recovery_points()
    await follower.restart()
    assert follower.open(ours.config).cleaned_to == 0, (
        "a start trusts what is below the recovery point, and does not read it"
    )


async def test_an_epoch_after_a_gap_begins_at_the_gap(leader: Harness, follower: Harness) -> None:
    """Its first batch was removed by compaction: a replica that has another batch of an older epoch
    there must truncate it (KIP-101).
    """
    log = leader.open()
    leader.write(log, batch(b"a"), batch(b"b"), epoch=0)
    leader.write(log, batch(b"c"), batch(b"d"), epoch=3)
    data = content(log)
    batches = [data[position : position + size] for position, size, _ in iterate_batches(data)]
    ours = follower.open(LogConfig(cleanup_policy=frozenset({"compact"})))
    cleaned = b"".join(batches[:2] + batches[3:])
    assert append(follower, ours, cleaned) == len(cleaned)
    assert ours.epochs.entries() == [(0, 0), (3, 2)]
    (ours.path / "leader-epoch-checkpoint").unlink(missing_ok=True)
    await follower.restart()
    assert follower.open(ours.config).epochs.entries() == [(0, 0), (3, 2)], (
        "also where a start reads the batches"
    )


async def test_an_epoch_after_a_gap_begins_at_the_gap_in_trusted_segments(
    leader: Harness, follower: Harness
) -> None:
    """The recovery point is beyond it, and the checkpoint of the epochs is missing: a start reads
    the batches anyway.
    """
    log = leader.open()
    leader.write(log, batch(b"a" * 100), batch(b"b" * 100), epoch=0)
    leader.write(
        log, batch(b"c" * 100), batch(b"d" * 100), batch(b"e" * 100), batch(b"f" * 100), epoch=3
    )
    data = content(log)
    batches = [data[position : position + size] for position, size, _ in iterate_batches(data)]
    ours = follower.open(
        LogConfig(segment_bytes=len(batches[0]) + 50, cleanup_policy=frozenset({"compact"}))
    )
    cleaned = b"".join(batches[:2] + batches[3:])
    assert append(follower, ours, cleaned) == len(cleaned) and len(ours.segments) > 3
    ours.on_synced(ours.written_end_offset)
    await follower.service.checkpoint_recovery_points()
    (ours.path / "leader-epoch-checkpoint").unlink(missing_ok=True)
    await follower.restart()
    assert follower.open(ours.config).epochs.entries() == [(0, 0), (3, 2)]


async def test_a_gap_wider_than_a_segment(leader: Harness, follower: Harness) -> None:
    data = bytearray(content(written(leader, 2)))
    second = next(iterate_batches(data))[1]
    data[second : second + 8] = (1 << 40).to_bytes(8, "big")
    ours = follower.open(LogConfig(cleanup_policy=frozenset({"compact"})))
    assert append(follower, ours, bytes(data)) == len(data)
    assert [record.offset for record in follower.read_all(ours)] == [0, 1, 1 << 40, (1 << 40) + 1]
    assert (
        ours.segments[1].base_offset == (1 << 40) + 1 - (2**31 - 1) == ours.segments[0].next_offset
    )
    await follower.restart()
    assert [record.offset for record in follower.read_all(follower.open(ours.config))] == [
        0,
        1,
        1 << 40,
        (1 << 40) + 1,
    ]


async def test_truncated_batches_and_unknown_epochs_are_not_appended(
    leader: Harness, follower: Harness
) -> None:
    data = content(written(leader, 8))
    ours = follower.open()
    first = append(follower, ours, data, leader_epoch=1)
    assert ours.log_end_offset == 8 and ours.epochs.latest == 1
    assert append(follower, ours, data[first:], leader_epoch=1) == 0
    _, size, _ = next(iterate_batches(data[first:]))
    for missing in (1, size - 61, size - 60, size):
        assert append(follower, ours, data[first : first + size - missing], leader_epoch=2) == 0
    assert append(follower, ours, data[first:], leader_epoch=2) == len(data) - first


async def test_a_full_disk_undoes_the_append(leader: Harness, follower: Harness) -> None:
    data = content(written(leader))
    ours = follower.open()
    first = append(follower, ours, data, batches_max=3)
    entries, epochs = list(ours.producers.entries()), ours.epochs.entries()
    disk = follower.disk
    assert isinstance(disk, FaultyDisk)
    disk.free = 150
    follower.service.append_as_follower(ours, memoryview(data)[first:], leader_epoch=9)
    [(log, _)] = follower.service.flush()
    assert (
        log is ours
        and ours.log_end_offset == 6
        and ours.failure is not None
        and ours.failure.is_retriable
    )
    assert (list(ours.producers.entries()), ours.epochs.entries()) == (entries, epochs)
    with pytest.raises(MqError) as caught:
        append(follower, ours, data[first:])
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.free = 1 << 30
    append(follower, ours, data[first:])
    assert content(ours) == data


async def test_a_start_within_a_batch(leader: Harness, follower: Harness) -> None:
    """The leader's log starts in the middle of a batch after DeleteRecords: the follower gets the
    complete batch, and its log starts at the same offset.
    """
    data = content(written(leader))
    batches = list(iterate_batches(data))
    ours = follower.open()
    follower.service.reset(ours, 7)
    assert (ours.log_start_offset, ours.log_end_offset, ours.last_epoch) == (7, 7, -1)
    append(follower, ours, data[batches[3][0] :])
    assert (ours.log_start_offset, ours.log_end_offset) == (6, 24)
    assert not follower.service.truncation.below_high_watermark, "nothing was removed"
    follower.service.delete_records(ours, 7)
    await follower.restart()
    ours = follower.open()
    assert (ours.log_start_offset, ours.log_end_offset) == (6, 24), (
        "its checkpoint was not written yet"
    )


# -- truncation


async def test_a_truncation_below_the_high_watermark_is_counted_and_logged(
    follower: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(follower)
    follower.service.checkpoint_high_watermark(PARTITION, 10)
    follower.service.truncate_to(log, 12)
    assert follower.service.truncation.below_high_watermark == 0
    follower.service.truncate_to(log, 11)
    assert log.log_end_offset == 10, "the batch that contains the offset is removed completely"
    assert follower.service.truncation.below_high_watermark == 0
    follower.service.truncate_to(log, 4)
    assert follower.service.truncation.below_high_watermark == 1
    assert "acknowledged records are removed" in caplog.text
    assert [entry.last_offset for entry in log.producers.entries()] == [
        1,
        3,
    ] and log.epochs.entries() == [(1, 0)]


async def test_a_truncation_at_the_end_removes_empty_epochs(follower: Harness) -> None:
    log = written(follower)
    log.epochs.assign(8, log.log_end_offset)
    assert log.last_epoch == 3
    follower.service.truncate_to(log, log.log_end_offset)
    assert log.epochs.latest == 3


async def test_a_truncation_below_the_start_resets_the_log(follower: Harness) -> None:
    log = written(follower)
    follower.service.delete_records(log, 10)
    follower.service.truncate_to(log, 5)
    assert (log.log_start_offset, log.log_end_offset, log.checkpointed_high_watermark) == (5, 5, 5)
    assert not list(log.producers.entries()) and not log.epochs.entries()


async def test_no_segment_begins_before_the_lower_recovery_point_is_durable(
    follower: Harness,
) -> None:
    """Recovery believes the segments before the checkpointed point: after a truncation below it
    they would be new ones, never synced.
    """
    log = written(follower, config=ROLLING)
    async with follower.running():
        follower.service.request_sync(log)
        while log.durability.end_offset < log.log_end_offset:
            await follower.service.wait_synced()
        await follower.service.checkpoint_recovery_points()
    assert log.durability.recovery_point == 24
    follower.service.truncate_to(log, 4)
    data = batch(b"y" * 100)
    follower.write(log, data, epoch=1)
    with pytest.raises(MqError) as caught:
        follower.append(log, data, epoch=1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await follower.service.checkpoint_recovery_points()
    points = decode_offset_checkpoint(
        (follower.directories[0] / RECOVERY_POINT_CHECKPOINT).read_bytes()
    )
    assert points[PARTITION] == 4
    # a power failure could restore the truncated records, below a segment that begins now
    with pytest.raises(MqError, match="the truncation of"):
        follower.append(log, data, epoch=1)
    async with follower.running():
        while log.durability.unsynced_truncation is not None:
            await follower.service.wait_synced()
    follower.write(log, data, data, epoch=1)
    assert len(log.segments) > 1


async def test_a_deleted_log_s_recovery_point_does_not_apply_to_the_next_one(
    follower: Harness,
) -> None:
    log = written(follower)
    log.on_synced(log.log_end_offset)
    await follower.service.checkpoint_recovery_points()
    follower.service.delete(PARTITION)
    log = follower.open(ROLLING)
    follower.write(log, batch(b"y" * 300))
    with pytest.raises(MqError):
        follower.append(log, batch(b"y" * 300))
    await follower.service.checkpoint_recovery_points()
    follower.write(log, batch(b"y" * 300), batch(b"z"))


async def test_epochs_read_from_batches_override_their_file(
    follower: Harness, leader: Harness
) -> None:
    """A truncation, then other batches of an older epoch, then a kill before the file of the epochs
    is written.
    """
    log = written(follower)
    follower.service.request_sync(log)
    async with follower.running():
        while log.durability.end_offset < log.log_end_offset:
            await follower.service.wait_synced()
    assert (log.path / "leader-epoch-checkpoint").exists()
    follower.service.truncate_to(log, 10)
    other = leader.open()
    leader.write(other, *(batch(b"o", b"o") for _ in range(4)), epoch=1)
    leader.write(other, *(batch(b"o", b"o") for _ in range(6)), epoch=2)
    leader.write(other, batch(b"o"), epoch=5)
    data = content(other)
    position = next(
        position for position, _, header in iterate_batches(data) if header.base_offset == 10
    )
    append(follower, log, data[position:])
    assert log.epochs.entries() == [(1, 0), (2, 8), (5, 20)]
    await follower.restart()
    assert follower.open().epochs.entries() == [(1, 0), (2, 8), (5, 20)]


# -- crashes in between


def crashes(harness: Harness, change: Callable[[], object]) -> int:
    """The number of steps of a change, found with a disk that allows all of them."""
    disk = harness.disk
    assert isinstance(disk, DyingDisk)
    disk.steps = 0
    change()
    return disk.steps


@pytest.mark.parametrize(
    "what", ["truncate", "truncate within a segment", "reset ahead", "reset back"]
)
def test_a_crash_between_the_steps_of_a_truncation(tmp_path: Path, what: str) -> None:
    """After each step, the log is the old one, the new one, or an earlier end of the old one; never
    with a gap, never offline.
    """

    def change(harness: Harness, log: PartitionLog) -> None:
        trio.run(changing, harness, log)

    async def changing(harness: Harness, log: PartitionLog) -> None:
        if what == "truncate":
            harness.service.truncate_to(log, 5)
        elif what == "truncate within a segment":
            harness.service.truncate_to(log, 22)
        else:
            harness.service.reset(log, 100 if what == "reset ahead" else 3)

    def made(name: str) -> tuple[Harness, PartitionLog]:
        harness = Harness(tmp_path / name, disk=DyingDisk())
        trio.run(harness.service.start)
        log = written(harness, config=ROLLING)
        assert len(log.segments) > 2
        return harness, log

    harness, log = made("whole")
    before = content(log)
    steps = crashes(harness, lambda: change(harness, log))
    assert steps > 2
    for step in range(steps):
        harness, log = made(str(step))
        disk = harness.disk
        assert isinstance(disk, DyingDisk)
        disk.steps_left = step
        with pytest.raises(Killed):
            change(harness, log)
        disk.steps_left = -1
        trio.run(harness.restart)
        assert not harness.service.offline, step
        log = harness.open(ROLLING)
        if log.log_start_offset == 0:
            assert before.startswith(content(log)), step
        else:
            assert (
                log.log_start_offset == log.log_end_offset == (100 if what == "reset ahead" else 3)
            )
        follower_goes_on = batch(b"next")
        trio.run(harness.service.checkpoint_recovery_points)
        harness.write(log, follower_goes_on, epoch=9)
        assert log.log_end_offset > log.log_start_offset


async def test_a_log_that_cannot_be_reset_for_lack_of_space_is_unchanged(
    follower: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(follower)
    before = content(log)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mqd.log.disk.partition_directory.new_segment", full)
    with pytest.raises(StorageError) as caught:
        follower.service.reset(log, 50)
    assert caught.value.out_of_space
    assert (
        log.failure is None
        and log.log_end_offset == 24
        and content(log) == before
        and not follower.failed
    )


# -- abandoning a log


async def offline(harness: Harness, name: str) -> None:
    """Corruption in the middle, found by the next start."""
    log = harness.open(partition=TopicPartition(name, 0))
    harness.write(log, *(batch(b"%d" % number * 50) for number in range(6)))
    path = log.path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    await harness.restart()
    assert TopicPartition(name, 0) in harness.service.offline


@pytest.mark.parametrize("unidentified", [False, True])
async def test_an_offline_log_is_abandoned_and_starts_empty(
    follower: Harness, unidentified: bool
) -> None:
    await offline(follower, "orders")
    if unidentified:
        (follower.directories[0] / "orders-0" / "partition.metadata").unlink()
    with pytest.raises(MqError):
        follower.open()
    assert follower.service.discard_corrupt(PARTITION)
    log = follower.open()
    assert (log.log_start_offset, log.log_end_offset) == (0, 0) and not follower.service.offline
    follower.write(log, batch(b"fresh"))
    await follower.restart()
    assert follower.open().log_end_offset == 1


async def test_a_log_that_fails_at_run_time_is_abandoned(follower: Harness) -> None:
    log = written(follower)
    with pytest.raises(MqError):
        raise follower.service.reader.unreadable(log, "it cannot be read")
    assert follower.service.discard_corrupt(PARTITION)
    fresh = follower.open()
    assert (
        fresh is not log
        and fresh.log_end_offset == 0
        and not follower.failed
        and not follower.service.offline
    )


async def test_an_intact_log_is_not_abandoned(follower: Harness) -> None:
    log = written(follower)
    assert not follower.service.discard_corrupt(PARTITION)
    assert not follower.service.discard_corrupt(TopicPartition("nothing", 0))
    log.failure = LogFailure("no space", is_retriable=True)
    assert not follower.service.discard_corrupt(PARTITION)
    assert follower.service.logs[PARTITION] is log and log.topic_id == TOPIC_ID and NOW


async def test_files_of_a_replaced_log_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where earlier files are still there, and complete segments after a truncation: unlinking
    large files takes time.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=150, file_delete_delay_ms=60_000))
    inline: list[Path] = []
    with monkeypatch.context() as patched:
        patched.setattr(harness.disk, "remove_tree", inline.append)
        patched.setattr(
            harness.disk,
            "remove",
            lambda path: (
                inline.append(path) if path.suffix == ".log" else path.unlink(missing_ok=True)
            ),
        )
        for start in (100, 200, 300):
            harness.service.reset(log, start)
        harness.write(log, *(batch() for _ in range(6)))
        assert len(log.segments) > 2
        harness.service.truncate_to(log, log.segments[0].next_offset - 1)
        assert len(log.segments) == 1
        harness.service.delete(log.topic_partition)
    assert not inline
    assert sum(path.name.endswith("-delete") for path in tmp_path.iterdir()) == 4
    harness.kill()


@pytest.mark.parametrize("interval", [1, 150, 4096])
async def test_times_are_found_after_a_truncation(tmp_path: Path, interval: int) -> None:
    h = Harness(tmp_path)
    await h.service.start()
    log = h.open(LogConfig(index_interval_bytes=interval))
    times = [100, 500, 300, 700, 600, 900]
    for time in times:
        h.write(log, batch(timestamp=NOW + time))
    while len(times) > 1:
        times.pop()
        end = len(times)
        h.service.truncate_to(log, end)
        for wanted in range(50, 1000, 100):
            first = next((offset for offset, time in enumerate(times) if time >= wanted), None)
            found = all_slices(h.service.offset_for_timestamp(log, NOW + wanted, end))
            assert (found.offset if found is not None else None) == first
        youngest = all_slices(h.service.record_with_max_timestamp(log, end))
        assert youngest is not None
        assert youngest.timestamp == NOW + max(times)
    # a new entry of the index is not wrong about earlier records
    h.write(log, batch(timestamp=NOW + 50))
    found = all_slices(h.service.offset_for_timestamp(log, NOW + 60, 2))
    assert found is not None
    assert found.offset == 0
    h.kill()
