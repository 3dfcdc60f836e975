"""The interface of the quorum: the state machine that it drives, its status, and its exceptions.

Nothing here runs. `RaftService` (service.py) applies committed commands to a `Machine`; those who
propose commands get an index back, or one of the two exceptions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from mqd.raft.snapshots import Work


class Machine(Protocol):
    """The replicated state. Every node applies the same commands at the same indexes, so `apply`
    must be total and deterministic: a command that cannot be obeyed is a result, not an exception.
    An exception stops the node.
    """

    def apply(self, index: int, command: bytes) -> None:
        """Command `index` is committed, and durable on this node. Called once an index, in order,
        without gaps in time but with gaps in number (the quorum's own no-ops take indexes).
        """
        ...

    def snapshot(self) -> Iterator[bytes]:
        """The whole state after the last applied command, in the machine's own format, in pieces.

        The content is that of the time of this call, whatever is applied later. Another thread may
        make the pieces, each in some milliseconds.
        """
        ...

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        """Read the joined pieces of a `snapshot`, taken here or on another node. Must not refuse
        its size.

        Another thread may make the steps. No command is applied before the last one, nor before the
        call that they return, which replaces the whole state on the event loop.
        """
        ...


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another node as the leader sees it.

    Known to the leader only: match_index is 0 elsewhere, and the times are -inf.
    """

    node_id: int
    voter: bool
    match_index: int
    """Its log is known to equal the leader's up to here."""
    last_replied_at: float
    """Monotonic seconds of its last reply in this term; -inf when there was none."""
    caught_up_at: float
    """Monotonic seconds at which it last held everything that the leader had then
    (KIP-836); -inf when it never did.
    """


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """One node's view of the quorum.

    Indexes count from 1; index 1 is the empty beginning of every log.
    """

    role: Role
    ready: bool
    """Leader, and everything that earlier leaders committed is applied here: it may decide
    and propose.
    """
    term: int
    leader_id: int | None
    """Last known leader, which may be this node; None during an election."""
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    snapshot_index: int
    voters: tuple[int, ...]
    connected: tuple[int, ...]
    """Other voters to which this node has an open connection."""
    observers: tuple[int, ...] = ()
    """Nodes that follow the log and are never counted."""
    majority_replied_at: float = -inf
    """Monotonic seconds at which a majority of the voters, this one included, had last replied to
    this node as their leader; -inf where it does not lead. A quorum of one: always now."""
    led_at: float = -inf
    """Monotonic seconds at which no other node can have led (leader_lease.py); -inf where this node
    does not lead. A quorum of one: now."""
    peers: tuple[PeerStatus, ...] = ()
    """All other nodes, voters and observers, by id."""
    not_voting_reason: str | None = None
    """For the operator: why this voter does not vote yet, and what it waits for; None for one that
    does, and for observers.
    """


class NotLeader(Exception):
    """The command was not accepted and never will be: safe to try at `leader_id` (None when
    unknown).
    """

    def __init__(self, leader_id: int | None) -> None:
        super().__init__(
            "not the leader of the quorum (leader: "
            f"{leader_id if leader_id is not None else 'unknown'})"
        )
        self.leader_id = leader_id


class OutcomeUnknown(Exception):
    """The command may have been applied, or may yet be: leadership changed, or the deadline
    passed, while it waited.
    """
