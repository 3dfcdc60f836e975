"""The turn of a leader: appends are queued, then written and acknowledged together. ◆ hot path.

In a turn, handlers call `append_nowait` any number of times, and pass their tickets to
`wait_committed`. Then `end_of_turn` writes all queued batches, with one vectored write for each
log. It moves the high watermarks, and releases the requests that waited for that. There is no await
between an append and the end of its turn, so no other task sees an unwritten record (I2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mqd.errors import ErrorCode, StorageError
from mqd.log.appending import Appended, plan_append
from mqd.log.partition_log import PartitionLog
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.replica.parked import ParkedRequests
from mqd.replica.partition import Partition
from mqd.replica.waiters import WRITE_ONLY, ProduceTicket


class TurnLogs(Protocol):
    """`LogService`, as a turn uses it."""

    def append_nowait(
        self,
        log: PartitionLog,
        view: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        client: bool = True,
    ) -> Appended: ...

    def flush(self) -> Iterable[tuple[PartitionLog, StorageError]]: ...


class Turn:
    def __init__(self, logs: TurnLogs, parked: ParkedRequests) -> None:
        self._logs = logs
        self._parked = parked
        self._touched: list[Partition] = []
        self._tickets: list[ProduceTicket[Partition]] = []

    def append_nowait(
        self, partition: Partition, records: memoryview, acks: int, now_ms: int, client: bool = True
    ) -> Appended:
        """Queue one batch of a coordinator or of a `client`. `records` must not change until
        `end_of_turn`. Raises MqError if the batch is refused.
        """
        if not partition.serves or (acks == -1 and partition.short_of_replicas):
            partition.check_append(acks)
        if partition.watches and not partition.touched:
            partition.membership.before_write()
        log = partition.log
        # The log service already has this log in its list of logs to write in this turn.
        if log.touched:
            appended = plan_append(
                log, records, leader_epoch=partition.leader_epoch, now_ms=now_ms, client=client
            )
        else:
            appended = self._logs.append_nowait(
                log, records, leader_epoch=partition.leader_epoch, now_ms=now_ms, client=client
            )
        partition.new_bytes += len(records)
        if not partition.touched:
            partition.touched = True
            self._touched.append(partition)
        return appended

    def append_marker_nowait(
        self,
        partition: Partition,
        producer: tuple[int, int],
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
        transaction_version: int = 0,
    ) -> Appended:
        """Queue the marker that ends a transaction of `producer` (id, epoch of the marker). Raises
        the errors of `append_nowait` with acks=-1, and those of `Producers.check_marker`.
        """
        partition.check_append(-1)
        partition.log.producers.check_marker(*producer, coordinator_epoch, transaction_version)
        marker = build_end_marker(*producer, EndMarker(committed, coordinator_epoch), now_ms)
        return self.append_nowait(partition, memoryview(marker), -1, now_ms, client=False)

    def wait_committed(self, ticket: ProduceTicket[Partition]) -> None:
        """Release the ticket when all of its batches are committed, not before `end_of_turn`."""
        self._tickets.append(ticket)

    def end_of_turn(self) -> None:
        """Write the queued batches, and release the requests that waited for that. Does nothing if
        nothing was queued.
        """
        touched, tickets = self._touched, self._tickets
        if not touched and not tickets:
            return
        self._touched, self._tickets = [], []
        failed: dict[PartitionLog, StorageError] = dict(self._logs.flush()) if touched else {}
        moved: list[Partition] = []
        has_followers = False
        for partition in touched:
            partition.touched = False
            if partition.watches:
                has_followers = True
            if failed and partition.log in failed:
                self._undo(partition)
            if partition.advance():
                moved.append(partition)
        if has_followers:
            self._parked.wake_followers(touched)
        for ticket in tickets:
            for append in ticket.appends:
                partition, required_offset, _, _ = append
                if failed and partition.log in failed:
                    ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                elif partition.high_watermark < required_offset:
                    failure = partition.log.failure
                    if failure is not None and not failure.is_retriable:
                        # The log directory went offline later in this turn.
                        ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                        continue
                    # Only an advance of the high watermark releases it (I1).
                    partition.acks.append((append, ticket))
                    ticket.waiting += 1
                elif required_offset < WRITE_ONLY and not partition.has_reached(required_offset):
                    partition.syncs.append((append, ticket))
                    ticket.waiting += 1
            if not ticket.waiting:
                ticket.freed = True
                ticket.release()
            else:
                self._parked.park_produce(ticket)
        for partition in moved:
            self._parked.high_watermark_moved(partition)

    def _undo(self, partition: Partition) -> None:
        """The log service has undone a failed write: the log ends where the file ends. Reject the
        requests that wait for later offsets.
        """
        end = partition.log.log_end_offset
        if partition.is_leader:
            # If no record of the epoch was written, the undo has removed the epoch, too.
            partition.log.epochs.assign(partition.leader_epoch, end)
        self._parked.reject_beyond(partition, end)
