"""Incremental fetch sessions (KIP-227): what a client fetches, remembered, so that it need not say it every time.

Pure. A session belongs to one client, whose requests carry increasing epochs; the answer to an incremental fetch
names only partitions that have news. Sessions are bounded; the one longest unused gives way once it has been idle
for two minutes, and until then newcomers fetch without a session, which is always right and only costs bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from mqd.errors import ErrorCode, MqError
from mqd.limits import FETCH_SESSION_PARTITIONS_MAX, FETCH_SESSIONS_MAX, FETCH_SESSIONS_PARTITIONS_MAX
from mqd.protocol.hot import FetchPartition

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
        """(high watermark, last stable offset, log start) of the last answer; None before the first."""


class Session:
    """One client's memory."""

    __slots__ = ("epoch", "id", "last_used", "uses_topic_ids", "wanted")

    def __init__(self, id: int, uses_topic_ids: bool, now: float) -> None:
        self.id = id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        """The epoch that its next request must carry."""
        self.wanted: dict[tuple[TopicKey, int], Wanted] = {}
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
        wanted: Iterable[Wanted],
        forgotten: Iterable[tuple[TopicKey, int]],
        *,
        uses_topic_ids: bool,
        now: float,
    ) -> tuple[Session | None, list[Wanted], bool]:
        """Who is asking, for which partitions, and whether the answer may leave out those without news.

        Raises MqError with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self._drop(session_id)
            asked = list(wanted)
            session = self._create(asked, uses_topic_ids, now) if epoch == INITIAL_EPOCH and asked else None
            return session, asked, False
        session = self._sessions.get(session_id)
        if session is None:
            raise MqError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}: start a new one with epoch 0")
        if session.epoch != epoch:
            raise MqError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"session {session_id} expects epoch {session.epoch}, not {epoch}")
        if session.uses_topic_ids != uses_topic_ids:
            raise MqError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a session names its topics by name or by id, not by both")
        session.epoch = epoch + 1 if epoch < 0x7FFFFFFF else 1
        session.last_used = now
        self._sessions.move_to_end(session_id)
        before = len(session.wanted)
        for fresh in wanted:
            key = (fresh.topic, fresh.partition)
            known = session.wanted.get(key)
            if known is not None:
                fresh.told = known.told
            session.wanted[key] = fresh
        for key in forgotten:
            session.wanted.pop(key, None)
        self._partitions += len(session.wanted) - before
        if len(session.wanted) > FETCH_SESSION_PARTITIONS_MAX or self._partitions > FETCH_SESSIONS_PARTITIONS_MAX:
            self._drop(session_id)
            raise MqError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions for a session: fetch without one")
        return session, list(session.wanted.values()), True

    def _create(self, wanted: list[Wanted], uses_topic_ids: bool, now: float) -> Session | None:
        if len(self._sessions) >= self._max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < EVICTION_SECONDS:
                return None
            self._drop(oldest.id)
        if len(wanted) > FETCH_SESSION_PARTITIONS_MAX or self._partitions + len(wanted) > FETCH_SESSIONS_PARTITIONS_MAX:
            return None
        while (session_id := 1 + self._below(0x7FFFFFFF - 1)) in self._sessions:
            pass
        session = Session(session_id, uses_topic_ids, now)
        session.wanted = {(one.topic, one.partition): one for one in wanted}
        self._sessions[session_id] = session
        self._partitions += len(session.wanted)
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.wanted)
