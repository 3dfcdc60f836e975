"""Consumers of the simulated cluster, which read while the producers write.

mqd's own consumer reads from the leaders. Raw ones fetch from any replica (KIP-392), with the
leader epoch in each fetch (KIP-320). So each response can be compared with the log of one leader.
"""

from __future__ import annotations

import random
from typing import Any

from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.batch import iterate_batches, validate
from mqd.protocol.record_reader import iterate_records
from mqd.testing.clients.common import (
    DELIVERY_SECONDS,
    FETCH_WAIT_MS,
    PAUSE_SECONDS,
    fetch,
    pause,
    refresh,
)
from mqd.testing.clients.workload_state import WorkloadState
from mqd.types import TopicPartition

READ_SECONDS = 0.05
"""Mean pause between two reads of one consumer."""


class Consumers:
    """Each method runs one consumer until it is cancelled."""

    def __init__(self, state: WorkloadState) -> None:
        self._state = state

    async def own(self, name: str, partitions: list[TopicPartition]) -> None:
        """Read with mqd's consumer from the beginning; at times a new one continues at its
        position.
        """
        chance = self._state.source(name)
        places: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        for partition in partitions:
            self._state.history.begin_reading(name, partition, 0)
            self._state.positions[name, partition] = 0
        client = await self._state.new_client(name)
        while True:
            rounds = chance.randrange(20, 400)
            try:
                async with open_consumer(
                    client, dict(places), max_wait_ms=FETCH_WAIT_MS, timeout_s=DELIVERY_SECONDS
                ) as consumer:
                    for _ in range(rounds):
                        batch = await consumer.next()
                        assert batch is not None
                        partition = TopicPartition(batch.topic, batch.partition)
                        rows = [(record.offset, record.value or b"") for record in batch.records]
                        self._state.history.polled(name, partition, rows, batch.high_watermark)
                        self._state.positions[name, partition] = places[partition] = (
                            batch.next_offset
                        )
                        await self._read_slowly(chance)
            except ClientError as error:
                self._state.count(error.code)
                if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE):
                    topic, _, number = error.message.split()[0].rpartition("-")
                    note = (
                        self._state.history.out_of_range
                        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE
                        else self._state.history.unreadable
                    )
                    note(name, TopicPartition(topic, int(number)), error.message)
                await pause(chance, PAUSE_SECONDS)

    async def raw(self, name: str, partition: TopicPartition) -> None:
        """Read one partition from the leader or a follower, one fetch at a time."""
        chance = self._state.source(name)
        offset, epoch = 0, -1
        self._state.history.begin_reading(name, partition, 0)
        client = await self._state.new_client(name)
        while True:
            info = client.view.partition(partition)
            if info is None or info.leader < 0 or info.leader_epoch < epoch:
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)
                continue
            epoch = info.leader_epoch
            node = info.leader if chance.random() < 0.6 else chance.choice(info.replicas)
            try:
                row = await fetch(client, name, node, partition, offset, epoch)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and node == info.leader:
                    self._state.history.out_of_range(
                        name, partition, f"{offset}, by leader {node} of epoch {epoch}"
                    )
                if row.error_code:
                    self._state.count(row.error_code)
                    raise ClientError(ErrorCode(row.error_code), "fetch")
                self._state.history.fetched(
                    name,
                    partition,
                    node=node,
                    leader_epoch=epoch,
                    log_start=row.log_start_offset,
                    last_stable=row.last_stable_offset,
                    high_watermark=row.high_watermark,
                )
                rows = list(records_from(row.records, offset))
                if (newest := _newest_epoch(row.records)) > epoch:
                    self._state.history.beyond_epoch(
                        name,
                        partition,
                        f"{offset} by node {node}: epoch {newest}, requested in {epoch}",
                    )
                self._state.history.polled(name, partition, rows, row.high_watermark)
                offset += len(rows)
                self._state.positions[name, partition] = offset
                await self._read_slowly(chance)
            except ProtocolError as error:
                self._state.history.unreadable(
                    name, partition, f"{offset}, by node {node}: {error}"
                )
            except MqError as error:
                if error.code is ErrorCode.CORRUPT_MESSAGE:
                    self._state.history.unreadable(
                        name, partition, f"{offset}, by node {node}: {error}"
                    )
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)

    async def _read_slowly(self, chance: random.Random) -> None:
        """Pause, so that responses have more than one batch. No pause while the workload stops."""
        if not self._state.stopping.is_set():
            await pause(chance, READ_SECONDS)


def records_from(data: Any, offset: int) -> Any:
    """(offset, value) of the fetched records from `offset` on. Checks the batches."""
    if not data:
        return
    view = memoryview(data)
    for position, size, header in iterate_batches(view):
        validate(view, position, end=position + size)
        for record in iterate_records(view, position, header=header):
            if record.offset >= offset:
                yield record.offset, record.value or b""


def _newest_epoch(data: Any) -> int:
    """The highest leader epoch of the fetched batches; -1 without batches."""
    return (
        max(
            (header.partition_leader_epoch for _, _, header in iterate_batches(memoryview(data))),
            default=-1,
        )
        if data
        else -1
    )
