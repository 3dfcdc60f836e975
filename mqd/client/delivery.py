"""The outcome of one record, for the user of a producer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

from mqd.client.accumulator import Batch
from mqd.types import NO_OFFSET


class RecordMetadata(NamedTuple):
    """The position of a stored record. `offset` is -1 with acks=0. `timestamp_ms` is the broker's
    if the topic has LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """One enqueued record. `await delivery` is `await delivery.wait()`."""

    __slots__ = ("_batch", "_index", "_timestamp_ms", "_wait_for")

    def __init__(
        self,
        wait_for: Callable[[Batch], Awaitable[None]],
        batch: Batch,
        index: int,
        timestamp_ms: int,
    ) -> None:
        """`wait_for` returns when the batch has an outcome, or was split."""
        self._wait_for = wait_for
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def is_done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._batch.locate(self._index)[0].outcome is not None

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self.wait().__await__()

    async def wait(self) -> RecordMetadata:
        """Wait for the acknowledgement. Raises ClientError if the record fails.

        A cancellation of the wait does not cancel the record.
        """
        while True:
            batch, index = self._batch.locate(self._index)
            if batch.outcome is not None:
                break
            await self._wait_for(batch)
        outcome = batch.outcome
        if outcome.error is not None:
            raise outcome.error.copy()
        offset = (
            outcome.base_offset if outcome.base_offset == NO_OFFSET else outcome.base_offset + index
        )
        timestamp = (
            self._timestamp_ms if outcome.log_append_time_ms < 0 else outcome.log_append_time_ms
        )
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)
