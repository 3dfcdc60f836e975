"""Share sessions (KIP-932): the partitions that a member of a share group fetches from this node,
and the epoch of its next request. Pure.

A session ends when its member closes it, when its connection ends, or when the member opens another
one: then the member still has its records, as in Apache Kafka. A session is not stored: after a
restart of the node the member gets SHARE_SESSION_NOT_FOUND and opens another.

The sessions of a connection, of an address and of the node are bounded, and the memory of all.
Loopback addresses have no bound of their own, because all clients of the machine share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    COORDINATOR_KEY_BYTES_MAX,
    SHARE_SESSION_BYTES,
    SHARE_SESSION_PARTITION_BYTES,
    SHARE_SESSION_PARTITIONS_MAX,
    SHARE_SESSIONS_BYTES_MAX,
    SHARE_SESSIONS_PER_CONNECTION_MAX,
)
from mqd.peers import is_loopback
from mqd.protocol.schema import INT32_MAX

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_ADDRESS_PART: Final = 2
"""An address has at most this part of all sessions."""


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
    is_open: bool = True
    wake: Callable[[], None] = lambda: None
    """Ends the wait of its fetch."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        ids = len(self.key.group_id) + len(self.key.member_id)
        return SHARE_SESSION_BYTES + ids + SHARE_SESSION_PARTITION_BYTES * len(self.places)

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
        self._of_addresses: Counter[str] = Counter()
        self.bytes = 0
        """Memory of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, peer: str) -> ShareSession:
        """A new session, in place of the member's former one. Raises MqError INVALID_REQUEST if an
        id is too long, SHARE_SESSION_LIMIT_REACHED."""
        self.end(key)
        for name, value in zip(("group", "member"), key):
            if len(value.encode()) > COORDINATOR_KEY_BYTES_MAX:
                raise MqError(
                    ErrorCode.INVALID_REQUEST,
                    f"The id of a {name} has at most {COORDINATOR_KEY_BYTES_MAX} bytes.",
                )
        session = ShareSession(key, peer)
        address = _address(peer)
        if len(self._sessions) >= self._sessions_max:
            raise _limit_reached("The node has group.share.max.share.sessions share sessions.")
        if len(self._by_peer.get(peer, ())) >= SHARE_SESSIONS_PER_CONNECTION_MAX:
            raise _limit_reached(
                f"A connection has at most {SHARE_SESSIONS_PER_CONNECTION_MAX} share sessions."
            )
        most = max(1, self._sessions_max // _ADDRESS_PART)
        if self._of_addresses[address] >= most and not is_loopback(address):
            raise _limit_reached(
                f"The address {address} has 1/{_ADDRESS_PART} of group.share.max.share.sessions."
            )
        if self.bytes + session.size > SHARE_SESSIONS_BYTES_MAX:
            raise _limit_reached(_NO_MEMORY)
        self._sessions[key] = session
        self.bytes += session.size
        self._by_peer.setdefault(peer, {})[key] = None
        self._of_groups[key.group_id] += 1
        self._of_addresses[address] += 1
        return session

    def add(self, session: ShareSession, place: Place) -> None:
        """The member fetches this partition, too. Raises MqError SHARE_SESSION_LIMIT_REACHED."""
        if place in session.places or not session.is_open:
            return
        if len(session.places) >= SHARE_SESSION_PARTITIONS_MAX:
            raise _limit_reached(
                f"A share session has at most {SHARE_SESSION_PARTITIONS_MAX} partitions."
            )
        if self.bytes + SHARE_SESSION_PARTITION_BYTES > SHARE_SESSIONS_BYTES_MAX:
            raise _limit_reached(_NO_MEMORY)
        session.places[place] = None
        self.bytes += SHARE_SESSION_PARTITION_BYTES

    def remove(self, session: ShareSession, place: Place) -> None:
        """The member no longer fetches this partition."""
        if place in session.places and session.is_open:
            del session.places[place]
            self.bytes -= SHARE_SESSION_PARTITION_BYTES

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
            address = _address(session.peer)
            self._of_addresses[address] -= 1
            if not self._of_addresses[address]:
                del self._of_addresses[address]
            self.bytes -= session.size
            session.is_open = False
            session.wake()
        return session

    def end_of_peer(self, peer: str) -> list[ShareSession]:
        """Remove the sessions of a connection that has ended."""
        keys: Iterable[SessionKey] = list(self._by_peer.get(peer, ()))
        return [session for key in keys if (session := self.end(key)) is not None]


_NO_MEMORY: Final = "The share sessions of the node use all of their memory."


def _limit_reached(message: str) -> MqError:
    return MqError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]
