"""Fetch as followers send it, on the peer listener: fenced by who asks, leader epoch and broker
epoch, and read to the log's end.

A follower's fetch is an acknowledgement: what it asks from, it has below. So the high watermark
moves here, and who waited for that is answered in the same turn. A fetch that finds nothing waits
until something is written (not: committed); a new high watermark alone goes along with the next
answer, or at once where consumers read from followers (KIP-392).

Only partitions with news are looked at (replica/fetch_session.py): a follower of ten thousand of
which one is written asks for the price of one. ◆ hot path.

A fetch of many partitions with news is planned and answered in slices, in a task. Each partition is
fenced in the slice that reads it. What is written behind the plan is news for the next fetch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from mqd.errors import ErrorCode, MqError
from mqd.io.disk import FileRange
from mqd.limits import DECODED_AT_ONCE_ROWS
from mqd.protocol.batch import HEADER_BYTES, crc_of, parse_header
from mqd.protocol.hot_fetch_request import FetchRequest
from mqd.protocol.hot_fetch_response import (
    encode_fetch_response_in_slices,
    encode_fetch_response_parts,
)
from mqd.protocol.slices import Slices, all_slices
from mqd.replica.fetch_session import NO_SESSION, FollowerSession, PartitionWatch
from mqd.replica.partition import Partition
from mqd.replica.waiters import FetchWaiter
from mqd.server.connection import Connection, Slot
from mqd.server.context import Node
from mqd.server.partitions import (
    FetchRow,
    endpoints,
    fetch_topics,
    refused_fetch_row,
    unknown_partition,
)
from mqd.server.slices import SLICE_ROWS, finished_in_slices
from mqd.types import NO_EPOCH, NodeId

logger = logging.getLogger(__name__)

_NO_PREFERRED_REPLICA = -1
_DAMAGE_TOLD_SECONDS = 60.0
_BY_ID_FROM = 13
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_PLANNED_AT_ONCE = 100
"""Partitions that are looked at before others have a turn: 2 ms."""

T = TypeVar("T")


class _Plan:
    """What the partitions with news have, as far as they have been looked at."""

    __slots__ = ("rows", "size", "urgent")

    def __init__(self) -> None:
        self.rows: list[tuple[PartitionWatch, FetchRow]] = []
        self.size = 0
        """Bytes found."""
        self.urgent = False
        """Something must be answered at once."""


class _Fetching:
    """One fetch from its request to its answer."""

    __slots__ = ("correlation_id", "deadline", "request", "session", "slot", "version", "waiter")

    def __init__(
        self, slot: Slot, version: int, correlation_id: int, request: FetchRequest, deadline: float
    ) -> None:
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.request = request
        self.deadline = deadline
        self.session: FollowerSession
        self.waiter: FetchWaiter | None = None


class FollowerFetch:
    """Part of the Fetch handler; built once a node."""

    def __init__(
        self,
        node: Node,
        start: Callable[[Connection, Callable[[], Awaitable[None]]], None],
        resume: Callable[[Connection], None],
    ) -> None:
        """`start(connection, work)` runs a part of a large fetch in a task, and holds back what is
        behind it on its connection until `resume(connection)`.
        """
        self._node = node
        self._start = start
        self._resume = resume
        self._replica = node.replica
        self._damage_told_at = -math.inf
        self._bytes_max = node.config.integer("fetch.max.bytes")

    def __call__(
        self,
        slot: Slot,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        now: float,
        deadline: float,
    ) -> None:
        """Take up a request of few rows, whose sender is known to be the node that it names."""
        fetching = _Fetching(slot, version, correlation_id, request, deadline)
        if not self._resolve(fetching, now):
            return
        if request.forgotten:
            all_slices(self._forgetting(fetching))
        session, by_id = fetching.session, version >= _BY_ID_FROM
        named = {
            session.update((topic_id if by_id else name) or b"", one)
            for name, topic_id, asked in request.topics
            for one in asked
        }
        self._answer_or_park(fetching, named, may_wait=deadline > now)

    async def take_up_large(
        self,
        slot: Slot,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        now: float,
        deadline: float,
    ) -> None:
        """The same for many rows, in slices. Calls `resume` when it has answered, or waits."""
        fetching = _Fetching(slot, version, correlation_id, request, deadline)
        if not self._resolve(fetching, now):
            self._resume(slot.connection)
            return
        await finished_in_slices(self._forgetting(fetching))
        named = await finished_in_slices(self._naming(fetching))
        await self._carry_out(fetching, named, may_wait=deadline > now)

    def _resolve(self, fetching: _Fetching, now: float) -> bool:
        """Find the session; False where the fetch was refused, and answered."""
        request, version = fetching.request, fetching.version
        try:
            fetching.session = self._replica.follower_sessions.resolve(
                request.replica_id,
                request.replica_epoch,
                request.session_id,
                request.session_epoch,
                now,
            )
        except MqError as error:
            parts = encode_fetch_response_parts(
                version, fetching.correlation_id, 0, int(error.code), NO_SESSION, []
            )
            fetching.slot.complete(parts)
            return False
        return True

    def _forgetting(self, fetching: _Fetching) -> Slices[None]:
        """What the request takes out of its session."""
        request, session, by_id = (
            fetching.request,
            fetching.session,
            fetching.version >= _BY_ID_FROM,
        )
        partitions = self._replica.by_id if by_id else self._replica.by_name
        for name, topic_id, indexes in request.forgotten:
            topic = (topic_id if by_id else name) or b""
            for index in indexes:
                session.forget(topic, index)
                partition = partitions.get(topic, {}).get(index)
                if partition is not None:
                    partition.membership.follower_stopped(NodeId(request.replica_id))
                yield 1

    @staticmethod
    def _naming(fetching: _Fetching) -> Slices[set[PartitionWatch]]:
        """What the request names, in its session."""
        session, by_id = fetching.session, fetching.version >= _BY_ID_FROM
        named: set[PartitionWatch] = set()
        for name, topic_id, asked in fetching.request.topics:
            topic = (topic_id if by_id else name) or b""
            for one in asked:
                if session.open:  # a fetch on another connection may have replaced it
                    named.add(session.update(topic, one))
                yield 1
        return named

    def _answer_or_park(
        self, fetching: _Fetching, named: set[PartitionWatch], *, may_wait: bool
    ) -> None:
        session, connection = fetching.session, fetching.slot.connection
        if len(session.news) > DECODED_AT_ONCE_ROWS:
            self._start(connection, partial(self._carry_out, fetching, named, may_wait=may_wait))
            return
        plan = _Plan()
        self._plan(fetching, plan, list(session.news), named)
        if self._may_park(fetching, plan, may_wait=may_wait):
            self._park(fetching, self._waiter(fetching, plan.size))
            return
        topics: dict[bytes, list[FetchRow]] = {}
        leaders: set[int] = set()
        self._add_rows(fetching, topics, leaders, plan.rows)
        if connection.open:
            addresses = endpoints(self._node, leaders)
            answer = fetch_topics(topics, by_id=fetching.version >= _BY_ID_FROM)
            parts = encode_fetch_response_parts(
                fetching.version, fetching.correlation_id, 0, 0, session.id, answer, addresses
            )
            fetching.slot.complete(parts)
        if session.id == NO_SESSION:
            session.close()

    async def _carry_out(
        self, fetching: _Fetching, named: set[PartitionWatch], *, may_wait: bool
    ) -> None:
        """The same in slices. The session has a waiter from the start, so no news are missed."""
        session, connection = fetching.session, fetching.slot.connection
        try:
            while True:
                waiter = session.waiter = FetchWaiter(
                    lambda: None, fetching.request.min_bytes, fetching.deadline
                )
                plan = await finished_in_slices(self._planning(fetching, named))
                if not self._may_park(fetching, plan, may_wait=may_wait):
                    break
                if not waiter.freed:
                    waiter.bytes_wanted -= plan.size
                    waiter.release = partial(self._woken, fetching)
                    self._park(fetching, waiter)
                    self._resume(connection)
                    return
                named = set()  # news came behind the plan
            if session.waiter is waiter:
                session.waiter = None
            parts = await finished_in_slices(self._answering(fetching, plan))
            if connection.open:
                fetching.slot.complete(parts)
        finally:
            if session.id == NO_SESSION:
                session.close()
        self._resume(connection)

    @staticmethod
    def _may_park(fetching: _Fetching, plan: _Plan, *, may_wait: bool) -> bool:
        return (
            may_wait
            and not plan.urgent
            and plan.size < fetching.request.min_bytes
            and fetching.slot.connection.open
            and fetching.session.open
        )

    def _waiter(self, fetching: _Fetching, size: int) -> FetchWaiter:
        return FetchWaiter(
            lambda: self._woken(fetching), fetching.request.min_bytes - size, fetching.deadline
        )

    def _park(self, fetching: _Fetching, waiter: FetchWaiter) -> None:
        fetching.waiter = fetching.session.waiter = fetching.slot.connection.parked = waiter
        self._replica.park_fetch(waiter, ())

    def _woken(self, fetching: _Fetching) -> None:
        """Freed by news, by the deadline, or by what came behind: plan once more; wait
        again only when the news were too few.
        """
        fetching.slot.connection.parked = None
        waiter = fetching.waiter
        assert waiter is not None
        if fetching.session.waiter is waiter:
            fetching.session.waiter = None
        news_came = waiter.bytes_wanted <= 0
        self._answer_or_park(
            fetching, set(), may_wait=news_came and self._node.clock.monotonic() < fetching.deadline
        )

    def _planning(self, fetching: _Fetching, named: set[PartitionWatch]) -> Slices[_Plan]:
        plan, session = _Plan(), fetching.session
        for several in _portions(list(session.news)):
            if not session.open or not fetching.slot.connection.open:
                break
            self._plan(
                fetching,
                plan,
                [followed for followed in several if followed in session.news],
                named,
            )
            yield SLICE_ROWS
        return plan

    def _plan(
        self,
        fetching: _Fetching,
        plan: _Plan,
        several: list[PartitionWatch],
        named: set[PartitionWatch],
    ) -> None:
        """Add what these have. `named`: what this very request acknowledges."""
        request, session = fetching.request, fetching.session
        replica = self._replica
        by_topic = replica.by_id if fetching.version >= _BY_ID_FROM else replica.by_name
        budget = min(request.max_bytes, self._bytes_max)
        rows, size, urgent = plan.rows, plan.size, plan.urgent
        for followed in several:
            held = by_topic.get(followed.topic)
            partition = held.get(followed.partition) if held is not None else None
            try:
                if partition is None:
                    by_id = fetching.version >= _BY_ID_FROM
                    name, topic_id = (None, followed.topic) if by_id else (followed.topic, None)
                    raise unknown_partition(self._node, name, topic_id, followed.partition)
                followed.watch(partition)
                row, found = self._read(
                    partition,
                    followed,
                    fetching,
                    budget - size,
                    min_one=size == 0,
                    first=followed in named,
                )
            except MqError as error:
                row, found = refused_fetch_row(self._node, followed.partition, error, partition), 0
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and partition is not None:
                    # the follower begins anew at the log start, if it must
                    row = (*row[:2], *_ends(partition), *row[5:])
                urgent = True
            else:
                news = followed.last_sent != row[2:5]
                if not found and not news and len(row) == 8:
                    if partition.log.written_end_offset <= followed.requested.fetch_offset:
                        session.news.pop(followed, None)
                    continue
                urgent = (
                    urgent
                    or len(row) > 8
                    or (news and session.id != NO_SESSION and self._is_urgent(followed, row))
                )
            size += found
            rows.append((followed, row))
        plan.size, plan.urgent = size, urgent

    def _is_urgent(self, followed: PartitionWatch, row: FetchRow) -> bool:
        """Whether news without bytes is told at once: the first of a partition, a log
        start, and where consumers wait for it.
        """
        told = followed.last_sent
        return (
            told is None or told[2] != row[4] or self._replica.parked.consumers_read_from_followers
        )

    def _read(
        self,
        partition: Partition,
        followed: PartitionWatch,
        fetching: _Fetching,
        budget: int,
        *,
        min_one: bool,
        first: bool,
    ) -> tuple[FetchRow, int]:
        node_id, asked = NodeId(fetching.request.replica_id), followed.requested
        partition.fence(asked.current_leader_epoch)
        if asked.current_leader_epoch == NO_EPOCH:
            raise MqError(
                ErrorCode.FENCED_LEADER_EPOCH, "a follower says in which leader epoch it fetches"
            )
        if not partition.is_leader:
            raise partition.not_leader()
        if node_id not in partition.followers:
            raise MqError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"this node does not know yet that node {node_id} has a replica: try again",
            )
        registered = self._node.image.brokers.get(node_id)
        broker_epoch, follower = fetching.request.replica_epoch, partition.followers[node_id]
        known = registered.epoch if registered is not None else NO_EPOCH
        if broker_epoch < max(known, follower.broker_epoch):
            raise MqError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"node {node_id} was registered anew since epoch {broker_epoch}",
            )
        if broker_epoch > known:
            follower.on_new_registration(broker_epoch)
            raise MqError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"this node does not know yet that node {node_id} was registered anew: try again",
            )
        log = partition.log
        offset, end = asked.fetch_offset, log.written_end_offset
        if asked.last_fetched_epoch >= 0:
            diverging = log.epochs.divergence(asked.last_fetched_epoch, offset, end)
            if diverging is not None:
                return (
                    followed.partition,
                    0,
                    *_ends(partition),
                    None,
                    _NO_PREFERRED_REPLICA,
                    [],
                    diverging,
                ), 0
        if not log.log_start_offset <= offset <= end:
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {log.log_start_offset} to {end}",
            )
        if first:
            self._replica.follower_fetched(
                partition, node_id, broker_epoch, offset, asked.log_start_offset, fetching.session
            )
        ranges: list[FileRange] = []
        size = 0
        if offset < end and (budget > 0 or min_one) and self._may_be_given(partition, node_id):
            bytes_max = min(budget, asked.partition_max_bytes)
            ranges = self._replica.logs.read(
                log, offset, max_bytes=bytes_max, limit_offset=end, min_one=min_one
            ).ranges
            for one in ranges:
                size += one.size
        if ranges:
            if first and follower.last_sent_offset == offset:
                self._prove(partition, ranges[0], offset)
            follower.last_sent_offset = offset
        return (followed.partition, 0, *_ends(partition), None, _NO_PREFERRED_REPLICA, ranges), size

    def _prove(self, partition: Partition, given: FileRange, offset: int) -> None:
        """A follower asks again for what it was given: where the batch here is damaged, it would do
        so for ever.

        MqError KAFKA_STORAGE_ERROR where it is, and another replica in sync can lead: this log is
        given up then. The last one serves on.
        """
        damage = _damage(given, offset)
        if not damage:
            return
        log = partition.log
        reason = f"the batch at offset {offset} of {log.path} is damaged: {damage}"
        if any(
            self._replica.eligible_epoch(node_id) is not None
            for node_id in partition.isr
            if node_id != partition.node_id
        ):
            refusal = self._replica.logs.reader.unreadable(log, reason)
            self._replica.log_failed(partition)
            raise refusal
        now = self._node.clock.monotonic()
        if now >= self._damage_told_at + _DAMAGE_TOLD_SECONDS:
            self._damage_told_at = now
            logger.error(
                "followers cannot fetch a damaged partition, and no other replica is in sync: %s; "
                "restore it from a backup",
                reason,
            )

    def _may_be_given(self, partition: Partition, node_id: NodeId) -> bool:
        """`leader.replication.throttled.rate`: for those that are not in sync."""
        throttle = self._replica.leader_throttle
        if node_id in partition.isr or not throttle.is_throttled(
            partition.assignment.topic_partition
        ):
            return True
        return throttle.allows(self._node.clock.monotonic())

    def _answering(self, fetching: _Fetching, plan: _Plan) -> Slices[list[Any]]:
        """The parts of the response."""
        topics: dict[bytes, list[FetchRow]] = {}
        leaders: set[int] = set()
        for several in _portions(plan.rows):
            self._add_rows(fetching, topics, leaders, several)
            yield SLICE_ROWS
        answer, addresses = (
            fetch_topics(topics, by_id=fetching.version >= _BY_ID_FROM),
            endpoints(self._node, leaders),
        )
        version, session_id = fetching.version, fetching.session.id
        return (
            yield from encode_fetch_response_in_slices(
                version, fetching.correlation_id, 0, 0, session_id, answer, addresses
            )
        )

    def _add_rows(
        self,
        fetching: _Fetching,
        topics: dict[bytes, list[FetchRow]],
        leaders: set[int],
        rows: list[tuple[PartitionWatch, FetchRow]],
    ) -> None:
        session = fetching.session
        for followed, row in rows:
            topics.setdefault(followed.topic, []).append(row)
            if row[1]:
                followed.last_sent = None
                # it names the partition again when it has waited: a session holds what exists
                if row[1] in _UNKNOWN:
                    session.forget(followed.topic, followed.partition)
            else:
                # who must cut its log first takes over no ends
                followed.last_sent = row[2:5] if len(row) == 8 else None
                self._told(fetching, followed, row)
            if len(row) > 9 and row[9] is not None:
                leaders.add(row[9][0])

    def _told(self, fetching: _Fetching, followed: PartitionWatch, row: FetchRow) -> None:
        """Strike from the news what is done with: who got records or a divergence comes
        back by itself, who got no room stays.
        """
        partition = followed.watched
        if not isinstance(partition, Partition):
            return
        if row[7] or len(row) > 8:
            fetching.session.news.pop(followed, None)
        elif (
            partition.log.written_end_offset <= followed.requested.fetch_offset
            and followed.last_sent == _ends(partition)
        ):
            fetching.session.news.pop(followed, None)  # nothing moved since the plan
        topic_partition = partition.assignment.topic_partition
        throttle = self._replica.leader_throttle
        if (
            row[7]
            and fetching.request.replica_id not in partition.isr
            and throttle.is_throttled(topic_partition)
        ):
            throttle.record(sum(one.size for one in row[7]), self._node.clock.monotonic())


def _damage(given: FileRange, offset: int) -> str:
    """What is wrong with the batch that `given` begins with, which is to hold `offset`;
    empty where nothing is.
    """
    header = parse_header(given.file.read_at(given.position, HEADER_BYTES))
    if header.size > given.size or header.size < HEADER_BYTES:
        return f"its length is {header.size}"
    if crc_of(given.file.read_at(given.position, header.size), 0, header.size) != header.crc:
        return "its CRC-32C is wrong"
    return "" if header.last_offset >= offset else f"it ends at offset {header.last_offset}"


def _portions(items: list[T]) -> Iterator[list[T]]:
    left = iter(items)
    while several := list(islice(left, _PLANNED_AT_ONCE)):
        yield several


def _ends(partition: Partition) -> tuple[int, int, int]:
    return partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset
