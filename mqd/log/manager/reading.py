"""Reads from logs: ranges of files for fetches, and records by time. Unreadable data fences its
log; temporary errors do not.

disk/lookup.py finds the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mqd.errors import PASSING_ERRNOS, ErrorCode, MqError, StorageError
from mqd.io.disk import FileRange
from mqd.log.disk import lookup
from mqd.log.manager.descriptors import Descriptors
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.log.transaction_index import AbortedCandidates, TransactionIndex
from mqd.protocol.files import AbortedTransaction, BadBatch
from mqd.types import Offset, TopicPartition


def storage_error(what: str, error: OSError) -> StorageError:
    return StorageError(
        f"{what}: {error.strerror or error}", out_of_space=error.errno in PASSING_ERRNOS
    )


class Reader:
    """See the head of this file. `fence` is called for a log with unreadable data."""

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
        """Whole batches from the one with `offset` on, from one segment, below `limit_offset`, with
        at most `max_bytes`. `min_one`: the first batch may be larger.

        Raises MqError OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
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
            raise self.not_read(log, error) from error
        if found is None:
            return lookup.Read([], offset, offset, 0)
        segment, start, end, next_offset = found
        assert segment.file is not None
        return lookup.Read(
            [FileRange(segment.file, start, end - start)], offset, next_offset, end - start
        )

    def aborted_candidates(
        self, log: PartitionLog, start_offset: Offset, end_offset: Offset
    ) -> AbortedCandidates:
        """As `aborted`, for a list in slices."""
        found = AbortedCandidates(end_offset)
        for index in self._transaction_indexes(log, start_offset):
            positions, is_complete = index.candidates(start_offset, end_offset)
            found.add(index, positions)
            if is_complete:
                break
        return found

    def aborted(
        self, log: PartitionLog, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records between these offsets (the end is exclusive), by
        their first offset. Raises MqError as `read` does.

        Complete if the end is not beyond the last stable offset: then each transaction has a
        marker.
        """
        found: list[AbortedTransaction] = []
        for index in self._transaction_indexes(log, start_offset):
            overlapping, is_complete = index.overlapping(start_offset, end_offset)
            found += overlapping
            if is_complete:
                break
        found.sort(key=_first_offset)
        return found

    def _transaction_indexes(
        self, log: PartitionLog, start_offset: Offset
    ) -> Iterator[TransactionIndex]:
        try:
            for segment in log.segments_from(start_offset):
                index = segment.transaction_index
                if index is None:
                    index = self._descriptors.open_transaction_index(log, segment)
                yield index
        except BadBatch as bad:
            raise self.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self.not_read(log, error) from error

    def not_read(self, log: PartitionLog, error: OSError) -> MqError:
        """The error of a read: temporary, or the log is offline."""
        failure = storage_error(f"cannot read {log.path}", error)
        return (
            MqError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            if failure.out_of_space
            else self.unreadable(log, str(failure))
        )

    def unreadable(self, log: PartitionLog, reason: str) -> MqError:
        """Written data cannot be read: fence the log, so that it acknowledges nothing after the
        damage. Returns the error for the client.
        """
        log.failure = LogFailure(reason)
        self._fence(log.topic_partition, reason)
        return MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    def offset_for_timestamp(
        self, log: PartitionLog, timestamp_ms: int, limit_offset: Offset
    ) -> lookup.Lookup:
        """The first record with this timestamp or later, below `limit_offset`. In slices.

        The log may be deleted in each pause: check that it is still served before you resume.
        Raises MqError KAFKA_STORAGE_ERROR if the file cannot be read or is damaged.
        """
        return self._looked_up(
            log,
            lookup.offset_for_timestamp(log, timestamp_ms, limit_offset, self._descriptors.open),
        )

    def record_with_max_timestamp(self, log: PartitionLog, limit_offset: Offset) -> lookup.Lookup:
        """The first record with the largest timestamp below `limit_offset`. In slices."""
        return self._looked_up(
            log, lookup.record_with_max_timestamp(log, limit_offset, self._descriptors.open)
        )

    def _looked_up(self, log: PartitionLog, look: lookup.Lookup) -> lookup.Lookup:
        try:
            return (yield from look)
        except BadBatch as bad:
            raise self.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self.not_read(log, error) from error


def _first_offset(transaction: AbortedTransaction) -> Offset:
    return transaction.first_offset
