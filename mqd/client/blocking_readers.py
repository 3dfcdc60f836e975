"""Consumers and range readers without await."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from mqd.client.arguments import check_number, shown
from mqd.client.blocking_loop import BackgroundLoop, as_coroutine, blocking
from mqd.client.blocking_producers import BlockingProducer
from mqd.client.consumer import Consumer
from mqd.client.errors import invalid_type
from mqd.client.fetched_batches import ARROW_ROWS_MAX, FetchedBatch
from mqd.client.finding import Finding, FoundRecord
from mqd.client.group_consumer import GroupConsumer
from mqd.client.group_member import GroupMetadata
from mqd.client.ranges import FetchedRange, RangeReader
from mqd.client.retry import check_retrying, retry_topic_of
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.arrow import ArrowBatches

ReaderT = TypeVar("ReaderT", bound="BatchReader")


class BatchReader(Protocol):
    async def next(self) -> FetchedBatch | None: ...

    def arrow_batches(self, columns: Sequence[str] | None, *, rows_max: int) -> ArrowBatches: ...

    def assignment(self) -> list[TopicPartition]: ...


def seconds(timeout_s: float | None) -> float:
    """A bound of a wait; None is no bound. Raises InvalidType or InvalidValue."""
    if timeout_s is None:
        return math.inf
    check_number("timeout_s", timeout_s, 0)
    return timeout_s


class BlockingReader(Generic[ReaderT]):
    """A reader of batches without await: iterate over it, or call `next`."""

    def __init__(self, loop: BackgroundLoop, wrapped: ReaderT) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def next(self, timeout_s: float | None = None) -> FetchedBatch | None:
        """The next batch; None at the end, and after `timeout_s` without one.

        A member of a group calls it again within `max_poll_interval_ms`.
        """

        async def in_loop() -> FetchedBatch | None:
            with trio.move_on_after(seconds(timeout_s)):
                return await self._wrapped.next()
            return None

        return self._loop.call(in_loop)

    def __iter__(self) -> Iterator[FetchedBatch]:
        while (batch := self.next()) is not None:
            yield batch

    def arrow_batches(
        self, columns: Sequence[str] | None = None, *, rows_max: int = ARROW_ROWS_MAX
    ) -> BlockingArrowBatches:
        """The records as Arrow batches in place of `next`, as `Consumer.arrow_batches`. Needs `pip
        install 'mqd[arrow]'`."""
        return BlockingArrowBatches(
            self._loop, self._wrapped.arrow_batches(columns, rows_max=rows_max)
        )

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._wrapped.assignment()


class BlockingArrowBatches:
    """`ArrowBatches` without await: iterate over it, or call `next`."""

    def __init__(self, loop: BackgroundLoop, wrapped: ArrowBatches) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self.schema = wrapped.schema
        """The schema of every batch."""

    def next(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next Arrow batch; None at the end, and after `timeout_s` without one."""

        async def in_loop() -> pa.RecordBatch | None:
            with trio.move_on_after(seconds(timeout_s)):
                return await self._wrapped.next()
            return None

        return self._loop.call(in_loop)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.next()) is not None:
            yield batch


class BlockingConsumer(BlockingReader[Consumer]):
    """`Consumer` without await."""

    def position(self, tp: TopicPartition) -> int:
        """The offset that is read next."""
        return self._wrapped.position(tp)

    def high_watermark(self, tp: TopicPartition) -> int:
        """The high watermark in the last response; -1 before the first."""
        return self._wrapped.high_watermark(tp)

    seek = blocking(Consumer.seek)


class BlockingGroupConsumer(BlockingReader[GroupConsumer]):
    """`GroupConsumer` without await. Callbacks run in the client's thread, during `next`: they must
    not call the client."""

    def positions(self) -> dict[TopicPartition, int]:
        """Offsets to commit when everything that was delivered is processed."""
        return self._wrapped.positions()

    def group_metadata(self) -> GroupMetadata:
        """The identity of this member, for `send_offsets`."""
        return self._wrapped.group_metadata()

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver nothing of these partitions until `resume`."""
        self._loop.call(as_coroutine(self._wrapped.pause), *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._loop.call(as_coroutine(self._wrapped.resume), *partitions)

    def consume_with_retry(
        self,
        producer: BlockingProducer,
        handler: Callable[[Record], object],
        *,
        retry_topic: str | None = None,
        idle_s: float | None = None,
    ) -> None:
        """As `GroupConsumer.consume_with_retry`. The calling thread runs `handler`."""
        if not isinstance(producer, BlockingProducer):
            raise invalid_type(f"producer is {shown(producer)}", "give one of client.producer()")
        check_retrying(handler, retry_topic, idle_s)
        while (batch := self.next(idle_s)) is not None:
            for record in batch.records:
                try:
                    handler(record)
                except Exception:
                    producer.retry(
                        retry_topic or retry_topic_of(batch.topic),
                        record,
                        source=TopicPartition(batch.topic, batch.partition),
                        group=self._wrapped.group_id,
                    )
            if not self._wrapped.auto_commit:
                self.commit()

    commit = blocking(GroupConsumer.commit)
    committed = blocking(GroupConsumer.committed)
    rewind = blocking(GroupConsumer.rewind)
    seek = blocking(GroupConsumer.seek)


class BlockingRangeReader:
    """`RangeReader` without await: iterate over it, or call `next`."""

    def __init__(self, loop: BackgroundLoop, wrapped: RangeReader) -> None:
        self._loop = loop
        self._wrapped = wrapped

    next = blocking(RangeReader.next)

    def __iter__(self) -> Iterator[FetchedRange]:
        while (fetched := self.next()) is not None:
            yield fetched


class BlockingFinding:
    """`Finding` without await: iterate over it, once."""

    def __init__(self, loop: BackgroundLoop, wrapped: Finding) -> None:
        self._loop = loop
        self._wrapped = wrapped

    @property
    def scanned_bytes(self) -> int:
        """Bytes that the brokers have read so far."""
        return self._wrapped.scanned_bytes

    @property
    def segments_read(self) -> int:
        """Segments of which something was read, once for each request."""
        return self._wrapped.segments_read

    @property
    def segments_unindexed(self) -> int:
        """Full segments that were read whole, because they have no key filter."""
        return self._wrapped.segments_unindexed

    def __iter__(self) -> Iterator[FoundRecord]:
        records = aiter(self._wrapped)

        async def following() -> FoundRecord | None:
            return await anext(records, None)

        while (found := self._loop.call(following)) is not None:
            yield found
