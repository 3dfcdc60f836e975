"""Fetch as followers send it, on the peer listener: fenced by who asks, leader epoch and broker epoch, and read to the log's end.

A follower's fetch is an acknowledgement: what it asks from, it has below. So the high watermark moves here, and who waited
for that is answered in the same turn. A fetch that finds nothing waits until something is written (not: committed); a new
high watermark alone goes along with the next answer, or at once where consumers read from followers (KIP-392).

Only partitions with news are looked at (replica/fetch_session.py): a follower of ten thousand of which one is written asks
for the price of one. ◆ hot path.
"""

from __future__ import annotations

import logging
import math

from mqd.errors import ErrorCode, MqError
from mqd.io.disk import FileRange
from mqd.protocol.batch import HEADER_BYTES, crc_of, parse_header
from mqd.protocol.hot_fetch import FetchRequest, encode_fetch_response_parts
from mqd.replica.fetch_session import NO_SESSION, Followed, FollowerSession
from mqd.replica.partition import Partition
from mqd.replica.waiters import FetchWaiter
from mqd.server.connection import Slot
from mqd.server.context import Node
from mqd.server.partitions import FetchRow, endpoints, refused_fetch_row, unknown_partition
from mqd.types import NO_EPOCH, NodeId

logger = logging.getLogger(__name__)

_NO_PREFERRED_REPLICA = -1
_DAMAGE_TOLD_SECONDS = 60.0
_BY_ID_FROM = 13
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class _Fetching:
    """One fetch from its request to its answer."""

    __slots__ = ("correlation_id", "deadline", "request", "session", "slot", "version", "waiter")

    def __init__(self, slot: Slot, version: int, correlation_id: int, request: FetchRequest, deadline: float) -> None:
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.request = request
        self.deadline = deadline
        self.session: FollowerSession
        self.waiter: FetchWaiter | None = None


