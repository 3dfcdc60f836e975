"""The log end checkpoint under any history: a correct disk raises no alarm, an older copy below the
checkpoint always does.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import event, example, given, settings, strategies as st

from mqd.errors import MqError
from mqd.log.log_config import LogConfig
from mqd.log.log_end import LOG_END_CHECKPOINT
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT
from mqd.testing.disk import MemoryDisk
from mqd.testing.inodes import Directory
from mqd.testing.process import Killed, Process
from mqd.testing.scheduler import VirtualClock
from tests.log.compacting import InlineDisk, roll, sync_and_commit
from tests.log.support import PARTITION, Harness, batch

HOME = Path("/logs")
CONFIG = LogConfig(
    segment_bytes=400,
    cleanup_policy=frozenset({"compact", "delete"}),
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    file_delete_delay_ms=0,
)
STEPS = (
    "write",
    "write",
    "cut",
    "begin anew",
    "remove records",
    "checkpoint",
    "compact",
    "replace",
    "stop",
)
HISTORY = st.lists(st.tuples(st.sampled_from(STEPS), st.floats(0, 1)), min_size=1, max_size=6)
CRASH = st.none() | st.integers(0, 60)
"""At which change of the disk in the last step it is killed."""


class Machine:
    """It keeps running; the process on it is killed at any change of the disk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.disk = MemoryDisk(1, self.clock, random.Random(seed))
        self.harness = Harness(HOME)

    @property
    def log(self) -> PartitionLog:
        return self.harness.service.logs[PARTITION]

    async def live(self, *, survival_proven: bool = True) -> None:
        self.disk.disarm()
        self.process = Process(1, "node 1", self.clock)
        self.harness.disk = InlineDisk(self.disk, self.process)  # type: ignore[assignment]  # a disk with the same calls
        self.harness.new_service(survival_proven=survival_proven, unsynced_survived=survival_proven)
        await self.harness.service.start()

    def open(self) -> PartitionLog:
        return self.harness.open(CONFIG)

    async def take(self, step: str, share: float) -> None:
        service, log = self.harness.service, self.open()
        offset = log.log_start_offset + int((log.log_end_offset - log.log_start_offset) * share)
        match step:
            case "write":
                for _ in range(int(share * 8) + 1):
                    value = b"%d" % self.random.getrandbits(30)
                    with suppress(MqError):  # no segment begins before a truncation is on the disk
                        self.harness.append(
                            log, batch(value * 8), epoch=max(log.epochs.latest, 0) + (share > 0.9)
                        )
                    service.flush()
                    if self.random.random() < 0.3:
                        await sync_and_commit(self.harness, log)
            case "cut":
                service.truncate_to(log, offset)
                await sync_and_commit(self.harness, log)
            case "begin anew":
                service.reset(log, int(share * 40))
            case "remove records":
                service.delete_records(log, offset)
                log.checkpointed_high_watermark = log.written_end_offset
                await service.housekeeping.store("log-start-offset-checkpoint")
                await service.retain()
            case "checkpoint":
                await service.checkpoint_recovery_points()
            case "compact":
                await sync_and_commit(self.harness, log)
                if log.active.size and log.durability.may_roll:
                    roll(self.harness, log)
                    await sync_and_commit(self.harness, log)
                await service.compactor.clean_one()
            case "replace":
                service.delete(PARTITION)
            case "stop":
                await service.close()
                await self.live(survival_proven=share < 0.5)

    async def live_through(self, history: list[tuple[str, float]], crash: int | None) -> None:
        """The process may be killed in the last step."""
        await self.live()
        for number, (step, share) in enumerate(history):
            if number == len(history) - 1 and crash is not None:
                self.disk.cut_in_write(crash, self.process.end)
            await self.take(step, share)


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


