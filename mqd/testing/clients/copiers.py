"""Copiers: members of one group that consume, transform and produce, with offsets and records in
one transaction. They join, leave and crash.
"""

from __future__ import annotations

import random
from typing import Literal

import trio

from mqd.client.group_consumer import GroupConsumer, open_group_consumer
from mqd.client.transactional import TransactionalProducer
from mqd.errors import MqError
from mqd.testing.checker import Outcome
from mqd.testing.clients.common import (
    CALL_SECONDS,
    DRAIN_LOOK_SECONDS,
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    PAUSE_SECONDS,
    SESSION_MS,
    lives,
    pause,
)
from mqd.testing.clients.transaction_steps import TIMEOUT_MS, VERSION_1_SHARE, TransactionSteps
from mqd.testing.ledger import copy_of
from mqd.types import TopicPartition

COPIERS = "copiers"
"""The group of the copiers."""
COPY_SECONDS = 0.1
"""The mean pause between two copies of one copier."""


class Copiers:
    """The members of the copiers' group, which copy one topic."""

    def __init__(self, steps: TransactionSteps, topic: str) -> None:
        self.members: dict[GroupConsumer, None] = {}
        """The current members."""
        self._steps = steps
        self._topic = topic

    async def run(self, name: str) -> None:
        chance = self._steps.source(name)
        protocol: Literal["classic", "consumer"] = self._steps.source("copiers").choice(
            ["classic", "consumer"]
        )
        client = await self._steps.new_client(name)
        number = 0
        while not self._steps.stopping.is_set():
            leave = chance.random() < 0.6
            version_1 = chance.random() < VERSION_1_SHARE
            rounds = chance.choice([1, 5, 20, 100])
            try:
                async with (
                    self._steps.producer(client, name, leave=leave) as producer,
                    open_group_consumer(
                        client,
                        COPIERS,
                        [self._topic],
                        group_protocol=protocol,
                        assignors=("cooperative-sticky",) if protocol == "classic" else (),
                        session_timeout_ms=SESSION_MS,
                        heartbeat_interval_ms=HEARTBEAT_MS,
                        max_poll_interval_ms=2 * TIMEOUT_MS,
                        auto_commit=False,
                        reset="beginning",
                        read_committed=True,
                        max_wait_ms=FETCH_WAIT_MS,
                        timeout_s=CALL_SECONDS,
                        leave=leave,
                        close_timeout_s=1.0,
                    ) as consumer,
                ):
                    with lives(self.members, consumer):
                        while rounds > 0 or self._steps.draining.is_set():
                            rounds -= 1
                            number += 1
                            if not await self._copy(
                                producer, consumer, f"{name}.{number}", chance, version_1=version_1
                            ):
                                break
                            if not self._steps.draining.is_set():
                                await pause(chance, COPY_SECONDS)
            except MqError as error:
                self._steps.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def _copy(
        self,
        producer: TransactionalProducer,
        consumer: GroupConsumer,
        name: str,
        chance: random.Random,
        *,
        version_1: bool,
    ) -> bool:
        """Copy one batch in a transaction. Returns False if both clients must be opened again."""
        batch = None
        while batch is None:
            if self._steps.stopping.is_set():
                return False
            with trio.move_on_after(DRAIN_LOOK_SECONDS):
                batch = await consumer.next()
        source = TopicPartition(batch.topic, batch.partition)
        target = self._steps.partitions[source.partition % len(self._steps.partitions)]
        with self._steps.transaction(name) as transaction:
            await self._steps.begin(producer, version_1=version_1)
            for record in batch.records:
                value = copy_of(source, record.offset, record.value or b"")
                self._steps.ledger.write(transaction, target, value)
                await producer.enqueue(target.topic, value, partition=target.partition)
            try:
                await producer.send_offsets(dict(consumer.positions()), consumer.group_metadata())
            except MqError as error:
                self._steps.refused[error.code.name] += 1
            fate = chance.random() if not self._steps.draining.is_set() else 0.5
            if fate < 0.03:
                return False  # the copier crashes here
            if fate < 0.08:
                await self._steps.outlive(producer, transaction, consumer)
                return False
            if not await self._steps.end(producer, transaction, commit=fate < 0.9):
                return False
            if transaction.outcome is not Outcome.OK:
                if chance.random() < 0.5:
                    return False
                await consumer.rewind()
        return True
