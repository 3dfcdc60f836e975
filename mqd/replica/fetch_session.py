"""Incremental fetch sessions (KIP-227): a broker remembers which partitions a client fetches, so
that each request names only the partitions that changed.

Pure. A session belongs to one client, whose requests carry increasing epochs. The response to an
incremental fetch names only changed partitions. The number of sessions and their bytes are bounded.
A new session replaces the least recently used one if that was idle for two minutes. Otherwise the
new client fetches without a session, which only costs bytes.

Followers have separate sessions, one for each node. Such a session holds all partitions that the
node follows here, and few of them change at a time. So each partition reports its changes to the
session (`PartitionWatch.note`), and a fetch looks only at those partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    FETCH_SESSION_PARTITION_BYTES,
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSIONS_BYTES_MAX,
    FETCH_SESSIONS_MAX,
    TOPIC_NAME_CHARS_MAX,
)
from mqd.protocol.hot_fetch_request import FetchPartition
from mqd.replica.waiters import FetchWaiter

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EVICTION_SECONDS = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""

TopicKey = bytes
"""A topic's name in UTF-8, or its id as 16 bytes, by the version of the request."""


class CachedPartition:
    """One partition that a client fetches (Kafka's `FetchSession.CachedPartition`)."""

    __slots__ = ("last_sent", "partition", "requested", "topic")

    def __init__(self, topic: TopicKey, requested: FetchPartition) -> None:
        self.topic = topic
        self.partition = requested.partition
        self.requested = requested
        """The newest row of a request that names the partition."""
        self.last_sent: tuple[int, int, int] | None = None
        """(high watermark, last stable offset, log start) of the last response. None before the
        first one.
        """


CachedPartitions = dict[tuple[TopicKey, int], CachedPartition]
"""In the order in which a request first names them. If it names one several times, the last row
counts.
"""


class FetchSession:
    """The session of one client."""

    __slots__ = ("bytes", "epoch", "id", "last_used", "partitions", "uses_topic_ids")

    def __init__(self, id: int, uses_topic_ids: bool, now: float) -> None:
        self.id = id
        self.bytes = 0
        """Memory of its partitions."""
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        """The epoch that its next request must carry."""
        self.partitions: CachedPartitions = {}
        """In the order in which they are served: a partition that got bytes moves to the end."""
        self.last_used = now

    def served(self, cached: CachedPartition) -> None:
        """The response has bytes of this partition: the next response begins with others."""
        key = (cached.topic, cached.partition)
        if self.partitions.pop(key, None) is not None:
            self.partitions[key] = cached


class FetchSessions:
    """The sessions of all clients of a node."""

    def __init__(self, below: Callable[[int], int], sessions_max: int = FETCH_SESSIONS_MAX) -> None:
        """`below(n)` draws an int in [0, n): clients must not be able to guess session ids."""
        self._below = below
        self._max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.bytes = 0
        """Memory of the partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        named: CachedPartitions,
        forgotten: Iterable[tuple[TopicKey, int]],
        *,
        uses_topic_ids: bool,
        now: float,
    ) -> tuple[FetchSession | None, list[CachedPartition], bool]:
        """The session of a fetch that names and forgets these partitions, all partitions that it
        wants, and whether the response may omit unchanged partitions.

        Raises MqError with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self._drop(session_id)
            session = (
                self._create(named, uses_topic_ids, now)
                if epoch == INITIAL_EPOCH and named
                else None
            )
            return session, list(named.values()), False
        session = self._sessions.get(session_id)
        if session is None:
            raise MqError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"no fetch session {session_id}: start a new one with epoch 0",
            )
        if session.epoch != epoch:
            raise MqError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise MqError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "a fetch session names its topics either by name or by id",
            )
        session.epoch = epoch + 1 if epoch < 0x7FFFFFFF else 1
        session.last_used = now
        self._sessions.move_to_end(session_id)
        if not _fits(named):
            self._drop(session_id)
            raise _too_many()
        before = session.bytes
        for key, requested in named.items():
            cached = session.partitions.get(key)
            if cached is not None:
                requested.topic = cached.topic
                requested.last_sent = cached.last_sent
            else:
                session.bytes += _bytes_of(requested.topic)
            session.partitions[key] = requested
        for key in forgotten:
            if session.partitions.pop(key, None) is not None:
                session.bytes -= _bytes_of(key[0])
        self.bytes += session.bytes - before
        if (
            len(session.partitions) > FETCH_SESSION_PARTITIONS_MAX
            or self.bytes > FETCH_SESSIONS_BYTES_MAX
        ):
            self._drop(session_id)
            raise _too_many()
        return session, list(session.partitions.values()), True

    def end(self, session: FetchSession) -> None:
        """End a session: the next fetch of its client must name all partitions."""
        if self._sessions.get(session.id) is session:
            self._drop(session.id)

    def _create(
        self, named: CachedPartitions, uses_topic_ids: bool, now: float
    ) -> FetchSession | None:
        if len(self._sessions) >= self._max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < EVICTION_SECONDS:
                return None
            self._drop(oldest.id)
        if not _fits(named):
            return None
        size = sum(_bytes_of(topic) for topic, _ in named)
        if self.bytes + size > FETCH_SESSIONS_BYTES_MAX:
            return None
        while (session_id := 1 + self._below(0x7FFFFFFF - 1)) in self._sessions:
            pass
        session = FetchSession(session_id, uses_topic_ids, now)
        session.partitions, session.bytes = named, size
        self._sessions[session_id] = session
        self.bytes += size
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.bytes -= session.bytes


