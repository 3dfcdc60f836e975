"""A shard of the transaction coordinator in a harness, with a method for each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkersWritten,
    VerifyPartitions,
    WriteMarkers,
)
from mqd.coordinator.txn.shard import TransactionShard
from mqd.coordinator.txn.transaction import ProducerIdWanted
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition
from tests.coordinator.harness import Harness

OPTIONS = {
    "transaction.max.timeout.ms": 900_000,
    "transaction.two.phase.commit.enable": True,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transactional.id.expiration.ms": 604_800_000,
}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Options:
    def node(self, name: str) -> Any:
        return OPTIONS[name]

    def group(self, group_id: str, name: str) -> Any:
        raise AssertionError(name)


class Transactions(Harness[TransactionShard]):
    """`version`: the level of transaction.version in the cluster, which may change."""

    def __init__(self, version: int = 2) -> None:
        self.version = version
        self.spare_ids = iter(range(4000, 10**9))
        topics: Any = None  # a shard of transactions never looks up a topic
        super().__init__(
            lambda: TransactionShard(topics, Options(), 0, transaction_version=lambda: self.version)
        )

    def ask_now(self, op: Any) -> Any:
        return self.answer(self.operate(op))

    def init(
        self, expected: tuple[int, int] | None = None, *, id: str = "t", timeout_ms: int = 60_000
    ) -> Producer:
        """InitProducerId, with a spare producer id where one is wanted, as the handler does it."""
        op = InitializeProducer(id, timeout_ms, Producer(*expected) if expected else None)
        try:
            answer = self.ask_now(op)
        except ProducerIdWanted:
            answer = self.ask_now(
                InitializeProducer(id, timeout_ms, op.expected, next(self.spare_ids))
            )
        return Producer(**answer)

    def add(
        self,
        producer: tuple[int, int],
        *partitions: TopicPartition,
        id: str = "t",
        version: int = 2,
    ) -> None:
        self.ask_now(AddPartitions(id, Producer(*producer), partitions or (A0,), version))

    def verify(
        self, producer: tuple[int, int], *partitions: TopicPartition, id: str = "t"
    ) -> Mapping[TopicPartition, ErrorCode]:
        errors: Mapping[TopicPartition, ErrorCode] = self.ask_now(
            VerifyPartitions(id, Producer(*producer), partitions)
        )["errors"]
        return errors

    def end(
        self, producer: tuple[int, int], *, commit: bool = True, id: str = "t", version: int = 2
    ) -> Producer:
        op = EndTransaction(id, Producer(*producer), commit, version)
        try:
            answer = self.ask_now(op)
        except ProducerIdWanted:
            answer = self.ask_now(
                EndTransaction(id, op.producer, commit, version, next(self.spare_ids))
            )
        return Producer(**answer)

    def markers(self) -> list[WriteMarkers]:
        """The requested markers, which it removes."""
        wanted = [effect for effect in self.effects if isinstance(effect, WriteMarkers)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, WriteMarkers)]
        return wanted

    def written(self, markers: WriteMarkers, *partitions: TopicPartition) -> bool:
        """Report to the shard that the markers are written. Returns whether it waits for others."""
        op = MarkersWritten(
            markers.transactional_id,
            markers.producer,
            partitions or markers.partitions,
            markers.prepared_ms,
        )
        wanted: bool = self.ask_now(op)["pending"]
        return wanted

    def complete(self) -> WriteMarkers:
        """Write the only requested markers."""
        (markers,) = self.markers()
        assert not self.written(markers)
        return markers

    def describe(self, id: str = "t") -> Any:
        return self.ask_now(DescribeTransaction(id))

    def state(self, id: str = "t") -> str:
        state: str = self.describe(id)["transaction_state"]
        return state

    def listed(self, **filters: Any) -> list[str]:
        return [
            row["transactional_id"]
            for row in self.ask_now(ListTransactions(**filters))["transaction_states"]
        ]


class refused:  # noqa: N801
    """The body is refused with this code."""

    def __init__(self, code: ErrorCode) -> None:
        self._code = code
        self._raises = pytest.raises(MqError)

    def __enter__(self) -> None:
        self._info = self._raises.__enter__()

    def __exit__(self, *error: Any) -> bool:
        caught: bool = self._raises.__exit__(*error)
        assert self._info.value.code is self._code
        return caught
