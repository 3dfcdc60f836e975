"""Incremental fetch sessions (KIP-227): what a client fetches, remembered, so that it need not say
it every time.

Pure. A session belongs to one client, whose requests carry increasing epochs; the answer to an
incremental fetch names only partitions that have news. Sessions are bounded; the one longest unused
gives way once it has been idle for two minutes, and until then newcomers fetch without a session,
which is always right and only costs bytes.

Followers have sessions of their own, one a node: they hold every partition that the node follows
here, of which few have news at a time. So partitions tell the session when something is new
(`Followed.note`), and a fetch looks at those alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSIONS_MAX,
    FETCH_SESSIONS_PARTITIONS_MAX,
)
from mqd.protocol.hot_fetch import FetchPartition
from mqd.replica.waiters import FetchWaiter

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EVICTION_SECONDS = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""

TopicKey = bytes
"""A topic's name in UTF-8, or its id as 16 bytes: whichever the request's version uses."""


class Wanted:
    """One partition that a fetch asks for, and what its asker was last told of it."""

    __slots__ = ("asked", "partition", "told", "topic")

    def __init__(self, topic: TopicKey, asked: FetchPartition) -> None:
        self.topic = topic
        self.partition = asked.partition
        self.asked = asked
        self.told: tuple[int, int, int] | None = None
        """(high watermark, last stable offset, log start) of the last answer; None before
        the first.
        """


WantedPartitions = dict[tuple[TopicKey, int], Wanted]
"""In the order in which a request names them first; of several rows for one partition the
last counts.
"""


class Session:
    """One client's memory."""

    __slots__ = ("epoch", "id", "last_used", "uses_topic_ids", "wanted")

    def __init__(self, id: int, uses_topic_ids: bool, now: float) -> None:
        self.id = id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        """The epoch that its next request must carry."""
        self.wanted: WantedPartitions = {}
        """In the order in which partitions are served: who got bytes goes to the end."""
        self.last_used = now

    def served(self, wanted: Wanted) -> None:
        """This partition got bytes: others come first the next time."""
        key = (wanted.topic, wanted.partition)
        if self.wanted.pop(key, None) is not None:
            self.wanted[key] = wanted


class FetchSessions:
    """All sessions of a node."""

    def __init__(self, below: Callable[[int], int], sessions_max: int = FETCH_SESSIONS_MAX) -> None:
        """`below(n)` draws an int in [0, n): session ids must not be guessable by counting."""
        self._below = below
        self._max = sessions_max
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._partitions = 0
        """Over all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        wanted: WantedPartitions,
        forgotten: Iterable[tuple[TopicKey, int]],
        *,
        uses_topic_ids: bool,
        now: float,
    ) -> tuple[Session | None, list[Wanted], bool]:
        """Who is asking, for which partitions, and whether the answer may leave out those without
        news.

        Raises MqError with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self._drop(session_id)
            session = (
                self._create(wanted, uses_topic_ids, now)
                if epoch == INITIAL_EPOCH and wanted
                else None
            )
            return session, list(wanted.values()), False
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
                "a session names its topics by name or by id, not by both",
            )
        session.epoch = epoch + 1 if epoch < 0x7FFFFFFF else 1
        session.last_used = now
        self._sessions.move_to_end(session_id)
        before = len(session.wanted)
        if len(wanted) > FETCH_SESSION_PARTITIONS_MAX:
            self._drop(session_id)
            raise _too_many()
        for key, fresh in wanted.items():
            known = session.wanted.get(key)
            if known is not None:
                fresh.told = known.told
            session.wanted[key] = fresh
        for key in forgotten:
            session.wanted.pop(key, None)
        self._partitions += len(session.wanted) - before
        if (
            len(session.wanted) > FETCH_SESSION_PARTITIONS_MAX
            or self._partitions > FETCH_SESSIONS_PARTITIONS_MAX
        ):
            self._drop(session_id)
            raise _too_many()
        return session, list(session.wanted.values()), True

    def end(self, session: Session) -> None:
        """The next fetch of this client names all its partitions."""
        if self._sessions.get(session.id) is session:
            self._drop(session.id)

    def _create(self, wanted: WantedPartitions, uses_topic_ids: bool, now: float) -> Session | None:
        if len(self._sessions) >= self._max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < EVICTION_SECONDS:
                return None
            self._drop(oldest.id)
        if (
            len(wanted) > FETCH_SESSION_PARTITIONS_MAX
            or self._partitions + len(wanted) > FETCH_SESSIONS_PARTITIONS_MAX
        ):
            return None
        while (session_id := 1 + self._below(0x7FFFFFFF - 1)) in self._sessions:
            pass
        session = Session(session_id, uses_topic_ids, now)
        session.wanted = wanted
        self._sessions[session_id] = session
        self._partitions += len(session.wanted)
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.wanted)