class FollowerFetch:
    """Part of the Fetch handler; built once a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replica = node.replica
        self._damage_told_at = -math.inf
        self._bytes_max = node.config.integer("fetch.max.bytes")

    def __call__(self, slot: Slot, request: FetchRequest, version: int, correlation_id: int, now: float, deadline: float) -> None:
        """Take up a request whose sender is known to be the node that it names."""
        fetching = _Fetching(slot, version, correlation_id, request, deadline)
        try:
            session = self._replica.follower_sessions.resolve(
                request.replica_id, request.replica_epoch, request.session_id, request.session_epoch, now
            )
        except MqError as error:
            fetching.slot.complete(encode_fetch_response_parts(version, correlation_id, 0, int(error.code), NO_SESSION, []))
            return
        fetching.session = session
        by_id = version >= _BY_ID_FROM
        for name, topic_id, indexes in request.forgotten:
            for index in indexes:
                topic = (topic_id if by_id else name) or b""
                session.forget(topic, index)
                partition = (self._replica.by_id if by_id else self._replica.by_name).get(topic, {}).get(index)
                if partition is not None:
                    partition.follower_stopped(NodeId(request.replica_id))
        named = {session.ask((topic_id if by_id else name) or b"", one) for name, topic_id, asked in request.topics for one in asked}
        self._answer_or_park(fetching, named, may_wait=deadline > now)

    def _answer_or_park(self, fetching: _Fetching, named: set[Followed], *, may_wait: bool) -> None:
        session = fetching.session
        rows, size, urgent = self._plan(fetching, named)
        connection = fetching.slot.connection
        if may_wait and not urgent and size < fetching.request.min_bytes and connection.open:
            waiter = FetchWaiter(lambda: self._woken(fetching), fetching.request.min_bytes - size, fetching.deadline)
            fetching.waiter = session.waiter = connection.parked = waiter
            self._replica.park(waiter, ())
            return
        self._answer(fetching, rows)

    def _woken(self, fetching: _Fetching) -> None:
        """Freed by news, by the deadline, or by what came behind: plan once more; wait again only when the news were too few."""
        fetching.slot.connection.parked = None
        waiter = fetching.waiter
        assert waiter is not None
        if fetching.session.waiter is waiter:
            fetching.session.waiter = None
        news_came = waiter.bytes_wanted <= 0
        self._answer_or_park(fetching, set(), may_wait=news_came and self._node.clock.monotonic() < fetching.deadline)

    def _plan(self, fetching: _Fetching, named: set[Followed]) -> tuple[list[tuple[Followed, FetchRow]], int, bool]:
        """(rows to tell, bytes in them, whether they must be told at once). `named`: what this very request acknowledges."""
        request, session = fetching.request, fetching.session
        replica = self._replica
        by_topic = replica.by_id if fetching.version >= _BY_ID_FROM else replica.by_name
        budget = min(request.max_bytes, self._bytes_max)
        rows: list[tuple[Followed, FetchRow]] = []
        size = 0
        urgent = False
        for followed in list(session.news):
            held = by_topic.get(followed.topic)
            partition = held.get(followed.partition) if held is not None else None
            try:
                if partition is None:
                    by_id = fetching.version >= _BY_ID_FROM
                    name, topic_id = (None, followed.topic) if by_id else (followed.topic, None)
                    raise unknown_partition(self._node, name, topic_id, followed.partition)
                followed.watch(partition)
                row, found = self._read(partition, followed, fetching, budget - size, min_one=size == 0, first=followed in named)
            except MqError as error:
                row, found = refused_fetch_row(self._node, followed.partition, error, partition), 0
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and partition is not None:
                    row = (*row[:2], *_ends(partition), *row[5:])  # the follower begins anew at the log start, if it must
                urgent = True
            else:
                news = followed.told != row[2:5]
                if not found and not news and len(row) == 8:
                    if partition.log.written_end_offset <= followed.asked.fetch_offset:
                        session.news.pop(followed, None)
                    continue
                urgent = urgent or len(row) > 8 or (news and session.id != NO_SESSION and self._is_urgent(followed, row))
            size += found
            rows.append((followed, row))
        return rows, size, urgent

    def _is_urgent(self, followed: Followed, row: FetchRow) -> bool:
        """Whether news without bytes is told at once: the first of a partition, a log start, and where consumers wait for it."""
        told = followed.told
        return told is None or told[2] != row[4] or self._replica.tells_high_watermarks

    def _read(
        self, partition: Partition, followed: Followed, fetching: _Fetching, budget: int, *, min_one: bool, first: bool
    ) -> tuple[FetchRow, int]:
        node_id, asked = NodeId(fetching.request.replica_id), followed.asked
        partition.fence(asked.current_leader_epoch)
        if asked.current_leader_epoch == NO_EPOCH:
            raise MqError(ErrorCode.FENCED_LEADER_EPOCH, "a follower says in which leader epoch it fetches")
        if not partition.is_leader:
            raise partition.not_leader()
        if node_id not in partition.followers:
            raise MqError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"this node does not know yet that node {node_id} has a replica: try again")
        registered = self._node.image.brokers.get(node_id)
        broker_epoch, follower = fetching.request.replica_epoch, partition.followers[node_id]
        known = registered.epoch if registered is not None else NO_EPOCH
        if broker_epoch < max(known, follower.broker_epoch):
            raise MqError(ErrorCode.STALE_BROKER_EPOCH, f"node {node_id} was registered anew since epoch {broker_epoch}")
        if broker_epoch > known:
            follower.registered_anew(broker_epoch)
            raise MqError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"this node does not know yet that node {node_id} was registered anew: try again")
        log = partition.log
        offset, end = asked.fetch_offset, log.written_end_offset
        if asked.last_fetched_epoch >= 0:
            epoch, epoch_end = log.epochs.end_offset_for(asked.last_fetched_epoch, end)
            if epoch == NO_EPOCH:
                raise MqError(ErrorCode.OFFSET_OUT_OF_RANGE, f"this log knows nothing of epoch {asked.last_fetched_epoch}")
            if epoch < asked.last_fetched_epoch or epoch_end < offset:
                return (followed.partition, 0, *_ends(partition), None, _NO_PREFERRED_REPLICA, [], (epoch, epoch_end)), 0
        if not log.log_start_offset <= offset <= end:
            raise MqError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {log.log_start_offset} to {end}")
        if first:
            self._replica.follower_fetched(partition, node_id, broker_epoch, offset, asked.log_start_offset, fetching.session)
        ranges: list[FileRange] = []
        size = 0
        if offset < end and (budget > 0 or min_one) and self._may_be_given(partition, node_id):
            bytes_max = min(budget, asked.partition_max_bytes)
            ranges = self._replica.logs.read(log, offset, max_bytes=bytes_max, limit_offset=end, min_one=min_one).ranges
            for one in ranges:
                size += one.size
        if ranges:
            if first and follower.given_offset == offset:
                self._prove(partition, ranges[0], offset)
            follower.given_offset = offset
        return (followed.partition, 0, *_ends(partition), None, _NO_PREFERRED_REPLICA, ranges), size

    def _prove(self, partition: Partition, given: FileRange, offset: int) -> None:
        """A follower asks again for what it was given: where the batch here is damaged, it would do so for ever.

        MqError KAFKA_STORAGE_ERROR where it is, and another replica in sync can lead: this log is given up then. The last one serves on.
        """
        damage = _damage(given, offset)
        if not damage:
            return
        log = partition.log
        reason = f"the batch at offset {offset} of {log.path} is damaged: {damage}"
        if any(self._replica.eligible(node_id) is not None for node_id in partition.isr if node_id != partition.node_id):
            refusal = self._replica.logs.reader.unreadable(log, reason)
            self._replica.log_failed(partition)
            raise refusal
        now = self._node.clock.monotonic()
        if now >= self._damage_told_at + _DAMAGE_TOLD_SECONDS:
            self._damage_told_at = now
            logger.error("followers cannot copy, and no other replica is in sync: %s; restore the partition from a copy", reason)

    def _may_be_given(self, partition: Partition, node_id: NodeId) -> bool:
        """`leader.replication.throttled.rate`: for those that are not in sync."""
        throttle = self._replica.leader_throttle
        if node_id in partition.isr or not throttle.is_throttled(partition.assignment.topic_partition):
            return True
        return throttle.allows(self._node.clock.monotonic())

    def _answer(self, fetching: _Fetching, rows: list[tuple[Followed, FetchRow]]) -> None:
        session = fetching.session
        topics: dict[bytes, list[FetchRow]] = {}
        leaders = set()
        for followed, row in rows:
            topics.setdefault(followed.topic, []).append(row)
            if row[1]:
                followed.told = None
                if row[1] in _UNKNOWN:  # it names the partition again when it has waited: a session holds what exists
                    session.forget(followed.topic, followed.partition)
            else:
                followed.told = row[2:5]
                self._told(fetching, followed, row)
            if len(row) > 9 and row[9] is not None:
                leaders.add(row[9][0])
        by_id = fetching.version >= _BY_ID_FROM
        answer = [(None, topic, found) if by_id else (topic, None, found) for topic, found in topics.items()]
        if fetching.slot.connection.open:
            addresses = endpoints(self._node, leaders)
            fetching.slot.complete(
                encode_fetch_response_parts(fetching.version, fetching.correlation_id, 0, 0, session.id, answer, addresses)
            )
        if session.id == NO_SESSION:
            session.close()

    def _told(self, fetching: _Fetching, followed: Followed, row: FetchRow) -> None:
        """Strike from the news what is done with: who got records or a divergence comes back by itself, who got no room stays."""
        partition = followed.held
        if not isinstance(partition, Partition):
            return
        if row[7] or len(row) > 8 or partition.log.written_end_offset <= followed.asked.fetch_offset:
            fetching.session.news.pop(followed, None)
        topic_partition = partition.assignment.topic_partition
        throttle = self._replica.leader_throttle
        if row[7] and fetching.request.replica_id not in partition.isr and throttle.is_throttled(topic_partition):
            throttle.record(sum(one.size for one in row[7]), self._node.clock.monotonic())


def _damage(given: FileRange, offset: int) -> str:
    """What is wrong with the batch that `given` begins with, which is to hold `offset`; empty where nothing is."""
    header = parse_header(given.file.read_at(given.position, HEADER_BYTES))
    if header.size > given.size or header.size < HEADER_BYTES:
        return f"its length is {header.size}"
    if crc_of(given.file.read_at(given.position, header.size), 0, header.size) != header.crc:
        return "its CRC-32C is wrong"
    return "" if header.last_offset >= offset else f"it ends at offset {header.last_offset}"


def _ends(partition: Partition) -> tuple[int, int, int]:
    return partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset
