"""Fetch, v4 to v18: from the session to the wanted partitions, to file ranges, to the socket;
parked below min_bytes.

v4 isolation level; v5 log start; v7 sessions (KIP-227); v9 leader epoch (KIP-320); v11 rack; v12
flexible, last fetched epoch and diverging epochs (KIP-595); v13 topics by id (KIP-516); v15 replica
state; v16 node endpoints (KIP-951); v17 replica directory; v18 the follower's high watermark.

A record is served once it is below the high watermark, never before (I2). Who reads committed
records only gets them up to the last stable offset, with those transactions among them that were
aborted, by their first offset. From v11 on consumers may read from any replica, up to the high
watermark that it knows; a leader sends them to one in their rack, where `replica.selector.class`
says so (KIP-392). Followers' fetches, on the peer listener, are server/follower_fetch.py's. ◆ hot
path.

A fetch of many partitions is decoded, planned and answered in slices, in a task. It waits on each
partition from the moment at which its plan looks at it, so no news are missed. Later requests of
the connection wait while it is planned, and not while it is parked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import trio

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.disk import FileRange
from mqd.limits import (
    DECODED_AT_ONCE_ROWS,
    FETCH_SESSION_UNKNOWN_MAX,
    FETCH_WAIT_MAX_MS,
    REQUEST_PARTITIONS_MAX,
)
from mqd.protocol.hot_fetch_request import (
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_at_once,
    decode_fetch_in_slices,
)
from mqd.protocol.hot_fetch_response import (
    encode_fetch_response_in_slices,
    encode_fetch_response_parts,
)
from mqd.protocol.slices import Slices, all_slices
from mqd.replica.fetch_session import (
    FINAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    CachedPartitions,
    FetchSession,
    TopicKey,
)
from mqd.replica.partition import Partition
from mqd.replica.selector import RACK_AWARE, ReplicaView, select
from mqd.replica.waiters import FetchWaiter
from mqd.server.bugs import raised_in_core
from mqd.server.connection import Connection, Slot
from mqd.server.context import PEER, Node
from mqd.server.follower_fetch import FollowerFetch
from mqd.server.partitions import (
    FetchRow as Row,
    endpoints,
    fetch_topics,
    refused_fetch_row,
    unknown_partition,
)
from mqd.server.slices import finished_in_slices
from mqd.types import NO_EPOCH, NodeId

_NO_PREFERRED_REPLICA = -1
_READ_COMMITTED = 1
_FROM_FOLLOWERS = 11
_ERROR_CODES_FROM = 7
_BY_ID_FROM = 13
_UNKNOWN = frozenset({int(ErrorCode.UNKNOWN_TOPIC_ID), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)})
_SLICE_ROWS = DECODED_AT_ONCE_ROWS
_PLANNED_AT_ONCE = 200
"""Partitions that are looked at before others have a turn: 2 ms."""

_LARGE_AT_ONCE = 4
"""Large fetches that are carried out together, the waiting ones not counted: a collection
of garbage walks the rows of all of them.
"""

T = TypeVar("T")

Named = tuple[CachedPartitions, dict[tuple[TopicKey, int], None]]
"""The partitions that a request wants, and those that it takes out of its session."""


class _Plan:
    """What the partitions of a fetch have, as far as they have been looked at."""

    __slots__ = ("partitions", "rows", "size", "urgent")

    def __init__(self) -> None:
        self.rows: list[tuple[CachedPartition, Row]] = []
        self.size = 0
        """Bytes found."""
        self.urgent = False
        """Something must be answered at once."""
        self.partitions: list[Partition] = []
        """On which the fetch can wait."""


class _Response:
    """The rows of a response, by topic."""

    __slots__ = ("leaders", "topics", "unknown")

    def __init__(self) -> None:
        self.topics: dict[bytes, list[Row]] = {}
        self.leaders: set[int] = set()
        self.unknown = 0
        """Partitions that this node does not know."""


class _Fetching:
    """One fetch from its request to its answer."""

    __slots__ = (
        "correlation_id",
        "deadline",
        "incremental",
        "request",
        "session",
        "slot",
        "version",
        "waiter",
        "wanted",
    )

    def __init__(
        self, slot: Slot, version: int, correlation_id: int, request: FetchRequest, deadline: float
    ) -> None:
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.request = request
        self.deadline = deadline
        self.session: FetchSession | None = None
        self.wanted: list[CachedPartition] = []
        self.incremental = False
        self.waiter: FetchWaiter | None = None


class Fetch:
    """The handler; built once a node."""

    def __init__(
        self, node: Node, spawn: Callable[..., None], bug: Callable[[Connection, str], None]
    ) -> None:
        """`spawn(function, *args)` starts a task in the server's nursery; `bug` is
        Dispatcher.bug.
        """
        self._node = node
        self._spawn = spawn
        self._bug = bug
        self._replica = node.replica
        self._bytes_max = node.config.integer("fetch.max.bytes")
        self._rack_aware = node.config["replica.selector.class"] == RACK_AWARE
        self._followers = FollowerFetch(node, self._start, self._resume)
        self._few = trio.Semaphore(_LARGE_AT_ONCE)
        self._few_of_peers = trio.Semaphore(_LARGE_AT_ONCE)
        """Followers do not wait for clients."""

    def __call__(
        self,
        connection: Connection,
        view: memoryview,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Take up the request in [position, end); False while it must wait for a fetch
        before it on its connection.
        """
        request = decode_fetch_at_once(view, position, end, version)
        if request is None:
            if connection.parked is not None:
                return False
            connection.pool.bytes += end - position
            self._start(
                connection,
                partial(
                    self._decode,
                    connection.slot(),
                    bytes(view[position:end]),
                    version,
                    correlation_id,
                ),
            )
            return True
        self._check(request, connection)
        if connection.parked is not None:
            if request.session_epoch != FINAL_EPOCH or request.session_id == NO_SESSION:
                # what closes a session is answered at once: clients wait for it when they close
                return False
            connection.parked.free()
            if connection.barrier:
                return False
        now = connection.owner.now
        fetching = _Fetching(
            connection.slot(), version, correlation_id, request, now + _wait_seconds(request)
        )
        if request.replica_id >= 0:
            self._follow(connection, fetching, now)
        elif self._resolve(fetching, *_named(request.topics, request.forgotten, version), now):
            if len(fetching.wanted) > DECODED_AT_ONCE_ROWS:
                self._start(
                    connection,
                    partial(self._carry_out, fetching, None, may_wait=fetching.deadline > now),
                )
            else:
                self._answer_or_park(fetching, may_wait=fetching.deadline > now)
        return True

    @staticmethod
    def _check(request: FetchRequest, connection: Connection) -> None:
        """Raises ProtocolError where the connection must be closed."""
        if sum(len(topic[2]) for topic in request.topics) > REQUEST_PARTITIONS_MAX:
            raise ProtocolError(f"a fetch of more than {REQUEST_PARTITIONS_MAX} partitions")
        if request.replica_id < 0 and connection.listener == PEER:
            raise ProtocolError(
                "a consumer's fetch: the peer listener serves those of followers only"
            )

    def _resolve(
        self,
        fetching: _Fetching,
        wanted: CachedPartitions,
        forgotten: dict[tuple[TopicKey, int], None],
        now: float,
    ) -> bool:
        """Find the session, and what it wants; False where the fetch was refused, and answered."""
        request, version = fetching.request, fetching.version
        try:
            fetching.session, fetching.wanted, fetching.incremental = (
                self._replica.sessions.resolve(
                    request.session_id,
                    request.session_epoch,
                    wanted,
                    forgotten,
                    uses_topic_ids=version >= _BY_ID_FROM,
                    now=now,
                )
            )
        except MqError as error:
            fetching.slot.complete(
                encode_fetch_response_parts(
                    version, fetching.correlation_id, 0, int(error.code), NO_SESSION, []
                )
            )
            return False
        return True

    def _follow(self, connection: Connection, fetching: _Fetching, now: float) -> None:
        if _is_follower(connection, fetching.request):
            self._followers(
                fetching.slot,
                fetching.request,
                fetching.version,
                fetching.correlation_id,
                now,
                fetching.deadline,
            )
        else:
            self._refuse_follower(fetching)

    # -- large fetches -----------------------------------------------------------------------------

    def _start(self, connection: Connection, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task. Later requests of the connection wait until `_resume`."""
        connection.barrier = True
        self._spawn(self._run, connection, work)

    async def _run(self, connection: Connection, work: Callable[[], Awaitable[None]]) -> None:
        """A task: one part of a large fetch."""
        try:
            async with self._few_of_peers if connection.listener == PEER else self._few:
                await work()
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:
            if raised_in_core(error):
                raise
            self._bug(connection, "fetch")

    async def _decode(self, slot: Slot, body: bytes, version: int, correlation_id: int) -> None:
        connection, pool = slot.connection, slot.connection.pool
        try:
            request = await finished_in_slices(decode_fetch_in_slices(body, 0, len(body), version))
            self._check(request, connection)
            named: Named = ({}, {})
            if request.replica_id < 0:
                named = await finished_in_slices(_named_in_slices(request, version))
        finally:
            pool.bytes -= len(body)
        if not connection.open:
            return
        now = self._node.clock.monotonic()
        fetching = _Fetching(slot, version, correlation_id, request, now + _wait_seconds(request))
        if request.replica_id >= 0 and _is_follower(connection, request):
            await self._followers.take_up_large(
                slot, request, version, correlation_id, now, fetching.deadline
            )
            return
        if request.replica_id >= 0:
            self._refuse_follower(fetching)
        elif self._resolve(fetching, *named, now):
            await self._carry_out(fetching, None, may_wait=fetching.deadline > now)
            return
        self._resume(connection)

    async def _carry_out(
        self, fetching: _Fetching, before: FetchWaiter | None, *, may_wait: bool
    ) -> None:
        """Plan, then answer or park.

        `before`: the waiter of an earlier plan, which still leaves its partitions.
        """
        connection, request = fetching.slot.connection, fetching.request
        read_committed = request.isolation_level == _READ_COMMITTED
        while True:
            waiter = FetchWaiter(
                lambda: None,
                request.min_bytes,
                fetching.deadline,
                read_committed=read_committed,
                leaves_later=True,
            )
            try:
                planning = self._planning(fetching, waiter if may_wait else None, before)
                plan = await finished_in_slices(planning)
            except Exception:
                waiter.leave()
                raise
            may_wait = (
                may_wait and not connection.ends and connection.pool.may_park(len(fetching.wanted))
            )
            if not may_wait or plan.urgent or plan.size >= request.min_bytes or not plan.partitions:
                break
            if not waiter.freed and waiter.bytes_wanted > plan.size:
                waiter.bytes_wanted -= plan.size
                waiter.release = lambda: self._woken_large(fetching)
                fetching.waiter = connection.parked = waiter
                connection.pool.park(len(fetching.wanted))
                self._replica.park_fetch(waiter, ())
                self._resume(connection)
                return
            before, may_wait = waiter, False  # records came to a partition behind the plan
        parts = await finished_in_slices(self._answering(fetching, plan.rows, waiter))
        if connection.open:
            fetching.slot.complete(parts)
        self._resume(connection)

    def _woken_large(self, fetching: _Fetching) -> None:
        connection, waiter = fetching.slot.connection, fetching.waiter
        assert waiter is not None
        connection.parked = None
        connection.pool.unpark(len(fetching.wanted))
        if not connection.open:
            waiter.leave()
            return
        may_wait = waiter.bytes_wanted <= 0 and self._node.clock.monotonic() < fetching.deadline
        self._start(connection, partial(self._carry_out, fetching, waiter, may_wait=may_wait))

    @staticmethod
    def _resume(connection: Connection) -> None:
        """Later requests of the connection need not wait."""
        connection.barrier = False
        if connection.open:
            connection.owner.resume_later(connection)

    # -- every fetch -------------------------------------------------------------------------------

    @staticmethod
    def _refuse_follower(fetching: _Fetching) -> None:
        """Somebody claims to be a replica: only a node that introduced itself may, on the
        peer listener, in its own name.
        """
        request, version = fetching.request, fetching.version
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        rows: list[tuple[bytes | None, bytes | None, list[Row]]] = []
        if version < _ERROR_CODES_FROM:
            error = MqError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            rows = [
                (name, None, [_empty_row(one.partition, error) for one in asked])
                for name, _, asked in request.topics
            ]
        fetching.slot.complete(
            encode_fetch_response_parts(version, fetching.correlation_id, 0, code, NO_SESSION, rows)
        )

    def _answer_or_park(self, fetching: _Fetching, *, may_wait: bool) -> None:
        plan = _Plan()
        self._plan(fetching, plan, fetching.wanted)
        size, partitions = plan.size, plan.partitions
        if (
            may_wait
            and not plan.urgent
            and size < fetching.request.min_bytes
            and partitions
            and fetching.slot.connection.open
        ):
            waiter = FetchWaiter(
                lambda: self._woken(fetching),
                fetching.request.min_bytes - size,
                fetching.deadline,
                read_committed=fetching.request.isolation_level == _READ_COMMITTED,
            )
            fetching.waiter = waiter
            fetching.slot.connection.parked = waiter
            self._replica.park_fetch(waiter, partitions)
            return
        response = _Response()
        self._add_rows(fetching, response, plan.rows)
        parts = all_slices(self._encoding(fetching, response))
        if fetching.slot.connection.open:
            fetching.slot.complete(parts)

    def _woken(self, fetching: _Fetching) -> None:
        """Freed by bytes, by the deadline, or by what came behind: plan once more; wait
        again only when bytes fell short.
        """
        fetching.slot.connection.parked = None
        waiter = fetching.waiter
        assert waiter is not None
        enough_came = waiter.bytes_wanted <= 0
        self._answer_or_park(
            fetching, may_wait=enough_came and self._node.clock.monotonic() < fetching.deadline
        )

    def _planning(
        self, fetching: _Fetching, waiter: FetchWaiter | None, before: FetchWaiter | None
    ) -> Slices[_Plan]:
        """What each wanted partition has.

        `waiter` waits on each of them from here on; `before` leaves its partitions first.
        """
        if before is not None:
            yield from before.leaving()
        plan, wanted = _Plan(), fetching.wanted
        for first in range(0, len(wanted), _PLANNED_AT_ONCE):
            if first:
                yield _SLICE_ROWS
                if not fetching.slot.connection.open:
                    break
            self._plan(fetching, plan, wanted[first : first + _PLANNED_AT_ONCE], waiter)
        return plan

    def _plan(
        self,
        fetching: _Fetching,
        plan: _Plan,
        some: list[CachedPartition],
        waiter: FetchWaiter | None = None,
    ) -> None:
        """Add to `plan` what these partitions have."""
        budget = min(fetching.request.max_bytes, self._bytes_max)
        replica = self._replica
        by_id = fetching.version >= _BY_ID_FROM
        by_topic = replica.by_id if by_id else replica.by_name
        rows, partitions, size = plan.rows, plan.partitions, plan.size
        urgent = plan.urgent or not fetching.wanted
        for wanted in some:
            held = by_topic.get(wanted.topic)
            partition = held.get(wanted.partition) if held is not None else None
            try:
                if partition is None:
                    name, topic_id = (None, wanted.topic) if by_id else (wanted.topic, None)
                    raise unknown_partition(self._node, name, topic_id, wanted.partition)
                row, found = self._read(
                    partition, wanted, fetching, budget - size, min_one=size == 0
                )
            except MqError as error:
                if partition is None:
                    row = refused_fetch_row(
                        self._node, wanted.partition, error, None, name, topic_id
                    )
                else:
                    row = refused_fetch_row(self._node, wanted.partition, error, partition)
                    if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                        replica.log_failed(partition)
                found = 0
                urgent = True
            else:
                partitions.append(partition)
                if waiter is not None:
                    waiter.park((partition,))
                urgent = urgent or len(row) > 8 or row[6] != _NO_PREFERRED_REPLICA
            size += found
            rows.append((wanted, row))
        plan.size, plan.urgent = size, urgent

    def _read(
        self,
        partition: Partition,
        wanted: CachedPartition,
        fetching: _Fetching,
        budget: int,
        *,
        min_one: bool,
    ) -> tuple[Row, int]:
        asked, request = wanted.requested, fetching.request
        if asked.current_leader_epoch != partition.leader_epoch:
            partition.fence(asked.current_leader_epoch)
        if not partition.serves and (
            partition.is_leader or not partition.in_contact or fetching.version < _FROM_FOLLOWERS
        ):
            raise partition.not_leader()
        log = partition.log
        offset = asked.fetch_offset
        high_watermark = partition.high_watermark
        read_committed = request.isolation_level == _READ_COMMITTED
        aborted: list[tuple[int, int]] | None = [] if read_committed else None
        if asked.last_fetched_epoch >= 0:
            diverging = log.epochs.divergence(asked.last_fetched_epoch, offset, log.log_end_offset)
            if diverging is not None:
                ends = (high_watermark, partition.last_stable_offset, log.log_start_offset)
                return (
                    wanted.partition,
                    0,
                    *ends,
                    aborted,
                    _NO_PREFERRED_REPLICA,
                    [],
                    diverging,
                ), 0
        if not log.log_start_offset <= offset <= log.log_end_offset:
            if (
                offset > log.log_end_offset
                and not partition.is_leader
                and asked.current_leader_epoch == NO_EPOCH
            ):
                # Who takes this node for the leader would start over; what is wanted may only not
                # have come here yet.
                raise MqError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"this follower has only come to {log.log_end_offset}",
                )
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {log.log_start_offset} to {log.log_end_offset}",
            )
        if self._rack_aware and request.rack_id and partition.is_leader:
            preferred = self._preferred_replica(partition, request.rack_id, offset)
            if preferred is not None:
                ends = (high_watermark, partition.last_stable_offset, log.log_start_offset)
                return (wanted.partition, 0, *ends, aborted, preferred, []), 0
        limit = stable = partition.plan_stable_offset()
        if not read_committed:
            limit = high_watermark
        ranges: list[FileRange] = []
        size = 0
        if offset < limit and (budget > 0 or min_one):
            bytes_max = min(budget, asked.partition_max_bytes)
            logs = self._replica.logs
            found = logs.read(log, offset, max_bytes=bytes_max, limit_offset=limit, min_one=min_one)
            ranges, size = found.ranges, found.size
            if read_committed and ranges:
                aborted = [
                    (one.producer_id, one.first_offset)
                    for one in logs.reader.aborted(log, offset, found.next_offset)
                ]
        ends = (high_watermark, stable, log.log_start_offset)
        return (wanted.partition, 0, *ends, aborted, _NO_PREFERRED_REPLICA, ranges), size

    def _preferred_replica(self, partition: Partition, rack: bytes, offset: int) -> NodeId | None:
        """Who of the ISR has `offset`, is alive and stands in the consumer's rack; None
        where that is this node, or nobody.
        """
        brokers, now = self._node.image.brokers, self._node.clock.monotonic()
        me = brokers.get(self._node.node_id)
        others = [
            ReplicaView(
                follower.node_id,
                brokers[follower.node_id].rack,
                follower.end_offset,
                now - follower.last_caught_up_at,
            )
            for follower in partition.followers.values()
            if follower.node_id in partition.isr
            and follower.log_start_offset <= offset <= follower.end_offset
            and follower.node_id in brokers
            and not brokers[follower.node_id].fenced
        ]
        leader = ReplicaView(
            self._node.node_id,
            me.rack if me is not None else None,
            partition.log.log_end_offset,
            0.0,
        )
        return select(rack.decode(errors="replace"), leader, others)

    def _answering(
        self, fetching: _Fetching, rows: list[tuple[CachedPartition, Row]], waiter: FetchWaiter
    ) -> Slices[list[Any]]:
        """The parts of the response. `waiter` leaves its partitions first."""
        yield from waiter.leaving()
        response = _Response()
        for first in range(0, len(rows), _SLICE_ROWS):
            if first:
                yield _SLICE_ROWS
            self._add_rows(fetching, response, rows[first : first + _SLICE_ROWS])
        return (yield from self._encoding(fetching, response))

    @staticmethod
    def _add_rows(
        fetching: _Fetching, response: _Response, rows: list[tuple[CachedPartition, Row]]
    ) -> None:
        """Add what the client does not know yet."""
        session, topics = fetching.session, response.topics
        for wanted, row in rows:
            if session is not None:
                told = (row[2], row[3], row[4])
                news = (
                    row[7]
                    or row[1]
                    or wanted.last_sent != told
                    or len(row) > 8
                    or row[6] != _NO_PREFERRED_REPLICA
                )
                wanted.last_sent = told if not row[1] else None
                if row[7]:
                    session.served(wanted)
                if row[1] in _UNKNOWN:
                    response.unknown += 1
                if fetching.incremental and not news:
                    continue
            topics.setdefault(wanted.topic, []).append(row)
            if len(row) > 9:
                response.leaders.add(row[9][0])

    def _encoding(self, fetching: _Fetching, response: _Response) -> Slices[list[Any]]:
        """The parts of the response, a slice at a time.

        A session of too many unknown partitions ends with it.
        """
        session, version = fetching.session, fetching.version
        topics = fetch_topics(response.topics, by_id=version >= _BY_ID_FROM)
        session_id = session.id if session is not None else NO_SESSION
        if session is not None and response.unknown > FETCH_SESSION_UNKNOWN_MAX:
            self._replica.sessions.end(session)
            session_id = NO_SESSION
        addresses = endpoints(self._node, response.leaders)
        return encode_fetch_response_in_slices(
            version, fetching.correlation_id, 0, 0, session_id, topics, addresses
        )


def _is_follower(connection: Connection, request: FetchRequest) -> bool:
    return connection.listener == PEER and request.replica_id == connection.peer_node


def _wait_seconds(request: FetchRequest) -> float:
    return min(max(0, request.max_wait_ms), FETCH_WAIT_MAX_MS) / 1000


def _named(
    topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic], version: int
) -> Named:
    """The partitions that these parts of a request want and forget.

    A repeated partition: the last row counts, as with Apache Kafka.
    """
    by_id = version >= _BY_ID_FROM  # a topic is named by what its version uses
    wanted: CachedPartitions = {}
    for name, topic_id, partitions in topics:
        topic = (topic_id if by_id else name) or b""
        for one in partitions:
            wanted[topic, one.partition] = CachedPartition(topic, one)
    dropped: dict[tuple[TopicKey, int], None] = {}
    for name, topic_id, indexes in forgotten:
        topic = (topic_id if by_id else name) or b""
        for index in indexes:
            dropped[topic, index] = None
    return wanted, dropped


def _named_in_slices(request: FetchRequest, version: int) -> Slices[Named]:
    """The same, a slice at a time."""
    wanted: CachedPartitions = {}
    forgotten: dict[tuple[TopicKey, int], None] = {}
    rows = 0
    for topic in _parts_of(request.topics):
        wanted.update(_named([topic], (), version)[0])
        rows += 1 + len(topic[2])
        if rows >= _SLICE_ROWS:
            yield rows
            rows = 0
    for former in _parts_of(request.forgotten):
        forgotten.update(_named((), [former], version)[1])
        rows += 1 + len(former[2])
        if rows >= _SLICE_ROWS:
            yield rows
            rows = 0
    return wanted, forgotten


def _parts_of(
    topics: Iterable[tuple[bytes | None, bytes | None, list[T]]],
) -> Iterator[tuple[bytes | None, bytes | None, list[T]]]:
    """Topics with at most a slice of partitions each: one with more of them comes several times."""
    for name, topic_id, partitions in topics:
        for first in range(0, len(partitions) or 1, _SLICE_ROWS):
            yield name, topic_id, partitions[first : first + _SLICE_ROWS]


def _empty_row(index: int, error: MqError) -> Row:
    return (index, int(error.code), -1, -1, -1, None, _NO_PREFERRED_REPLICA, [])