def _too_many() -> MqError:
    return MqError(
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions for a session: fetch without one"
    )


class Followed(Wanted):
    """One partition of a follower's session."""

    __slots__ = ("held", "session")

    def __init__(self, topic: TopicKey, asked: FetchPartition, session: FollowerSession) -> None:
        super().__init__(topic, asked)
        self.session = session
        self.held: Watched | None = None
        """The partition that tells of its news; None while it is not here."""

    def watch(self, partition: Watched) -> None:
        if self.held is not partition:
            self.unwatch()
            self.held = partition
            partition.watches[self] = None

    def unwatch(self) -> None:
        if self.held is not None:
            self.held.watches.pop(self, None)
            self.held = None

    def note(self) -> FollowerSession:
        self.session.news[self] = None
        return self.session


class Watched(Protocol):
    """A partition, as a session sees it."""

    watches: dict[Any, None]


class FollowerSession:
    """What one node follows here.

    `id` is NO_SESSION for a fetch without a session, which lives as long as that.
    """

    __slots__ = (
        "broker_epoch",
        "epoch",
        "id",
        "last_used",
        "news",
        "node_id",
        "open",
        "waiter",
        "wanted",
    )

    def __init__(self, id: int, node_id: int, broker_epoch: int, now: float) -> None:
        self.id = id
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        """Of the registration under which all of it was named."""
        self.epoch = 1
        """The epoch that its next request must carry."""
        self.last_used = now
        self.wanted: dict[tuple[TopicKey, int], Followed] = {}
        self.news: dict[Followed, None] = {}
        """What to look at when it is answered, in the order in which it was told; who gets
        bytes comes to the end by asking again.
        """
        self.waiter: FetchWaiter | None = None
        self.open = True
        """False once another session took its place, or its node must name anew what it has."""

    def ask(self, topic: TopicKey, asked: FetchPartition) -> Followed:
        """The follower names a partition: it is new, or the follower has moved on in it."""
        key = (topic, asked.partition)
        followed = self.wanted.get(key)
        if followed is None:
            followed = self.wanted[key] = Followed(topic, asked, self)
        else:
            followed.asked = asked
            self.news.pop(followed, None)
        self.news[followed] = None
        return followed

    def forget(self, topic: TopicKey, partition: int) -> None:
        followed = self.wanted.pop((topic, partition), None)
        if followed is not None:
            self.news.pop(followed, None)
            followed.unwatch()

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter.bytes_wanted = 0
            self.waiter.free()

    def close(self) -> None:
        self.open = False
        for followed in self.wanted.values():
            followed.unwatch()
        self.wanted.clear()
        self.news.clear()


class FollowerSessions:
    """The sessions of all followers: one a node, so there is nothing to evict."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below
        self._sessions: dict[int, FollowerSession] = {}

    def resolve(
        self, node_id: int, broker_epoch: int, session_id: int, epoch: int, now: float
    ) -> FollowerSession:
        """The session of a fetch. A first fetch replaces the session that its node had; one without
        a session leaves none.

        A session ends with the registration of its node: what was named under an earlier broker
        epoch counts for nothing under the next one, and partitions where nothing happens would
        never be named again (KIP-903).

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
        """Have a follower say anew what it has: its next fetch finds no session."""
        session = self._sessions.pop(node_id, None)
        if session is not None:
            session.close()
            session.wake()
