"""Administration of transactions: who has one open, since when, and ending those that nobody ends (KIP-664). `Admin` has these calls.

A transaction hangs when a partition waits for it and no coordinator will ever end it: readers of committed records wait there, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mqd.client.calls import Calls, Outcomes, outcomes_of, raised
from mqd.client.coordinator import KeyType
from mqd.client.descriptions import ActiveProducer
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.group_descriptions import ListedTransaction, OpenTransaction, TransactionDescription
from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

INIT_PRODUCER_ID, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 22, 27, 61, 65, 66
_DURATION_FROM, _PATTERN_FROM = 1, 2


class TransactionAdmin(Calls):
    """Calls about transactions and their producers."""

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        *,
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """All transactional ids by name, of every coordinator; narrowed by state, producer id, age of the open transaction, and a
        regular expression for the name. Raises UNSUPPORTED_VERSION where a broker cannot narrow like that."""
        body = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": -1 if longer_than_ms is None else longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        least = _PATTERN_FROM if pattern is not None else _DURATION_FROM if longer_than_ms is not None else 0

        async def ask(node_id: int) -> list[ListedTransaction]:
            connection = await self._client.connection_to_node(node_id)
            if connection.versions.get(LIST_TRANSACTIONS, (0, 0))[1] < least:
                raise ClientError(ErrorCode.UNSUPPORTED_VERSION, f"{connection.peer} cannot narrow a list of transactions like that")
            answer = await self._client.request(connection, LIST_TRANSACTIONS, body)
            if answer.error_code:
                raise error_from_wire(answer.error_code, f"transactions of node {node_id}")
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise ClientError(ErrorCode.INVALID_REQUEST, f"no transaction is ever in state {unknown}")
            return [
                ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state, node_id)
                for row in answer.transaction_states
            ]

        return sorted(await self._every_node("listing transactions", ask))

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription | ClientError]:
        """Transactional ids with their open transactions; TRANSACTIONAL_ID_NOT_FOUND for what no coordinator knows."""

        async def ask(connection: PeerConnection, keys: list[str]) -> Outcomes:
            answer = await self._client.request(connection, DESCRIBE_TRANSACTIONS, {"transactional_ids": keys})
            outcomes = Outcomes({}, {})
            for row in answer.transaction_states:
                if not row.error_code:
                    outcomes.done[row.transactional_id] = _described(row, connection.peer)
                    continue
                missing = "it does not exist" if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else None
                error = error_from_wire(row.error_code, f"transactional id {row.transactional_id!r}", missing)
                (outcomes.again if error.retriable else outcomes.done)[row.transactional_id] = error
            return outcomes

        return await self._each_coordinated("describing transactions", list(transactional_ids), KeyType.TRANSACTION, ask)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, tuple[int, int] | ClientError]:
        """Make every producer that has one of these ids stop, and abort what it left open. Returns the new producer ids and epochs."""

        async def ask(connection: PeerConnection, keys: list[str]) -> Outcomes:
            outcomes = Outcomes({}, {})
            for key in keys:
                body = {"transactional_id": key, "transaction_timeout_ms": self._timeout_ms}
                answer = await self._client.request(connection, INIT_PRODUCER_ID, body)
                if answer.error_code:
                    error = error_from_wire(answer.error_code, f"transactional id {key!r}")
                    (outcomes.again if error.retriable else outcomes.done)[key] = error
                else:
                    outcomes.done[key] = answer.producer_id, answer.producer_epoch
            return outcomes

        return await self._each_coordinated("fencing producers", list(transactional_ids), KeyType.TRANSACTION, ask)

    async def abort_transaction(self, tp: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Write the marker that ends a producer's transaction in one partition, in its coordinator's place.

        For transactions that hang: one that a coordinator still looks after would be torn apart. Raises ClientError.
        """

        async def ask(node_id: int, _: list[TopicPartition]) -> Outcomes:
            marker = {
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "transaction_result": False,
                "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
                "coordinator_epoch": coordinator_epoch,
            }
            answer = await self._client.request_node(node_id, WRITE_TXN_MARKERS, {"markers": [marker]})
            return outcomes_of(
                (TopicPartition(topic.name, row.partition_index), row, None, None)
                for one in answer.markers
                for topic in one.topics
                for row in topic.partitions
            )

        raised((await self._each_partition(f"aborting a transaction in {tp}", [tp], ask))[tp])

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer] | ClientError]:
        """The idempotent and transactional producers that each partition's leader remembers."""

        async def ask(node_id: int, group: list[TopicPartition]) -> Outcomes:
            topics: dict[str, list[int]] = {}
            for tp in group:
                topics.setdefault(tp.topic, []).append(tp.partition)
            body = {"topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]}
            answer = await self._client.request_node(node_id, DESCRIBE_PRODUCERS, body)
            return outcomes_of(
                (TopicPartition(topic.name, row.partition_index), row, row.error_message, _active_producers(row))
                for topic in answer.topics
                for row in topic.partitions
            )

        return await self._each_partition("describing producers", list(partitions), ask)

    async def find_hanging_transactions(self, partitions: Iterable[TopicPartition], *, older_than_ms: int) -> list[OpenTransaction]:
        """Transactions that partitions wait for although their producers were last heard of `older_than_ms` ago, and of which no
        coordinator says that the partition takes part. Choose an age above the longest transaction time-out in use (KIP-664)."""
        oldest = self._client.clock.wall_ms() - older_than_ms
        suspects: list[tuple[TopicPartition, ActiveProducer]] = []
        for tp, outcome in (await self.describe_producers(partitions)).items():
            suspects += [(tp, each) for each in raised(outcome) if each.transaction_start_offset >= 0 and each.last_timestamp_ms < oldest]
        if not suspects:
            return []
        listed = await self.list_transactions(producer_ids=sorted({each.producer_id for _, each in suspects}))
        names = {each.producer_id: each.transactional_id for each in listed}
        described = await self.describe_transactions(sorted(set(names.values())))
        hanging = []
        for tp, producer in suspects:
            name = names.get(producer.producer_id)
            known = None if name is None else described[name]
            if isinstance(known, ClientError) and known.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise known
            looked_after = (
                isinstance(known, TransactionDescription) and known.producer_id == producer.producer_id and tp in known.partitions
            )
            if not looked_after:
                hanging.append(OpenTransaction(tp, producer, name))
        return sorted(hanging)


def _described(row: Any, coordinator: str) -> TransactionDescription:
    partitions = tuple(sorted(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions))
    return TransactionDescription(
        row.transactional_id,
        coordinator,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        partitions,
    )


def _active_producers(row: Any) -> list[ActiveProducer]:
    return [
        ActiveProducer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in row.active_producers
    ]
