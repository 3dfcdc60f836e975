"""Fetch as consumers send it: read up to the high watermark, or with `read_committed` up to the
last stable offset.

A record is served once it is below the high watermark, never before (I2). A response with
`read_committed` lists the aborted transactions among its records, with their first offsets. From
v11 on consumers may read from any replica, up to the high watermark that it knows. A leader
redirects them to a replica in their rack if `replica.selector.class` is rack-aware (KIP-392). ◆ hot
path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from mqd.errors import ErrorCode, MqError
from mqd.io.disk import FileRange
from mqd.limits import (
    ABORTED_AT_ONCE,
    ABORTED_PER_FETCH_MAX,
    DECODED_AT_ONCE_ROWS,
    FETCH_SESSION_UNKNOWN_MAX,
)
from mqd.protocol.hot_fetch_request import FetchRequest, FetchTopic, ForgottenTopic
from mqd.protocol.slices import Slices, all_slices
from mqd.replica.fetch_session import (
    NO_SESSION,
    CachedPartition,
    CachedPartitions,
    FetchSession,
    TopicKey,
)
from mqd.replica.partition import Partition
from mqd.replica.selector import RACK_AWARE, ReplicaView, select
from mqd.replica.waiters import FetchWaiter
from mqd.security.acls import Operation
from mqd.security.quotas import CONSUMER_BYTE_RATE
from mqd.server.authorization import hot_permissions, may_use_topic
from mqd.server.context import Node
from mqd.server.fetch_run import (
    BY_ID_FROM_VERSION,
    READ_COMMITTED,
    FetchPlan,
    FetchRun,
    PendingFetch,
    Response,
    reject,
)
from mqd.server.fetch_tasks import FetchTasks
from mqd.server.partitions import (
    CURRENT_LEADER,
    DIVERGING_EPOCH,
    ERROR_CODE,
    NO_PREFERRED_REPLICA,
    OFFSETS,
    PREFERRED_REPLICA,
    RECORDS,
    UNKNOWN_ERRORS,
    FetchRow,
    empty_fetch_row,
    refused_fetch_row,
    unknown_partition,
)
from mqd.server.slices import finished_in_slices
from mqd.types import NO_EPOCH, NodeId

_FROM_FOLLOWERS_FROM_VERSION = 11
_DENIED = MqError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

T = TypeVar("T")

NamedPartitions = tuple[CachedPartitions, dict[tuple[TopicKey, int], None]]
"""The partitions that a request adds to its session, and those that it removes."""


class PendingConsumerFetch(PendingFetch):
    """A consumer's fetch from its request to its response."""

    __slots__ = ("incremental", "session", "wanted")

    session: FetchSession | None
    wanted: list[CachedPartition]
    """All partitions of the session, or of the request."""
    incremental: bool
    """Whether the response omits unchanged partitions."""


class ConsumerFetch:
    """Part of the Fetch handler; built once a node."""

    slice_items = 200

    def __init__(self, node: Node, tasks: FetchTasks) -> None:
        self._node = node
        self._tasks = tasks
        self._replica = node.replica
        self._quotas = node.quotas
        self._bytes_max = node.config.integer("fetch.max.bytes")
        self._rack_aware = node.config["replica.selector.class"] == RACK_AWARE
        self._run = FetchRun(node, tasks, self)

    def start(self, pending: PendingConsumerFetch, now: float) -> None:
        """Start a fetch of few rows."""
        request = pending.request
        named = named_partitions(request.topics, request.forgotten, pending.version)
        if self._resolve(pending, named, now):
            self._run.run(pending, may_wait=pending.deadline > now and bool(pending.wanted))

    async def start_large(self, pending: PendingConsumerFetch, now: float) -> None:
        """The same for many rows, in slices. Ends with `FetchTasks.resume`."""
        named = await finished_in_slices(_named_in_slices(pending.request, pending.version))
        connection = pending.slot.connection
        if not connection.open:
            return
        if not self._resolve(pending, named, now):
            self._tasks.resume(connection)
            return
        may_wait = pending.deadline > now and bool(pending.wanted)
        await self._run.run_in_slices(pending, may_wait=may_wait)

    def _resolve(self, pending: PendingConsumerFetch, named: NamedPartitions, now: float) -> bool:
        """Find the session and its partitions. False if the fetch was rejected."""
        request = pending.request
        try:
            session, pending.wanted, pending.incremental = self._replica.sessions.resolve(
                request.session_id,
                request.session_epoch,
                *named,
                uses_topic_ids=pending.version >= BY_ID_FROM_VERSION,
                now=now,
            )
        except MqError as error:
            reject(pending, error.code)
            return False
        pending.session = session
        if session is not None:
            pending.session_id = session.id
        return True

    def items(self, pending: PendingConsumerFetch) -> list[CachedPartition]:
        return pending.wanted

    def wait(self, pending: PendingConsumerFetch, waiter: FetchWaiter) -> None:
        """The waiter is parked in each partition."""

    def plan(
        self,
        pending: PendingConsumerFetch,
        plan: FetchPlan[CachedPartition],
        items: list[CachedPartition],
        waiter: FetchWaiter | None,
    ) -> None:
        budget = min(pending.request.max_bytes, self._bytes_max)
        if CONSUMER_BYTE_RATE in self._quotas.keys:
            budget = min(budget, self._quotas.fetch_bytes_max(pending.slot.connection))
        replica = self._replica
        by_id = pending.version >= BY_ID_FROM_VERSION
        by_topic = replica.by_id if by_id else replica.by_name
        rows, partitions, size = plan.rows, plan.partitions, plan.size
        urgent = plan.urgent
        connection = pending.slot.connection
        permissions = hot_permissions(self._node, connection)
        if permissions is not None:  # also of a fetch that waited (I53)
            readable = permissions.reads.by_id if by_id else permissions.reads.by_name
        for wanted in items:
            if permissions is not None and not readable.get(wanted.topic):
                name, topic_id = (None, wanted.topic) if by_id else (wanted.topic, None)
                now = connection.owner.now
                if not may_use_topic(self._node, permissions, Operation.READ, name, topic_id, now):
                    rows.append((wanted, empty_fetch_row(wanted.partition, _DENIED)))
                    urgent = True
                    continue
            held = by_topic.get(wanted.topic)
            partition = held.get(wanted.partition) if held is not None else None
            try:
                if partition is None:
                    name, topic_id = (None, wanted.topic) if by_id else (wanted.topic, None)
                    raise unknown_partition(self._node, name, topic_id, wanted.partition)
                if plan.aborted_count >= ABORTED_PER_FETCH_MAX:
                    budget, urgent = 0, True
                row, found = self._read(
                    partition, wanted, pending, plan, budget - size, min_one=size == 0
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
                if waiter is None:
                    partitions.append(partition)
                else:
                    waiter.park((partition,))
                urgent = (
                    urgent
                    or len(row) > DIVERGING_EPOCH
                    or row[PREFERRED_REPLICA] != NO_PREFERRED_REPLICA
                )
            size += found
            rows.append((wanted, row))
        plan.size, plan.urgent = size, urgent

    def _read(
        self,
        partition: Partition,
        wanted: CachedPartition,
        pending: PendingConsumerFetch,
        plan: FetchPlan[CachedPartition],
        budget: int,
        *,
        min_one: bool,
    ) -> tuple[FetchRow, int]:
        requested, request = wanted.requested, pending.request
        if requested.current_leader_epoch != partition.leader_epoch:
            partition.fence(requested.current_leader_epoch)
        if not partition.serves and (
            partition.is_leader
            or not partition.in_contact
            or pending.version < _FROM_FOLLOWERS_FROM_VERSION
        ):
            raise partition.not_leader()
        log = partition.log
        offset = requested.fetch_offset
        high_watermark = partition.high_watermark
        read_committed = request.isolation_level == READ_COMMITTED
        aborted: list[tuple[int, int]] | None = [] if read_committed else None
        if requested.last_fetched_epoch >= 0:
            diverging = log.epochs.divergence(
                requested.last_fetched_epoch, offset, log.log_end_offset
            )
            if diverging is not None:
                ends = (high_watermark, partition.last_stable_offset, log.log_start_offset)
                return (
                    wanted.partition,
                    0,
                    *ends,
                    aborted,
                    NO_PREFERRED_REPLICA,
                    [],
                    diverging,
                ), 0
        if not log.log_start_offset <= offset <= log.log_end_offset:
            if (
                offset > log.log_end_offset
                and not partition.is_leader
                and requested.current_leader_epoch == NO_EPOCH
            ):
                # A consumer resets its offset after OFFSET_OUT_OF_RANGE. The records may exist,
                # and not be replicated to this follower yet.
                raise MqError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"Offset {offset} is beyond the log end offset {log.log_end_offset} of this "
                    "follower. Retry.",
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
            bytes_max = min(budget, requested.partition_max_bytes)
            logs = self._replica.logs
            found = logs.read(log, offset, max_bytes=bytes_max, limit_offset=limit, min_one=min_one)
            ranges, size = found.ranges, found.size
            if read_committed and ranges:
                candidates = logs.reader.aborted_candidates(log, offset, found.next_offset)
                if candidates.count <= ABORTED_AT_ONCE:
                    aborted = all_slices(candidates.listed())
                else:
                    aborted = []
                    plan.aborted_lists.append((aborted, candidates))
                    plan.aborted_count += candidates.count
        ends = (high_watermark, stable, log.log_start_offset)
        return (wanted.partition, 0, *ends, aborted, NO_PREFERRED_REPLICA, ranges), size

    def _preferred_replica(self, partition: Partition, rack: bytes, offset: int) -> NodeId | None:
        """A live replica in the ISR that has `offset` and is in the consumer's rack. None if that
        is this node, or if there is none.
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

    def throttle(self, pending: PendingConsumerFetch, size: int) -> bool:
        if self._quotas.keys:
            pending.throttle_ms = self._quotas.throttle_for_fetch(pending.slot.connection, size)
        return pending.throttle_ms > 0

    def add_rows(
        self,
        pending: PendingConsumerFetch,
        response: Response,
        rows: list[tuple[CachedPartition, FetchRow]],
    ) -> None:
        """Add what the client does not know yet."""
        session, topics = pending.session, response.topics
        for wanted, row in rows:
            if session is not None:
                offsets = row[OFFSETS]
                has_news = (
                    row[RECORDS]
                    or row[ERROR_CODE]
                    or wanted.last_sent != offsets
                    or len(row) > DIVERGING_EPOCH
                    or row[PREFERRED_REPLICA] != NO_PREFERRED_REPLICA
                )
                wanted.last_sent = offsets if not row[ERROR_CODE] else None
                if row[RECORDS]:
                    session.served(wanted)
                if row[ERROR_CODE] in UNKNOWN_ERRORS:
                    response.unknown += 1
                if pending.incremental and not has_news:
                    continue
            topics.setdefault(wanted.topic, []).append(row)
            if len(row) > CURRENT_LEADER:
                response.leaders.add(row[CURRENT_LEADER][0])

    def finished(self, pending: PendingConsumerFetch, unknown: int) -> None:
        """A session of too many unknown partitions ends with the response."""
        if unknown > FETCH_SESSION_UNKNOWN_MAX and pending.session is not None:
            self._replica.sessions.end(pending.session)
            pending.session_id = NO_SESSION


def named_partitions(
    topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic], version: int
) -> NamedPartitions:
    """The partitions that these parts of a request add and remove. If one is repeated, its last row
    counts, as with Apache Kafka.
    """
    by_id = version >= BY_ID_FROM_VERSION
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


def _named_in_slices(request: FetchRequest, version: int) -> Slices[NamedPartitions]:
    """`named_partitions` of a whole request, a slice at a time."""
    wanted: CachedPartitions = {}
    forgotten: dict[tuple[TopicKey, int], None] = {}
    rows = 0
    for topic in _parts_of(request.topics):
        wanted.update(named_partitions([topic], (), version)[0])
        rows += 1 + len(topic[2])
        if rows >= DECODED_AT_ONCE_ROWS:
            yield rows
            rows = 0
    for former in _parts_of(request.forgotten):
        forgotten.update(named_partitions((), [former], version)[1])
        rows += 1 + len(former[2])
        if rows >= DECODED_AT_ONCE_ROWS:
            yield rows
            rows = 0
    return wanted, forgotten


def _parts_of(
    topics: Iterable[tuple[bytes | None, bytes | None, list[T]]],
) -> Iterator[tuple[bytes | None, bytes | None, list[T]]]:
    """Topics of at most a slice of partitions each. A larger topic is yielded several times."""
    for name, topic_id, partitions in topics:
        for first in range(0, len(partitions) or 1, DECODED_AT_ONCE_ROWS):
            yield name, topic_id, partitions[first : first + DECODED_AT_ONCE_ROWS]
