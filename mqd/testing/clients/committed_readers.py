"""Readers of committed records: mqd's own, and a raw one that fetches from any replica."""

from __future__ import annotations

import trio

from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.batch import iterate_batches
from mqd.testing.clients.common import (
    CALL_SECONDS,
    FETCH_WAIT_MS,
    PAUSE_SECONDS,
    fetch,
    pause,
    refresh,
)
from mqd.testing.clients.transaction_steps import TransactionSteps
from mqd.types import TopicPartition

READ_SECONDS = 0.1
"""Mean pause between two reads of one reader."""


class CommittedReaders:
    """Each method runs one reader until it is cancelled."""

    def __init__(self, steps: TransactionSteps) -> None:
        self._steps = steps

    async def own(self, name: str) -> None:
        """Read with mqd's consumer; at times a new one continues at its position."""
        chance = self._steps.source(name)
        places = dict.fromkeys(self._steps.partitions, 0)
        client = await self._steps.new_client(name)
        while True:
            rounds = chance.randrange(20, 200)
            try:
                async with open_consumer(
                    client,
                    dict(places),
                    read_committed=True,
                    max_wait_ms=FETCH_WAIT_MS,
                    timeout_s=CALL_SECONDS,
                ) as consumer:
                    while rounds:
                        rounds -= 1
                        with trio.move_on_after(0.5):
                            batch = await consumer.next()
                            assert batch is not None
                            partition = TopicPartition(batch.topic, batch.partition)
                            self._steps.ledger.read(
                                name,
                                partition,
                                [(record.offset, record.value or b"") for record in batch.records],
                            )
                            places[partition] = batch.next_offset
                        if not self._steps.stopping.is_set():
                            await pause(chance, READ_SECONDS)
            except MqError as error:
                self._steps.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def raw(self, name: str, partition: TopicPartition) -> None:
        """Record the offsets in the responses for one partition, from the leader or a follower."""
        chance = self._steps.source(name)
        offset, epoch = 0, -1
        client = await self._steps.new_client(name)
        while True:
            await pause(chance, READ_SECONDS)
            info = client.view.partition(partition)
            if info is None or info.leader < 0 or info.leader_epoch < epoch:
                await refresh(client, partition)
                continue
            epoch = info.leader_epoch
            node = info.leader if chance.random() < 0.6 else chance.choice(info.replicas)
            try:
                row = await fetch(client, name, node, partition, offset, epoch, read_committed=True)
                if row.error_code:
                    raise ClientError(ErrorCode(row.error_code), "fetch")
            except (MqError, ProtocolError):
                await refresh(client, partition)
                continue
            headers = (
                [header for _, _, header in iterate_batches(memoryview(row.records))]
                if row.records
                else []
            )
            newest = max((header.last_offset for header in headers), default=-1)
            self._steps.ledger.fetched(
                name,
                partition,
                node=node,
                leader_epoch=epoch,
                log_start=row.log_start_offset,
                last_stable=row.last_stable_offset,
                high_watermark=row.high_watermark,
                newest=newest,
            )
            offset = max(offset, newest + 1)