CREATED_AGAIN: list[tuple[str, float]] = [("stop", 0.0), ("replace", 0.0), ("write", 0.0)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(HISTORY, CRASH), min_size=1, max_size=3), st.integers(0, 2**20))
@example([([("write", 0.0)], None), (CREATED_AGAIN, 0)], 0)
@example([([("write", 0.0)], None), (CREATED_AGAIN, 1)], 0)
@example([([("write", 0.0)], None), (CREATED_AGAIN, 2)], 0)
@example([([("write", 0.0)], None), (CREATED_AGAIN, 3)], 0)
def test_a_correct_disk_raises_no_alarm(
    lives: list[tuple[list[tuple[str, float]], int | None]], seed: int
) -> None:
    async def main() -> None:
        machine = Machine(seed)
        for history, crash in lives:
            with suppress(Killed, trio.Cancelled):
                try:
                    await machine.live_through(
                        [("write", 0.8), ("checkpoint", 0.0), *history], crash
                    )
                except BaseExceptionGroup as group:
                    if group.split(Killed)[1] is not None:
                        raise
            machine.process.end()
        await machine.live()
        assert machine.harness.service.offline == {}
        assert not any(
            directory.lost_logs for directory in machine.harness.service.directories.values()
        )
        if PARTITION in machine.harness.service.logs and machine.log.end_claim.line is not None:
            event("a line was compared")

    run(main)


@settings(max_examples=25, deadline=None)
@given(HISTORY, HISTORY, st.integers(0, 2**20))
def test_an_older_copy_below_the_checkpoint_always_raises_an_alarm(
    before: list[tuple[str, float]], after: list[tuple[str, float]], seed: int
) -> None:
    """A copy of the log beside its checkpoint: the alarm names the log.

    A copy of all: the disk serial is smaller.
    """

    async def main() -> None:
        machine = Machine(seed)
        await machine.live_through(
            [("write", 0.5), *before, ("write", 0.5), ("checkpoint", 0)], None
        )
        copy, end = machine.disk.copy(), machine.log.log_end_offset
        for step, share in after:
            await machine.take(step, share)
        machine.open()
        await sync_and_commit(machine.harness, machine.log)  # no segment begins before that
        await machine.take("checkpoint", 0)
        for _ in range(end + 10):
            if machine.log.log_end_offset <= end:
                await machine.take("write", 0.0)
                await sync_and_commit(machine.harness, machine.log)
        assert machine.log.log_end_offset > end
        await machine.take("checkpoint", 0)
        reported = machine.harness.service.housekeeping.disk_serial
        machine.process.end()
        whole = machine.disk.copy()

        machine.disk.roll_back(copy)
        await machine.live()
        assert machine.harness.service.housekeeping.disk_serial < reported
        machine.process.end()

        machine.disk.roll_back(whole)
        now, then = machine.disk.root.names["logs"], copy.names["logs"]
        assert isinstance(now, Directory) and isinstance(then, Directory)
        name = str(PARTITION)
        same_topic = bytes(found(now, name, "partition.metadata")) == bytes(
            found(then, name, "partition.metadata")
        )
        now.change((name, then.copy().names[name]))
        await machine.live()
        assert (
            same_topic
            and name in map(str, machine.harness.service.offline)
            and machine.harness.service.registry.may_lack_records
        )

    run(main)


def found(directory: Directory, *names: str) -> bytearray:
    for name in names[:-1]:
        entry = directory.names[name]
        assert isinstance(entry, Directory)
        directory = entry
    inode = directory.names[names[-1]]
    assert not isinstance(inode, Directory)
    return inode.data


async def test_a_checkpoint_without_space_is_removed_at_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a power failure has shortened the log, the old line must be removed: the next start
    would believe it.
    """
    machine = Machine(1)
    await machine.live_through([("write", 1.0), ("checkpoint", 0)], None)
    machine.process.end()
    segment = machine.disk.find(HOME / str(PARTITION) / f"{0:020d}.log")
    assert segment is not None and not isinstance(segment, Directory)
    del segment.data[len(segment.data) // 2 :]
    write_atomic = InlineDisk.write_atomic

    def full(disk: InlineDisk, path: Path, data: bytes) -> None:
        if path.name in (LOG_END_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(disk, path, data)

    monkeypatch.setattr(InlineDisk, "write_atomic", full)
    await machine.live(survival_proven=False)
    assert machine.disk.find(HOME / LOG_END_CHECKPOINT) is None
    machine.process.end()
    monkeypatch.setattr(InlineDisk, "write_atomic", write_atomic)
    await machine.live()
    assert machine.harness.service.offline == {}
