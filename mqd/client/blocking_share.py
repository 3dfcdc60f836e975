"""The share consumer without await."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from mqd.client.blocking_loop import BackgroundLoop, as_coroutine, blocking
from mqd.client.blocking_readers import seconds
from mqd.client.share_consumer import ShareConsumer
from mqd.client.share_records import ShareRecord
from mqd.types import TopicPartition


class BlockingShareRecord:
    """`ShareRecord` without await. `accept`, `release`, `reject` and `renew` return when the broker
    has stored it; the `_soon` variants return at once."""

    def __init__(self, loop: BackgroundLoop, wrapped: ShareRecord) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self.topic = wrapped.topic
        self.partition = wrapped.partition
        self.offset = wrapped.offset
        self.timestamp = wrapped.timestamp
        self.key = wrapped.key
        self.value = wrapped.value
        self.headers = wrapped.headers
        self.delivery_count = wrapped.delivery_count
        """How many times the record was delivered, with this time."""

    def __repr__(self) -> str:
        return f"Blocking{self._wrapped!r}"

    @property
    def is_acknowledged(self) -> bool:
        return self._wrapped.is_acknowledged

    accept = blocking(ShareRecord.accept)
    release = blocking(ShareRecord.release)
    reject = blocking(ShareRecord.reject)
    renew = blocking(ShareRecord.renew)

    def accept_soon(self) -> None:
        """As `accept`, without a wait for the broker: `BlockingShareConsumer.flush` waits."""
        self._loop.call(as_coroutine(self._wrapped.accept_soon))

    def release_soon(self, delay: float | None = None) -> None:
        """As `release`, without a wait for the broker."""
        self._loop.call(as_coroutine(self._wrapped.release_soon), delay)

    def reject_soon(self) -> None:
        """As `reject`, without a wait for the broker."""
        self._loop.call(as_coroutine(self._wrapped.reject_soon))


class BlockingShareConsumer:
    """`ShareConsumer` without await: iterate over it, or call `next`. Callbacks run in the client's
    thread: they must not call the client."""

    def __init__(self, loop: BackgroundLoop, wrapped: ShareConsumer) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def next(self, timeout_s: float | None = None) -> BlockingShareRecord | None:
        """The next record; None after `timeout_s` without one."""

        async def in_loop() -> ShareRecord | None:
            with trio.move_on_after(seconds(timeout_s)):
                return await self._wrapped.next()
            return None

        record = self._loop.call(in_loop)
        return None if record is None else BlockingShareRecord(self._loop, record)

    def __iter__(self) -> Iterator[BlockingShareRecord]:
        while (record := self.next()) is not None:
            yield record

    def assignment(self) -> list[TopicPartition]:
        """The partitions that the coordinator has assigned."""
        return self._wrapped.assignment()

    @property
    def member_id(self) -> str:
        return self._wrapped.member_id

    flush = blocking(ShareConsumer.flush)
