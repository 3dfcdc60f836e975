"""Share sessions (KIP-932): the partitions that a member of a share group fetches from this node,
and the epoch of its next request. Pure.

A session ends when its member closes it, when its connection ends, or when the member opens another
one. It is not stored: after a restart of the node the member gets SHARE_SESSION_NOT_FOUND and opens
another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.protocol.schema import INT32_MAX

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1


class Place(NamedTuple):
    """A partition, as requests name it."""

    topic_id: UUID
    partition: int


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True)
class ShareSession:
    key: SessionKey
    peer: str
    """The address and port of the client's connection."""
    epoch: int = 1
    """The epoch of the next request."""
    places: dict[Place, None] = field(default_factory=dict)
    """In the order in which they are fetched. A partition with records goes to the end."""

    def served(self, place: Place) -> None:
        """Fetch from the others first, the next time."""
        if place in self.places:
            del self.places[place]
            self.places[place] = None


class ShareSessions:
    """The share sessions of one node."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_peer: dict[str, dict[SessionKey, None]] = {}
        self._of_groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, peer: str) -> ShareSession:
        """A new session, in place of the member's former one. Raises MqError
        SHARE_SESSION_LIMIT_REACHED."""
        self.end(key)
        if len(self._sessions) >= self._sessions_max:
            raise MqError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[key] = ShareSession(key, peer)
        self._by_peer.setdefault(peer, {})[key] = None
        self._of_groups[key.group_id] += 1
        return session

    def has_group(self, group_id: str) -> bool:
        """Whether any member of the group has a session."""
        return group_id in self._of_groups

    def use(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of the request with this epoch. The next request must have the next epoch.

        Raises MqError SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get(key)
        if session is None:
            raise MqError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise MqError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        return session

    def end(self, key: SessionKey) -> ShareSession | None:
        """Remove the session, if there is one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            of_peer = self._by_peer[session.peer]
            del of_peer[key]
            if not of_peer:
                del self._by_peer[session.peer]
            self._of_groups[key.group_id] -= 1
            if not self._of_groups[key.group_id]:
                del self._of_groups[key.group_id]
        return session

    def end_of_peer(self, peer: str) -> list[ShareSession]:
        """Remove the sessions of a connection that has ended."""
        keys: Iterable[SessionKey] = list(self._by_peer.get(peer, ()))
        return [session for key in keys if (session := self.end(key)) is not None]
