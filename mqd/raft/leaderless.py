"""Whether a node has no leader, and which voters it does not reach: for log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from mqd.raft.machine import RaftStatus

NO_LEADER_YET = "no leader is elected yet"
"""The reason if all voters are reachable."""


class Link(Protocol):
    """The outbound connection to a peer, with the attributes that this report uses."""

    host: str
    port: int
    unreachable: str
    received_at: float


def is_leaderless(node_id: int, voters: frozenset[int], status: RaftStatus) -> bool:
    """Whether no leader is known, or the known one cannot be reached: PySyncObj keeps its leader
    while it receives from no node.
    """
    if status.leader_id == node_id:
        return (1 + len(status.connected)) * 2 <= len(voters)
    return status.leader_id not in status.connected


class MissingVoters(NamedTuple):
    voters: int
    reachable: int
    reason: str
    """Why the others are not reachable, and why this node does not vote if it does not."""


def find_missing_voters(
    node_id: int,
    voters: frozenset[int],
    status: RaftStatus,
    links: Mapping[int, Link],
    *,
    since: float,
    now: float,
    silence: float,
) -> MissingVoters:
    """For a log line. `since`: when the leader was lost. `silence`: the longest
    election timeout.

    An open connection does not prove that the process runs: the system keeps it open for a
    suspended process. But a voter without a leader sends something to the other voters in every
    election timeout. To observers it sends nothing.
    """
    votes = node_id in voters
    reasons = []
    for peer in sorted(voters - {node_id}):
        link = links.get(peer)
        if link is None:
            reasons.append(f"node {peer} is a voter by the log and not by the peers file")
            continue
        name = f"node {peer} at {link.host}:{link.port}"
        silent = now - max(since, link.received_at)
        if peer not in status.connected:
            reasons.append(f"no response from {name} ({link.unreachable})")
        elif votes and silent > silence:
            why = "its process hangs, or it follows a leader"
            reasons.append(f"{name} is connected but silent for {silent:.0f} s ({why})")
    reachable = len(voters) - len(reasons)
    if status.not_voting_reason is not None:
        reasons.append(status.not_voting_reason)
    return MissingVoters(len(voters), reachable, ", ".join(reasons) or NO_LEADER_YET)
