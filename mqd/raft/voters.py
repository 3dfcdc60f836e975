"""Which nodes are the voters, and when that may change: single-server membership change (Ongaro's
dissertation, 4.1). Pure.

The current voter set is in the log, not in the peers file. A configuration entry contains an epoch
and all voters. A node uses the latest one in its log from its append on, committed or not. If the
entry is truncated, it uses the previous one. Snapshots contain the set, too. The peers file is the
operator's goal. The leader changes the set towards it, by one voter at a time:

    file of most nodes: {1, 2, 3, 4}      log: epoch 1 {1, 2, 3}      ->  the leader appends epoch 2
                                          {1, 2, 3, 4}

Safety: if two sets differ by one voter, any majority of one set and any majority of the other have
a node in common. So the leader appends a set only if (`next_set`)
- the previous set is committed, and so is an entry of the leader's own term. Then the later of two
  leaders knows the last set that the earlier one may have committed (Ongaro's correction of 2015);
- it differs from the previous set by one voter. A node whose peers file differs more, or is
  outdated, does no harm: its votes count by the log. The same is true for a node that missed
  several changes.

The other conditions of `next_set` keep the cluster available, and are not needed for safety. A
majority of the old set and one of the new set run with the same file. So the next leader does not
revert a change in the middle of a rolling restart. A new voter has the leader's log. A leader does
not remove itself: it first transfers its leadership.

Before the first configuration entry the epoch is 0. Its set is that of the peers file when the
voter first replied to another node, and it is durable before that reply is sent. The cluster forms
only if all voters of the file have connected with the same file (elections.py). The first leader
then appends epoch 1 with that set. So a change of the file between forming and epoch 1 has no
effect.

If a majority of the voters is permanently lost, no node can change the set. `mqd force-voters`, run
on every remaining voter while all nodes are stopped, puts the set of the peers file in force
(`Forced`). Data that only lost voters had is lost. The operator must ensure that no lost voter
returns with its disk: it could form a majority with nodes that were not forced.

Nodes compare their files in the handshake (`disagreement`). It rejects differences that only a
mistake can cause, before they reduce availability:
- files that differ by more than one voter;
- different files before epoch 1;
- a voter in the other node's file that its own file does not name as a voter;
- a voter in the log whose own log is empty, and whose file does not name it as a voter. It would
  acknowledge entries without the rules of voter_recovery.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mqd.errors import ProtocolError

CONFIGURATION = b"\x02"
"""First byte of a configuration entry; a COMMAND and a NO_OP have others (codec.py)."""

VOTERS_MAX = 50
"""Maximum size of a voter set: three sets fit the frames of a handshake."""

_HEAD = struct.Struct(">IH")


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters. `epoch`: number of the configuration entry, from 1; 0 before the first one."""

    epoch: int
    voters: frozenset[int]

    def __str__(self) -> str:
        return f"{sorted(self.voters)} (epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Forced:
    """A set that an operator put in force, until the log has one of a later term than `term`, the
    node's own at that time.
    """

    voter_set: VoterSet
    term: int


@dataclass(frozen=True, slots=True)
class VoterView:
    """The voters as one node knows them, and sends them in a handshake."""

    configured: frozenset[int]
    """The voters in its peers file."""
    current: VoterSet
    """The current voter set in its log."""
    committed: VoterSet
    """The latest voter set that it knows to be committed."""
    intact: bool
    """Whether it has lost no vote and no acknowledgement (voter_recovery.py)."""


def encode_set(voter_set: VoterSet) -> bytes:
    """uint32 epoch, uint16 count, int32 node ids in order."""
    ids = sorted(voter_set.voters)
    return _HEAD.pack(voter_set.epoch, len(ids)) + struct.pack(f">{len(ids)}i", *ids)


def decode_set(data: bytes, position: int = 0) -> tuple[VoterSet, int]:
    """The set, and its end position. Raises ProtocolError."""
    try:
        epoch, count = _HEAD.unpack_from(data, position)
        if not 1 <= count <= VOTERS_MAX:
            raise ProtocolError(f"A voter set of {count} nodes (allowed: 1 to {VOTERS_MAX}).")
        ids = struct.unpack_from(f">{count}i", data, position + _HEAD.size)
    except struct.error as error:
        raise ProtocolError("A voter set is cut short.") from error
    if list(ids) != sorted(set(ids)) or ids[0] < 0:
        raise ProtocolError("A voter set names a node twice, or out of order.")
    return VoterSet(epoch, frozenset(ids)), position + _HEAD.size + 4 * count


def encode_entry(voter_set: VoterSet) -> bytes:
    return CONFIGURATION + encode_set(voter_set)


def decode_entry(command: bytes) -> VoterSet:
    """Raises ProtocolError for anything but one configuration entry of an epoch from 1."""
    voter_set, end = decode_set(command, 1)
    if command[:1] != CONFIGURATION or end != len(command) or voter_set.epoch < 1:
        raise ProtocolError("A configuration entry is malformed.")
    return voter_set


