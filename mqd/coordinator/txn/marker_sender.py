"""Writes the markers that end transactions, and the seals of prepared transactions (KIP-939).

Each node gets one request at a time, for all partitions that it leads, until every partition has
its marker.

Shards request markers by effects, after the outcome is committed, and get reports. Nothing here
survives a restart: the next leader of the shard's partition starts again, and a repeated marker
does nothing.

A partition whose leader is away, has changed or lacks replicas is retried for as long as this node
coordinates the transaction. The same is true after a bug in the leader or the shard. A partition of
a deleted topic needs no marker. A leader that knows a newer coordinator ends the work here: the
newer coordinator writes the markers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import trio

from mqd.client.backoff import backoff_s
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    MarkersWritten,
    PartitionsSealed,
    SealPartitions,
    SpareProducerId,
    WriteMarkers,
)
from mqd.errors import ErrorCode, MqError, some_of
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import MARKERS_PER_REQUEST
from mqd.types import NodeId, TopicPartition

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
"""After this time without a response, markers are sent again."""
_WARN_EVERY_ATTEMPTS = 20
_CHECK_EVERY_ATTEMPTS = 5
"""The interval of calls to the shard that find out whether the markers are still pending."""
_SHOWN_MAX = 5

_SUCCESS = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
"""The second is from a log that cannot hold markers, so it has no transactions either."""


class Transactions(Protocol):
    """The part of the runtime that is used here; tests have their own."""

    async def call_shard(self, index: int, op: Any) -> Mapping[str, Any]: ...

    def holds(self, index: int, leader_epoch: int) -> bool: ...


@dataclass(eq=False, slots=True)
class _Pending:
    """One transaction, some of whose partitions lack their marker or seal."""

    index: int
    """The index of the shard."""
    coordinator_epoch: int
    effect: WriteMarkers | SealPartitions

    @property
    def key(self) -> tuple[int, str]:
        return self.index, self.effect.transactional_id


@dataclass(eq=False, slots=True)
class _Row:
    """Partitions of one transaction that go to one node in one request."""

    pending: _Pending
    partitions: list[TopicPartition]
    attempts: int = 0


class MarkerSender:
    """One per node. `perform` takes effects of shards at any time; `run` owns the tasks."""

    def __init__(
        self,
        *,
        leader_of: Callable[[TopicPartition], NodeId | None],
        exists: Callable[[TopicPartition], bool],
        send: Callable[[NodeId, Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
        seal: Callable[[NodeId, Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
        transactions: Transactions,
        new_producer_id: Callable[[], Awaitable[int]],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        """`leader_of(partition)`: None while there is none. `exists(partition)`: in the metadata
        that this node has applied.

        `send(node, request)`: WriteTxnMarkers as the API declares it, and its response. Raises
        OSError if the node cannot be reached. `seal`: the same for SealTransactions.
        """
        self._leader_of = leader_of
        self._exists = exists
        self._send = send
        self._seal = seal
        self._transactions = transactions
        self._new_producer_id = new_producer_id
        self._clock = clock
        self._entropy = entropy
        self._arrived: deque[tuple[int, int, Hashable]] = deque()
        self._arrival = trio.Event()
        self._queues: dict[NodeId, deque[_Row]] = {}
        """Rows for each node. Each node in it has one task."""
        self._pending: dict[tuple[int, str], _Pending] = {}
        """By shard and transactional id. Work for a transaction that is not in it ends."""

    def perform(self, index: int, leader_epoch: int, effect: Hashable) -> None:
        """Carry out an effect of a shard, later."""
        self._arrived.append((index, leader_epoch, effect))
        self._arrival.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while self._arrived:
                    self._begin(nursery, *self._arrived.popleft())
                await self._arrival.wait()
                self._arrival = trio.Event()

    def _begin(
        self, nursery: trio.Nursery, index: int, leader_epoch: int, effect: Hashable
    ) -> None:
        if isinstance(effect, SpareProducerId):
            nursery.start_soon(self._abort_with_spare_id, index, effect)
            return
        assert isinstance(effect, WriteMarkers | SealPartitions), effect
        pending = _Pending(index, leader_epoch, effect)
        self._pending[pending.key] = pending
        self._enqueue(nursery, _Row(pending, list(effect.partitions)))
        if not effect.partitions:
            nursery.start_soon(self._report, pending, ())

    def _is_pending(self, pending: _Pending) -> bool:
        return self._pending.get(pending.key) is pending

    def _drop(self, pending: _Pending) -> None:
        if self._is_pending(pending):
            del self._pending[pending.key]

    # -- requests to leaders -----------------------------------------------------------------------

    def _enqueue(self, nursery: trio.Nursery, row: _Row) -> None:
        """Put the partitions into the queues of their leaders."""
        by_leader: dict[NodeId | None, list[TopicPartition]] = {}
        deleted = []
        for partition in row.partitions:
            if self._exists(partition):
                by_leader.setdefault(self._leader_of(partition), []).append(partition)
            else:
                deleted.append(partition)
        if deleted:
            logger.info(
                "no markers for deleted partitions id=%s partitions=%s",
                row.pending.effect.transactional_id,
                _named(deleted),
            )
            nursery.start_soon(self._report, row.pending, deleted)
        for leader, partitions in by_leader.items():
            if leader is None:
                self._retry(
                    nursery, _Row(row.pending, partitions, row.attempts), "there is no leader"
                )
                continue
            queue = self._queues.get(leader)
            if queue is None:
                queue = self._queues[leader] = deque()
                nursery.start_soon(self._send_all, nursery, leader, queue)
            for first in range(0, len(partitions), MARKERS_PER_REQUEST):
                queue.append(
                    _Row(row.pending, partitions[first : first + MARKERS_PER_REQUEST], row.attempts)
                )

    async def _send_all(self, nursery: trio.Nursery, leader: NodeId, queue: deque[_Row]) -> None:
        """Send requests to one node until its queue is empty. Rows that arrive during a request go
        into the next one."""
        while queue:
            rows = self._take_rows(queue)
            if not rows:
                continue
            is_seal = isinstance(rows[0].pending.effect, SealPartitions)
            send, field = (self._seal, "seals") if is_seal else (self._send, "markers")
            try:
                with trio.fail_after(REQUEST_SECONDS):
                    response = await send(leader, {field: [_encoded(row) for row in rows]})
                    errors = _errors(response[field])
            except Exception as error:
                # a bug here or in the other node: the other nodes get their markers
                if not isinstance(error, (OSError, trio.TooSlowError, MqError)):
                    logger.exception(
                        "cannot send markers, will retry node=%d transactions=%d", leader, len(rows)
                    )
                for row in rows:
                    self._retry(nursery, row, f"node {leader} does not respond: {error!r}")
                continue
            for row in rows:
                self._handle_errors(
                    nursery, row, errors.get(row.pending.effect.producer.producer_id, {})
                )
        del self._queues[leader]

    def _take_rows(self, queue: deque[_Row]) -> list[_Row]:
        """The rows of the next request: seals, or else markers, of transactions that are still
        pending."""
        rows = [queue.popleft()]
        room = MARKERS_PER_REQUEST - len(rows[0].partitions)
        while queue and len(queue[0].partitions) <= room:
            room -= len(queue[0].partitions)
            rows.append(queue.popleft())
        rows = [row for row in rows if self._is_pending(row.pending)]
        seals = [row for row in rows if isinstance(row.pending.effect, SealPartitions)]
        if seals and len(seals) < len(rows):
            queue.extendleft(row for row in reversed(rows) if row not in seals)
            rows = seals
        return rows

    def _handle_errors(
        self, nursery: trio.Nursery, row: _Row, errors: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        pending = row.pending
        written: list[TopicPartition] = []
        failed: dict[TopicPartition, ErrorCode] = {}
        for partition in row.partitions:
            error = errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error in _SUCCESS:
                written.append(partition)
            elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.warning(
                    "another node is the coordinator now transactional_id=%s "
                    "coordinator_epoch=%d partition=%s",
                    pending.effect.transactional_id,
                    pending.coordinator_epoch,
                    partition,
                )
                self._drop(pending)
                return
            else:
                failed[partition] = error
        if written:
            nursery.start_soon(self._report, pending, written)
        if failed:
            reason = ", ".join(sorted({error.name for error in failed.values()}))
            self._retry(nursery, _Row(pending, list(failed), row.attempts), reason)

    def _retry(self, nursery: trio.Nursery, row: _Row, reason: str) -> None:
        row.attempts += 1
        if row.attempts % _WARN_EVERY_ATTEMPTS == 0:
            logger.warning(
                "cannot write markers yet, will retry transactional_id=%s attempts=%d "
                "partitions=%s reason=%s",
                row.pending.effect.transactional_id,
                row.attempts,
                _named(row.partitions),
                reason,
            )
        nursery.start_soon(self._enqueue_later, nursery, row)

    async def _enqueue_later(self, nursery: trio.Nursery, row: _Row) -> None:
        await trio.sleep(backoff_s(row.attempts - 1, self._entropy.random()))
        if row.attempts % _CHECK_EVERY_ATTEMPTS == 0:
            await self._call(row.pending, ())
        if self._is_pending(row.pending):
            self._enqueue(nursery, row)

    # -- reports to shards -------------------------------------------------------------------------

    async def _report(self, pending: _Pending, partitions: Collection[TopicPartition]) -> None:
        """Report to the shard, which completes the transaction after the last partition."""
        attempts = 0
        while self._is_pending(pending):
            if await self._call(pending, partitions):
                return
            await trio.sleep(backoff_s(attempts, self._entropy.random()))
            attempts += 1

    async def _call(self, pending: _Pending, partitions: Collection[TopicPartition]) -> bool:
        """Whether the shard took the report. A shard that is no longer here, or has no such
        transaction, needs no markers: it requests them when it is loaded. A shard that is here and
        does not serve now does not request them again.
        """
        effect = pending.effect
        op: MarkersWritten | PartitionsSealed
        if isinstance(effect, SealPartitions):
            op = PartitionsSealed(effect.transactional_id, effect.producer, tuple(partitions))
        else:
            op = MarkersWritten(
                effect.transactional_id, effect.producer, tuple(partitions), effect.prepared_ms
            )
        try:
            response = await self._transactions.call_shard(pending.index, op)
        except MqError:
            if not self._transactions.holds(pending.index, pending.coordinator_epoch):
                self._drop(pending)
            return False
        except Exception:
            # a bug in the shard, which is loaded again: the other transactions end nevertheless
            logger.exception(
                "cannot report markers to a shard, will retry transactional_id=%s",
                effect.transactional_id,
            )
            return False
        if not response["pending"]:
            self._drop(pending)
        return True

    async def _abort_with_spare_id(self, index: int, effect: SpareProducerId) -> None:
        try:
            spare = await self._new_producer_id()
            await self._transactions.call_shard(
                index, AbortTimedOut(effect.transactional_id, effect.producer, spare)
            )
        except (MqError, OSError) as error:  # the next search for timeouts finds it again
            logger.warning(
                "cannot abort yet, will retry transactional_id=%s reason=%s",
                effect.transactional_id,
                error,
            )
        except Exception:  # a bug in the shard: the next search finds it, too
            logger.exception(
                "cannot abort yet, will retry transactional_id=%s", effect.transactional_id
            )


def _encoded(row: _Row) -> dict[str, Any]:
    """The row as WriteTxnMarkers or SealTransactions declare it."""
    effect = row.pending.effect
    by_topic = groupby(sorted(row.partitions), key=lambda one: one.topic)
    encoded: dict[str, Any] = {
        "producer_id": effect.producer.producer_id,
        "producer_epoch": effect.producer.producer_epoch,
        "topics": [
            {"name": topic, "partition_indexes": [one.partition for one in group]}
            for topic, group in by_topic
        ],
        "coordinator_epoch": row.pending.coordinator_epoch,
    }
    if isinstance(effect, WriteMarkers):
        encoded |= {
            "transaction_result": effect.committed,
            "transaction_version": effect.transaction_version,
        }
    return encoded


def _errors(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[TopicPartition, ErrorCode]]:
    """By producer id, which names one transaction at a time."""
    errors: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in rows:
        of_producer = errors.setdefault(marker["producer_id"], {})
        for topic in marker["topics"]:
            for partition in topic["partitions"]:
                of_producer[TopicPartition(topic["name"], partition["partition_index"])] = (
                    ErrorCode(partition["error_code"])
                )
    return errors


def _named(partitions: Collection[TopicPartition]) -> str:
    return some_of([str(partition) for partition in sorted(partitions)], _SHOWN_MAX)
