"""Fetch as followers send it, on the peer listener. The sender, the leader epoch and the broker
epoch fence it. It reads up to the log end offset.

A follower's fetch acknowledges all records below its fetch offset. It moves the high watermark, and
produce requests that wait for that get their responses in the same turn. A fetch that finds nothing
waits until records are written, not until they are committed. A new high watermark is sent with the
next response, or at once where consumers read from followers (KIP-392).

A plan reads only changed partitions (replica/fetch_session.py). If one of a follower's ten thousand
partitions is written, its fetch costs as much as that of one partition. A large fetch fences each
partition in the slice that reads it. The next fetch reads records that arrive after the plan. ◆ hot
path.
"""

from __future__ import annotations

import logging
import math

from mqd.errors import ErrorCode, MqError
from mqd.io.disk import FileRange
from mqd.protocol.batch import HEADER_BYTES, crc_of, parse_header
from mqd.protocol.slices import Slices, all_slices
from mqd.replica.fetch_session import NO_SESSION, FollowerSession, PartitionWatch
from mqd.replica.partition import Partition
from mqd.replica.waiters import FetchWaiter
from mqd.server.context import Node
from mqd.server.fetch_run import (
    BY_ID_FROM_VERSION,
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
    RECORDS,
    UNKNOWN_ERRORS,
    FetchRow,
    refused_fetch_row,
    unknown_partition,
)
from mqd.server.slices import finished_in_slices
from mqd.types import NO_EPOCH, NodeId

logger = logging.getLogger(__name__)

_DAMAGE_LOGGED_SECONDS = 60.0


class PendingFollowerFetch(PendingFetch):
    """A follower's fetch from its request to its response."""

    __slots__ = ("named", "session")

    session: FollowerSession
    named: set[PartitionWatch]
    """The partitions that the request names. The first plan acknowledges their fetch offsets; later
    plans acknowledge none.
    """


class FollowerFetch:
    """Part of the Fetch handler; built once a node."""

    slice_items = 100

    def __init__(self, node: Node, tasks: FetchTasks) -> None:
        self._node = node
        self._tasks = tasks
        self._replica = node.replica
        self._damage_logged_at = -math.inf
        self._bytes_max = node.config.integer("fetch.max.bytes")
        self._run = FetchRun(node, tasks, self)

    def start(self, pending: PendingFollowerFetch, now: float) -> None:
        """Start a fetch of few rows. Its sender is the node that it names."""
        if not self._resolve(pending, now):
            return
        request = pending.request
        if request.forgotten:
            all_slices(self._forgetting(pending))
        session, by_id = pending.session, pending.version >= BY_ID_FROM_VERSION
        pending.named = {
            session.update((topic_id if by_id else name) or b"", requested)
            for name, topic_id, partitions in request.topics
            for requested in partitions
        }
        self._run.run(pending, may_wait=pending.deadline > now)

    async def start_large(self, pending: PendingFollowerFetch, now: float) -> None:
        """The same for many rows, in slices. Ends with `FetchTasks.resume`."""
        if not self._resolve(pending, now):
            self._tasks.resume(pending.slot.connection)
            return
        await finished_in_slices(self._forgetting(pending))
        pending.named = await finished_in_slices(self._naming(pending))
        await self._run.run_in_slices(pending, may_wait=pending.deadline > now)

    def _resolve(self, pending: PendingFollowerFetch, now: float) -> bool:
        """Find the session. False if the fetch was rejected."""
        request = pending.request
        try:
            pending.session = session = self._replica.follower_sessions.resolve(
                request.replica_id,
                request.replica_epoch,
                request.session_id,
                request.session_epoch,
                now,
            )
        except MqError as error:
            reject(pending, error.code)
            return False
        pending.session_id = session.id
        return True

    def _forgetting(self, pending: PendingFollowerFetch) -> Slices[None]:
        """Remove from the session the partitions that the request forgets."""
        request, session = pending.request, pending.session
        by_id = pending.version >= BY_ID_FROM_VERSION
        held = self._replica.by_id if by_id else self._replica.by_name
        for name, topic_id, indexes in request.forgotten:
            topic = (topic_id if by_id else name) or b""
            for index in indexes:
                session.forget(topic, index)
                partition = held.get(topic, {}).get(index)
                if partition is not None:
                    partition.membership.follower_stopped(NodeId(request.replica_id))
                yield 1

    @staticmethod
    def _naming(pending: PendingFollowerFetch) -> Slices[set[PartitionWatch]]:
        """Add to the session the partitions that the request names."""
        session, by_id = pending.session, pending.version >= BY_ID_FROM_VERSION
        named: set[PartitionWatch] = set()
        for name, topic_id, partitions in pending.request.topics:
            topic = (topic_id if by_id else name) or b""
            for requested in partitions:
                if session.open:  # a fetch on another connection may have replaced it
                    named.add(session.update(topic, requested))
                yield 1
        return named

    def items(self, pending: PendingFollowerFetch) -> list[PartitionWatch]:
        return list(pending.session.news)

    def wait(self, pending: PendingFollowerFetch, waiter: FetchWaiter) -> None:
        pending.session.waiter = waiter

    def finished(self, pending: PendingFollowerFetch, unknown: int) -> None:
        session = pending.session
        if session.waiter is pending.waiter:
            session.waiter = None
        if session.id == NO_SESSION:
            session.close()

    def plan(
        self,
        pending: PendingFollowerFetch,
        plan: FetchPlan[PartitionWatch],
        items: list[PartitionWatch],
        waiter: FetchWaiter | None,
    ) -> None:
        request, session = pending.request, pending.session
        replica = self._replica
        by_topic = replica.by_id if pending.version >= BY_ID_FROM_VERSION else replica.by_name
        budget = min(request.max_bytes, self._bytes_max)
        rows, size, urgent = plan.rows, plan.size, plan.urgent
        named, is_planned = pending.named, pending.is_planned
        for followed in items:
            if followed not in session.news:
                continue  # no longer, since an earlier slice
            held = by_topic.get(followed.topic)
            partition = held.get(followed.partition) if held is not None else None
            try:
                if partition is None:
                    by_id = pending.version >= BY_ID_FROM_VERSION
                    name, topic_id = (None, followed.topic) if by_id else (followed.topic, None)
                    raise unknown_partition(self._node, name, topic_id, followed.partition)
                followed.watch(partition)
                row, found = self._read(
                    partition,
                    followed,
                    pending,
                    budget - size,
                    min_one=size == 0,
                    first=not is_planned and followed in named,
                )
            except MqError as error:
                row, found = refused_fetch_row(self._node, followed.partition, error, partition), 0
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and partition is not None:
                    # the follower may have to truncate its whole log to the log start offset
                    row = (*row[: OFFSETS.start], *_offsets(partition), *row[OFFSETS.stop :])
                urgent = True
            else:
                moved = followed.last_sent != row[OFFSETS]
                if not found and not moved and len(row) == DIVERGING_EPOCH:
                    if partition.log.written_end_offset <= followed.requested.fetch_offset:
                        session.news.pop(followed, None)
                    continue
                urgent = (
                    urgent
                    or len(row) > DIVERGING_EPOCH
                    or (moved and session.id != NO_SESSION and self._is_urgent(followed, row))
                )
            size += found
            rows.append((followed, row))
        plan.size, plan.urgent = size, urgent or not session.open

    def _is_urgent(self, followed: PartitionWatch, row: FetchRow) -> bool:
        """Whether changes without records are sent at once. They are the first response about a
        partition, a new log start offset, and a new high watermark if consumers read from
        followers.
        """
        if followed.last_sent is None or self._replica.parked.consumers_read_from_followers:
            return True
        _, _, log_start_offset = followed.last_sent
        moved: bool = log_start_offset != row[OFFSETS][2]
        return moved

    def _read(
        self,
        partition: Partition,
        followed: PartitionWatch,
        pending: PendingFollowerFetch,
        budget: int,
        *,
        min_one: bool,
        first: bool,
    ) -> tuple[FetchRow, int]:
        node_id, requested = NodeId(pending.request.replica_id), followed.requested
        partition.fence(requested.current_leader_epoch)
        if requested.current_leader_epoch == NO_EPOCH:
            raise MqError(
                ErrorCode.FENCED_LEADER_EPOCH,
                "a follower must name the leader epoch in which it fetches",
            )
        if not partition.is_leader:
            raise partition.not_leader()
        if node_id not in partition.followers:
            raise MqError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"This node does not know the replica on node {node_id} yet. Retry.",
            )
        registered = self._node.image.brokers.get(node_id)
        broker_epoch, follower = pending.request.replica_epoch, partition.followers[node_id]
        known = registered.epoch if registered is not None else NO_EPOCH
        if broker_epoch < max(known, follower.broker_epoch):
            raise MqError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Node {node_id} has registered again since broker epoch {broker_epoch}.",
            )
        if broker_epoch > known:
            follower.on_new_registration(broker_epoch)
            raise MqError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"This node does not know the newest registration of node {node_id} yet. Retry.",
            )
        log = partition.log
        offset, end = requested.fetch_offset, log.written_end_offset
        if requested.last_fetched_epoch >= 0:
            diverging = log.epochs.divergence(requested.last_fetched_epoch, offset, end)
            if diverging is not None:
                return (
                    followed.partition,
                    0,
                    *_offsets(partition),
                    None,
                    NO_PREFERRED_REPLICA,
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
                partition,
                node_id,
                broker_epoch,
                offset,
                requested.log_start_offset,
                pending.session,
            )
        ranges: list[FileRange] = []
        size = 0
        if offset < end and (budget > 0 or min_one) and self._may_send(partition, node_id):
            bytes_max = min(budget, requested.partition_max_bytes)
            ranges = self._replica.logs.read(
                log, offset, max_bytes=bytes_max, limit_offset=end, min_one=min_one
            ).ranges
            for one in ranges:
                size += one.size
        if ranges:
            if first and follower.last_sent_offset == offset:
                self._prove(partition, ranges[0], offset)
            follower.last_sent_offset = offset
        return (
            followed.partition,
            0,
            *_offsets(partition),
            None,
            NO_PREFERRED_REPLICA,
            ranges,
        ), size

    def _prove(self, partition: Partition, sent: FileRange, offset: int) -> None:
        """Check the batch that a follower fetches again: if it is damaged, the follower can never
        append it.

        If it is damaged and another in-sync replica can lead: closes this log and raises MqError
        KAFKA_STORAGE_ERROR. The last in-sync replica serves on.
        """
        damage = _damage(sent, offset)
        if not damage:
            return
        log = partition.log
        reason = f"the batch at offset {offset} of {log.path} is damaged: {damage}"
        if any(
            self._replica.eligible_epoch(node_id) is not None
            for node_id in partition.isr
            if node_id != partition.node_id
        ):
            error = self._replica.logs.reader.unreadable(log, reason)
            self._replica.log_failed(partition)
            raise error
        now = self._node.clock.monotonic()
        if now >= self._damage_logged_at + _DAMAGE_LOGGED_SECONDS:
            self._damage_logged_at = now
            logger.error(
                "followers cannot fetch a damaged partition, and no other replica is in sync "
                "partition=%s reason=%s remedy='restore it from a backup'",
                log.topic_partition,
                reason,
            )

    def _may_send(self, partition: Partition, node_id: NodeId) -> bool:
        """`leader.replication.throttled.rate`: for those that are not in sync."""
        throttle = self._replica.leader_throttle
        if node_id in partition.isr or not throttle.is_throttled(
            partition.assignment.topic_partition
        ):
            return True
        return throttle.allows(self._node.clock.monotonic())

    def throttle(self, pending: PendingFollowerFetch, size: int) -> bool:
        """Followers have replication quotas instead, which `plan` respects."""
        return False

    def add_rows(
        self,
        pending: PendingFollowerFetch,
        response: Response,
        rows: list[tuple[PartitionWatch, FetchRow]],
    ) -> None:
        session, topics = pending.session, response.topics
        for followed, row in rows:
            topics.setdefault(followed.topic, []).append(row)
            if row[ERROR_CODE]:
                followed.last_sent = None
                # A session holds partitions that exist. The follower names it again later.
                if row[ERROR_CODE] in UNKNOWN_ERRORS:
                    session.forget(followed.topic, followed.partition)
            else:
                # a follower ignores the offsets of a response that makes it truncate its log
                followed.last_sent = row[OFFSETS] if len(row) == DIVERGING_EPOCH else None
                self._row_sent(pending, followed, row)
            if len(row) > CURRENT_LEADER and row[CURRENT_LEADER] is not None:
                response.leaders.add(row[CURRENT_LEADER][0])

    def _row_sent(
        self, pending: PendingFollowerFetch, followed: PartitionWatch, row: FetchRow
    ) -> None:
        """Remove a partition from the changed ones, and count throttled bytes. After records or a
        diverging epoch the follower names the partition again. A partition for which the response
        had no room remains a changed one.
        """
        partition = followed.watched
        if not isinstance(partition, Partition):
            return
        if row[RECORDS] or len(row) > DIVERGING_EPOCH:
            pending.session.news.pop(followed, None)
        elif (
            partition.log.written_end_offset <= followed.requested.fetch_offset
            and followed.last_sent == _offsets(partition)
        ):
            pending.session.news.pop(followed, None)  # nothing moved since the plan
        topic_partition = partition.assignment.topic_partition
        throttle = self._replica.leader_throttle
        if (
            row[RECORDS]
            and pending.request.replica_id not in partition.isr
            and throttle.is_throttled(topic_partition)
        ):
            throttle.record(sum(one.size for one in row[RECORDS]), self._node.clock.monotonic())


def _damage(sent: FileRange, offset: int) -> str:
    """The error in the first batch of `sent`, which must contain `offset`; empty if it is
    intact."""
    header = parse_header(sent.file.read_at(sent.position, HEADER_BYTES))
    if header.size > sent.size or header.size < HEADER_BYTES:
        return f"its length is {header.size}"
    if crc_of(sent.file.read_at(sent.position, header.size), 0, header.size) != header.crc:
        return "its CRC-32C is wrong"
    return "" if header.last_offset >= offset else f"it ends at offset {header.last_offset}"


def _offsets(partition: Partition) -> tuple[int, int, int]:
    return partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset
