"""What must hold in the metadata log of the voters (I11, I12; Ongaro, figure 3.2).

What the commit index of any voter has passed is committed: every later leader has it, and every
node applies the same.
"""

from __future__ import annotations

from typing import Any

from mqd.daemon import Daemon
from mqd.raft.machine import Role
from mqd.testing.probes.counts import Counts
from mqd.testing.violation import Violation


class QuorumProbe:
    """The metadata log as the voters hold it. `voters` are the ids that count for a majority."""

    def __init__(self, voters: tuple[int, ...], counts: Counts) -> None:
        self._voters = voters
        self._counts = counts
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) -> command, term of the entry before."""
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.last: int = 1
        """Index of the newest committed entry. The first one is the base of every journal."""
        self.journals: dict[int, Any] = {}
        """The newest journal object of each voter, dead ones too."""
        self.kept: dict[int, int] = {}
        """Voter -> up to which index former processes had synced the entries that its journal still
        has. A new process cannot know what was synced and rewrites its journal, so it does not
        count these entries at once, although they are on the disk.
        """
        self.states: dict[int, tuple[Any, ...]] = {}
        self.newest: dict[int, Any] = {}
        self.compared: dict[int, int] = {}
        """Node -> its commit index when it was last compared."""

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
        """The first sight of a committed entry: a majority must have it on stable storage."""
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
