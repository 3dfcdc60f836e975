"""Reading an offset range as raw record batches:
`async with open_range(client, tp, start, end) as reader`, then `async for fetched in reader`.

A face over `range_plan.py`. One task fetches: it sends the next request as soon as the headers of
the last response are scanned, while the caller decodes. At most two responses are in flight or wait
for the caller. Fetches have a connection of their own, because a fetch that waits for data would
hold up everything behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mqd.client.admin import Admin
from mqd.client.arguments import INT64_MAX, check_above_zero, check_flag, check_whole
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api, check_client
from mqd.client.errors import (
    ClientError,
    ConsumerClosed,
    DeadlineExceeded,
    does_not_exist,
    error_from_wire,
)
from mqd.client.keyword_options import checks_options
from mqd.client.metadata import BrokerInfo
from mqd.client.nurseries import owned_nursery
from mqd.client.offset_specs import resolve_offsets
from mqd.client.range_plan import (
    RANGE_BYTES,
    AbortedTransaction,
    FetchedRange,
    Next,
    RangeFailed,
    RangePlan,
    Waiting,
)
from mqd.client.resource_arguments import check_topic_partition
from mqd.errors import ErrorCode, MqError
from mqd.types import ZERO_UUID, TopicPartition

__all__ = ["AbortedTransaction", "FetchedRange", "RangeReader", "open_range"]

FETCH = 1
_FETCH_TOPIC_IDS_FROM = 13
_MAX_WAIT_S = 0.5
"""A fetch waits at the broker for so long; then it is sent again, perhaps to another leader."""
_HELD_MAX = 2
"""Responses that are in flight or wait for the caller."""
_SLACK_S = 1.0
_UNKNOWN_TOPIC_GRACE_S = 5.0
"""The metadata of a new topic reaches every broker within this time."""
_EXPLAIN_S = 5.0
"""After its timeout, a reader searches this long for the transaction that holds back the
last stable offset.
"""


class RangeReader:
    """Made by `open_range`. One task at a time reads from it."""

    def __init__(self, client: ClusterClient, plan: RangePlan, *, timeout_s: float) -> None:
        self._client = client
        self._plan = plan
        self._timeout_s = timeout_s
        self._ready: deque[FetchedRange] = deque()
        self._failure: ClientError | None = None
        self._done = False
        self._closed = False
        self._changed = trio.Event()
        self._unknown_since: float | None = None
        self._purpose = f"range-{id(self)}"

    @property
    def tp(self) -> TopicPartition:
        return self._plan.tp

    async def next(self) -> FetchedRange | None:
        """The next response; None at the end of the range. Raises ClientError, after all responses
        before it.

        OFFSET_OUT_OF_RANGE names the log's start and end. DeadlineExceeded: no progress for
        `timeout_s`; its message has the reason. Cancel-safe: no response is lost.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise ConsumerClosed
            if self._ready:
                fetched = self._ready.popleft()
                self._wake()
                return fetched
            if self._failure is not None:
                raise self._failure.copy()
            if self._done:
                return None
            await self._changed.wait()

    def __aiter__(self) -> AsyncIterator[FetchedRange]:
        return self

    async def __anext__(self) -> FetchedRange:
        fetched = await self.next()
        if fetched is None:
            raise StopAsyncIteration
        return fetched

    def close(self) -> None:
        """Drop prefetched batches; a task in `next` gets ConsumerClosed."""
        self._closed = True
        self._ready.clear()
        self._client.close_connections(self._purpose)
        self._wake()

    # -- inside

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _run(self) -> None:
        """Fetch to the end of the range or to the first failure."""
        try:
            while not self._plan.is_done:
                while len(self._ready) >= _HELD_MAX:
                    await self._changed.wait()
                fetched = await self._fetch()
                if fetched is not None:
                    self._ready.append(fetched)
                    self._wake()
            self._done = True
        except MqError as error:
            self._failure = (
                error if isinstance(error, ClientError) else ClientError(error.code, error.message)
            )
        self._wake()

    async def _fetch(self) -> FetchedRange | None:
        """The next response with batches; None when the range turns out to end here."""
        deadline = trio.current_time() + self._timeout_s
        failures = 0
        failure: ClientError | None = None
        while not self._plan.is_done:
            now = trio.current_time()
            if now >= deadline:
                raise await self._give_up(failure)
            seen = self._client.view.generation
            try:
                outcome = await self._attempt(deadline - now)
                if outcome is Next.OUT_OF_RANGE:
                    await self._check_bounds(deadline - now)
            except MqError as error:
                failure = self._may_retry(error)
                await trio.sleep(
                    min(
                        backoff_s(failures, self._client.entropy.random()),
                        max(deadline - trio.current_time(), 0),
                    )
                )
                failures += 1
                await self._refresh(seen)
                continue
            self._unknown_since = failure = None
            if isinstance(outcome, FetchedRange):
                return outcome
            if outcome is Next.AGAIN:
                failures = 0
            elif (
                trio.current_time() - now < _MAX_WAIT_S / 2
            ):  # it came at once: do not turn in a tight loop
                await trio.sleep(backoff_s(failures, self._client.entropy.random()))
                failures = min(failures + 1, 4)
        return None

    async def _attempt(self, time_left: float) -> FetchedRange | Waiting | Next:
        leader = await self._leader()
        view, plan = self._client.view, self._plan
        connection = await self._client.connection_to_broker(leader.node_id, purpose=self._purpose)
        declaration = api(FETCH)
        version = connection.version_of(
            declaration, at_most=_FETCH_TOPIC_IDS_FROM - 1 if plan.topic_id == ZERO_UUID else None
        )
        wait_s = min(_MAX_WAIT_S, time_left)
        body = plan.body(view, max_wait_ms=max(1, int(wait_s * 1000)))
        timeout_s = min(self._client.request_timeout_s, max(time_left, _SLACK_S)) + wait_s
        response = await connection.request(declaration, body, version, timeout_s=timeout_s)
        return plan.on_response(response)

    async def _leader(self) -> BrokerInfo:
        """The leader of the partition in the view. Raises ClientError if there is none, or if the
        topic was created again."""
        client, tp = self._client, self._plan.tp
        if client.view.leader_of(tp) is None:
            await client.refresh([tp.topic], seen=None)
        topic = client.view.topics.get(tp.topic)
        if topic is None or topic.error_code or client.view.partition(tp) is None:
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic is None or not topic.error_code
                else topic.error_code
            )
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
            raise error_from_wire(code, f"reading {tp}")
        self._plan.check_topic(topic.topic_id)
        found = client.view.leader_of(tp)
        if found is None:
            raise ClientError(ErrorCode.LEADER_NOT_AVAILABLE, f"reading {tp}: it has no leader")
        return found

    def _may_retry(self, error: MqError) -> ClientError:
        """The error of an attempt, if it can be retried; raises a final error."""
        failure = (
            error if isinstance(error, ClientError) else ClientError(error.code, error.message)
        )
        if isinstance(failure, RangeFailed):
            raise failure
        if failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            now = trio.current_time()
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if now - self._unknown_since >= _UNKNOWN_TOPIC_GRACE_S:
                raise failure
        elif not failure.retriable and failure.code is not ErrorCode.BROKER_NOT_AVAILABLE:
            raise failure
        return failure

    async def _refresh(self, seen: int) -> None:
        try:
            await self._client.refresh([self._plan.tp.topic], seen=seen)
        except MqError:
            pass  # requested again before the next attempt; the deadline bounds this

    async def _check_bounds(self, time_left: float) -> None:
        """The broker has no such offset. Raises the error that names the log's start and end."""
        tp = self._plan.tp
        timeout_s = max(_SLACK_S, min(time_left, self._client.request_timeout_s))
        log_start = (await resolve_offsets(self._client, {tp: "beginning"}, timeout_s=timeout_s))[
            tp
        ]
        log_end = (await resolve_offsets(self._client, {tp: "end"}, timeout_s=timeout_s))[tp]
        error = self._plan.out_of_range(log_start, log_end)
        if error is not None:
            raise error
        raise ClientError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"reading {tp}: its log is from {log_start} to {log_end} by now",
        )

    async def _give_up(self, failure: ClientError | None) -> DeadlineExceeded:
        plan = self._plan
        opened_by = ""
        waiting = plan.waiting
        if (
            failure is None
            and waiting is not None
            and plan.read_committed
            and waiting.high_watermark >= plan.end
        ):
            opened_by = await self._opened_by()
        last = f"; last: {failure.message}" if failure is not None else ""
        return DeadlineExceeded(plan.why_waiting(self._timeout_s, opened_by) + last, failure)

    async def _opened_by(self) -> str:
        """The oldest open transaction of the partition, as far as its leader and the coordinators
        know."""
        tp = self._plan.tp
        admin = Admin(self._client, timeout_s=_EXPLAIN_S)
        try:
            producers = (await admin.describe_producers([tp]))[tp]
            if isinstance(producers, ClientError):
                return ""
            open_ones = [each for each in producers if each.transaction_start_offset >= 0]
            if not open_ones:
                return ""
            oldest = min(open_ones, key=lambda each: each.transaction_start_offset)
            since = oldest.transaction_start_offset
            text = f"producer id {oldest.producer_id} has a transaction open since offset {since}"
            named = [
                each.transactional_id
                for each in await admin.list_transactions(producer_ids=[oldest.producer_id])
            ]
            return f"transactional id {named[0]!r}, {text}" if named else text
        except MqError:
            return ""


@checks_options()
@asynccontextmanager
async def open_range(
    client: ClusterClient,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool = False,
    bytes_max: int = RANGE_BYTES,
    timeout_s: float = 60.0,
) -> AsyncIterator[RangeReader]:
    """A RangeReader of offsets `[start, end)` of one partition for the length of a block.

    A response has up to `bytes_max` bytes, or one batch that is larger. With `read_committed` the
    reader waits for open transactions before `end`, and each response lists the aborted ones.
    `timeout_s` bounds the time without progress.
    """
    check_client(client)
    check_topic_partition("tp", tp)
    check_whole("start", start, 0, INT64_MAX)
    check_whole("end", end, 0, INT64_MAX)
    check_flag("read_committed", read_committed)
    check_above_zero("timeout_s", timeout_s)
    plan = RangePlan(tp, start, end, read_committed=read_committed, bytes_max=bytes_max)
    async with owned_nursery() as nursery:
        reader = RangeReader(client, plan, timeout_s=timeout_s)
        nursery.start_soon(reader._run)
        try:
            yield reader
        finally:
            reader.close()
