"""The log cleaner: the contents of a compacted log compared with a dictionary, and changes of the
log during a cleaning.
"""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.errors import MqError
from mqd.io.disk import File
from mqd.limits import DISK_RESERVE_BYTES
from mqd.log.compactor_options import CompactorOptions
from mqd.log.disk.checkpoints import store_offsets
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.files import CLEANER_CHECKPOINT, decode_offset_checkpoint
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition
from tests.log.compacting import roll, sync_and_commit
from tests.log.support import NOW, PARTITION, Harness, InlineDisk, batch, records_of, wait_until

COMPACT = LogConfig(
    segment_bytes=600,
    cleanup_policy=frozenset({"compact"}),
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, disk=InlineDisk())


def records(
    *pairs: tuple[str, str | None], codec: Codec = Codec.NONE, timestamp: int = NOW, **batch: Any
) -> bytearray:
    rows = [
        Record(number, timestamp, key.encode(), None if value is None else value.encode())
        for number, (key, value) in enumerate(pairs)
    ]
    return build_batch(rows, codec=codec, **batch)


async def clean(harness: Harness, log: PartitionLog, *, passes: int = 1) -> None:
    await sync_and_commit(harness, log)
    for _ in range(passes):
        assert await harness.service.compactor.clean_one(), "no log was due"


async def open_compacted(harness: Harness, config: LogConfig = COMPACT) -> PartitionLog:
    await harness.service.start()
    return harness.open(config)


def write_updates(harness: Harness, log: PartitionLog, count: int, *, keys: int) -> None:
    """Record `number` has the key k`number % keys` and the value v`number`."""
    for number in range(count):
        harness.write(log, records((f"k{number % keys}", f"v{number}")))


def table(harness: Harness, log: PartitionLog) -> dict[str, str]:
    held: dict[str, str] = {}
    for record in harness.read_all(log):
        assert record.key is not None
        if record.value is None:
            held.pop(record.key.decode(), None)
        else:
            held[record.key.decode()] = record.value.decode()
    return held