def _bytes_of(topic: TopicKey) -> int:
    """Memory of one partition in a session."""
    return FETCH_SESSION_PARTITION_BYTES + len(topic)


def _fits(named: CachedPartitions) -> bool:
    """Whether a session may hold these partitions. No topic has a longer name: a fetch with one
    has no session, and its response reports an unknown topic.
    """
    return len(named) <= FETCH_SESSION_PARTITIONS_MAX and all(
        len(topic) <= TOPIC_NAME_CHARS_MAX for topic, _ in named
    )


def _too_many() -> MqError:
    return MqError(
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        "too many partitions for a fetch session, or a topic name is too long: fetch without a "
        "session",
    )


class PartitionWatch(CachedPartition):
    """One partition of a follower's session, to which the partition reports its changes."""

    __slots__ = ("session", "watched")

    def __init__(
        self, topic: TopicKey, requested: FetchPartition, session: FollowerSession
    ) -> None:
        super().__init__(topic, requested)
        self.session = session
        self.watched: WatchedPartition | None = None
        """The partition that reports its changes here. None while this node does not have it."""

    def watch(self, partition: WatchedPartition) -> None:
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
            partition.watches[self] = None

    def unwatch(self) -> None:
        if self.watched is not None:
            self.watched.watches.pop(self, None)
            self.watched = None

    def note(self) -> FollowerSession:
        """Something changed here: records, the high watermark, the log start, or the leader.

        Returns the session, so that the caller can wake it.
        """
        self.session.news[self] = None
        return self.session


class WatchedPartition(Protocol):
    """A partition, as a session uses it."""

    watches: dict[PartitionWatch, None]


class FollowerSession:
    """The partitions that one node follows here.

    With the `id` NO_SESSION, it lives only as long as one fetch.
    """

    __slots__ = (
        "broker_epoch",
        "epoch",
        "id",
        "last_used",
        "news",
        "node_id",
        "open",
        "partitions",
        "waiter",
    )

    def __init__(self, id: int, node_id: int, broker_epoch: int, now: float) -> None:
        self.id = id
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        """The registration under which the follower named the partitions."""
        self.epoch = 1
        """The epoch that its next request must carry."""
        self.last_used = now
        self.partitions: dict[tuple[TopicKey, int], PartitionWatch] = {}
        self.news: dict[PartitionWatch, None] = {}
        """The partitions that the next response considers, in the order in which they reported
        changes. A partition that got bytes moves to the end, because the follower names it again.
        """
        self.waiter: FetchWaiter | None = None
        """The fetch that is parked or being planned."""
        self.open = True
        """False if a newer session replaced it, or if its node must name all partitions again."""

    def update(self, topic: TopicKey, requested: FetchPartition) -> PartitionWatch:
        """The follower names a partition: it is new, or its position has moved."""
        key = (topic, requested.partition)
        watch = self.partitions.get(key)
        if watch is None:
            watch = self.partitions[key] = PartitionWatch(topic, requested, self)
        else:
            watch.requested = requested
            self.news.pop(watch, None)
        self.news[watch] = None
        return watch

    def forget(self, topic: TopicKey, partition: int) -> None:
        watch = self.partitions.pop((topic, partition), None)
        if watch is not None:
            self.news.pop(watch, None)
            watch.unwatch()

    def wake(self) -> None:
        """Send the response to the parked fetch, if there is one."""
        if self.waiter is not None:
            self.waiter.bytes_wanted = 0
            self.waiter.free()

    def close(self) -> None:
        self.open = False
        for watch in self.partitions.values():
            watch.unwatch()
        self.partitions.clear()
        self.news.clear()


class FollowerSessions:
    """The sessions of all followers: one for each node, so none is ever evicted."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below
        self._sessions: dict[int, FollowerSession] = {}

    def resolve(
        self, node_id: int, broker_epoch: int, session_id: int, epoch: int, now: float
    ) -> FollowerSession:
        """The session of a fetch. The initial fetch of a session replaces the node's earlier
        session. A fetch without a session leaves none.

        A session ends with the registration of its node (I24). Fetches of an earlier broker epoch
        do not count under the next one, and an idle partition would never be named again (KIP-903).

        Raises MqError with FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
        """
        session = self._sessions.get(node_id)
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None and (epoch == INITIAL_EPOCH or session.id == session_id):
                del self._sessions[node_id]
                session.close()
            if epoch == FINAL_EPOCH:
                return FollowerSession(NO_SESSION, node_id, broker_epoch, now)
            session = FollowerSession(1 + self._below(0x7FFFFFFF - 1), node_id, broker_epoch, now)
            self._sessions[node_id] = session
            return session
        if session is None or session.id != session_id or session.broker_epoch != broker_epoch:
            raise MqError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"no fetch session {session_id}: start a new one with epoch 0",
            )
        if session.epoch != epoch:
            raise MqError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        session.epoch = epoch + 1 if epoch < 0x7FFFFFFF else 1
        session.last_used = now
        return session

    def drop(self, node_id: int) -> None:
        """Drop a follower's session, so that its next fetch must name all partitions again."""
        session = self._sessions.pop(node_id, None)
        if session is not None:
            session.close()
            session.wake()
