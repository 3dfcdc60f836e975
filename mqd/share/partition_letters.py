"""The dead letters of each share partition that this node leads: the task that writes them, and
what it needs of the share partition (`dead_letter_writer.Records`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from mqd.errors import MqError
from mqd.io.disk import Disk
from mqd.limits import MIB
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import Record
from mqd.relay.delay_records import size_of
from mqd.share import giving_up
from mqd.share.dead_letter_writer import DeadLetterWriter, Records
from mqd.share.dead_letters import Archiving, Target
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.ports import ShareKey
from mqd.share.reading import records_of
from mqd.share.ttl import expires_at_ms
from mqd.share.values import Update
from mqd.types import Offset

_READ_BYTES_MAX: Final = MIB
"""Bytes of one read. A larger batch is read whole."""
_LETTERS_BYTES_MAX: Final = 4 * MIB
"""Bytes of the copies of one transaction. The last one may be larger."""

Store = Callable[[LedSharePartition, Update], Awaitable[None]]
"""Returns when the share coordinator has stored the update. Raises MqError."""


class DeadLetterPort(Protocol):
    """The dead letters of the node's share partitions."""

    def target(self, group_id: str, topic: str) -> Target | None:
        """Where the letters of the records of a topic go; None if nowhere."""
        ...

    def ttl_ms(self, topic: str) -> int:
        """`mqd.message.ttl.ms` of the topic."""
        ...

    def writer(self, key: ShareKey, topic: str, records: Records) -> DeadLetterWriter: ...


class LetterTasks:
    """One task for each share partition with records that wait for a dead letter."""

    def __init__(
        self,
        *,
        partitions: LedSharePartitions,
        dead_letters: DeadLetterPort,
        logs: LogService,
        disk: Disk,
        store: Store,
    ) -> None:
        self._partitions = partitions
        self._dead_letters = dead_letters
        self._logs = logs
        self._disk = disk
        self._store = store

    def write_soon(self, led: LedSharePartition) -> None:
        """Write the dead letters of records that the group has given up."""
        if led.writes_letters or not led.is_current or not self._partitions.is_running:
            return
        if giving_up.archiving(led.core, 1):
            led.writes_letters = True
            self._partitions.start(self._write, led)

    async def _write(self, led: LedSharePartition) -> None:
        def expires(record: Record) -> int | None:
            return expires_at_ms(record, self._dead_letters.ttl_ms(led.topic))

        letters = PartitionLetters(
            led, self._logs, self._disk, store=self._store, expires_at_ms=expires
        )
        await self._dead_letters.writer(led.key, led.topic, letters).run()
        led.writes_letters = False
        self._partitions.drop_unused(led)


class PartitionLetters:
    """Implements `dead_letter_writer.Records`."""

    def __init__(
        self,
        led: LedSharePartition,
        logs: LogService,
        disk: Disk,
        *,
        store: Store,
        expires_at_ms: Callable[[Record], int | None],
    ) -> None:
        self._led = led
        self._core = led.core
        self._logs = logs
        self._disk = disk
        self._store = store
        self._expires_at_ms = expires_at_ms

    def is_current(self) -> bool:
        return self._led.is_current

    def waiting(self, most: int) -> list[Archiving]:
        return giving_up.archiving(self._core, most)

    def delivery_limit(self) -> int:
        return self._core.limits.delivery_count

    def expires_at_ms(self, record: Record | None) -> int | None:
        return None if record is None else self._expires_at_ms(record)

    async def read(self, offsets: Sequence[Offset]) -> dict[Offset, Record | None]:
        partition = self._led.partition
        found: dict[Offset, Record | None] = {}
        position = max(offsets[0], partition.log.log_start_offset)
        while position <= offsets[-1] and position < partition.high_watermark:
            if not self._led.is_current:
                raise partition.not_leader()
            part = self._logs.reader.read(
                partition.log,
                position,
                max_bytes=_READ_BYTES_MAX,
                limit_offset=partition.high_watermark,
                min_one=True,
            )
            if not part.ranges:
                break
            [one] = part.ranges
            wanted = [offset for offset in offsets if position <= offset < part.next_offset]
            found |= await self._disk.offload(
                _records_of, one.file.read_at, one.position, one.size, wanted
            )
            if sum(size_of(one) for one in found.values() if one) >= _LETTERS_BYTES_MAX:
                last = max(found)
                return {one: found.get(one) for one in offsets if one <= last}
            later = [offset for offset in offsets if offset >= part.next_offset]
            if not later:
                break
            position = later[0]
        return {one: found.get(one) for one in offsets}

    async def archive(self, offsets: Sequence[Offset]) -> None:
        update = giving_up.archive(self._core, offsets)
        if update is not None:
            await self._store(self._led, update)

    async def give_up(self, offsets: Sequence[Offset]) -> None:
        update = giving_up.archive(self._core, offsets)
        if update is not None:
            await self._store(self._led, replace(update, given_up=len(offsets)))


def _records_of(
    read_at: Callable[[int, int], bytes], position: int, size: int, wanted: Sequence[Offset]
) -> dict[Offset, Record | None]:
    """The first wanted records in these bytes of a log, until they are _LETTERS_BYTES_MAX. None for
    one that is not there, or cannot be copied. Runs in a worker thread."""
    view = memoryview(read_at(position, size))
    found: dict[Offset, Record | None] = {}
    bytes_left = _LETTERS_BYTES_MAX
    for start, batch_bytes, header in iterate_batches(view):
        some = [one for one in wanted if header.base_offset <= one <= header.last_offset]
        if header.is_control or not some:
            continue
        try:
            for record in records_of(view[start : start + batch_bytes], some):
                found[record.offset] = record
                bytes_left -= size_of(record)
                if bytes_left <= 0:
                    return {one: found.get(one) for one in wanted if one <= record.offset}
        except MqError:
            continue  # a damaged batch, or one that is too large: letters without a copy
    return {one: found.get(one) for one in wanted}