def held(harness: Harness, log: PartitionLog) -> list[tuple[int, str, str | None]]:
    return [
        (
            record.offset,
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in harness.read_all(log)
    ]


@pytest.mark.parametrize("codec", Codec)
async def test_the_newest_record_of_each_key_stays(
    harness: Harness, autojump_clock: object, codec: Codec
) -> None:
    log = await open_compacted(harness)
    dictionary: dict[str, str] = {}
    chance = random.Random(5)
    for number in range(200):
        pairs = [
            (f"k{chance.randrange(10)}", f"v{number}.{part}")
            for part in range(chance.randrange(1, 5))
        ]
        dictionary.update(pairs)
        harness.write(log, records(*pairs, codec=codec))
    before, size = harness.read_all(log), log.size_bytes
    end = log.log_end_offset
    roll(harness, log)
    await clean(harness, log)
    assert table(harness, log) == dictionary
    found = harness.read_all(log)
    assert len(found) == len(dictionary) == 10
    assert set(found) <= set(before), "offsets, timestamps, keys and values are unchanged"
    assert log.size_bytes < size / 5 and log.log_end_offset == end
    assert log.cleaned_to == end
    assert not await harness.service.compactor.clean_one(), "no segment is dirty any more"
    checkpoint = decode_offset_checkpoint(
        (harness.directories[0] / CLEANER_CHECKPOINT).read_bytes()
    )
    assert checkpoint == {PARTITION: end}
    await harness.service.close()
    await harness.restart()
    log = harness.open(COMPACT)
    assert harness.service.registry.clean_start and not harness.service.reports
    assert harness.read_all(log) == found and log.cleaned_to == end
    assert {path.suffix for path in log.path.iterdir()} <= {
        ".log",
        ".index",
        ".timeindex",
        ".snapshot",
        ".metadata",
        "",
    }
    harness.kill()


async def test_small_segments_are_merged(harness: Harness, autojump_clock: object) -> None:
    log = await open_compacted(harness)
    for number in range(100):
        harness.write(log, records((f"k{number % 3}", f"v{number}")))
        roll(harness, log)
        if number % 20 == 19:
            await clean(harness, log)
    assert len(log.segments) <= 6, "of a hundred"
    assert held(harness, log) == [(97, "k1", "v97"), (98, "k2", "v98"), (99, "k0", "v99")]
    assert [segment.next_offset for segment in log.segments[:-1]] == [
        segment.base_offset for segment in log.segments[1:]
    ]
    await harness.restart()
    assert table(harness, harness.open(COMPACT)) == {"k1": "v97", "k2": "v98", "k0": "v99"}
    harness.kill()


async def test_a_tombstone_expires_after_delete_retention_ms(
    harness: Harness, autojump_clock: object
) -> None:
    """KIP-534: the time starts at the pass that found no older record."""
    log = await open_compacted(harness)
    harness.write(log, records(("a", "1"), ("b", "1")), records(("a", None), ("c", "1")))
    roll(harness, log)
    await clean(harness, log)
    assert held(harness, log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    before = harness.read_all(log)

    async def run_another_pass(number: int) -> None:
        harness.write(log, records(("x", str(number))))
        roll(harness, log)
        await clean(harness, log)

    harness.clock.now_ms += 999
    await run_another_pass(1)
    assert held(harness, log)[:3] == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert harness.read_all(log)[:3] == before, (
        "timestamps are unchanged, though the horizon replaces the first one"
    )
    harness.clock.now_ms += 1
    await run_another_pass(2)
    assert held(harness, log) == [(1, "b", "1"), (3, "c", "1"), (5, "x", "2")]
    harness.kill()


async def test_records_that_may_not_be_cleaned_yet_stay(
    harness: Harness, autojump_clock: object
) -> None:
    log = await open_compacted(harness)
    for number in range(6):
        harness.write(log, records(("k", f"v{number}")))
        roll(harness, log)
    await sync_and_commit(harness, log)
    log.checkpointed_high_watermark = 4
    assert await harness.service.compactor.clean_one()
    assert held(harness, log) == [(3, "k", "v3"), (4, "k", "v4"), (5, "k", "v5")], (
        "not above the high watermark"
    )
    log.checkpointed_high_watermark = 6
    log.update_config(replace(COMPACT, min_compaction_lag_ms=1000))
    assert not await harness.service.compactor.clean_one(), "not younger than min.compaction.lag.ms"
    harness.clock.now_ms += 1001
    assert await harness.service.compactor.clean_one()
    assert held(harness, log) == [(5, "k", "v5")]
    harness.write(log, records(("k", "v6")))
    await sync_and_commit(harness, log)
    assert not await harness.service.compactor.clean_one(), "not the active segment"
    log.durability.end_offset = 5
    roll(harness, log)
    log.checkpointed_high_watermark = 7
    assert not await harness.service.compactor.clean_one(), "not records that are not durable"
    harness.kill()


async def test_a_log_is_cleaned_when_it_is_dirty_enough_or_overdue(
    harness: Harness, autojump_clock: object
) -> None:
    config = replace(COMPACT, min_cleanable_dirty_ratio=0.5)
    log = await open_compacted(harness, config)

    def write(count: int) -> None:
        for number in range(count):
            harness.write(log, records((f"k{number}", "v" * 50)))
        roll(harness, log)

    write(4)
    await clean(harness, log)
    write(3)
    await sync_and_commit(harness, log)
    assert not await harness.service.compactor.clean_one()
    log.update_config(replace(config, max_compaction_lag_ms=1000))
    assert not await harness.service.compactor.clean_one()
    harness.clock.now_ms += 1001
    assert await harness.service.compactor.clean_one()
    log.update_config(config)
    write(5)
    await clean(harness, log)
    harness.kill()


async def test_keys_that_do_not_fit_the_map_take_several_passes(
    harness: Harness, autojump_clock: object
) -> None:
    log = await open_compacted(harness)
    write_updates(harness, log, 300, keys=100)
    roll(harness, log)
    harness.service.compactor.options = CompactorOptions(
        dedupe_buffer_bytes=24 * 40, load_factor=0.9
    )
    await clean(harness, log)
    assert log.cleaned_to == 36
    passes = 1
    while await harness.service.compactor.clean_one():
        passes += 1
    assert passes == 9 and log.cleaned_to == 300
    assert table(harness, log) == {f"k{number % 100}": f"v{number}" for number in range(300)}
    assert len(harness.read_all(log)) == 100
    harness.write(log, records(*((f"x{number}", "v") for number in range(40))))
    roll(harness, log)
    await clean(harness, log)
    assert "more keys" in harness.service.compactor.uncleanable[log]
    assert not await harness.service.compactor.clean_one(), "it is not retried"
    harness.kill()


async def test_a_damaged_log_is_unchanged(harness: Harness, autojump_clock: object) -> None:
    log = await open_compacted(harness)
    write_updates(harness, log, 30, keys=3)
    roll(harness, log)
    await sync_and_commit(harness, log)
    path = log.path / f"{log.segments[1].base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    names = sorted(path.name for path in log.path.iterdir())
    assert await harness.service.compactor.clean_one()
    assert "CRC" in harness.service.compactor.uncleanable[log] and log.cleaned_to == 0
    assert sorted(path.name for path in log.path.iterdir()) == names and path.read_bytes() == data
    assert (
        not await harness.service.compactor.clean_one()
        and len(harness.service.compactor.uncleanable) == 1
    )
    harness.kill()


async def test_records_without_a_key_are_removed(harness: Harness, autojump_clock: object) -> None:
    """The topic was not always compacted."""
    log = await open_compacted(harness, replace(COMPACT, cleanup_policy=frozenset({"delete"})))
    harness.write(
        log, batch(b"without", keyed=False), batch(b"with"), batch(b"without", keyed=False)
    )
    roll(harness, log)
    log.update_config(COMPACT)
    await clean(harness, log)
    assert [(record.offset, record.value) for record in harness.read_all(log)] == [(1, b"with")]
    harness.kill()


async def test_the_last_batch_of_a_producer_keeps_its_sequence(
    harness: Harness, autojump_clock: object
) -> None:
    log = await open_compacted(harness)
    for number in range(5):
        harness.write(
            log,
            batch(b"%d" % number, producer_id=7, sequence=number),
            batch(b"x%d" % number, producer_id=8, sequence=number),
        )
    harness.write(log, batch(b"newest"))
    known = {entry.producer_id: entry for entry in log.producers.entries()}
    roll(harness, log)
    await clean(harness, log)
    assert [record.value for record in harness.read_all(log)] == [b"newest"]
    for path in log.path.glob("*.snapshot"):
        path.unlink()
    await harness.restart()
    log = harness.open(COMPACT)
    assert {entry.producer_id: entry for entry in log.producers.entries()} == known
    assert harness.append(log, batch(b"4", producer_id=7, sequence=4)).duplicate
    with pytest.raises(MqError):
        harness.append(log, batch(b"gap", producer_id=7, sequence=6))
    harness.write(log, batch(b"5", producer_id=7, sequence=5))
    harness.kill()


async def test_open_readers_keep_their_ranges(harness: Harness, autojump_clock: object) -> None:
    log = await open_compacted(harness)
    write_updates(harness, log, 40, keys=2)
    roll(harness, log)
    read = harness.service.read(log, 0, max_bytes=400, limit_offset=40, min_one=True)
    before = records_of(read.ranges)
    await clean(harness, log)
    assert records_of(read.ranges) == before and len(before) > 1
    again = harness.service.read(
        log, read.next_offset, max_bytes=1 << 20, limit_offset=40, min_one=True
    )
    assert again.next_offset > read.next_offset, "a reader that continues after it makes progress"
    harness.kill()


async def test_it_runs_periodically_and_reads_only_dirty_logs(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads, as in a daemon."""
    harness = Harness(tmp_path)
    log = await open_compacted(harness)
    write_updates(harness, log, 40, keys=2)
    roll(harness, log)
    log.checkpointed_high_watermark = log.log_end_offset
    compactor = harness.service.compactor
    # the clock jumps continuously beside a thread: a jump would interrupt the wait
    harness.service.housekeeping.checkpoint_seconds = math.inf
    async with harness.running():
        await wait_until(lambda: compactor.passes == 1)
        opened: list[Path] = []
        calls: list[object] = []
        original, offload = harness.disk.open, harness.disk.offload

        def open_noted(path: Path, *, create: bool = False) -> File:
            opened.append(path)
            return original(path, create=create)

        def offload_noted(call: Any, *args: Any, limiter: Any = None) -> Any:
            calls.append(call)
            return offload(call, *args, limiter=limiter)

        monkeypatch.setattr(harness.disk, "open", open_noted)
        monkeypatch.setattr(harness.disk, "offload", offload_noted)
        passes = compactor.passes
        await trio.sleep(45)
        assert compactor.passes == passes and not opened
        assert set(calls) <= {store_offsets}, "checkpoints of the logs, which are written anyway"
    assert held(harness, log) == [(38, "k0", "v38"), (39, "k1", "v39")]
    harness.kill()


async def test_the_rate_is_bounded(
    harness: Harness, autojump_clock: trio.testing.MockClock
) -> None:
    log = await open_compacted(harness, replace(COMPACT, segment_bytes=100_000))
    for number in range(100):
        harness.write(log, records((f"k{number}", "v" * 1000)))
    roll(harness, log)
    harness.service.compactor.options = CompactorOptions(
        bytes_per_second=10_000, io_buffer_bytes=8192
    )
    began = trio.current_time()
    await clean(harness, log)
    moved = 2 * log.size_bytes
    assert moved > 200_000, "read for the offset map, and read and written for the rewrite"
    assert trio.current_time() - began >= moved / 10_000 - 1
    harness.kill()


# -- changes of the log during a cleaning


def deleted(harness: Harness) -> bool:
    harness.service.delete(PARTITION)
    return True


Change = Callable[[Harness, PartitionLog], object]

CHANGES: dict[str, Change] = {
    "cut": lambda harness, log: harness.service.truncate_to(log, 10),
    "cut to nothing": lambda harness, log: harness.service.reset(log, 24),
    "deleted": lambda harness, log: deleted(harness),
    "made anew": lambda harness, log: deleted(harness) and harness.open(COMPACT),
    "retired": lambda harness, log: harness.service.housekeeping.retire(log, 2, "test"),
    "not compacted": lambda harness, log: log.update_config(
        replace(COMPACT, cleanup_policy=frozenset({"delete"}))
    ),
    "failed": lambda harness, log: setattr(log, "failure", LogFailure("test")),
}


@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_log_that_changes_during_a_cleaning(
    tmp_path: Path, autojump_clock: object, change: str, during: bool
) -> None:
    """The change follows each call that the cleaner sends to a thread, or occurs `during` it, one
    call after the other.
    """
    at = 0
    while await changed_at(tmp_path / f"{at}", change, at, during):
        at += 1
    assert at > 20


async def changed_at(home: Path, change: str, at: int, during: bool) -> bool:
    """False when the cleaner ended before.

    A slice is a segment or less, so that changes also fall between the slices of a segment.
    """
    harness = Harness(home, disk=InlineDisk())
    log = await open_compacted(harness)
    compactor = harness.service.compactor
    compactor.options = replace(compactor.options, io_buffer_bytes=1000)
    written = [(number, f"k{number % 4}", f"v{number}") for number in range(24)]
    for row in written:
        harness.write(log, records(row[1:]))
    roll(harness, log)
    await sync_and_commit(harness, log)
    calls = 0
    offload = harness.disk.offload

    async def counted(call: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        nonlocal calls
        due, calls = calls == at, calls + 1
        if due and during:
            CHANGES[change](harness, log)
        result = await offload(call, *args, limiter=limiter)
        if due and not during:
            CHANGES[change](harness, log)
        return result

    harness.disk.offload = counted  # type: ignore[method-assign,assignment]  # replaced by the test
    await compactor.clean_one()
    del harness.disk.offload
    assert not compactor.uncleanable, "data read during the change proves nothing about the log"
    assert not harness.failed
    log.failure = None if change == "failed" else log.failure
    live = harness.service.logs.get(PARTITION)
    expected = {
        f"k{number % 4}": f"v{number}"
        for number in range(0 if change in ("cut to nothing", "made anew") else 24)
    }
    for _ in range(2 if calls > at else 0):
        if change == "deleted":
            assert live is None and not log.path.exists()
            break
        assert live is not None
        assert live.cleaned_to is None or live.cleaned_to <= live.log_end_offset
        # records that newer ones replaced are removed
        if change == "cut":
            assert set(held(harness, live)) <= set(written[:10]) and live.log_end_offset <= 10
        else:
            assert table(harness, live) == expected, at
        assert live.swap is None
        left = {path.suffix for path in live.path.iterdir()} - {".deleted"}
        assert left <= {".log", ".index", ".timeindex", ".snapshot", ".metadata", "", ".cleaned"}, (
            left
        )
        assert sum(path.stat().st_size for path in live.path.glob("*.log")) == live.size_bytes
        await harness.restart()
        live = harness.open(COMPACT)
    harness.kill()
    return calls > at


async def test_a_log_that_changes_during_a_checkpoint_is_checked_again(
    harness: Harness, autojump_clock: object
) -> None:
    log = await open_compacted(harness)
    write_updates(harness, log, 24, keys=4)
    roll(harness, log)
    await sync_and_commit(harness, log)
    offload = harness.disk.offload

    async def changed(call: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        harness.disk.offload = offload  # type: ignore[method-assign]  # replaced by the test
        harness.service.reset(log, 30)
        return await offload(call, *args, limiter=limiter)

    harness.disk.offload = changed  # type: ignore[method-assign,assignment]  # replaced by the test
    assert not await harness.service.compactor.clean_one()
    assert not harness.failed
    harness.kill()


async def test_a_log_without_space_delays_no_other(
    harness: Harness, autojump_clock: trio.testing.MockClock
) -> None:
    dirtiest = await open_compacted(harness, replace(COMPACT, segment_bytes=100_000))
    other = harness.open(COMPACT, TopicPartition("other", 0))
    harness.write(dirtiest, *(records(("k", "v" * 500)) for _ in range(20)))
    harness.write(other, records(("k", "v0")))
    roll(harness, other)
    await clean(harness, other)
    harness.write(other, records(("k", "v1")))
    for log in (dirtiest, other):
        roll(harness, log)
        await sync_and_commit(harness, log)
    compactor = harness.service.compactor
    harness.disk.free = DISK_RESERVE_BYTES + 5000  # type: ignore[attr-defined]  # the fake disk has it
    offload, calls = harness.disk.offload, list[object]()

    async def noted(call: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        calls.append(call)
        return await offload(call, *args, limiter=limiter)

    assert await compactor.clean_one(), "there may be others"
    assert await compactor.clean_one() and other.cleaned_to == 2
    assert not await compactor.clean_one(), "now it pauses"
    harness.disk.offload = noted  # type: ignore[method-assign,assignment]  # replaced by the test
    for _ in range(3):
        await trio.sleep(compactor.options.backoff_ms / 1000)
        assert await compactor.clean_one() and not await compactor.clean_one(), (
            "once after each pause"
        )
    del harness.disk.offload
    assert dirtiest.cleaned_to == 0 and dirtiest.failure is None and not compactor.uncleanable
    assert not calls, "a log without space is not read in vain"
    harness.disk.free = 1 << 30  # type: ignore[attr-defined]  # the fake disk has it
    assert not await compactor.clean_one()
    await trio.sleep(compactor.options.backoff_ms / 1000)
    assert await compactor.clean_one() and dirtiest.cleaned_to == 20
    assert table(harness, dirtiest) == {"k": "v" * 500} and table(harness, other) == {"k": "v1"}
    harness.kill()


@pytest.mark.parametrize("which", range(9))
async def test_a_failed_rename_takes_the_directory_offline(
    harness: Harness, autojump_clock: object, which: int
) -> None:
    """Whatever the reason, including a full disk: after half of the renames only a start can
    complete them.
    """
    log = await open_compacted(harness)
    for number in range(12):
        harness.write(log, records((f"k{number % 4}", f"v{number}")))
        if number % 4 == 3:
            roll(harness, log)
    await sync_and_commit(harness, log)
    rename, left = harness.disk.rename, which

    def failing(source: Path, target: Path, *, durable: bool = True) -> None:
        nonlocal left
        if target.name.endswith(".tmp") or source.name.endswith(".tmp"):
            return rename(source, target, durable=durable)
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target, durable=durable)

    harness.disk.rename = failing  # type: ignore[method-assign]  # replaced by the test
    await harness.service.compactor.clean_one()
    assert left == -1 and not log.is_readable
    assert not await harness.service.compactor.clean_one()
    del harness.disk.rename
    await harness.restart()
    log = harness.open(COMPACT)
    assert table(harness, log) == {f"k{number % 4}": f"v{number}" for number in range(8, 12)}
    await clean(harness, log)
    assert table(harness, log) == {f"k{number % 4}": f"v{number}" for number in range(8, 12)}
    harness.kill()


async def test_a_replacement_that_a_truncation_completes_is_durable_first(
    harness: Harness, autojump_clock: object
) -> None:
    """A start that finds one .cleaned file drops the later .swap files. None of them may be left by
    then.
    """
    log = await open_compacted(harness)
    write_updates(harness, log, 24, keys=4)
    roll(harness, log)
    await sync_and_commit(harness, log)
    disk, changes = harness.disk, list[str]()
    offload, rename = disk.offload, disk.rename

    def renamed(source: Path, target: Path, *, durable: bool = True) -> None:
        changes.append(source.suffix)
        rename(source, target, durable=durable)

    async def cut_when_in_place(call: Callable[..., Any], *args: Any, limiter: Any = None) -> Any:
        result = await offload(call, *args, limiter=limiter)
        if log.swap is not None and log.swap.is_in_place:
            disk.rename, disk.sync_directory = renamed, lambda path: changes.append("sync")  # type: ignore[method-assign]  # replaced by the test
            harness.service.truncate_to(log, 23)
            del disk.rename, disk.sync_directory
        return result

    disk.offload = cut_when_in_place  # type: ignore[method-assign,assignment]  # replaced by the test
    await harness.service.compactor.clean_one()
    del disk.offload
    swapped = [at for at, what in enumerate(changes) if what == ".swap"]
    assert (
        len(swapped) == 3 and "sync" in changes[: swapped[0]] and changes[swapped[-1] + 1] == "sync"
    ), changes
    assert log.log_end_offset == 23 and log.swap is None
    harness.kill()
