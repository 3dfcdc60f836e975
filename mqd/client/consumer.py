"""Reading chosen partitions: `async with open_consumer(client, {tp: "beginning"}) as consumer`,
then
`async for batch in consumer`.

`fetcher.py` knows the positions and the buffered batches. One task decides what to fetch, and one
short task for each fetch waits for its response. At most two responses of a partition are buffered.
Fetches have connections of their own: a fetch that waits for data would delay the requests behind
it. Members of groups are in `group_consumer.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import trio

from mqd import limits
from mqd.client.arguments import check_above_zero, check_flag, check_whole, shown
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.errors import (
    ClientError,
    ConsumerClosed,
    as_client_error,
    invalid_value,
)
from mqd.client.fetched_batches import ARROW_ROWS_MAX, ConsumedBatch, FetchedBatch
from mqd.client.fetcher import Fetcher, PartitionFetch
from mqd.client.group_options import Reset
from mqd.client.keyword_options import checks_options
from mqd.client.metadata import ClusterView
from mqd.client.nurseries import owned_nursery
from mqd.client.offset_specs import (
    OffsetSpec,
    check_offset_spec,
    check_offset_specs,
    check_reset,
    resolve_offsets,
)
from mqd.client.resource_arguments import check_topic_partition
from mqd.client.topic_weights import check_weights
from mqd.errors import ErrorCode, MqError
from mqd.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from mqd.client.arrow import ArrowBatches

ConsumedT = TypeVar("ConsumedT", bound=ConsumedBatch)

FETCH = 1
_FETCH_TOPIC_IDS_FROM = 13


class Consumer:
    """Made by `open_consumer`. One task at a time reads from it."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        fetcher: Fetcher,
        *,
        max_wait_ms: int,
        min_bytes: int,
        reset: Reset,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._fetcher = fetcher
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._reset = reset
        self._timeout_s = timeout_s
        self._changed = trio.Event()
        self._busy: set[int] = set()
        self._finding: set[str] = set()
        self._closed = False
        self.purpose = f"fetch-{id(self)}"

    # -- for users

    async def next(self) -> FetchedBatch | None:
        """The next batch that has records; None when every partition has reached its end. Raises
        ClientError.

        Cancel-safe: no batch is lost. After an error of one partition, that partition is not read
        until `seek`, and others are.
        """
        return await self._next_of(self._fetcher.take)

    async def _next_of(self, take: Callable[[], ConsumedT | None]) -> ConsumedT | None:
        """As `next`, of what `take` takes from the fetcher."""
        while True:
            await trio.lowlevel.checkpoint()
            self._check_open()
            changed = self._changed
            if self._fetcher.failures:
                raise self._fetcher.failures.popleft()
            batch = take()
            if batch is not None or self._fetcher.chunk_given_back:
                self._fetcher.chunk_given_back = False
                self._wake()
            if batch is not None:
                if len(batch.records):
                    return batch
                continue
            if self._fetcher.is_done():
                return None
            await changed.wait()

    def __aiter__(self) -> AsyncIterator[FetchedBatch]:
        return self

    async def __anext__(self) -> FetchedBatch:
        batch = await self.next()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def arrow_batches(
        self, columns: Sequence[str] | None = None, *, rows_max: int = ARROW_ROWS_MAX
    ) -> ArrowBatches:
        """Arrow batches, in place of `next`: `async for batch in consumer.arrow_batches(["key"])`.

        Each batch is of one partition and has at most `rows_max` rows; without `columns` it has all
        columns but `headers`. Needs `pip install 'mqd[arrow]'`.
        """
        from mqd.client.arrow import ArrowBatches

        return ArrowBatches(self._next_of, self._fetcher, columns, rows_max)

    def assignment(self) -> list[TopicPartition]:
        return self._fetcher.assignment()

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record to deliver; earlier records have been delivered."""
        self._check_has_position(tp)
        return self._fetcher.position(tp)

    def high_watermark(self, tp: TopicPartition) -> int:
        """The end of the readable log at the last response; -1 before the first."""
        self._check_has_position(tp)
        return self._fetcher.high_watermark(tp)

    async def seek(self, tp: TopicPartition, spec: OffsetSpec) -> None:
        """Read `tp` from somewhere else."""
        self._check_open()
        self._check_read(tp)
        check_offset_spec(tp, spec)
        found = await resolve_offsets(self._client, {tp: spec}, timeout_s=self._timeout_s)
        self._fetcher.seek(tp, found[tp])
        self._wake()

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop delivery and fetching of these partitions until `resume`. Buffered
        batches stay."""
        for tp in partitions:
            self._check_read(tp)
        for tp in partitions:
            self._fetcher.pause(tp)

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver and fetch these partitions again."""
        for tp in partitions:
            check_topic_partition("a partition", tp)
        for tp in partitions:
            self._fetcher.resume(tp)
        self._wake()

    def paused(self) -> list[TopicPartition]:
        return self._fetcher.paused()

    def close(self) -> None:
        """Stop delivery; a waiting `next` raises."""
        self._closed = True
        self._client.close_connections(self.purpose)
        self._wake()

    # -- inside

    def _check_open(self) -> None:
        if self._closed:
            raise ConsumerClosed

    def _check_read(self, tp: TopicPartition) -> None:
        check_topic_partition("the partition", tp)
        if tp not in self.assignment():
            raise invalid_value(f"{tp} is not read by this consumer", "choose one of assignment()")

    def _check_has_position(self, tp: TopicPartition) -> None:
        check_topic_partition("the partition", tp)
        if self._fetcher.assignment_id(tp) is None:
            message = f"{tp} is not read by this consumer, or not yet"
            raise invalid_value(message, "choose one of assignment(), and call next first")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _run(self) -> None:
        """Decide what to fetch, until cancelled."""
        while True:
            now = trio.current_time()
            changed = self._changed
            wanted, leaderless = self._fetcher.plan(now, self._leader)
            for node_id, group in wanted.items():
                if node_id not in self._busy:
                    self._busy.add(node_id)
                    # No await until the body is built: another task may seek or unassign.
                    view = self._client.view
                    body = self._fetcher.request(
                        group, view, max_wait_ms=self._max_wait_ms, min_bytes=self._min_bytes
                    )
                    self._nursery.start_soon(self._fetch, node_id, group, view, body)
            for topic in sorted(leaderless - self._finding):
                self._finding.add(topic)
                self._nursery.start_soon(self._find_leaders, topic)
            with trio.move_on_at(self._fetcher.next_deadline(now)):
                await changed.wait()

    def _leader(self, tp: TopicPartition) -> int | None:
        broker = self._client.view.leader_of(tp)
        return None if broker is None else broker.node_id

    async def _find_leaders(self, topic: str) -> None:
        await self._refresh({topic}, seen=None)
        view = self._client.view
        if (
            topic not in view.topics
            or view.topics[topic].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ):
            for tp in self._fetcher.assignment():
                if tp.topic == topic:
                    message = f"topic {topic!r} does not exist any more"
                    error = ClientError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
                    self._fetcher.refuse(tp, error)
        else:
            await trio.sleep(backoff_s(3, self._client.entropy.random()))
        self._finding.discard(topic)
        self._wake()

    async def _refresh(self, topics: set[str], *, seen: int | None) -> None:
        try:
            await self._client.refresh(sorted(topics), seen=seen)
        except MqError as error:
            if not error.code.retriable:
                raise

    async def _fetch(
        self, node_id: int, wanted: list[PartitionFetch], view: ClusterView, body: dict[str, Any]
    ) -> None:
        draw = self._client.entropy.random()
        stale: set[str] = set()
        try:
            connection = await self._client.connection_to_broker(node_id, purpose=self.purpose)
            by_name = any(topic["topic_id"] == ZERO_UUID for topic in body["topics"])
            response = await self._client.request(
                connection, FETCH, body, at_most=_FETCH_TOPIC_IDS_FROM - 1 if by_name else None
            )
        except MqError as error:
            self._fetcher.on_failed(wanted, trio.current_time(), draw)
            stale = {each.tp.topic for each in wanted}
            if not error.code.retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                for tp in {each.tp for each in wanted} & set(self._fetcher.assignment()):
                    self._fetcher.refuse(tp, as_client_error(error))
        else:
            stale, out_of_range = self._fetcher.on_response(
                wanted, response, view, trio.current_time(), draw
            )
            for tp in out_of_range:
                self._nursery.start_soon(self._reset_position, tp)
        finally:
            self._busy.discard(node_id)
        if stale:
            await self._refresh(stale, seen=view.generation)
        self._wake()

    async def _reset_position(self, tp: TopicPartition) -> None:
        """The offset is out of range: seek to an end of the log, or report an error,
        according to `reset`.
        """
        assignment_id = self._fetcher.assignment_id(tp)
        bounds, failure = {}, None
        try:
            for place in ("beginning", "end"):
                bounds[place] = (
                    await resolve_offsets(self._client, {tp: place}, timeout_s=self._timeout_s)
                )[tp]
        except ClientError as error:
            failure = error
        is_same = assignment_id is not None and assignment_id == self._fetcher.assignment_id(tp)
        if is_same:  # no seek and no revocation in the meantime
            if failure is not None:
                self._fetcher.refuse(tp, failure)
            elif self._reset == "error":
                message = (
                    f"{tp} has no offset {self._fetcher.position(tp)}:"
                    f" it goes from {bounds['beginning']} to {bounds['end']}"
                )
                self._fetcher.refuse(tp, ClientError(ErrorCode.OFFSET_OUT_OF_RANGE, message))
            else:
                self._fetcher.seek(tp, bounds[self._reset])
        self._wake()


def _ends_wanted(
    start: Mapping[TopicPartition, OffsetSpec], end: object
) -> dict[TopicPartition, OffsetSpec]:
    """The offset at which to stop, by partition. Raises InvalidValue or InvalidType."""
    if end is None:
        return {}
    if isinstance(end, str):
        if end not in ("end", "latest"):
            raise invalid_value(f"end is {shown(end)}", "give 'end', or offsets by partition")
        return dict.fromkeys(start, "end")
    check_offset_specs("end", end)
    assert isinstance(end, Mapping)
    for tp in end:
        if tp not in start:
            raise invalid_value(f"end names {tp}, which start does not", "name it in both")
    return dict(end)


@checks_options()
@asynccontextmanager
async def open_consumer(
    client: ClusterClient,
    start: Mapping[TopicPartition, OffsetSpec],
    *,
    end: Mapping[TopicPartition, OffsetSpec] | Literal["end", "latest"] | None = None,
    read_committed: bool = False,
    reset: Reset = "error",
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = limits.CONSUMER_FETCH_BYTES,
    partition_max_bytes: int = limits.CONSUMER_PARTITION_FETCH_BYTES,
    weights: Mapping[str, int] | None = None,
    timeout_s: float = 30.0,
) -> AsyncIterator[Consumer]:
    """A Consumer of the partitions in `start` for the length of a block.

    With `end` (exclusive offsets, or "end": what is there now) the iteration ends there. `reset`
    decides what happens when the offset to read is out of range. A fetch waits at the broker up to
    `max_wait_ms` for `min_bytes`. With `weights`, topics that have records are read in this ratio;
    a topic that is not named has weight 1.
    """
    check_client(client)
    check_offset_specs("start", start)
    if not start:
        example = "{TopicPartition('orders', 0): 'beginning'}"
        raise invalid_value(f"start is {shown(start)}", f"give partitions and offsets: {example}")
    specs = _ends_wanted(start, end)
    check_reset(reset)
    check_flag("read_committed", read_committed)
    check_whole("max_wait_ms", max_wait_ms, 0)
    check_whole("min_bytes", min_bytes, 0)
    check_whole("max_bytes", max_bytes, 1)
    check_whole("partition_max_bytes", partition_max_bytes, 1)
    check_weights("weights", weights)
    check_above_zero("timeout_s", timeout_s)
    starts = await resolve_offsets(client, start, timeout_s=timeout_s)
    ends: dict[TopicPartition, int] = {}
    if specs:
        ends = await resolve_offsets(
            client, specs, timeout_s=timeout_s, read_committed=read_committed
        )
    fetcher = Fetcher(
        read_committed=read_committed,
        max_bytes=max_bytes,
        partition_max_bytes=partition_max_bytes,
        weights=weights,
    )
    for tp, position in starts.items():
        fetcher.assign(tp, position, ends.get(tp))
    async with owned_nursery() as nursery:
        consumer = Consumer(
            client,
            nursery,
            fetcher,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            reset=reset,
            timeout_s=timeout_s,
        )
        nursery.start_soon(consumer._run)
        try:
            yield consumer
        finally:
            consumer.close()
