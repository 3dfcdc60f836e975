"""Administration of transactions: list, describe, find hanging ones and abort them (KIP-664).
`Admin` has these calls.

A transaction hangs when a partition waits for it and no coordinator will ever end it: readers of
committed records wait there, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from mqd.client.arguments import (
    INT16_MAX,
    INT64_MAX,
    check_ids,
    check_names,
    check_string,
    check_whole,
    check_wholes,
)
from mqd.client.calls import Calls, Outcomes, items_of_all, outcomes_of, raised
from mqd.client.coordinator import KeyType
from mqd.client.descriptions import ActiveProducer
from mqd.client.errors import ClientError, DeadlineExceeded, does_not_exist, error_from_wire
from mqd.client.group_descriptions import (
    HangingTransactions,
    ListedTransaction,
    OpenTransaction,
    TransactionDescription,
)
from mqd.client.peer import PeerConnection
from mqd.client.resource_arguments import check_partitions, check_topic_partition
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, TopicPartition

(
    INIT_PRODUCER_ID,
    WRITE_TXN_MARKERS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
) = 22, 27, 61, 65, 66
_DURATION_FROM, _PATTERN_FROM = 1, 2
TRANSACTION_STATE = "__transaction_state"


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
        """All transactional ids by name, of every coordinator; narrowed by state, producer id, age
        of the open transaction, and a regular expression for the name. Raises UNSUPPORTED_VERSION
        if a broker does not support such a filter.
        """
        by_node = await self.list_transactions_by_node(
            states, producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )
        return sorted(items_of_all(by_node))

    async def list_transactions_by_node(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        *,
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> dict[int, list[ListedTransaction] | ClientError]:
        """The same for each coordinating broker, with the errors of brokers that failed."""
        if longer_than_ms is not None:
            check_whole("longer_than_ms", longer_than_ms, 0, INT64_MAX)
        if pattern is not None:
            check_string("pattern", pattern, "copier-.*")
        body = {
            "state_filters": list(check_names("states", states, "Ongoing")),
            "producer_id_filters": check_wholes("producer_ids", producer_ids, -1, INT64_MAX),
            "duration_filter": -1 if longer_than_ms is None else longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        least = (
            _PATTERN_FROM
            if pattern is not None
            else _DURATION_FROM
            if longer_than_ms is not None
            else 0
        )

        async def request(node_id: int) -> list[ListedTransaction]:
            connection = await self._client.connection_to_broker(node_id)
            if connection.versions.get(LIST_TRANSACTIONS, (0, 0))[1] < least:
                raise ClientError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.peer} cannot narrow a list of transactions like that",
                )
            response = await self._client.request(connection, LIST_TRANSACTIONS, body)
            if response.error_code:
                raise error_from_wire(response.error_code, f"transactions of broker {node_id}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise ClientError(
                    ErrorCode.INVALID_REQUEST, f"no transaction is ever in state {unknown}"
                )
            return [
                ListedTransaction(
                    row.transactional_id,
                    row.producer_id,
                    row.transaction_state,
                    node_id,
                    row.prepared,
                )
                for row in response.transaction_states
            ]

        return await self._each_broker("listing transactions", request)

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | ClientError]:
        """Transactional ids with their open transactions; TRANSACTIONAL_ID_NOT_FOUND for
        what no coordinator knows.
        """
        wanted = check_ids("transactional_ids", transactional_ids, "copier-1")

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            response = await self._client.request(
                connection, DESCRIBE_TRANSACTIONS, {"transactional_ids": keys}
            )
            outcomes = Outcomes({}, {})
            for row in response.transaction_states:
                if not row.error_code:
                    outcomes.done[row.transactional_id] = _described(row, connection.peer)
                    continue
                subject = f"transactional id {row.transactional_id!r}"
                error = (
                    does_not_exist(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, subject)
                    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                    else error_from_wire(row.error_code, subject)
                )
                (outcomes.to_retry if error.retriable else outcomes.done)[row.transactional_id] = (
                    error
                )
            return outcomes

        return await self._each_coordinated(
            "describing transactions", wanted, KeyType.TRANSACTION, request
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, tuple[int, int] | ClientError]:
        """Fence every producer with one of these ids, and abort its open transaction. Returns the
        new producer ids and epochs.
        """
        wanted = check_ids("transactional_ids", transactional_ids, "copier-1")

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            outcomes = Outcomes({}, {})
            for key in keys:
                body = {"transactional_id": key, "transaction_timeout_ms": self._timeout_ms}
                response = await self._client.request(connection, INIT_PRODUCER_ID, body)
                if response.error_code:
                    error = error_from_wire(response.error_code, f"transactional id {key!r}")
                    (outcomes.to_retry if error.retriable else outcomes.done)[key] = error
                else:
                    outcomes.done[key] = response.producer_id, response.producer_epoch
            return outcomes

        return await self._each_coordinated(
            "fencing producers", wanted, KeyType.TRANSACTION, request
        )

    async def abort_transaction(
        self, tp: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write the marker that ends a producer's transaction in one partition, in its
        coordinator's place.

        For transactions that hang: one that a coordinator still looks after would be torn apart.
        Raises ClientError.
        """
        check_topic_partition("tp", tp)
        check_whole("producer_id", producer_id, 0, INT64_MAX)
        check_whole("producer_epoch", producer_epoch, 0, INT16_MAX)
        check_whole("coordinator_epoch", coordinator_epoch, NO_EPOCH)

        async def request(node_id: int, _: list[TopicPartition]) -> Outcomes:
            marker = {
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "transaction_result": False,
                "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
                "coordinator_epoch": coordinator_epoch,
            }
            response = await self._client.request_leader(
                node_id, WRITE_TXN_MARKERS, {"markers": [marker]}
            )
            return outcomes_of(
                (TopicPartition(topic.name, row.partition_index), row, None, None)
                for one in response.markers
                for topic in one.topics
                for row in topic.partitions
            )

        raised((await self._each_partition(f"aborting a transaction in {tp}", [tp], request))[tp])

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | ClientError]:
        """The idempotent and transactional producers that each partition's leader remembers."""
        wanted = check_partitions("partitions", partitions)

        async def request(node_id: int, group: list[TopicPartition]) -> Outcomes:
            topics: dict[str, list[int]] = {}
            for tp in group:
                topics.setdefault(tp.topic, []).append(tp.partition)
            body = {
                "topics": [
                    {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
                ]
            }
            response = await self._client.request_leader(node_id, DESCRIBE_PRODUCERS, body)
            return outcomes_of(
                (
                    TopicPartition(topic.name, row.partition_index),
                    row,
                    row.error_message,
                    _active_producers(row),
                )
                for topic in response.topics
                for row in topic.partitions
            )

        return await self._each_partition("describing producers", wanted, request)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int
    ) -> HangingTransactions:
        """Hanging transactions: a partition has them open, their producers have been silent for
        `older_than_ms`, and no coordinator lists that partition for them. Choose an age above the
        longest transaction timeout in use (KIP-664). Partitions without a leader are skipped. A
        transaction is not reported while a coordinator that may know it does not respond.
        """
        check_whole("older_than_ms", older_than_ms, 0, INT64_MAX)
        wanted = list(dict.fromkeys(check_partitions("partitions", partitions)))
        oldest = self._client.clock.wall_ms() - older_than_ms
        led, unclear = await self._led(wanted)
        suspects: list[tuple[TopicPartition, ActiveProducer]] = []
        for tp, outcome in (await self.describe_producers(led)).items():
            if isinstance(outcome, ClientError):
                unclear[tp] = outcome
            else:
                suspects += [
                    (tp, each)
                    for each in outcome
                    if each.transaction_start_offset >= 0 and each.last_timestamp_ms < oldest
                ]
        claims = (
            await self._claims({each.producer_id for _, each in suspects})
            if suspects
            else _Claims({}, {}, {})
        )
        hanging = []
        for tp, producer in suspects:
            error = claims.uncertain.get(producer.producer_id)
            known = claims.known.get(producer.producer_id)
            if error is not None:
                unclear[tp] = error
            elif known is None or tp not in known.partitions:
                hanging.append(
                    OpenTransaction(tp, producer, claims.names.get(producer.producer_id))
                )
        return HangingTransactions(
            sorted(hanging), {tp: unclear[tp] for tp in wanted if tp in unclear}
        )

    async def _led(
        self, partitions: list[TopicPartition]
    ) -> tuple[list[TopicPartition], dict[TopicPartition, ClientError]]:
        """The partitions that have a leader now, and those that have none."""
        view = await self._retry(
            "finding leaders", lambda: self._client.refresh({tp.topic for tp in partitions})
        )
        none = {
            tp: _no_leader()
            for tp in partitions
            if view.partition(tp) is not None and view.leader_of(tp) is None
        }
        return [tp for tp in partitions if tp not in none], none

    async def find_transaction(
        self, tp: TopicPartition, producer_id: int
    ) -> TransactionDescription | None:
        """The transaction of this producer if its coordinator lists `tp` and so will end it there;
        None if it hangs. Raises ClientError while a coordinator that may know it does not respond.
        """
        check_topic_partition("tp", tp)
        check_whole("producer_id", producer_id, 0, INT64_MAX)
        claims = await self._claims({producer_id})
        if producer_id in claims.uncertain:
            raise claims.uncertain[producer_id]
        known = claims.known.get(producer_id)
        return known if known is not None and tp in known.partitions else None

    async def _claims(self, producer_ids: Collection[int]) -> _Claims:
        """The transactions of these producers, from their coordinators."""
        by_node = await self.list_transactions_by_node(producer_ids=producer_ids)
        names = {
            each.producer_id: each.transactional_id
            for rows in by_node.values()
            if isinstance(rows, list)
            for each in rows
        }
        described = await self._described_or_not(sorted(set(names.values())))
        claims = _Claims(names, {}, {})
        for producer_id, name in names.items():
            known = described[name]
            if isinstance(known, TransactionDescription):
                if known.producer_id == producer_id:
                    claims.known[producer_id] = known
            elif known.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                claims.uncertain[producer_id] = known
        if len(names) < len(producer_ids):  # the reachable coordinators do not know some of them
            silent = (
                next((rows for rows in by_node.values() if isinstance(rows, ClientError)), None)
                or await self._leaderless_coordinator()
            )
            if silent is not None:
                claims.uncertain.update(
                    {each: silent for each in producer_ids if each not in names}
                )
        return claims

    async def _described_or_not(
        self, names: list[str]
    ) -> Mapping[str, TransactionDescription | ClientError]:
        try:
            return await self.describe_transactions(names)
        except DeadlineExceeded as error:  # no coordinator responded
            return dict.fromkeys(names, error)

    async def _leaderless_coordinator(self) -> ClientError | None:
        """The error that explains why some transactional ids may have no coordinator."""
        view = await self._retry(
            "finding coordinators", lambda: self._client.refresh([TRANSACTION_STATE])
        )
        leaderless = [
            tp for tp in view.partitions_of(TRANSACTION_STATE) if view.leader_of(tp) is None
        ]
        if not leaderless:
            return None
        return ClientError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "a transaction is open, but it is unknown whether its coordinator lists it: "
            f"{len(leaderless)} partition(s) of"
            f" {TRANSACTION_STATE} have no leader",
            remedy="restart the brokers that have them: `mqctl partition list --leaderless`",
        )


class _Claims(NamedTuple):
    """By producer: the listed transactional ids, their current transactions, and the errors of
    coordinators that did not respond.
    """

    names: dict[int, str]
    known: dict[int, TransactionDescription]
    uncertain: dict[int, ClientError]


def _no_leader() -> ClientError:
    return ClientError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        "no leader, so it is unknown whether a transaction hangs there",
        remedy="restart the brokers that have them: `mqctl partition list --leaderless`",
    )


def _described(row: Any, coordinator: str) -> TransactionDescription:
    partitions = tuple(
        sorted(
            TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions
        )
    )
    return TransactionDescription(
        row.transactional_id,
        coordinator,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        partitions,
        (row.owner_producer_id, row.owner_producer_epoch)
        if row.owner_producer_epoch >= 0
        else None,
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
