"""What the dead letter writer needs of one share partition that this node leads: see
`dead_letter_writer.Records`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from mqd.errors import MqError
from mqd.io.disk import Disk
from mqd.limits import MIB
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import Record, iterate_records
from mqd.replica.partition import Partition
from mqd.share.dead_letters import Archiving
from mqd.share.share_partition import SharePartition, Update
from mqd.types import Offset

_READ_BYTES_MAX: Final = MIB
"""Bytes of one read. A larger batch is read whole."""


class Led(Protocol):
    """mqd.share.service.LedSharePartition."""

    partition: Partition
    core: SharePartition | None

    @property
    def is_current(self) -> bool: ...


class PartitionLetters:
    """Implements `dead_letter_writer.Records`."""

    def __init__(
        self,
        led: Led,
        logs: LogService,
        disk: Disk,
        *,
        store: Callable[[Update], Awaitable[None]],
        expires_at_ms: Callable[[Record], int | None],
    ) -> None:
        """`store(update)` returns when the share coordinator has stored it. Raises MqError."""
        assert led.core is not None
        self._led = led
        self._core = led.core
        self._logs = logs
        self._disk = disk
        self._store = store
        self._expires_at_ms = expires_at_ms

    def is_current(self) -> bool:
        return self._led.is_current

    def waiting(self, most: int) -> list[Archiving]:
        return self._core.archiving(most)

    def delivery_limit(self) -> int:
        return self._core.limits.delivery_count

    def expires_at_ms(self, record: Record | None) -> int | None:
        return None if record is None else self._expires_at_ms(record)

    async def read(self, offsets: Sequence[Offset]) -> dict[Offset, Record]:
        partition = self._led.partition
        found: dict[Offset, Record] = {}
        wanted = frozenset(offsets)
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
            found |= await self._disk.offload(
                _records_of, one.file.read_at, one.position, one.size, wanted
            )
            later = [offset for offset in offsets if offset >= part.next_offset]
            if not later:
                break
            position = later[0]
        return found

    async def archive(self, offsets: Sequence[Offset]) -> None:
        update = self._core.archive_given_up(offsets)
        if update is not None:
            await self._store(update)


def _records_of(
    read_at: Callable[[int, int], bytes], position: int, size: int, wanted: frozenset[Offset]
) -> dict[Offset, Record]:
    """The wanted records in these bytes of a log. Runs in a worker thread."""
    view = memoryview(read_at(position, size))
    found: dict[Offset, Record] = {}
    for start, _, header in iterate_batches(view):
        if header.is_control:
            continue
        if not any(header.base_offset <= offset <= header.last_offset for offset in wanted):
            continue
        try:
            for record in iterate_records(view, start, header=header):
                if record.offset in wanted:
                    found[record.offset] = record
        except MqError:
            continue  # a damaged batch: letters without a copy
    return found
