"""The state of a node that survives a restart (Raft, figure 2): its log, term and vote, and its
promises about the voters. In memory; journal.py writes it to disk. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from mqd.raft.codec import Entry
from mqd.raft.formats import QuorumState, Snapshot
from mqd.raft.raft_log import RaftLog
from mqd.raft.voters import Forced, VoterSet


class PersistentState(RaftLog):
    def __init__(
        self, state: QuorumState, base: Entry, entries: list[Entry], snapshot: Snapshot | None
    ) -> None:
        super().__init__(
            base,
            entries,
            snapshot_index=snapshot.index if snapshot is not None else base.index,
            snapshot_term=snapshot.term if snapshot is not None else base.term,
            snapshot_voters=snapshot.voters if snapshot is not None else None,
        )
        self._state = state
        self._state_dirty = False

    @property
    def term(self) -> int:
        """The highest term that this node knows: at least the last term in its log."""
        return max(self._state.term, self.last_term)

    @property
    def vote(self) -> int | None:
        """The node that this one voted for in `term`."""
        return self._state.vote if self._state.term == self.term else None

    @property
    def intact(self) -> bool:
        """False if this node started with an empty log and has not recovered: see
        voter_recovery.py.
        """
        return self._state.intact

    @property
    def metadata_version(self) -> int | None:
        """The highest finalized version that this node has ever applied (versions.py)."""
        return self._state.metadata_version

    def set_term(self, term: int, vote: int | None) -> None:
        assert term >= self.term, (term, self.term)
        self._change(term=term, vote=vote)

    def set_intact(self) -> None:
        """From now on this voter keeps every vote and entry (voter_recovery.py)."""
        self._change(intact=True)

    def set_metadata_version(self, version: int) -> None:
        """Raise the version. It never decreases (I49): after a restart earlier commands are applied
        again.
        """
        if version > (self._state.metadata_version or 0):
            self._change(metadata_version=version)

    # -- the voters

    @property
    def voter_set(self) -> VoterSet | None:
        """The latest voter set in the log, committed or not. None if this node has no set, and has
        not replied to another node (voters.py).
        """
        return self.voter_set_at(self.last_index)

    def voter_set_at(self, index: int) -> VoterSet | None:
        """The voter set at entry `index`, which is not before the snapshot."""
        logged = self.logged_voter_set(index)
        forced = self._state.forced
        if forced is not None and (logged is None or self.term_at(logged[0]) <= forced.term):
            return forced.voter_set
        if logged is not None:
            return logged[1]
        return VoterSet(0, self._state.voters) if self._state.voters is not None else None

    @property
    def records_voters(self) -> bool:
        """Whether the current voter set is in the log, and not only in the state of this node."""
        return bool(self._voter_sets) and self._voter_sets[-1][1] == self.voter_set

    def set_first_voters(self, voters: frozenset[int]) -> None:
        """Set the voter set of epoch 0, permanently."""
        assert self._state.voters is None, self._state.voters
        self._change(voters=voters)

    def force_voters(self, voters: frozenset[int]) -> VoterSet:
        """Put this set in force on behalf of an operator (voters.py)."""
        before = self.voter_set
        forced = Forced(VoterSet(before.epoch + 1 if before is not None else 1, voters), self.term)
        self._change(forced=forced, intact=True)
        return forced.voter_set

    def _voters_of_snapshot(self, index: int) -> VoterSet | None:
        """None until a set is in the log: the previous release cannot read such a snapshot, and may
        have to (I49).
        """
        voter_set = self.voter_set_at(index)
        return (
            voter_set
            if self._voter_sets and voter_set is not None and voter_set.epoch > 0
            else None
        )

    def _change(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        self._state_dirty = True
