"""The parked requests of all partitions of a node: what wakes, rejects or expires them.

A produce request waits for the high watermark, or for an fdatasync. A consumer's fetch waits for
bytes. A follower's fetch waits for a change of any partition of its session. Pure; the timer is in
service.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mqd.errors import ErrorCode
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, Deadlines, FetchWaiter, ProduceTicket, until_durable


class ParkedRequests:
    def __init__(self, consumers_read_from_followers: bool) -> None:
        self.consumers_read_from_followers = consumers_read_from_followers
        """KIP-392. If so, a new high watermark wakes followers at once."""
        self.timer_due_at = math.inf
        """The time at which the timer calls `expire`."""
        self.wake_timer: Callable[[], None] = lambda: None
        """Called if a request with an earlier deadline is parked. The timer sets it."""
        self._produces: Deadlines[ProduceTicket[Partition]] = Deadlines()
        self._fetches: Deadlines[FetchWaiter] = Deadlines()

    # -- parking and deadlines ---------------------------------------------------------------------

    def park_fetch(self, waiter: FetchWaiter, partitions: Iterable[Partition]) -> None:
        """Park a fetch until one of its partitions has enough bytes, or until its deadline."""
        waiter.park(partitions)
        self._fetches.add(waiter)
        if waiter.deadline < self.timer_due_at:
            self.wake_timer()

    def park_produce(self, ticket: ProduceTicket[Partition]) -> None:
        """Park a produce request whose batches are in the queues of their partitions."""
        self._produces.add(ticket)
        if ticket.deadline < self.timer_due_at:
            self.wake_timer()

    def expire(self, now: float) -> float:
        """Free the requests whose deadline has passed. Returns the next deadline, or infinity."""
        for waiter in self._fetches.expired(now):
            waiter.free()
        for ticket in self._produces.expired(now):
            for append in ticket.appends:
                partition, required_offset, _, _ = append
                if not partition.has_reached(required_offset):
                    ticket.refuse(append, ErrorCode.REQUEST_TIMED_OUT)
            ticket.free()
        deadlines = [self._fetches.next_deadline(), self._produces.next_deadline()]
        return min((deadline for deadline in deadlines if deadline is not None), default=math.inf)

    # -- waking ------------------------------------------------------------------------------------

    def high_watermark_moved(self, partition: Partition) -> None:
        """Free the requests that waited for it."""
        acks = partition.acks
        high_watermark = partition.high_watermark
        while acks:
            (_, required_offset, _, _), ticket = acks[0]
            if required_offset > high_watermark:
                break
            acks.popleft()
            if not ticket.freed:
                ticket.append_done()
        if partition.fetches:
            new, new_stable = partition.new_bytes, partition.new_stable_bytes()
            for waiter in list(partition.fetches):
                waiter.bytes_wanted -= new_stable if waiter.read_committed else new
                if waiter.bytes_wanted <= 0:
                    waiter.free()
        partition.new_bytes = (
            partition.uncommitted_bytes()
            if high_watermark < partition.log.written_end_offset
            else 0
        )
        if self.consumers_read_from_followers:
            self.wake_followers([partition])
        else:
            for watch in partition.watches:
                # The next response, which soon follows, has the new high watermark.
                watch.note()

    def synced(self, partition: Partition) -> None:
        """More of the log is on stable storage: free the batches that waited for that only."""
        syncs = partition.syncs
        while syncs:
            (_, required_offset, _, _), ticket = syncs[0]
            if not partition.has_reached(required_offset):
                break
            syncs.popleft()
            if not ticket.freed:
                ticket.append_done()

    @staticmethod
    def wake_followers(partitions: Sequence[Partition]) -> None:
        """These partitions have changed: send the responses to the followers' parked fetches. Each
        follower gets one response with all of the changes.
        """
        sessions = dict.fromkeys(
            watch.note() for partition in partitions for watch in partition.watches
        )
        for session in sessions:
            session.wake()

    @staticmethod
    def free_fetches(partition: Partition) -> None:
        """Plan all parked fetches of consumers again: this follower has newer offsets."""
        for waiter in list(partition.fetches):
            waiter.bytes_wanted = 0
            waiter.free()

    # -- rejecting ---------------------------------------------------------------------------------

    def reject(self, partition: Partition, code: ErrorCode) -> None:
        """Reject all requests that are parked here. Whether a batch is committed is unknown: the
        client learns it from the next leader.
        """
        self.reject_produces(partition.acks, code)
        self.reject_produces(partition.syncs, code)
        for waiter in list(partition.fetches):
            waiter.free()

    @staticmethod
    def reject_produces(
        queue: deque[tuple[Append[Partition], ProduceTicket[Partition]]], code: ErrorCode
    ) -> None:
        while queue:
            append, ticket = queue.popleft()
            if not ticket.freed:
                ticket.refuse(append, code)
                ticket.append_done()

    @staticmethod
    def reject_beyond(partition: Partition, end: int) -> None:
        """A failed write was undone, so the log ends at `end`: reject the batches beyond it."""
        for queue in (partition.acks, partition.syncs):
            parked = list(queue)
            queue.clear()
            for append, ticket in parked:
                _, required_offset, _, _ = append
                if max(required_offset, until_durable(required_offset)) <= end:
                    queue.append((append, ticket))
                elif not ticket.freed:
                    ticket.refuse(append, ErrorCode.KAFKA_STORAGE_ERROR)
                    ticket.append_done()
