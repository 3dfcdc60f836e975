"""A full disk: the journal waits and loses nothing, the reserve allows deletions and restarts, and
writes resume when space is free.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import trio

from mqd import limits
from mqd.errors import ErrorCode, MqError, StorageError
from mqd.raft.codec import COMMAND
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from mqd.raft.service import OutcomeUnknown
from tests.raft.memory_disk import MemoryDisk, MemoryFile
from tests.raft.test_service import Log, alone, is_ready, until

RAFT = Path("raft")
RESERVE = RAFT / "reserve"


class SmallFile(MemoryFile):
    def write_at(self, position: int, data: bytes | memoryview) -> None:
        disk = self._disk
        assert isinstance(disk, SmallDisk)
        room = disk.capacity - disk.used()
        growth = position + len(data) - self.size()
        if growth > room:
            super().write_at(position, bytes(data)[: len(data) - growth + max(room, 0)])
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        super().write_at(position, data)

    def sync(self) -> None:
        disk = self._disk
        assert isinstance(disk, SmallDisk)
        if disk.sync_finds_no_space:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        super().sync()


class SmallDisk(MemoryDisk):
    """The files together hold so many bytes. A write that does not fit is left incomplete."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.sync_finds_no_space = False
        self.descriptors_are_used_up = False

    def used(self) -> int:
        return sum(len(content.data) for content in self.files.values())

    def fill(self) -> None:
        self.capacity = self.used()

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        file = super().open(path, create=create)
        return SmallFile(self, path, file._content)

    def write_atomic(self, path: Path, data: bytes) -> None:
        if self.descriptors_are_used_up:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        if len(data) > self.capacity - self.used():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write_atomic(path, data)

    def free_bytes(self, path: Path) -> int:
        return max(0, self.capacity - self.used())


def opened(disk: MemoryDisk, *, reserve_bytes: int = 0) -> Journal:
    return open_journal(
        disk,
        RAFT,
        cluster_id="c",
        node_id=1,
        new_uuid=lambda: UUID(int=7),
        reserve_bytes=reserve_bytes,
    )


def append(journal: Journal, command: bytes) -> None:
    journal.append(COMMAND + command, journal.last_index + 1, 1)


def test_without_a_reserve_a_failed_flush_keeps_the_journal_and_may_be_retried() -> None:
    disk = SmallDisk(1 << 20)
    journal = opened(disk)
    append(journal, b"first")
    journal.flush()
    size = disk.open(RAFT / "journal").size()
    disk.capacity = disk.used() + 5  # half a record
    append(journal, b"second")
    for _ in range(2):
        with pytest.raises(StorageError) as failure:
            journal.flush()
        assert failure.value.out_of_space
        assert journal.durable_index == 2 and journal.dirty
        assert disk.open(RAFT / "journal").size() == size
    disk.capacity = 1 << 20
    journal.flush()
    assert journal.durable_index == 3 and not journal.dirty
    append(journal, b"third")
    journal.flush()
    assert [entry.command[1:] for entry in opened(disk).entries[1:]] == [
        b"first",
        b"second",
        b"third",
    ]


def test_a_vote_without_disk_space_stays_in_memory() -> None:
    disk = SmallDisk(1 << 20)
    journal = opened(disk)
    disk.fill()
    journal.set_term(4, 2)
    with pytest.raises(StorageError):
        journal.flush()
    assert journal.dirty and opened(disk).term == 0
    disk.capacity = 1 << 20
    journal.flush()
    again = opened(disk)
    assert (again.term, again.vote) == (4, 2)


def test_bytes_of_a_sync_without_space_are_replaced_as_a_whole() -> None:
    disk = SmallDisk(1 << 20)
    journal = opened(disk)
    disk.sync_finds_no_space = True
    append(journal, b"a")
    with pytest.raises(StorageError):
        journal.flush()
    disk.sync_finds_no_space = False
    append(journal, b"b")
    before = disk.files[RAFT / "journal"]
    journal.flush()
    assert disk.files[RAFT / "journal"] is not before
    assert [entry.command[1:] for entry in opened(disk).entries[1:]] == [b"a", b"b"]


