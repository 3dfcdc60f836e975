"""The client without Trio: `with connect("127.0.0.1:9092") as client`, for scripts, notebooks and
Spark workers.

One background thread runs Trio; every call blocks until its result is there. The thread ends with
the `with` block, and everything opened inside is closed first. Calls may come from several threads,
but not from a Trio program: there use `mqd.client.connect`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from mqd.client import cluster
from mqd.client.admin import Admin
from mqd.client.arguments import check_above_zero, check_flag, check_topic
from mqd.client.blocking_admin import BlockingAdmin
from mqd.client.blocking_loop import BackgroundLoop, blocking, opens
from mqd.client.blocking_producers import (
    BlockingArrowProducer,
    BlockingDelivery,
    BlockingProducer,
    BlockingRawProducer,
    BlockingTransactionalProducer,
)
from mqd.client.blocking_readers import (
    BlockingArrowBatches,
    BlockingConsumer,
    BlockingFinding,
    BlockingGroupConsumer,
    BlockingRangeReader,
)
from mqd.client.blocking_share import BlockingShareConsumer, BlockingShareRecord
from mqd.client.consumer import open_consumer
from mqd.client.delivery import RecordMetadata
from mqd.client.descriptions import NewTopic
from mqd.client.errors import ClientError
from mqd.client.finding import find, find_as_of
from mqd.client.group_consumer import open_group_consumer
from mqd.client.keyword_options import checks_options
from mqd.client.producer import open_producer
from mqd.client.ranges import open_range
from mqd.client.raw_producer import EndedTransaction, end_transaction, open_raw_producer
from mqd.client.share_consumer import open_share_consumer
from mqd.client.transactional import open_transactional_producer

__all__ = [
    "BlockingAdmin",
    "BlockingArrowBatches",
    "BlockingArrowProducer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingDelivery",
    "BlockingFinding",
    "BlockingGroupConsumer",
    "BlockingProducer",
    "BlockingRangeReader",
    "BlockingRawProducer",
    "BlockingShareConsumer",
    "BlockingShareRecord",
    "BlockingTransactionalProducer",
    "ClientError",
    "NewTopic",
    "RecordMetadata",
    "connect",
]


class BlockingClient:
    """`ClusterClient` without await. Made by `connect`.

    Each opener below is a context manager with the arguments of the async function of that name.
    """

    def __init__(
        self, loop: BackgroundLoop, wrapped: cluster.ClusterClient, *, timeout_s: float
    ) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self.admin = BlockingAdmin(loop, Admin(wrapped, timeout_s=timeout_s))

    producer = opens(open_producer, BlockingProducer)
    transactional_producer = opens(open_transactional_producer, BlockingTransactionalProducer)
    raw_producer = opens(open_raw_producer, BlockingRawProducer)
    consumer = opens(open_consumer, BlockingConsumer)
    group_consumer = opens(open_group_consumer, BlockingGroupConsumer)
    share_consumer = opens(open_share_consumer, BlockingShareConsumer)
    range_reader = opens(open_range, BlockingRangeReader)

    def find(self, topic: str, key: bytes, **options: Any) -> BlockingFinding:
        """The records with a key, as `mqd.client.find`: iterate over the result."""
        return BlockingFinding(self._loop, find(self._wrapped, topic, key, **options))

    find_as_of = blocking(find_as_of)

    @contextmanager
    def arrow_producer(self, **options: Any) -> Iterator[BlockingArrowProducer]:
        """A producer of Arrow tables for the length of a block; options as of
        `open_arrow_producer`. Needs `pip install 'mqd[arrow]'`."""
        from mqd.client.arrow import open_arrow_producer

        with self._loop.entered(open_arrow_producer(self._wrapped, **options)) as wrapped:
            yield BlockingArrowProducer(self._loop, wrapped)

    def partition_count(self, topic: str, *, timeout_s: float = 60.0, fresh: bool = False) -> int:
        """The number of partitions of a topic; `fresh` requests it again. A missing topic is
        created if the brokers' configuration allows it.
        """

        check_topic(topic)
        check_above_zero("timeout_s", timeout_s)
        check_flag("fresh", fresh)

        async def in_loop() -> int:
            if fresh:
                await self._wrapped.refresh([topic], create=True)
            deadline = trio.current_time() + timeout_s
            info = await self._wrapped.topic(
                topic, deadline=deadline, create=True, unknown_grace_s=5.0
            )
            return len(info.partitions)

        return self._loop.call(in_loop)

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        *,
        timeout_s: float = 60.0,
    ) -> EndedTransaction:
        """As `raw_producer.end_transaction`."""

        async def in_loop() -> EndedTransaction:
            return await end_transaction(
                self._wrapped,
                transactional_id,
                producer_id,
                producer_epoch,
                commit,
                timeout_s=timeout_s,
            )

        return self._loop.call(in_loop)


@checks_options(cluster.connect)
@contextmanager
def connect(
    bootstrap: str | Sequence[tuple[str, int]], *, timeout_s: float = 30.0, **options: Any
) -> Iterator[BlockingClient]:
    """A BlockingClient for the length of a block; options as of `mqd.client.connect`.

    `timeout_s` bounds each administrative call.
    """
    check_above_zero("timeout_s", timeout_s)
    loop = BackgroundLoop()
    try:
        with loop.entered(cluster.connect(bootstrap, **options), last=True) as wrapped:
            yield BlockingClient(loop, wrapped, timeout_s=timeout_s)
    finally:
        loop.close()
