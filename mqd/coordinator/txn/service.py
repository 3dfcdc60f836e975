"""Has the markers written that end transactions: one request at a time to each node, with all that
it leads, until every partition is told.

What is to be told comes from shards as effects, after the outcome is committed; what was told goes
back to them. Nothing here needs to survive: the next leader of the shard's partition begins anew,
and a marker that is written twice does nothing.

Seals of prepared transactions (KIP-939) go the same way as markers.

A partition that cannot be told now (its leader is away, has changed, lacks replicas) is tried again
for as long as this node coordinates the transaction, and so is one whose leader or shard has a bug.
A partition whose topic is gone needs no marker. A leader that has heard of a newer coordinator ends
the matter: that one has it in hand.
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
"""Without an answer for so long, markers are sent again."""
_WARN_EVERY_ATTEMPTS = 20
_ASK_EVERY_ATTEMPTS = 5
"""Whether somebody still wants it."""
_SHOWN_MAX = 5

_SETTLED = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
"""The latter comes from a log that cannot hold markers, so it holds no transactions either."""


class Transactions(Protocol):
    """What of the runtime is used here; tests put another in its place."""

    async def call_shard(self, index: int, op: Any) -> Mapping[str, Any]: ...

    def holds(self, index: int, leader_epoch: int) -> bool: ...


@dataclass(eq=False, slots=True)
class _Outcome:
    """One transaction that is to be told."""

    index: int
    """Of the shard that wants it."""
    coordinator_epoch: int
    markers: WriteMarkers | SealPartitions

    @property
    def key(self) -> tuple[int, str]:
        return self.index, self.markers.transactional_id


@dataclass(eq=False, slots=True)
class _Job:
    """Partitions of one transaction that are told together, by one node or by whoever leads
    them next.
    """

    outcome: _Outcome
    partitions: list[TopicPartition]
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class MarkerStatistics:
    """Since the start: decided transactions, requests that wrote markers, and partitions that were
    retried."""

    transactions: int
    requests: int
    retries: int


class MarkerSender:
    """One a node. `perform` takes effects of shards at any time; `run` owns the tasks."""

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

        `send(node, request)`: WriteTxnMarkers as the API declares it, and its response; OSError
        when the node cannot be reached. `seal`: the same for SealTransactions.
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
        self._queues: dict[NodeId, deque[_Job]] = {}
        """What waits for each node; there is a task for every node in here."""
        self._wanted: dict[tuple[int, str], _Outcome] = {}
        """By shard and transactional id: what is being told.

        Whoever finds another here than his own gives up.
        """
        self._decided = self._requests = self._retries = 0

    def perform(self, index: int, leader_epoch: int, effect: Hashable) -> None:
        """Do what a shard wants, some time."""
        self._arrived.append((index, leader_epoch, effect))
        self._arrival.set()

    def statistics(self) -> MarkerStatistics:
        return MarkerStatistics(self._decided, self._requests, self._retries)

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while self._arrived:
                    self._take(nursery, *self._arrived.popleft())
                await self._arrival.wait()
                self._arrival = trio.Event()

    def _take(self, nursery: trio.Nursery, index: int, leader_epoch: int, effect: Hashable) -> None:
        if isinstance(effect, SpareProducerId):
            nursery.start_soon(self._abort_with_spare_id, index, effect)
            return
        assert isinstance(effect, WriteMarkers | SealPartitions), effect
        self._decided += 1
        outcome = _Outcome(index, leader_epoch, effect)
        self._wanted[outcome.key] = outcome
        self._hand_out(nursery, _Job(outcome, list(effect.partitions)))
        if not effect.partitions:
            nursery.start_soon(self._report, outcome, ())  # there is nobody to tell

    def _is_wanted(self, outcome: _Outcome) -> bool:
        return self._wanted.get(outcome.key) is outcome

    def _give_up(self, outcome: _Outcome) -> None:
        if self._is_wanted(outcome):
            del self._wanted[outcome.key]

    # -- who is told -------------------------------------------------------------------------------

    def _hand_out(self, nursery: trio.Nursery, job: _Job) -> None:
        """Put a job into the queues of those who lead its partitions."""
        by_leader: dict[NodeId | None, list[TopicPartition]] = {}
        gone = []
        for partition in job.partitions:
            if self._exists(partition):
                by_leader.setdefault(self._leader_of(partition), []).append(partition)
            else:
                gone.append(partition)
        if gone:
            logger.info(
                "no markers for deleted partitions id=%s partitions=%s",
                job.outcome.markers.transactional_id,
                _named(gone),
            )
            nursery.start_soon(self._report, job.outcome, gone)
        for leader, partitions in by_leader.items():
            if leader is None:
                self._again(
                    nursery, _Job(job.outcome, partitions, job.attempts), "there is no leader"
                )
                continue
            queue = self._queues.get(leader)
            if queue is None:
                queue = self._queues[leader] = deque()
                nursery.start_soon(self._tell, nursery, leader, queue)
            for first in range(0, len(partitions), MARKERS_PER_REQUEST):
                queue.append(
                    _Job(job.outcome, partitions[first : first + MARKERS_PER_REQUEST], job.attempts)
                )

    async def _tell(self, nursery: trio.Nursery, leader: NodeId, queue: deque[_Job]) -> None:
        """Tell one node, until there is nothing to tell.

        What comes meanwhile goes into the next request.
        """
        while queue:
            jobs = [queue.popleft()]
            room = MARKERS_PER_REQUEST - len(jobs[0].partitions)
            while queue and len(queue[0].partitions) <= room:
                room -= len(queue[0].partitions)
                jobs.append(queue.popleft())
            # not what waited until another outcome was decided
            jobs = [job for job in jobs if self._is_wanted(job.outcome)]
            if not jobs:
                continue
            seals = [job for job in jobs if isinstance(job.outcome.markers, SealPartitions)]
            # they are another request: the markers wait for the next turn
            if seals and len(seals) < len(jobs):
                queue.extendleft(job for job in reversed(jobs) if job not in seals)
                jobs = seals
            self._requests += 1
            try:
                with trio.fail_after(REQUEST_SECONDS):
                    if seals:
                        errors = _errors(
                            (await self._seal(leader, {"seals": [_row(job) for job in jobs]}))[
                                "seals"
                            ]
                        )
                    else:
                        errors = _errors(
                            (await self._send(leader, {"markers": [_row(job) for job in jobs]}))[
                                "markers"
                            ]
                        )
            except Exception as error:
                # a bug here or there: other nodes are told meanwhile
                if not isinstance(error, (OSError, trio.TooSlowError, MqError)):
                    logger.exception(
                        "cannot send markers, will retry node=%d transactions=%d", leader, len(jobs)
                    )
                for job in jobs:
                    self._again(nursery, job, f"node {leader} does not answer: {error!r}")
                continue
            for job in jobs:
                self._heard(nursery, job, errors.get(job.outcome.markers.producer.producer_id, {}))
        del self._queues[leader]

    def _heard(
        self, nursery: trio.Nursery, job: _Job, errors: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        outcome = job.outcome
        written: list[TopicPartition] = []
        failed: dict[TopicPartition, ErrorCode] = {}
        for partition in job.partitions:
            error = errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error in _SETTLED:
                written.append(partition)
            elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.warning(
                    "another node is the coordinator now transactional_id=%s "
                    "coordinator_epoch=%d partition=%s",
                    outcome.markers.transactional_id,
                    outcome.coordinator_epoch,
                    partition,
                )
                self._give_up(outcome)
                return
            else:
                failed[partition] = error
        if written:
            nursery.start_soon(self._report, outcome, written)
        if failed:
            reason = ", ".join(sorted({error.name for error in failed.values()}))
            self._again(nursery, _Job(outcome, list(failed), job.attempts), reason)

    def _again(self, nursery: trio.Nursery, job: _Job, reason: str) -> None:
        job.attempts += 1
        self._retries += len(job.partitions)
        if job.attempts % _WARN_EVERY_ATTEMPTS == 0:
            logger.warning(
                "cannot write markers yet, will retry transactional_id=%s attempts=%d "
                "partitions=%s reason=%s",
                job.outcome.markers.transactional_id,
                job.attempts,
                _named(job.partitions),
                reason,
            )
        nursery.start_soon(self._hand_out_later, nursery, job)

    async def _hand_out_later(self, nursery: trio.Nursery, job: _Job) -> None:
        await trio.sleep(backoff_s(job.attempts - 1, self._entropy.random()))
        if job.attempts % _ASK_EVERY_ATTEMPTS == 0:
            await self._call(job.outcome, ())
        if self._is_wanted(job.outcome):
            self._hand_out(nursery, job)

    # -- who wants to know -------------------------------------------------------------------------

    async def _report(self, outcome: _Outcome, partitions: Collection[TopicPartition]) -> None:
        """Tell the shard, which writes the end of the transaction down when it has heard of
        all partitions.
        """
        attempts = 0
        while self._is_wanted(outcome):
            if await self._call(outcome, partitions):
                return
            await trio.sleep(backoff_s(attempts, self._entropy.random()))
            attempts += 1

    async def _call(self, outcome: _Outcome, partitions: Collection[TopicPartition]) -> bool:
        """Whether the shard heard it. One that is not here any more, or does not know of it, wants
        nothing: if there is something to do when it is loaded, it says so. One that is here and
        does not serve now will not say it again.
        """
        markers = outcome.markers
        op: MarkersWritten | PartitionsSealed
        if isinstance(markers, SealPartitions):
            op = PartitionsSealed(markers.transactional_id, markers.producer, tuple(partitions))
        else:
            op = MarkersWritten(
                markers.transactional_id, markers.producer, tuple(partitions), markers.prepared_ms
            )
        try:
            answer = await self._transactions.call_shard(outcome.index, op)
        except MqError:
            if not self._transactions.holds(outcome.index, outcome.coordinator_epoch):
                self._give_up(outcome)
            return False
        except Exception:
            # a bug in the shard, which is loaded anew for it: the others' transactions end all the
            # same
            logger.exception(
                "cannot report markers to a shard, will retry transactional_id=%s",
                outcome.markers.transactional_id,
            )
            return False
        if not answer["wanted"]:
            self._give_up(outcome)
        return True

    async def _abort_with_spare_id(self, index: int, effect: SpareProducerId) -> None:
        try:
            spare = await self._new_producer_id()
            await self._transactions.call_shard(
                index, AbortTimedOut(effect.transactional_id, effect.producer, spare)
            )
        except (MqError, OSError) as error:  # the next search for time-outs finds it again
            logger.warning(
                "cannot abort yet, will retry transactional_id=%s reason=%s",
                effect.transactional_id,
                error,
            )
        except Exception:  # a bug in the shard: found again as well
            logger.exception(
                "cannot abort yet, will retry transactional_id=%s", effect.transactional_id
            )


def _row(job: _Job) -> dict[str, Any]:
    """One transaction in WriteTxnMarkers or SealTransactions."""
    markers = job.outcome.markers
    by_topic = groupby(sorted(job.partitions), key=lambda one: one.topic)
    row: dict[str, Any] = {
        "producer_id": markers.producer.producer_id,
        "producer_epoch": markers.producer.producer_epoch,
        "topics": [
            {"name": topic, "partition_indexes": [one.partition for one in group]}
            for topic, group in by_topic
        ],
        "coordinator_epoch": job.outcome.coordinator_epoch,
    }
    if isinstance(markers, WriteMarkers):
        row |= {
            "transaction_result": markers.committed,
            "transaction_version": markers.transaction_version,
        }
    return row


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
