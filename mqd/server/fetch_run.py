"""One fetch from its plan to its response, for consumers and followers alike.

A run reads each partition of the fetch (the plan). It sends the response if the plan has
`min_bytes`, an error, or no time left. Otherwise it parks the fetch. New records, the deadline, or
another request on the connection wake the fetch, and it is planned again.

A task plans and encodes a fetch of many partitions in slices. Later requests of the connection wait
while the fetch is planned, but not while it is parked. Its waiter exists before the plan reads the
first partition, so the waiter misses no records.

A `FetchKind` decides which partitions a fetch reads and which rows its response contains. The two
kinds are in `consumer_fetch.py` and `follower_fetch.py`. ◆ hot path.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mqd.errors import ErrorCode
from mqd.limits import DECODED_AT_ONCE_ROWS
from mqd.log.transaction_index import AbortedCandidates
from mqd.protocol.hot_fetch_request import FetchRequest
from mqd.protocol.hot_fetch_response import (
    FetchResponseTopic,
    encode_fetch_response_in_slices,
    encode_fetch_response_parts,
)
from mqd.protocol.slices import WHOLE_SLICE, Slices, all_slices
from mqd.replica.fetch_session import NO_SESSION
from mqd.replica.partition import Partition
from mqd.replica.waiters import FetchWaiter
from mqd.server.connection import Slot
from mqd.server.context import Node
from mqd.server.fetch_tasks import FetchTasks
from mqd.server.partitions import FetchRow, endpoints, fetch_topics
from mqd.server.slices import finished_in_slices
from mqd.types import Offset

BY_ID_FROM_VERSION = 13
READ_COMMITTED = 1


class PendingFetch:
    """One fetch from its request to its response."""

    __slots__ = (
        "correlation_id",
        "deadline",
        "is_planned",
        "request",
        "session_id",
        "slot",
        "throttle_ms",
        "version",
        "waiter",
    )

    def __init__(
        self, slot: Slot, version: int, correlation_id: int, request: FetchRequest, deadline: float
    ) -> None:
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.request = request
        self.deadline = deadline
        self.is_planned = False
        """Whether the fetch has been planned before."""
        self.session_id = NO_SESSION
        """The session id of the response."""
        self.throttle_ms = 0
        """The throttle time of the response (client_quotas.py)."""
        self.waiter: FetchWaiter | None = None
        """The newest waiter. The fetch is planned with it, parked with it, or was woken by it."""


PendingT = TypeVar("PendingT", bound=PendingFetch)
PendingT_contra = TypeVar("PendingT_contra", bound=PendingFetch, contravariant=True)
ItemT = TypeVar("ItemT")


class FetchPlan(Generic[ItemT]):
    """The result of a fetch for the partitions that it has read so far."""

    __slots__ = ("aborted_count", "aborted_lists", "partitions", "rows", "size", "urgent")

    def __init__(self) -> None:
        self.aborted_lists: list[tuple[list[tuple[int, Offset]], AbortedCandidates]] = []
        """Long lists of rows, still empty, and what they list: in slices, before the response."""
        self.aborted_count = 0
        """Transactions that may be in them."""
        self.rows: list[tuple[ItemT, FetchRow]] = []
        self.size = 0
        """Bytes found."""
        self.urgent = False
        """Whether the response must be sent at once."""
        self.partitions: list[Partition] = []
        """Partitions that the waiter of a small fetch is parked in."""


class Response:
    """The rows of a response, by topic."""

    __slots__ = ("leaders", "topics", "unknown")

    def __init__(self) -> None:
        self.topics: dict[bytes, list[FetchRow]] = {}
        self.leaders: set[int] = set()
        """Nodes whose addresses the response contains (KIP-951)."""
        self.unknown = 0
        """The number of partitions that this node does not know."""


class FetchKind(Protocol[PendingT_contra, ItemT]):
    """The differences between fetches of consumers and of followers."""

    slice_items: int
    """The number of partitions that a plan reads in one slice of 2 ms."""

    def items(self, pending: PendingT_contra) -> list[ItemT]:
        """The partitions that a plan reads."""
        ...

    def wait(self, pending: PendingT_contra, waiter: FetchWaiter) -> None:
        """From now on, changes of the partitions may wake `waiter`."""
        ...

    def plan(
        self,
        pending: PendingT_contra,
        plan: FetchPlan[ItemT],
        items: list[ItemT],
        waiter: FetchWaiter | None,
    ) -> None:
        """Add to `plan` what `items` have. Also called without items. `waiter` is parked in each
        partition before it is read; None for a small fetch.
        """
        ...

    def throttle(self, pending: PendingT_contra, size: int) -> bool:
        """Whether the client is throttled, so that the response has no records. `size`: the bytes
        that the plan has found.
        """
        ...

    def add_rows(
        self, pending: PendingT_contra, response: Response, rows: list[tuple[ItemT, FetchRow]]
    ) -> None:
        """Add to `response` what the client needs of `rows`."""
        ...

    def finished(self, pending: PendingT_contra, unknown: int) -> None:
        """The fetch has all rows of its response, or ends without a response. `unknown`: the number
        of unknown partitions. May change the session id of the response. May be called twice.
        """
        ...


class FetchRun(Generic[PendingT, ItemT]):
    """Plans fetches of one kind, parks and wakes them, and sends the responses."""

    def __init__(self, node: Node, tasks: FetchTasks, kind: FetchKind[PendingT, ItemT]) -> None:
        self._node = node
        self._tasks = tasks
        self._kind = kind

    def run(self, pending: PendingT, *, may_wait: bool) -> None:
        """FetchPlan, then park or send the response; in a task if there are many partitions."""
        kind, connection = self._kind, pending.slot.connection
        items = kind.items(pending)
        if len(items) > DECODED_AT_ONCE_ROWS:
            self._tasks.start(connection, partial(self.run_in_slices, pending, may_wait=may_wait))
            return
        plan: FetchPlan[ItemT] = FetchPlan()
        kind.plan(pending, plan, items, None)
        request = pending.request
        if may_wait and not plan.urgent and plan.size < request.min_bytes and connection.open:
            pending.waiter = connection.parked = waiter = FetchWaiter(
                partial(self._woken, pending),
                request.min_bytes - plan.size,
                pending.deadline,
                read_committed=request.isolation_level == READ_COMMITTED,
            )
            kind.wait(pending, waiter)
            self._node.replica.park_fetch(waiter, plan.partitions)
            return
        if plan.aborted_lists and connection.open:
            self._tasks.start(connection, partial(self.run_in_slices, pending, may_wait=False))
            return
        response = Response()
        if not kind.throttle(pending, plan.size):
            kind.add_rows(pending, response, plan.rows)
        kind.finished(pending, response.unknown)
        if connection.open:
            pending.slot.complete(all_slices(self._encoding(pending, response)))

    async def run_in_slices(self, pending: PendingT, *, may_wait: bool) -> None:
        """As `run`, but in slices. Ends with `FetchTasks.resume`."""
        connection, request = pending.slot.connection, pending.request
        try:
            while True:
                before = pending.waiter
                pending.waiter = waiter = FetchWaiter(
                    lambda: None,
                    request.min_bytes,
                    pending.deadline,
                    read_committed=request.isolation_level == READ_COMMITTED,
                    leaves_later=True,
                )
                planning = self._planning(pending, before, waiter if may_wait else None)
                plan = await finished_in_slices(planning)
                may_wait = (
                    may_wait
                    and not plan.urgent
                    and plan.size < request.min_bytes
                    and not connection.ends
                    and connection.request_pool.may_park(len(waiter.partitions))
                )
                if not may_wait:
                    break
                waiter.bytes_wanted -= plan.size
                if not waiter.freed and waiter.bytes_wanted > 0:
                    waiter.release = partial(self._woken, pending)
                    connection.parked = waiter
                    connection.request_pool.park(len(waiter.partitions))
                    self._node.replica.park_fetch(waiter, ())
                    self._tasks.resume(connection)
                    return
                # after the plan read a partition, it got records or another leader
                may_wait = (
                    waiter.bytes_wanted <= 0 and self._node.clock.monotonic() < pending.deadline
                )
                pending.is_planned = True
            rows = [] if self._kind.throttle(pending, plan.size) else plan.rows
            for aborted, candidates in plan.aborted_lists if rows else ():
                aborted += await finished_in_slices(candidates.listed())
            parts = await finished_in_slices(self._responding(pending, waiter, rows))
        except BaseException:
            if pending.waiter is not None:
                pending.waiter.leave()
            self._kind.finished(pending, 0)
            raise
        if connection.open:
            pending.slot.complete(parts)
        self._tasks.resume(connection)

    def _woken(self, pending: PendingT) -> None:
        """New records, the deadline, or another request woke the fetch: plan it once more. After
        new records it may wait again, because a partition returns at most `partition_max_bytes`.
        """
        connection, waiter = pending.slot.connection, pending.waiter
        assert waiter is not None
        connection.parked = None
        pending.is_planned = True
        may_wait = waiter.bytes_wanted <= 0 and self._node.clock.monotonic() < pending.deadline
        if not waiter.partitions:
            self.run(pending, may_wait=may_wait)
            return
        connection.request_pool.unpark(len(waiter.partitions))
        if connection.open:
            work = partial(self.run_in_slices, pending, may_wait=may_wait)
            self._tasks.start(connection, work)  # the waiter leaves in slices
        else:
            waiter.leave()

    def _planning(
        self, pending: PendingT, before: FetchWaiter | None, waiter: FetchWaiter | None
    ) -> Slices[FetchPlan[ItemT]]:
        """The plan of the fetch. `before` leaves its partitions first. From then on, changes of the
        partitions may wake `waiter`.
        """
        kind = self._kind
        if before is not None:
            yield from before.leaving()
        if waiter is not None:
            kind.wait(pending, waiter)
        plan: FetchPlan[ItemT] = FetchPlan()
        items = kind.items(pending)
        for first in range(0, len(items) or 1, kind.slice_items):
            if first:
                yield WHOLE_SLICE
                if not pending.slot.connection.open:
                    break
            kind.plan(pending, plan, items[first : first + kind.slice_items], waiter)
        return plan

    def _responding(
        self, pending: PendingT, waiter: FetchWaiter, rows: list[tuple[ItemT, FetchRow]]
    ) -> Slices[list[Any]]:
        """The parts of the response. `waiter` leaves its partitions first."""
        yield from waiter.leaving()
        kind, response = self._kind, Response()
        for first in range(0, len(rows), kind.slice_items):
            if first:
                yield WHOLE_SLICE
            kind.add_rows(pending, response, rows[first : first + kind.slice_items])
        kind.finished(pending, response.unknown)
        return (yield from self._encoding(pending, response))

    def _encoding(self, pending: PendingT, response: Response) -> Slices[list[Any]]:
        """The parts of the response, a slice at a time."""
        version = pending.version
        return encode_fetch_response_in_slices(
            version,
            pending.correlation_id,
            pending.throttle_ms,
            0,
            pending.session_id,
            fetch_topics(response.topics, by_id=version >= BY_ID_FROM_VERSION),
            endpoints(self._node, response.leaders, pending.slot.connection.client_listener),
        )


def reject(
    pending: PendingFetch, code: ErrorCode, topics: list[FetchResponseTopic] | None = None
) -> None:
    """Send a response with an error for the whole fetch."""
    pending.slot.complete(
        encode_fetch_response_parts(
            pending.version, pending.correlation_id, 0, int(code), NO_SESSION, topics or []
        )
    )