def majority(voters: frozenset[int]) -> int:
    return len(voters) // 2 + 1


def next_set(
    node_id: int,
    configured: frozenset[int],
    current: VoterSet,
    *,
    recorded: bool,
    committed: bool,
    configured_by_peer: Mapping[int, frozenset[int]],
    caught_up: frozenset[int],
    recovering: frozenset[int] = frozenset(),
) -> VoterSet | None:
    """The set that the leader `node_id` appends now, or None. It has committed an entry of its own
    term.

    `recorded`: whether `current` is in the log, `committed`: whether it is committed.
    `configured_by_peer`: the voters by the peers files of other nodes, as of their last handshake.
    `caught_up`: nodes that have all or nearly all of the leader's log. `recovering`: nodes that do
    not vote yet (voter_recovery.py).
    """
    if not recorded:
        return VoterSet(current.epoch + 1, current.voters)
    # Consecutive sets differ by one voter (I47).
    if not committed or len(configured ^ current.voters) != 1 or node_id not in configured:
        return None
    why = obstacle(
        node_id,
        configured,
        current,
        configured_by_peer=configured_by_peer,
        caught_up=caught_up,
        recovering=recovering,
    )
    if why is not None:
        return None
    return VoterSet(current.epoch + 1, configured)


def obstacle(
    node_id: int,
    configured: frozenset[int],
    current: VoterSet,
    *,
    configured_by_peer: Mapping[int, frozenset[int]],
    caught_up: frozenset[int],
    recovering: frozenset[int] = frozenset(),
) -> str | None:
    """Why a change by one voter must wait, so that the quorum stays available; None if it need not
    wait.

    A recovering node acknowledges entries, but does not vote. If its vote were needed, the restart
    of the leader would leave a quorum that can never elect another one.
    """
    agree = {
        node_id,
        *(peer for peer, theirs in configured_by_peer.items() if theirs == configured),
    }
    for new in configured - current.voters:
        if new not in agree:
            return f"node {new} does not use this file yet"
        if new not in caught_up:
            return f"node {new} has not copied the metadata yet"
        if new in recovering:
            return f"node {new} does not vote yet, it started with an empty log"
    for voters in (current.voters, configured):
        if len(voters - recovering) < majority(voters):
            return (
                f"of the voters {sorted(voters)}, {sorted(voters & recovering)} do not vote yet: "
                "they started with an empty log"
            )
        if len(agree & voters) < majority(voters):
            return (
                f"of the voters {sorted(voters)}, only {sorted(agree & voters)} run with "
                "this file; a majority must"
            )
    return None


def unreachable_by_one_step(configured: frozenset[int], committed: VoterSet) -> str | None:
    """Why the peers file has no effect on the voters, for the operator; None if it may have one."""
    if len(configured ^ committed.voters) <= 1:
        return None
    return (
        f"the peers file of this node names voters {sorted(configured)}; the quorum has committed "
        f"{committed}."
        " The file has no effect on the voters: add or remove one voter at a time "
        "(docs/OPERATIONS.md, Changing the voters)"
    )


def disagreement(us: int, ours: VoterView, them: int, theirs: VoterView) -> str | None:
    """Why node `us` and node `them` must not connect, with both sets and the remedy; None if they
    may.
    """
    files = (
        f"the peers file of node {us} names voters {sorted(ours.configured)}, the one of node "
        f"{them} names {sorted(theirs.configured)}"
    )
    both = (
        f"{files}; in force by the log of node {us} are {ours.current}, by that of node "
        f"{them} {theirs.current}"
    )
    if ours.current.epoch == theirs.current.epoch == 0 and (ours.configured, ours.current) != (
        theirs.configured,
        theirs.current,
    ):
        first_known = f"at first node {us} knew {ours.current}, node {them} {theirs.current}"
        return (
            f"{files}; {first_known}; no voter set is committed yet. Give all nodes the same peers "
            "file. Remove DATA/metadata of"
            " nodes that were started with another one and have never been part of the cluster"
        )
    if len(ours.configured ^ theirs.configured) > 1:
        return (
            f"{both}: files in use may differ by one voter. Change one voter at a time, "
            "and restart node by node"
        )
    for voter, view, other, other_view in (
        (us, ours, them, theirs),
        (them, theirs, us, ours),
    ):
        if voter in view.configured:
            continue
        if voter in other_view.configured:
            return (
                f"{both}: node {voter} is a voter by the file of node {other} and not by its "
                "own. Give both the same file;"
                " restart a new voter first, and one that is removed last"
            )
        if other_view.current.epoch and voter in other_view.current.voters and not view.intact:
            return (
                f"{both}: node {voter} starts with an empty log and is still a voter by the log of "
                f"node {other}."
                f" Set voter = true for node {voter} in all peers files until it has caught up"
            )
    return None
