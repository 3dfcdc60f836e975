"""Invariants of the voters' metadata logs (I11, I12; Ongaro, figure 3.2).

An entry is committed when the commit index of any voter has passed it. Every later leader must have
it, and every node must apply it.
"""

from __future__ import annotations

from typing import Any

from mqd.daemon import Daemon
from mqd.raft.machine import Role
from mqd.testing.probes.counts import Counts
from mqd.testing.violation import Violation


class QuorumProbe:
    """The metadata logs of the voters. `voters`: the ids that count for a majority."""

    def __init__(self, voters: tuple[int, ...], counts: Counts) -> None:
        self._voters = voters
        self._counts = counts
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) -> (command, term of the previous entry)."""
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.last: int = 1
        """The index of the newest committed entry. The first entry is the base of every journal."""
        self.journals: dict[int, Any] = {}
        """The newest journal object of each voter, also of ended processes."""
        self.kept: dict[int, int] = {}
        """Voter -> the index up to which former processes have synced entries of its journal. A new
        process does not know which entries are synced, and rewrites its journal. So it does not
        count these entries at once, although they are on disk.
        """
        self.states: dict[int, tuple[Any, ...]] = {}
        self.newest: dict[int, Any] = {}
        self.compared: dict[int, int] = {}
        """Node -> its commit index at the last check."""

    def begin_life(self, node_id: int) -> None:
        """A new process of this node runs."""
        self.newest.pop(node_id, None)
        self.states.pop(node_id, None)

    def look(self, node_id: int, daemon: Daemon) -> None:
        node, journal = daemon.raft._node, daemon.raft._journal
        if node is None or journal is None:
            return
        newest = journal.entries[-1]
        state = (
            node.term,
            node.role,
            node.commit_index,
            newest,
            journal.durable_index,
            node.applied_index,
        )
        if self.states.get(node_id) == state:
            return
        self.states[node_id] = state
        former = self.journals.get(node_id)
        if former is not None and former is not journal:
            self.kept[node_id] = max(self.kept.get(node_id, 0), former.durable_index)
        self.kept[node_id] = min(self.kept.get(node_id, 0), journal.last_index)
        self.journals[node_id] = journal
        if node.role is Role.LEADER and self.leaders.get(node.term) != node_id:
            if node.term in self.leaders:
                raise Violation(
                    f"I12 election safety: nodes {self.leaders[node.term]} and {node_id} "
                    f"both lead term {node.term}"
                )
            self.leaders[node.term] = node_id
            self._counts.elections += 1
            for index, (term, _) in self.committed.items():
                if index > journal.base_index and not journal.holds(index, term):
                    raise Violation(
                        f"I12 leader completeness: node {node_id} leads term {node.term} "
                        f"without entry {index} of term {term}"
                    )
        if newest is not self.newest.get(node_id):
            self._look_at_entries(node_id, journal)
        commit_index = node.commit_index
        for index in range(self.last + 1, commit_index + 1):
            self._commit(node_id, journal, index)
        for index in range(
            max(self.compared.get(node_id, 1), journal.base_index) + 1, commit_index + 1
        ):
            entry = journal.entries[index - journal.base_index]
            if self.committed[index] != (entry.term, entry.command):
                raise Violation(
                    f"I12 state machine safety: node {node_id} committed another command at {index}"
                )
        self.compared[node_id] = commit_index
        if node.applied_index > journal.durable_index:
            raise Violation(
                f"I11: node {node_id} applied {node.applied_index}, durable only to "
                f"{journal.durable_index}"
            )

    def _look_at_entries(self, node_id: int, journal: Any) -> None:
        entries, known = self.entries, self.newest.get(node_id)
        rows = journal.entries
        for position in range(len(rows) - 1, 0, -1):
            entry = rows[position]
            if entry is known:
                break
            fact = (entry.command, rows[position - 1].term)
            if entries.setdefault((entry.index, entry.term), fact) != fact:
                raise Violation(
                    f"I12 log matching: entry {entry.index} of term {entry.term} differs on "
                    f"node {node_id}"
                )
        self.newest[node_id] = rows[-1]

    def _commit(self, node_id: int, journal: Any, index: int) -> None:
        """Check a newly committed entry: a majority must have it on stable storage."""
        if index <= journal.base_index:
            raise Violation(
                f"I12: node {node_id} committed {index} by a snapshot; no voter had committed it"
            )
        entry = journal.entries[index - journal.base_index]
        copies = 0
        for voter in self._voters:
            copy = self.journals.get(voter)
            if copy is None:
                continue
            durable_index = max(copy.durable_index, self.kept.get(voter, 0))
            if durable_index >= index and (
                index <= copy.base_index or copy.holds(index, entry.term)
            ):
                copies += 1
        if copies * 2 <= len(self._voters):
            raise Violation(
                f"I11: node {node_id} commits {index} of term {entry.term} with {copies} "
                f"durable copies of {len(self._voters)}"
            )
        self.committed[index] = (entry.term, entry.command)
        self.last = index
