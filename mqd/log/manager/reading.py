"""Reading from logs: ranges of files for fetches, records by time. What cannot be read fences its
log, or passes.

The service's own `read`, `offset_for_timestamp` and `record_with_max_timestamp` are these;
disk/lookup.py finds the places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mqd.errors import PASSING_ERRNOS, ErrorCode, MqError, StorageError
from mqd.io.disk import FileRange
from mqd.log.disk import lookup
from mqd.log.manager.descriptors import Descriptors
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.protocol.files import AbortedTransaction, BadBatch
from mqd.protocol.slices import Slices
from mqd.types import Offset, TopicPartition

FoundT = TypeVar("FoundT")


def storage_error(what: str, error: OSError) -> StorageError:
    return StorageError(
        f"{what}: {error.strerror or error}", out_of_space=error.errno in PASSING_ERRNOS
    )


class Reader:
    """See the head of this file.

    `fence` is told of a log that holds bytes which cannot be read, and why.
    """

    def __init__(
        self, descriptors: Descriptors, fence: Callable[[TopicPartition, str], None]
    ) -> None:
        self._descriptors = descriptors
        self._fence = fence

    def read(
        self,
        log: PartitionLog,
        offset: Offset,
        *,
        max_bytes: int,
        limit_offset: Offset,
        min_one: bool,
    ) -> lookup.Read:
        """Whole batches from the one that holds `offset` on, of one segment: below `limit_offset`,
        at most `max_bytes`.

        `min_one`: the first batch comes whole even when it is larger. MqError OFFSET_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR.
        """
        if not log.log_start_offset <= offset <= log.written_end_offset:
            log.check_readable(offset)
        failure = log.failure
        if failure is not None and not failure.is_retriable:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, failure.reason)
        try:
            found = lookup.find_range(
                log, offset, max_bytes, limit_offset, min_one, self._descriptors.open
            )
        except BadBatch as bad:
            raise self.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self._not_read(log, error) from error
        if found is None:
            return lookup.Read([], offset, offset, 0)
        segment, start, end, next_offset = found
        assert segment.file is not None
        return lookup.Read(
            [FileRange(segment.file, start, end - start)], offset, next_offset, end - start
        )

    def aborted(
        self, log: PartitionLog, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Aborted transactions with records between these offsets (the end exclusive), by their
        first offset. MqError as `read`.

        All of them, where the end is not beyond the last stable offset: then each has its marker.
        """
        found: list[AbortedTransaction] = []
        try:
            for segment in log.segments_from(start_offset):
                index = segment.aborted
                if index is None:
                    index = self._descriptors.have_aborted(log, segment)
                overlapping, complete = index.overlapping(start_offset, end_offset)
                found += overlapping
                if complete:
                    break
        except BadBatch as bad:
            raise self.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self._not_read(log, error) from error
        found.sort(key=_first_offset)
        return found

    def _not_read(self, log: PartitionLog, error: OSError) -> MqError:
        """The file could not be opened for now, or there is more wrong with it."""
        failure = storage_error(f"cannot read {log.path}", error)
        return (
            MqError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            if failure.out_of_space
            else self.unreadable(log, str(failure))
        )

    def unreadable(self, log: PartitionLog, reason: str) -> MqError:
        """Bytes that were there cannot be read: the log is fenced, and so never
        acknowledges on top of a hole.
        """
        log.failure = LogFailure(reason)
        self._fence(log.topic_partition, reason)
        return MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    def offset_for_timestamp(
        self, log: PartitionLog, timestamp_ms: int, limit_offset: Offset
    ) -> Slices[lookup.FoundRecord | None]:
        """(offset, timestamp, leader epoch) of the first record of that time or later, below
        `limit_offset`. In slices.

        In each pause the log may go: check that it is served still before you resume. MqError
        KAFKA_STORAGE_ERROR where the file cannot be read or is not what it was.
        """
        return self._looked_up(
            log,
            lookup.offset_for_timestamp(log, timestamp_ms, limit_offset, self._descriptors.open),
        )

    def record_with_max_timestamp(
        self, log: PartitionLog, limit_offset: Offset
    ) -> Slices[lookup.FoundRecord | None]:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp,
        below `limit_offset`. As above.
        """
        return self._looked_up(
            log, lookup.record_with_max_timestamp(log, limit_offset, self._descriptors.open)
        )

    def _looked_up(self, log: PartitionLog, look: Slices[FoundT]) -> Slices[FoundT]:
        try:
            return (yield from look)
        except BadBatch as bad:
            raise self.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self._not_read(log, error) from error


def _first_offset(transaction: AbortedTransaction) -> Offset:
    return transaction.first_offset