def test_the_reserve_shrinks_in_steps_and_grows_back() -> None:
    disk = SmallDisk(8 << 20)
    journal = opened(disk, reserve_bytes=limits.RAFT_RESERVE_BYTES)
    short = [journal.short_of_space]
    assert disk.open(RESERVE).size() == limits.RAFT_RESERVE_BYTES
    disk.fill()
    for _ in range(20):
        append(journal, bytes(10_000))
        journal.flush()
    short.append(journal.short_of_space)
    assert short == [False, True] and journal.durable_index == 21
    assert (
        disk.open(RESERVE).size() == limits.RAFT_RESERVE_BYTES - 13 * limits.RAFT_RESERVE_STEP_BYTES
    )
    journal.on_timer()
    assert not journal.dirty, (
        "the reserve does not grow while the disk is full, and writes that can wait are not done"
    )
    journal.close()
    journal = opened(disk, reserve_bytes=limits.RAFT_RESERVE_BYTES)
    short = [journal.short_of_space]
    assert journal.last_index == 21
    disk.capacity = 8 << 20
    journal.on_timer()
    assert journal.dirty
    journal.flush()
    short.append(journal.short_of_space)
    assert short == [True, False] and disk.open(RESERVE).size() == limits.RAFT_RESERVE_BYTES


def test_without_descriptors_it_waits_and_keeps_its_reserve() -> None:
    disk = SmallDisk(8 << 20)
    journal = opened(disk, reserve_bytes=limits.RAFT_RESERVE_BYTES)
    journal.set_term(3, 1)
    disk.descriptors_are_used_up = True
    with pytest.raises(StorageError) as failure:
        journal.flush()
    assert failure.value.out_of_space and not journal.short_of_space
    disk.descriptors_are_used_up = False
    journal.flush()
    journal.close()
    assert opened(disk).term == 3


def test_no_snapshot_is_made_without_space_for_it() -> None:
    disk = SmallDisk(32 << 20)
    journal = opened(disk, reserve_bytes=limits.RAFT_RESERVE_BYTES)
    assert journal.has_room_for(1 << 20)
    disk.fill()
    assert not journal.has_room_for(1)


async def test_restarts_and_commands_work_while_the_disk_is_full() -> None:
    disk = SmallDisk(8 << 20)
    for life in range(4):
        machine = Log()
        raft = alone(RAFT, machine, disk=disk)
        async with trio.open_nursery() as nursery:
            await nursery.start(raft.run)
            await until(partial(is_ready, raft))
            await raft.propose(b"%d" % life)
            disk.fill()
            await raft.propose(b"full %d" % life)
            assert raft.short_of_space
            if life % 2:
                await raft.stop()
            else:
                nursery.cancel_scope.cancel()  # equivalent to a kill
        assert len(machine.commands) == 2 * (life + 1)


async def test_with_an_empty_reserve_proposals_are_refused_until_space_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SmallDisk(8 << 20)
    machine = Log()
    raft = alone(RAFT, machine, disk=disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        disk.fill()
        disk.files[RESERVE].data.clear()
        disk.fill()
        with pytest.raises(OutcomeUnknown):
            await raft.propose(b"late", timeout=0.2)
        assert machine.commands == [] and raft.status().ready
        with pytest.raises(MqError, match="full") as refused:
            await raft.propose(b"refused")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and refused.value.code.retriable
        disk.capacity = 8 << 20
        await until(lambda: machine.commands == [b"late"])
        await until(lambda: not raft.short_of_space)
        await raft.propose(b"healed")
        await raft.stop()
    assert "free some space" in caplog.text


async def test_a_stop_on_a_full_disk_does_not_wait_for_space() -> None:
    disk = SmallDisk(8 << 20)
    raft = alone(RAFT, Log(), disk=disk)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(raft.run)
            await until(lambda: raft.status().ready)
            disk.files[RESERVE].data.clear()
            disk.fill()
            with pytest.raises(OutcomeUnknown):
                await raft.propose(b"late", timeout=0.1)
            await raft.stop()
