"""Producers without await."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqd.client.blocking_loop import BackgroundLoop, blocking
from mqd.client.delivery import Delivery
from mqd.client.producer import Producer
from mqd.client.raw_producer import RawProducer
from mqd.client.transactional import TransactionalProducer

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.arrow import ArrowProducer


class BlockingDelivery:
    """`Delivery` without await: a record that is queued or in flight."""

    def __init__(self, loop: BackgroundLoop, wrapped: Delivery) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def is_done(self) -> bool:
        return self._wrapped.is_done()

    wait = blocking(Delivery.wait)


class BlockingProducer:
    """`Producer` without await. `send` waits for each record; to send many, `enqueue` them, then
    `flush`."""

    def __init__(self, loop: BackgroundLoop, wrapped: Producer) -> None:
        self._loop = loop
        self._wrapped = wrapped

    send = blocking(Producer.send)
    retry = blocking(Producer.retry)
    flush = blocking(Producer.flush)

    def enqueue(self, *args: Any, **kwargs: Any) -> BlockingDelivery:
        """As `Producer.enqueue`."""
        return BlockingDelivery(self._loop, _enqueue(self, *args, **kwargs))


_enqueue = blocking(Producer.enqueue)


class BlockingTransactionalProducer(BlockingProducer):
    """`TransactionalProducer` without await."""

    claim = blocking(TransactionalProducer.claim)
    begin = blocking(TransactionalProducer.begin)
    commit = blocking(TransactionalProducer.commit)
    abort = blocking(TransactionalProducer.abort)
    send_offsets = blocking(TransactionalProducer.send_offsets)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for the length of a block: committed at its end, aborted when an
        exception leaves it."""
        wrapped = self._wrapped
        assert isinstance(wrapped, TransactionalProducer)
        with self._loop.entered(wrapped.transaction()):
            yield


class BlockingArrowProducer:
    """`ArrowProducer` without await."""

    def __init__(self, loop: BackgroundLoop, wrapped: ArrowProducer) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def send(self, topic: str, rows: pa.Table | pa.RecordBatch) -> int:
        """As `ArrowProducer.send`."""
        return self._loop.call(self._wrapped.send, topic, rows)

    def flush(self) -> None:
        """Wait until every row is acknowledged. Raises the first failure of the producer."""
        self._loop.call(self._wrapped.flush)


class BlockingRawProducer:
    """`RawProducer` without await."""

    def __init__(self, loop: BackgroundLoop, wrapped: RawProducer) -> None:
        self._loop = loop
        self._wrapped = wrapped

    send = blocking(RawProducer.send)
    send_all = blocking(RawProducer.send_all)
    flush = blocking(RawProducer.flush)
    begin = blocking(RawProducer.begin)
    commit = blocking(RawProducer.commit)
    abort = blocking(RawProducer.abort)
    send_offsets = blocking(RawProducer.send_offsets)
    prepare = blocking(RawProducer.prepare)

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._wrapped.producer
