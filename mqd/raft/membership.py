"""The voters as one node knows them: by its log, by its peers file, and by the files of other
nodes.

voters.py has the rules of a change; this file has their inputs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqd.raft.journal import Journal
from mqd.raft.voters import VoterSet, VoterView, next_set, obstacle, unreachable_by_one_step


class Membership:
    def __init__(self, node_id: int, configured: Iterable[int], journal: Journal) -> None:
        self._node_id = node_id
        self._journal = journal
        self.configured = frozenset(configured)
        """The voters in this node's peers file, as the operator wants them."""
        self._configured_by_peer: dict[int, frozenset[int]] = {}
        """The voters in the peers files of other nodes, as of their last handshake."""
        self.current = self._by_log()
        """The current voter set."""

    @property
    def voters(self) -> frozenset[int]:
        return self.current.voters

    @property
    def observing(self) -> bool:
        """Whether this node is no voter by its log: it never votes, becomes a candidate, or
        counts.
        """
        return self._node_id not in self.current.voters

    @property
    def matches_peers_file(self) -> bool:
        """Whether the log has the voter set of the peers file."""
        return self.configured == self.current.voters and self._journal.records_voters

    def refresh(self) -> bool:
        """Apply the voter set of the log. Returns whether it is another one."""
        found = self._by_log()
        if found == self.current:
            return False
        self.current = found
        return True

    def _by_log(self) -> VoterSet:
        """A node without a log and without a promise may have replied with a set of epoch 0. That
        set only keeps it from forming another cluster."""
        found = self._journal.voter_set
        if found is None or (found.epoch == 0 and not self._journal.intact):
            return VoterSet(0, self.configured)
        return found

    def keep_first_voters(self) -> None:
        """Store the peers file's voters as the set of epoch 0, before this node votes or
        replies.
        """
        if self._journal.voter_set is None:
            self._journal.set_first_voters(self.configured)

    def peer_configured(self, peer: int, configured: frozenset[int]) -> None:
        """The peers file of `peer` names these voters."""
        self._configured_by_peer[peer] = configured

    def may_be_voter(self, peer: int) -> bool:
        """Whether `peer` is a voter by the log, by this node's peers file or by its own."""
        if peer in self.current.voters or peer in self.configured:
            return True
        return peer in self._configured_by_peer.get(peer, ())

    def view(self, commit_index: int) -> VoterView:
        first = VoterSet(0, self.configured)
        current = self._journal.voter_set or first
        committed = self._journal.voter_set_at(commit_index) or first
        return VoterView(self.configured, current, committed, self._journal.intact)

    def next_set(
        self, commit_index: int, caught_up: frozenset[int], recovering: frozenset[int]
    ) -> VoterSet | None:
        """The next voter set that this node appends as leader, with a committed entry of its
        term.
        """
        return next_set(
            self._node_id,
            self.configured,
            self.current,
            recorded=self._journal.records_voters,
            committed=self._journal.voter_set_at(commit_index) == self.current,
            configured_by_peer=self._configured_by_peer,
            caught_up=caught_up,
            recovering=recovering,
        )

    def peers_file_problem(
        self,
        commit_index: int,
        *,
        leads: bool,
        caught_up: frozenset[int],
        recovering: frozenset[int],
    ) -> str | None:
        """Why the peers file has no effect on the voters, or has none yet."""
        committed = self.view(commit_index).committed
        if not committed.epoch or self.configured == self.current.voters:
            return None
        why = unreachable_by_one_step(self.configured, committed)
        if why is not None or not leads:
            return why
        why = obstacle(
            self._node_id,
            self.configured,
            self.current,
            configured_by_peer=self._configured_by_peer,
            caught_up=caught_up,
            recovering=recovering,
        )
        if why is None:
            return None
        new_voters = sorted(self.configured)
        return f"the change of the voters from {self.current} to {new_voters} waits: {why}"
