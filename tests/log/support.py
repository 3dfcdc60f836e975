"""Shared by the tests of the log: a clock that a test sets, a disk that fails on demand, batches, a
running service.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID
from weakref import WeakSet

import trio

from mqd.errors import StorageError
from mqd.io.disk import ArgumentsT, File, OsDisk, ResultT
from mqd.log.appending import Appended
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records
from mqd.types import TopicPartition

NOW = 1_760_000_000_000
TOPIC_ID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
PARTITION = TopicPartition("orders", 0)


class HandClock:
    """Wall time is set by the test; monotonic time is Trio's, so a MockClock moves it."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def monotonic(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return self.now_ms


class FaultyFile:
    """An OsFile whose disk may be full or broken."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.read_at, self.size, self.fileno, self.close = (
            file.read_at,
            file.size,
            file.fileno,
            file.close,
        )

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(views)
        if self._disk.write_error:
            raise OSError(self._disk.write_error, "injected")
        if self._disk.fails_in is not None:
            self._disk.fails_in -= 1
            if self._disk.fails_in < 0:
                self._disk.fails_in = None
                raise OSError(errno.EIO, "injected")
        if self._disk.free < len(data):
            room, self._disk.free = self._disk.free, 0
            self._file.append([data[:room]])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._disk.free -= len(data)
        return self._file.append([data])

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self._file.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._disk.free += max(0, self._file.size() - size)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.syncs += 1
        if self._disk.sync_error:
            raise OSError(self._disk.sync_error, "injected")


class FaultyDisk(OsDisk):
    """An OsDisk with `free` bytes left, counted for appends, and errors on demand.

    Syncs are counted, not done, because there are many tests.
    """

    def __init__(self) -> None:
        self.free = 1 << 40
        self.write_error = 0
        self.sync_error = 0
        self.descriptors = 1 << 30
        """How many files may be open."""
        self.files: WeakSet[FaultyFile] = WeakSet()
        self.fails_in: int | None = None
        """Writes until one fails, once."""
        self.syncs = 0

    def open(self, path: Path, *, create: bool = False) -> File:
        self.take_descriptor()
        file = FaultyFile(self, super().open(path, create=create))
        self.files.add(file)
        return file

    def take_descriptor(self) -> None:
        """Raises OSError when another open file would exceed the limit."""
        if len(self.files) >= self.descriptors:
            raise OSError(errno.EMFILE, "Too many open files")

    def list(self, path: Path) -> list[str]:
        self.take_descriptor()
        return super().list(path)

    def read_bytes(self, path: Path) -> bytes:
        self.take_descriptor()
        return super().read_bytes(path)

    def lock(self, path: Path) -> File:
        file = OsDisk().lock(path)
        return file

    def free_bytes(self, path: Path) -> int:
        return self.free

    def sync_directory(self, path: Path) -> None:
        pass

    def write_atomic(self, path: Path, data: bytes) -> None:
        if self.free < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.take_descriptor()
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        self.rename(temporary, path)


class Inline:
    """A disk that runs thread work inline: a MockClock that jumps would spin, and advance, while a
    thread works.
    """

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        await trio.lowlevel.checkpoint()
        return call(*args)


class InlineDisk(Inline, FaultyDisk):
    """The boot id of the system."""


class Harness:
    """A LogService on a directory, with its reports."""

    def __init__(self, *directories: Path, disk: OsDisk | None = None) -> None:
        self.disk = disk or FaultyDisk()
        self.clock = HandClock()
        self.directories = directories
        self.durable: list[tuple[TopicPartition, int]] = []
        self.failed: list[tuple[Path, StorageError]] = []
        self.service = self.new_service()

    def new_service(
        self,
        *,
        descriptors: int = 1 << 20,
        unsynced_survived: bool = True,
        survival_proven: bool = False,
    ) -> LogService:
        self.service = LogService(
            self.disk,
            self.clock,
            self.directories,
            on_durable=lambda log: self.durable.append(
                (log.topic_partition, log.durability.end_offset)
            ),
            on_directory_failed=lambda path, error: self.failed.append((path, error)),
            descriptors=descriptors,
            unsynced_survived=unsynced_survived,
            survival_proven=survival_proven,
        )
        return self.service

    def open(
        self, config: LogConfig | None = None, partition: TopicPartition = PARTITION
    ) -> PartitionLog:
        return self.service.open(partition, TOPIC_ID, config or LogConfig())

    def append(
        self,
        log: PartitionLog,
        data: bytes | bytearray | None = None,
        *,
        epoch: int = 0,
        client: bool = True,
    ) -> Appended:
        view = memoryview(bytearray(data if data is not None else batch()))
        return self.service.append_nowait(
            log, view, leader_epoch=epoch, now_ms=self.clock.now_ms, client=client
        )

    def write(self, log: PartitionLog, *batches: bytes | bytearray, epoch: int = 0) -> None:
        for data in batches:
            self.append(log, data, epoch=epoch)
        assert self.service.flush() == []

    def read_all(self, log: PartitionLog, max_bytes: int = 1 << 20) -> list[Record]:
        records: list[Record] = []
        offset = log.log_start_offset
        while True:
            read = self.service.read(
                log, offset, max_bytes=max_bytes, limit_offset=log.written_end_offset, min_one=True
            )
            if not read.size:
                return records
            records += [record for record in records_of(read.ranges) if record.offset >= offset]
            assert read.next_offset > offset
            offset = read.next_offset

    def kill(self) -> None:
        """The process ends: its lock is released, and no other cleanup happens."""
        for directory in self.service.directories.values():
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    async def restart(self) -> LogService:
        self.kill()
        self.new_service()
        await self.service.start()
        return self.service

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LogService]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            yield self.service
            nursery.cancel_scope.cancel()


def records_of(ranges: Sequence[Any]) -> list[Record]:
    records: list[Record] = []
    for one in ranges:
        data = one.file.read_at(one.position, one.size)
        assert len(data) == one.size
        covered = 0
        for position, size, header in iterate_batches(data):
            records += iterate_records(data, position, header=header)
            covered += size
        assert covered == len(data), "a range holds whole batches"
    return records


def batch(
    *values: bytes,
    timestamp: int = NOW,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    codec: Codec = Codec.NONE,
    control: bool = False,
    transactional: bool = False,
    keyed: bool = True,
) -> bytearray:
    """One batch with these values (one record `v` when there are none)."""
    return build_batch(
        [(b"k" if keyed else None, value) for value in values or (b"v",)],
        codec=codec,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        control=control,
        transactional=transactional,
    )


async def run_pending_tasks() -> None:
    """Give the loop and its threads many turns."""
    for _ in range(20):
        await trio.to_thread.run_sync(lambda: None)


async def wait_until(condition: Callable[[], object]) -> None:
    """Runs turns until `condition()` holds. pytest's timeout is the deadline, since the clock may
    stand still.
    """
    while not condition():
        await trio.to_thread.run_sync(lambda: None)
