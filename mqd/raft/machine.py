"""The interface of the quorum: the state machine that it drives, its status, and its exceptions.

`RaftService` (service.py) applies committed commands to a `Machine`. A proposer gets an index, or
one of the two exceptions below.
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
    must be total and deterministic. An invalid command gives a result, not an exception. An
    exception stops the node.
    """

    def apply(self, index: int, command: bytes) -> int:
        """Command `index` is committed, and durable on this node. Called once for each index, in
        order. Indexes have gaps, because the quorum's no-ops use some.

        Returns the number of rows that it changed, at least 1: a turn ends after
        RAFT_ROWS_PER_TURN.
        """
        ...

    def snapshot(self) -> Iterator[bytes]:
        """The whole state after the last applied command, in the machine's own format, in pieces.

        The content is the state at the time of this call, even if more commands are applied.
        Another thread may create the pieces, each in a few milliseconds.
        """
        ...

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        """Read the joined pieces of a `snapshot` from any node. Must accept any size.

        Another thread may run the steps. They return a call that replaces the whole state, on the
        event loop. No command is applied before that call.
        """
        ...


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another node, as the leader knows it. On other nodes match_index is 0, and the times are
    -inf.
    """

    node_id: int
    voter: bool
    match_index: int
    """The peer's log is known to equal the leader's up to this index."""
    last_replied_at: float
    """Monotonic time of its last reply in this term; -inf if there was none."""
    caught_up_at: float
    """Monotonic time at which it last had all entries of the leader (KIP-836); -inf if it never
    had.
    """


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """One node's view of the quorum.

    Indexes count from 1; index 1 is the empty beginning of every log.
    """

    role: Role
    ready: bool
    """Whether this node is the leader and has applied all that earlier leaders committed, so that
    it may decide and propose.
    """
    term: int
    leader_id: int | None
    """The last known leader, which may be this node; None during an election."""
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    snapshot_index: int
    voters: tuple[int, ...]
    connected: tuple[int, ...]
    """Other voters with an open connection from this node."""
    observers: tuple[int, ...] = ()
    """Nodes that follow the log, and count for no majority."""
    majority_replied_at: float = -inf
    """Monotonic time at which a majority of the voters, including this node, had last replied to
    this node as their leader. If it does not lead: -inf. In a quorum of one: the current time.
    """
    led_at: float = -inf
    """Latest monotonic time at which no other node can have led (leader_lease.py). If this node
    does not lead: -inf. In a quorum of one: the current time.
    """
    peers: tuple[PeerStatus, ...] = ()
    """All other nodes, voters and observers, by id."""
    not_voting_reason: str | None = None
    """Why this voter does not vote yet, and what it waits for. None for a voter that votes, and for
    observers.
    """


class NotLeader(Exception):
    """The command was not accepted and never will be: it is safe to retry at `leader_id` (None if
    unknown).
    """

    def __init__(self, leader_id: int | None) -> None:
        super().__init__(
            "not the leader of the quorum (leader: "
            f"{leader_id if leader_id is not None else 'unknown'})"
        )
        self.leader_id = leader_id


class OutcomeUnknown(Exception):
    """The command may have been applied, or may be applied later: leadership changed, or the
    deadline passed, before the result.
    """
