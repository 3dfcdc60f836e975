"""Followers have the same transactions as their leader, also when their logs were truncated within
them (KIP-101).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqd.errors import MqError
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import BatchHeader, iterate_batches
from mqd.protocol.markers import EndMarker, build_end_marker
from tests.log.support import NOW, Harness, batch, wait_until

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200, file_delete_delay_ms=0)


def write_history(
    harness: Harness, log: PartitionLog, seed: int, *, epoch: int, count: int = 60
) -> None:
    """Transactions of four producers, some still open at the end; plain records between."""
    dice = random.Random(seed)
    for _ in range(count):
        producer_id = dice.randrange(1, 5)
        if dice.random() < 0.2:
            harness.append(log, batch(b"plain"), epoch=epoch)
        elif producer_id in log.producers.open.values() and dice.random() < 0.5:
            marker = EndMarker(dice.random() < 0.5, epoch)
            harness.append(
                log, build_end_marker(producer_id, 0, marker, NOW), epoch=epoch, client=False
            )
        else:
            guard = log.producers.guard(producer_id, 0, -1, False, 0)
            if guard is not None:
                guard.confirmed = True
            harness.append(
                log,
                batch(b"%d" % dice.randrange(100), producer_id=producer_id, transactional=True),
                epoch=epoch,
                client=False,
            )
        if dice.random() < 0.3:
            assert harness.service.flush() == []
    assert harness.service.flush() == []


def copy(
    leader: Harness,
    source: PartitionLog,
    follower: Harness,
    target: PartitionLog,
    dice: random.Random,
) -> None:
    """As fetches copy them, in pieces of any size."""
    while target.log_end_offset < source.log_end_offset:
        read = leader.service.read(
            source,
            target.log_end_offset,
            max_bytes=dice.randrange(1, 2000),
            limit_offset=source.written_end_offset,
            min_one=True,
        )
        for one in read.ranges:
            data = bytearray(one.file.read_at(one.position, one.size))
            taken = follower.service.append_as_follower(target, memoryview(data), leader_epoch=100)
            assert taken == len(data)
        assert follower.service.flush() == []


def what_it_knows(harness: Harness, log: PartitionLog) -> object:
    end = log.log_end_offset
    stable = log.last_stable_offset(end)
    entries = [entry[:4] + entry[6:] for entry in sorted(log.producers.entries())]
    return (
        stable,
        log.producers.open,
        entries,
        [
            [one[:3] for one in harness.service.reader.aborted(log, start, stable)]
            for start in range(0, stable, 7)
        ],
    )


async def started(path: Path) -> tuple[Harness, PartitionLog]:
    harness = Harness(path)
    await harness.service.start()
    return harness, harness.open(CONFIG)


@pytest.mark.parametrize("seed", range(3))
async def test_a_follower_equals_its_leader_after_any_truncation(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    leader, source = await started(tmp_path / "leader")
    follower, target = await started(tmp_path / "follower")
    write_history(leader, source, seed, epoch=1)
    async with follower.running():
        copy(leader, source, follower, target, dice)
        assert what_it_knows(follower, target) == what_it_knows(leader, source)
        bases = [header.base_offset for header in headers(leader, source)]
        for offset in dice.sample(bases, 6):
            follower.service.truncate_to(target, offset)
            await wait_until(lambda: target.durability.unsynced_truncation is None)
            await wait_until(
                lambda: target.durability.recovery_point <= target.durability.end_offset
            )
            assert target.log_end_offset == offset
            copy(leader, source, follower, target, dice)
            assert what_it_knows(follower, target) == what_it_knows(leader, source)
    for harness in (leader, follower):
        await harness.service.close()


async def test_truncating_a_marker_reopens_its_transaction(
    tmp_path: Path,
) -> None:
    """The leader of epoch 1 wrote an abort that was not replicated; the leader of epoch 2
    wrote the commit that the coordinator decided.
    """
    old, mine = await started(tmp_path / "old")
    new, source = await started(tmp_path / "new")
    guard = mine.producers.guard(1, 0, -1, False, 0)
    assert guard is not None
    guard.confirmed = True
    old.write(mine, batch(), epoch=1)
    old.append(mine, batch(b"t", producer_id=1, transactional=True), epoch=1, client=False)
    assert old.service.flush() == []
    copy(old, mine, new, source, random.Random(1))
    old.append(mine, build_end_marker(1, 0, EndMarker(False, 1), NOW), epoch=1, client=False)
    assert old.service.flush() == []
    assert [one.first_offset for one in old.service.reader.aborted(mine, 0, 3)] == [1]
    new.append(source, build_end_marker(1, 0, EndMarker(True, 2), NOW), epoch=2, client=False)
    assert new.service.flush() == []
    epoch, end = source.epochs.end_offset_for(1, source.log_end_offset)
    assert (epoch, end) == (1, 2)
    old.service.truncate_to(mine, end)
    assert mine.last_stable_offset(2) == 1 and old.service.reader.aborted(mine, 0, 2) == []
    copy(new, source, old, mine, random.Random(1))
    assert old.service.reader.aborted(mine, 0, 3) == [] and mine.last_stable_offset(3) == 3
    with pytest.raises(MqError):
        mine.producers.check_marker(1, 0, 1, 0)  # the previous coordinator
    for harness in (old, new):
        await harness.service.close()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("restarts", [True, False], ids=["restart", "truncation"])
async def test_a_snapshot_keeps_transactions_whose_marker_is_not_replicated(
    tmp_path: Path, restarts: bool, commits: bool
) -> None:
    """Seed 500488 of 3 nodes: a producer snapshot contains open transactions only, so after a
    restart the last stable offset was beyond a transaction whose marker was then truncated."""
    harness, log = await started(tmp_path)
    guard = log.producers.guard(1, 0, -1, False, 0)
    assert guard is not None
    guard.confirmed = True
    harness.write(log, batch())
    harness.append(log, batch(b"t", producer_id=1, transactional=True), client=False)
    harness.append(log, build_end_marker(1, 0, EndMarker(commits, 1), NOW), client=False)
    while len(log.segments) < 3:
        harness.write(log, batch(b"x" * 200))
    harness.service.checkpoint_high_watermark(log.topic_partition, 2)
    assert log.last_stable_offset(2) == 1
    if restarts:
        await harness.service.close()
        await harness.restart()
        log = harness.open(CONFIG)
    else:
        harness.service.truncate_to(log, log.log_end_offset - 1)
    assert log.last_stable_offset(2) == 1
    assert log.last_stable_offset(3) == 3
    await harness.service.close()


def headers(harness: Harness, log: PartitionLog) -> list[BatchHeader]:
    found = []
    offset = 0
    while offset < log.log_end_offset:
        read = harness.service.read(
            log, offset, max_bytes=1 << 20, limit_offset=log.log_end_offset, min_one=True
        )
        for one in read.ranges:
            found += [
                header for _, _, header in iterate_batches(one.file.read_at(one.position, one.size))
            ]
        offset = read.next_offset
    return found
